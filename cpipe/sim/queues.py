"""The general run of the engine: messages queue, receives are posted late, pipes are shared, collectives run.

Each (pipe, sender) has a queue; the head of a queue may leave once its receive is posted. A fused pair waits for both
of its inputs, and both outputs are ready at its end. The reduction over the copies of a stage is ready once all copies
have posted it, and holds the data-parallel links of all their devices; of what its lowest device has ready at the same
time it comes last, since that may post it later than its gradients are complete (`cpipe.plan.lower`). A pipe with one
sender serves its queue at once. A contended pipe is decided only when no device can go on: the head that is ready
first leaves, and nothing that is still to come can have been ready before it, since it depends on a message that
waits.
Copies to and from host memory concern one device alone: in each direction they run one after the other, as posted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cpipe.ir import CollectiveRun, Hop, Offload, OpKind
from cpipe.ir.ops import KINDS
from cpipe.sim.copies import Copies
from cpipe.sim.tables import NO_SLOT, Lane, Tables
from cpipe.sim.window import window_gates

__all__ = ["QueuedRun", "pair_lengths"]


class _Job(NamedTuple):
    """A message or a collective that waits for its pipes."""

    ready: int
    position: int  # program order on the sender: breaks ties
    slot: int  # fed by the job's arrival, or NO_SLOT
    pipes: tuple[int, ...]
    occupancy: int
    latency: int
    receiver: int
    collective: tuple[str, int] | None = None  # kind, stage


class QueuedRun:
    """One replay; use it once.

    Attributes
    ----------
    end, arrival, left
        By op id and by slot: end of the op, arrival of the input, start of the message's window [ns]; -1 if never.
    copies
        To and from host memory, by device; empty where nothing is offloaded.
    """

    def __init__(
        self,
        tables: Tables,
        orders: Sequence[Sequence[int]],
        gates: Mapping[int, int | tuple[int, ...]] | None,
        pairs: Sequence[tuple[int, int]] = (),
        offloads: Sequence[Offload] = (),
    ) -> None:
        problem = tables.problem
        self._partner = dict(pairs)
        self._fused = frozenset(self._partner.values())
        self.pair_lengths = pair_lengths(tables, pairs)
        self._tables = tables
        self._orders = orders
        if gates is None and problem.receive_window:
            gates = window_gates(tables, orders)
        self._gates: Mapping[int, int | tuple[int, ...]] = gates or {}
        self.end = [-1] * tables.size
        self.arrival = tables.opened()
        self.left = [-1] * tables.size
        num_devices = len(orders)
        self._free = [0] * (len(problem.pipes) + num_devices)  # the last P are the devices' data-parallel links
        self._lanes = [*tables.lanes, *(Lane(len(problem.pipes) + device, device) for device in range(num_devices))]
        self._posted: dict[int, list[tuple[int, int, int]]] = {}  # by first copy: device, position, ready of each post
        self._copy_lane = len(self._lanes)
        if len(problem.flows) > 1:
            for stage in range(problem.flow_length):
                device = min(tables.stage_device[copy] for copy in problem.copies_of(stage))
                self._lanes.append(Lane(len(problem.pipes) + device, device))
        self._queues: list[deque[_Job]] = [deque() for _ in self._lanes]
        shared_collectives = bool(problem.collectives and problem.collectives.pipes)
        self._contended = [tables.contended[lane.pipe] for lane in tables.lanes] + [shared_collectives] * num_devices
        self._contended += [True] * (len(self._lanes) - self._copy_lane)
        self._deciding = [index for index, contended in enumerate(self._contended) if contended]
        self._awaited = [NO_SLOT] * num_devices
        self._runnable = list(range(num_devices - 1, -1, -1))
        self._runs: list[CollectiveRun] = []
        self._opens: dict[int, set[int]] = {}
        self._copying = bool(offloads)
        self.copies: list[Copies] = []
        if offloads:
            self.copies = [Copies(tables, order, device, offloads) for device, order in enumerate(orders)]
        self._todo = self._prepare_stages()

    def run(self) -> int | None:
        """Return the makespan [ns], or None on a deadlock."""
        position = [0] * len(self._orders)
        clock = [0] * len(self._orders)
        while True:
            while self._runnable:
                self._advance(self._runnable.pop(), position, clock)
            if not self._serve_contended():
                break
        if any(position[device] < len(order) for device, order in enumerate(self._orders)):
            return None
        return max([0, *clock, *(run.end_ns for run in self._runs)])

    def collective_runs(self) -> tuple[CollectiveRun, ...]:
        """Return the collectives that ran, sorted by device and start, at one time the first served first."""
        return tuple(sorted(self._runs, key=lambda run: (run.device, run.start_ns)))

    def _prepare_stages(self) -> list[int]:
        """Gate every stage's first F on its all-gather; return after how many ops each stage is reduced."""
        tables, problem = self._tables, self._tables.problem
        n = tables.microbatches
        self._gathered = [0] * problem.num_stages  # when the stage's parameters are there, -1 if not yet
        collectives = problem.collectives
        if collectives is not None and collectives.mode == "zero1":
            self._gathered = [-1] * problem.num_stages
            for device, order in enumerate(self._orders):
                first = dict.fromkeys(op // KINDS // n for op in order if op % KINDS == OpKind.F)
                for rank, stage in enumerate(first):
                    job = self._collective("ALL_GATHER", stage, 0, rank - len(first))
                    self._enqueue(len(tables.lanes) + device, job)
        # W or B of every microbatch must have run before the stage's gradients are reduced
        return [n if collectives is not None else -1] * problem.num_stages

    def _collective(self, kind: str, stage: int, ready: int, position: int) -> _Job:
        costs = self._tables.problem.stages[stage]
        collectives = self._tables.problem.collectives
        assert collectives is not None
        own = len(self._tables.problem.pipes) + costs.device
        length = costs.all_gather_ns if kind == "ALL_GATHER" else costs.reduce_ns
        return _Job(ready, position, NO_SLOT, (own, *collectives.pipes), length, 0, costs.device, (kind, stage))

    def _advance(self, device: int, position: list[int], clock: list[int]) -> None:
        """Run the device until it waits or is done."""
        tables = self._tables
        order, now = self._orders[device], clock[device]
        for index in range(position[device], len(order)):
            op = order[index]
            if self._copying:
                now = self.copies[device].reach(index, now)
            slot = tables.slot[op]
            arrived = self.arrival[slot]
            stage = op // KINDS // tables.microbatches
            if arrived < 0 or self._gathered[stage] < 0:
                self._awaited[device] = slot if arrived < 0 else -2 - stage
                position[device] = index
                break
            if op in self._fused:
                continue
            partner = self._partner.get(op)
            if partner is None:
                if self._copying:
                    now = max(now, self.copies[device].needed(op))
                now = max(now, arrived, self._gathered[stage]) + tables.duration[op]
                self._finish(device, index, op, stage, now)
                continue
            other = tables.slot[partner]
            if self.arrival[other] < 0:
                self._awaited[device] = other
                position[device] = index
                break
            if self._copying:
                now = max(now, self.copies[device].needed(partner))
            now = max(now, arrived, self._gathered[stage], self.arrival[other]) + self.pair_lengths[op]
            self._finish(device, index, op, stage, now)
            self._finish(device, index + 1, partner, partner // KINDS // tables.microbatches, now)
        else:
            position[device] = len(order)
        clock[device] = now

    def _finish(self, device: int, index: int, op: int, stage: int, now: int) -> None:
        tables = self._tables
        self.end[op] = now
        if self._copying:
            self.copies[device].ended(op, now)
        kind = op % KINDS
        if kind == OpKind.D:
            self.arrival[op + 1] = now
        fed, hop = tables.target[op], tables.hop[op]
        if fed != NO_SLOT:
            if hop is None:
                self.arrival[fed] = now
            else:
                self._enqueue(tables.lane_of[Lane(hop.pipe, device)], _message(now, 2 * index, fed, hop))
        if kind in (OpKind.W, OpKind.B):
            self._todo[stage] -= 1
            if self._todo[stage] == 0:
                collectives = tables.problem.collectives
                assert collectives is not None
                name = "ALL_REDUCE" if collectives.mode == "ddp" else "REDUCE_SCATTER"
                if len(tables.problem.flows) > 1:
                    self._post_copy(device, stage, now, 2 * index + 1)
                else:
                    self._enqueue(len(tables.lanes) + device, self._collective(name, stage, now, 2 * index + 1))
        for lane in sorted(self._opens.pop(op, ())):
            self._serve(lane)

    def _post_copy(self, device: int, stage: int, ready: int, position: int) -> None:
        """Note that one copy's gradients are complete; the reduction is ready with the last of them."""
        problem = self._tables.problem
        copies = problem.copies_of(stage)
        posts = self._posted.setdefault(copies[0], [])
        posts.append((device, position, ready))
        if len(posts) == len(copies):
            links = tuple(len(problem.pipes) + member for member, *_ in sorted(posts))
            job = self._collective("ALL_REDUCE", copies[0], max(post[2] for post in posts), min(posts)[1])
            job = job._replace(
                position=job.position + 2 * self._tables.size,  # behind the messages
                pipes=links + (problem.collectives.pipes if problem.collectives else ()),
            )
            self._enqueue(self._copy_lane + copies[0], job)

    def _enqueue(self, lane: int, job: _Job) -> None:
        self._queues[lane].append(job)
        self._serve(lane)

    def _serve(self, lane: int) -> None:
        """Let everything leave that can, unless other senders have a say."""
        if not self._contended[lane]:
            while (ready := self._head_ready(lane)) is not None:
                self._leave(lane, ready)

    def _head_ready(self, lane: int) -> int | None:
        """Return when the head of the queue is ready, its gates open; None if there is none yet."""
        queue = self._queues[lane]
        if not queue:
            return None
        ready = queue[0].ready
        gates = self._gates.get(queue[0].slot, ())
        for gate in (gates,) if isinstance(gates, int) else gates:
            if self.end[gate] < 0:
                self._opens.setdefault(gate, set()).add(lane)
                return None
            ready = max(ready, self.end[gate])
        return ready

    def _serve_contended(self) -> bool:
        """Let the head that is ready first leave; ties go to the lower device, then to its program order."""
        best: tuple[int, int, int, int] | None = None
        for lane in self._deciding:
            ready = self._head_ready(lane)
            if ready is not None:
                key = (ready, self._lanes[lane].device, self._queues[lane][0].position, lane)
                best = key if best is None else min(best, key)
        if best is None:
            return False
        self._leave(best[3], best[0])
        return True

    def _leave(self, lane: int, ready: int) -> None:
        job = self._queues[lane].popleft()
        start = max(ready, *(self._free[pipe] for pipe in job.pipes))
        done = start + job.occupancy
        for pipe in job.pipes:
            self._free[pipe] = done
        if job.collective is not None:
            self._end_collective(job, start, done)
            return
        self.left[job.slot] = start
        self.arrival[job.slot] = done + job.latency
        if self._awaited[job.receiver] == job.slot:
            self._awaited[job.receiver] = NO_SLOT
            self._runnable.append(job.receiver)

    def _end_collective(self, job: _Job, start: int, done: int) -> None:
        assert job.collective is not None
        kind, stage = job.collective
        device = job.receiver
        for copy in self._tables.problem.copies_of(stage):
            home = self._tables.stage_device[copy]
            run = CollectiveRun(kind=kind, stage=copy, device=home, start_ns=start, end_ns=done)  # type: ignore[arg-type]
            self._runs.append(run)
        if kind == "ALL_GATHER":
            self._gathered[stage] = done
            if self._awaited[device] == -2 - stage:
                self._awaited[device] = NO_SLOT
                self._runnable.append(device)


def pair_lengths(tables: Tables, pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the duration [ns] of the pair that each op of a fused pair runs in, by op id."""
    per_stage = tables.microbatches * KINDS
    lengths: dict[int, int] = {}
    for forward, backward in pairs:
        lengths[forward] = lengths[backward] = tables.problem.pair_ns(forward // per_stage, backward // per_stage)
    return lengths


def _message(ready: int, position: int, slot: int, hop: Hop) -> _Job:
    return _Job(ready, position, slot, (hop.pipe,), hop.occupancy_ns, hop.latency_ns, hop.target)
