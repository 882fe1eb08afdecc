"""Start and end of every op, given an order per device.

The model: ``start(op) = max(end of the previous op on its device, arrival of its input)``. A message is ready when
its producer ends; it holds its pipe for ``occupancy_ns`` and arrives ``latency_ns`` after that; messages of one
sender on one pipe leave in its op order; a pipe with several senders serves the one that is ready first (ties:
lower device, then its own order). Times follow from orders alone, so no clock drives the engine: devices run ahead
until they wait, and only a contended pipe has to see who is ready first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cpipe.ir import CollectiveRun, MessageRun, OpKind, Problem, Schedule, Timeline, decode_op
from cpipe.ir.ops import KINDS
from cpipe.sim.queues import QueuedRun
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

    Attributes
    ----------
    is_direct
        Whether no window, collective or shared pipe makes messages queue: then a run costs about a quarter.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.tables = Tables(problem)
        self.is_direct = not (problem.receive_window or problem.collectives or any(self.tables.contended))
        self._pace = [
            (hop.pipe, hop.occupancy_ns, hop.latency_ns + hop.occupancy_ns, hop.target) if hop else None
            for hop in self.tables.hop
        ]

    def makespan(self, orders: Sequence[Sequence[int]]) -> int | None:
        """Return the makespan [ns] of `orders` (length P, op ids), or None when they deadlock."""
        return self.replay(orders)[0]

    def replay(self, orders: Sequence[Sequence[int]]) -> tuple[int | None, list[int], list[int]]:
        """Return makespan, end of every op (by op id) and arrival of every input (by slot) [ns]; -1 for never.

        The makespan is None when the orders deadlock.
        """
        if self.is_direct:
            return self._run_direct(orders)
        queued = QueuedRun(self.tables, orders, None)
        return queued.run(), queued.end, queued.arrival

    def run(self, schedule: Schedule, gates: Mapping[int, int | tuple[int, ...]] | None = None) -> Timeline:
        """Return the timeline of `schedule`; see `simulate`."""
        orders = schedule.orders
        if self.is_direct and not gates:
            makespan, ends, arrivals = self._run_direct(orders)
            left = None
            collectives: tuple[CollectiveRun, ...] = ()
        else:
            queued = QueuedRun(self.tables, orders, gates)
            makespan, ends, arrivals, left = queued.run(), queued.end, queued.arrival, queued.left
            collectives = queued.collective_runs()
        if makespan is None:
            raise DeadlockError(self._blocked(orders, ends, arrivals))
        duration = self.tables.duration
        return Timeline(
            starts=tuple(tuple(ends[op] - duration[op] for op in order) for order in orders),
            ends=tuple(tuple(ends[op] for op in order) for order in orders),
            messages=self._messages(orders, ends, arrivals, left),
            collectives=collectives,
            makespan_ns=makespan,
        )

    def _run_direct(self, orders: Sequence[Sequence[int]]) -> tuple[int | None, list[int], list[int]]:
        """Run without gates, collectives and contended pipes: every message's window is known at once."""
        tables = self.tables
        duration, slot, target, pace = tables.duration, tables.slot, tables.target, self._pace
        n = tables.microbatches
        end = [-1] * tables.size
        arrival = [-1] * tables.size
        arrival[0 : n * KINDS : KINDS] = [0] * n
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

    def _blocked(
        self, orders: Sequence[Sequence[int]], ends: Sequence[int], arrivals: Sequence[int]
    ) -> list[BlockedOp]:
        blocked = []
        for device, order in enumerate(orders):
            for op in order:
                if ends[op] < 0:
                    blocked.append(BlockedOp(device, str(decode_op(op, self.tables.microbatches)), self._need(op)))
                    break
        return blocked

    def _need(self, op: int) -> str:
        n = self.tables.microbatches
        kind, stage, microbatch = decode_op(slot_of(op), n)
        placement = self.tables.stage_device
        if kind is OpKind.W:
            return f"{stage}D{microbatch} on its own device"
        if kind is OpKind.F:
            return f"{stage - 1}F{microbatch} on device {placement[stage - 1]}" if stage else "its all-gather"
        if stage == len(placement) - 1:
            return f"{stage}F{microbatch} on its own device"
        return f"{stage + 1}D{microbatch} or {stage + 1}B{microbatch} on device {placement[stage + 1]}"


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
