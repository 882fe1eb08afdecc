"""Start and end of every op, given an order per device.

The model: ``start(op) = max(end of the previous op on its device, arrival of its input)``. A fused pair is one op with
two inputs and two outputs. A message is ready when
its producer ends; it holds its pipe for ``occupancy_ns`` and arrives ``latency_ns`` after that; messages of one
sender on one pipe leave in its op order; a pipe with several senders serves the one that is ready first (ties:
lower device, then its own order). Copies to host memory and back delay the ops that wait for them, see
`cpipe.sim.copies`. Once the last device has finished, collectives included, all of them spend
``step_ns`` together, which counts in the makespan. Times follow from orders alone, so no clock drives the engine:
devices run ahead until they wait, and only a contended pipe has to see who is ready first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cpipe.ir import CollectiveRun, CopyRun, MessageRun, Objective, OpKind, Problem, Schedule, Timeline, decode_op
from cpipe.ir.ops import KINDS
from cpipe.sim.queues import QueuedRun, pair_lengths
from cpipe.sim.tables import NO_SLOT, Tables, slot_of

__all__ = ["BlockedOp", "DeadlockError", "Simulator", "simulate"]


class BlockedOp(NamedTuple):
    """An op that can never start: on which device, and what it waits for."""

    device: int
    op: str
    waits_for: str


class DeadlockError(ValueError):
    """The order cannot finish; `blocked` has the op at which each unfinished device stands."""

    def __init__(self, blocked: Sequence[BlockedOp]) -> None:
        self.blocked = tuple(blocked)
        story = "; ".join(f"device {block.device} at {block.op} waits for {block.waits_for}" for block in blocked)
        super().__init__(f"deadlock: {story}")


class Simulator:
    """Replays orders of one problem; build it once for many orders.

    Parameters
    ----------
    problem
        The problem.
    objective
        What `value` returns.

    Attributes
    ----------
    is_direct
        Whether no window, collective or shared pipe makes messages queue: then a run costs about a quarter.
    pace
        By op id: pipe, occupancy [ns], occupancy + latency [ns] and receiver of its message, or None.
    """

    def __init__(self, problem: Problem, objective: Objective = "makespan") -> None:
        self.problem = problem
        self.objective = objective
        self.tables = Tables(problem)
        self.is_direct = not (problem.receive_window or problem.collectives or any(self.tables.contended))
        self.pace = [
            (hop.pipe, hop.occupancy_ns, hop.latency_ns + hop.occupancy_ns, hop.target) if hop else None
            for hop in self.tables.hop
        ]

    def makespan(self, orders: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]] = ()) -> int | None:
        """Return the makespan [ns] of `orders` (length P, op ids), or None when they deadlock."""
        return self.replay(orders, pairs)[0]

    def value(self, orders: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]] = ()) -> int | None:
        """Return the objective of `orders` [ns], with their fused `pairs`, or None when they deadlock."""
        if self.objective == "makespan":
            return self.makespan(orders, pairs)
        return self.spans(orders, pairs)[0]

    def spans(
        self, orders: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]] = ()
    ) -> tuple[int | None, list[int]]:
        """Return the longest span of a device [ns], or None on a deadlock, and the end of every op (by op id).

        A device's span reaches from its first start to its last end, collectives included.
        """
        queued = None if self.is_direct and not pairs else QueuedRun(self.tables, orders, None, pairs)
        makespan, ends = self._run_direct(orders)[:2] if queued is None else (queued.run(), queued.end)
        if makespan is None:
            return None, ends
        duration, fused = self.tables.duration, queued.pair_lengths if queued is not None else {}
        whole = [
            (ends[order[0]] - fused.get(order[0], duration[order[0]]), ends[order[-1]]) if order else None
            for order in orders
        ]
        for run in queued.collective_runs() if queued is not None else ():
            first, last = whole[run.device] or (run.start_ns, run.end_ns)
            whole[run.device] = min(first, run.start_ns), max(last, run.end_ns)
        return max((span[1] - span[0] for span in whole if span is not None), default=0), ends

    def replay(
        self, orders: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]] = ()
    ) -> tuple[int | None, list[int], list[int]]:
        """Return makespan, end of every op (by op id) and arrival of every input (by slot) [ns]; -1 for never.

        The makespan is None when the orders deadlock.
        """
        if self.is_direct and not pairs:
            makespan, ends, arrivals = self._run_direct(orders)
        else:
            queued = QueuedRun(self.tables, orders, None, pairs)
            makespan, ends, arrivals = queued.run(), queued.end, queued.arrival
        return (None if makespan is None else makespan + self.problem.step_ns), ends, arrivals

    def run(self, schedule: Schedule, gates: Mapping[int, int | tuple[int, ...]] | None = None) -> Timeline:
        """Return the timeline of `schedule`; see `simulate`."""
        orders, pairs = schedule.orders, schedule.pairs
        copies: list[CopyRun] = []
        if self.is_direct and not gates and not pairs and not schedule.offloads:
            makespan, ends, arrivals = self._run_direct(orders)
            left = None
            collectives: tuple[CollectiveRun, ...] = ()
        else:
            queued = QueuedRun(self.tables, orders, gates, pairs, schedule.offloads)
            makespan, ends, arrivals, left = queued.run(), queued.end, queued.arrival, queued.left
            collectives = queued.collective_runs()
            copies = [run for own in queued.copies for run in own.runs]
        if makespan is None:
            raise DeadlockError(self._blocked(schedule, ends, arrivals))
        duration = self.tables.duration
        if pairs:
            duration = duration.copy()
            for op, length in pair_lengths(self.tables, pairs).items():
                duration[op] = length
        return Timeline(
            starts=tuple(tuple(ends[op] - duration[op] for op in order) for order in orders),
            ends=tuple(tuple(ends[op] for op in order) for order in orders),
            messages=self._messages(orders, ends, arrivals, left),
            collectives=collectives,
            copies=tuple(sorted(copies, key=_copy_place)),
            makespan_ns=makespan + self.problem.step_ns,
            step_ns=self.problem.step_ns,
        )

    def _run_direct(self, orders: Sequence[Sequence[int]]) -> tuple[int | None, list[int], list[int]]:
        """Run without gates, collectives and contended pipes: every message's window is known at once."""
        tables = self.tables
        duration, slot, target, pace = tables.duration, tables.slot, tables.target, self.pace
        end = [-1] * tables.size
        arrival = tables.opened()
        free = [0] * len(self.problem.pipes)
        position = [0] * len(orders)
        clock = [0] * len(orders)
        awaited = [NO_SLOT] * len(orders)
        runnable = list(range(len(orders) - 1, -1, -1))
        while runnable:
            device = runnable.pop()
            order = orders[device]
            now = clock[device]
            for index in range(position[device], len(order)):
                op = order[index]
                arrived = arrival[slot[op]]
                if arrived < 0:
                    awaited[device] = slot[op]
                    position[device] = index
                    break
                now = (arrived if arrived > now else now) + duration[op]
                end[op] = now
                if op & 3 == 1:  # D: its own W may run
                    arrival[op + 1] = now
                fed = target[op]
                if fed >= 0:
                    hop = pace[op]
                    if hop is None:
                        arrival[fed] = now
                    else:
                        pipe, occupancy, delay, receiver = hop
                        leave = free[pipe]
                        if leave < now:
                            leave = now
                        free[pipe] = leave + occupancy
                        arrival[fed] = leave + delay
                        if awaited[receiver] == fed:
                            awaited[receiver] = NO_SLOT
                            runnable.append(receiver)
            else:
                position[device] = len(order)
            clock[device] = now
        finished = all(position[device] == len(order) for device, order in enumerate(orders))
        return (max(clock, default=0) if finished else None), end, arrival

    def _messages(
        self,
        orders: Sequence[Sequence[int]],
        ends: Sequence[int],
        arrivals: Sequence[int],
        left: Sequence[int] | None,
    ) -> tuple[MessageRun, ...]:
        tables = self.tables
        runs = []
        for order in orders:
            for op in order:
                hop, fed = tables.hop[op], tables.target[op]
                if hop is None:
                    continue
                stage, microbatch = divmod(op // KINDS, tables.microbatches)
                start = left[fed] if left is not None else arrivals[fed] - hop.latency_ns - hop.occupancy_ns
                runs.append(
                    MessageRun(
                        kind="gradient" if op % KINDS else "activation",
                        stage=stage,
                        microbatch=microbatch,
                        source=hop.source,
                        target=hop.target,
                        pipe=hop.pipe,
                        ready_ns=ends[op],
                        start_ns=start,
                        end_ns=start + hop.occupancy_ns,
                        arrival_ns=arrivals[fed],
                    )
                )
        runs.sort(key=lambda run: (run.kind, run.stage, run.microbatch))
        return tuple(runs)

    def _blocked(self, schedule: Schedule, ends: Sequence[int], arrivals: Sequence[int]) -> list[BlockedOp]:
        n = self.tables.microbatches
        blocked = []
        for device, units in enumerate(schedule.units()):
            for unit in units:
                if ends[unit[0]] < 0:
                    missing = next((op for op in unit if arrivals[slot_of(op)] < 0), unit[0])
                    label = "+".join(str(decode_op(op, n)) for op in unit)
                    blocked.append(BlockedOp(device, label, self._need(missing)))
                    break
        return blocked

    def _need(self, op: int) -> str:
        n = self.tables.microbatches
        kind, stage, microbatch = decode_op(slot_of(op), n)
        placement = self.tables.stage_device
        if kind is OpKind.W:
            return f"{stage}D{microbatch} on its own device"
        if kind is OpKind.F:
            before = self.problem.previous_stage(stage)
            return "its all-gather" if before is None else f"{before}F{microbatch} on device {placement[before]}"
        after = self.problem.next_stage(stage)
        if after is None:
            return f"{stage}F{microbatch} on its own device"
        return f"{after}D{microbatch} or {after}B{microbatch} on device {placement[after]}"


def _copy_place(run: CopyRun) -> tuple[int, str, int, int, int, int]:
    return run.device, run.kind, run.start_ns, run.end_ns, run.stage, run.microbatch


def simulate(
    problem: Problem, schedule: Schedule, gates: Mapping[int, int | tuple[int, ...]] | None = None
) -> Timeline:
    """Replay a schedule.

    Parameters
    ----------
    problem
        What the ops cost and how the links behave; `receive_window` is obeyed.
    schedule
        The order of each device.
    gates
        When a receive or a send is posted, if it matters: maps the slot that a message feeds (the id of the F, or of
        the D even where B runs) to an op on the receiving or the sending device, or to several; the message leaves no
        earlier than they end.

    Returns
    -------
    Timeline
        Times [ns].

    Raises
    ------
    DeadlockError
        When the order cannot finish: the blocked op of every device, never a time.
    """
    return Simulator(problem).run(schedule, gates)
