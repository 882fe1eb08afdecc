"""Timed orders of a local search: one interface for problems that replay directly and for those that need queues."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cpipe.ir.ops import KINDS
from cpipe.sim import Simulator
from cpipe.sim.queues import QueuedRun
from cpipe.sim.rerun import Rerun, Run

__all__ = ["NO_WAY", "QUEUED_COST", "Frontier", "Replays", "Timed"]

QUEUED_COST = 4
"""How much dearer a replay is when messages queue for windows, shared pipes or collectives."""

NO_WAY = -(1 << 60)
"""Tail of what leads nowhere."""

Orders = Sequence[Sequence[int]]


class Timed:
    """A replayed order.

    Attributes
    ----------
    value
        Its objective [ns].
    end, arrival
        By op id and by slot [ns].
    tail
        By slot: from the start of the op that reads it to the end of everything [ns]; see `Replays.measure`.
    onward
        By op id: from the op's end to the end of everything by way of its message (or reduction), `NO_WAY` if none.
    sink
        By device: what follows its last op [ns]. With the span as objective it starts when the device does.
    """

    __slots__ = ("arrival", "end", "extra", "onward", "run", "sink", "tail", "value")

    def __init__(self, value: int, end: list[int], arrival: list[int], sink: list[int]) -> None:
        self.value = value
        self.end = end
        self.arrival = arrival
        self.sink = sink
        self.run: Run | None = None
        self.extra: dict[int, int] = {}  # op -> from its end to the end of the reduction that it releases
        self.tail: list[int] = []
        self.onward: list[int] = []


class Frontier(NamedTuple):
    """Where a replay ends early: what follows of ops that stay as they are, which is exact whatever came before.

    Attributes
    ----------
    begin, stop
        Per device: the first place that may change, and the first that is not replayed.
    following
        Per device: from the end of its last op that is replayed to the end of everything [ns].
    crossing
        Slots that ops before `stop` feed and ops behind it read.
    tail
        By slot, as in `Timed`.
    link
        Per pipe: from when it is free behind the last message that is replayed to the end of everything [ns].
    """

    begin: list[int]
    stop: list[int]
    following: list[int]
    crossing: list[int]
    tail: list[int]
    link: list[int]


class Replays:
    """Times the orders of one problem.

    Parameters
    ----------
    simulator
        Of the problem; its objective counts.

    Attributes
    ----------
    visits
        Ops replayed or measured so far, those of a general run counted `QUEUED_COST` times.
    frontier
        Where replays end; the orders that are timed must end there too. None to time all.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._tables = simulator.tables
        self._rerun = Rerun(simulator) if simulator.is_direct else None
        self._spans = simulator.objective == "span"
        self._queued_visits = 0
        self._measured = 0
        self.frontier: Frontier | None = None

    @property
    def visits(self) -> int:
        """Ops replayed and measured so far."""
        return self._queued_visits + self._measured + (self._rerun.visits if self._rerun is not None else 0)

    def start(self, orders: Orders) -> Timed | None:
        """Return the times of `orders`, or None when they deadlock."""
        if self._rerun is None:
            return self._queued(orders)
        return self._timed(orders, self._rerun.run(orders))

    def change(self, orders: Orders, before: Timed, device: int, place: int) -> Timed | None:
        """Return the times of `orders`, which differ from those of `before` on `device` from `place` on."""
        if self._rerun is None or before.run is None:
            return self.start(orders)
        return self._timed(orders, self._rerun.again(orders, before.run, device, place))

    def _timed(self, orders: Orders, run: Run | None) -> Timed | None:
        if run is None:
            return None
        end, sink = run.end, [0] * len(orders)
        if self._spans:
            duration = self._tables.duration
            sink = [duration[order[0]] - end[order[0]] if order else 0 for order in orders]
        if self.frontier is not None:
            sink = self.frontier.following
        value = max((end[order[-1]] + sink[device] for device, order in enumerate(orders) if order), default=0)
        if self.frontier is not None:
            value = max(value, self._behind(self.frontier, run, orders))
        timed = Timed(value, end, run.arrival, sink)
        timed.run = run
        return timed

    def _behind(self, frontier: Frontier, run: Run, orders: Orders) -> int:
        """Return when everything ends [ns] by way of the messages that cross `frontier`, and of those that follow."""
        assert self._rerun is not None
        arrival, tail = run.arrival, frontier.tail
        value = max((arrival[slot] + tail[slot] for slot in frontier.crossing), default=0)
        free = self._rerun.pipes(orders, [len(order) for order in orders], arrival)
        return max(value, *map(sum, zip(free, frontier.link, strict=True)), 0)

    def cut(self, orders: Orders, timed: Timed, begin_ns: int, stop_ns: int) -> Frontier:
        """Return the frontier of a measured run of whole orders behind the ops that end by `stop_ns`.

        Those that end by `begin_ns` are not meant to change.
        """
        end, target, pace, slot = timed.end, self._tables.target, self._simulator.pace, self._tables.slot
        begin = [bisect_right(order, begin_ns, key=end.__getitem__) for order in orders]
        stop = [bisect_right(order, stop_ns, key=end.__getitem__) for order in orders]
        following, link = timed.sink.copy(), [NO_WAY] * len(self._simulator.problem.pipes)
        unread: set[int] = set()
        for device, (order, place) in enumerate(zip(orders, stop, strict=True)):
            if place < len(order):
                following[device] = timed.tail[slot[order[place]]]
            for op in order[place:]:
                unread.add(slot[op])
                hop = pace[op]
                if hop is not None and hop[1] and link[hop[0]] == NO_WAY:
                    link[hop[0]] = timed.onward[op]
        fed = [target[op] for order, place in zip(orders, stop, strict=True) for op in order[:place]]
        crossing = [read for read in fed if read in unread]
        return Frontier(begin, stop, following, crossing, timed.tail, link)

    def _queued(self, orders: Orders) -> Timed | None:
        queued = QueuedRun(self._tables, orders, None)
        value = queued.run()
        self._queued_visits += QUEUED_COST * sum(map(len, orders))
        if value is None:
            return None
        runs = queued.collective_runs()
        end, sink = queued.end, [0] * len(orders)
        if self._spans:
            duration = self._tables.duration
            begin = [end[order[0]] - duration[order[0]] if order else 0 for order in orders]
            for run in runs:
                begin[run.device] = min(begin[run.device], run.start_ns)
            sink = [-start for start in begin]
            last = [end[order[-1]] if order else 0 for order in orders]
            for run in runs:
                last[run.device] = max(last[run.device], run.end_ns)
            value = max(map(sum, zip(last, sink, strict=True)), default=0)
        timed = Timed(value, end, queued.arrival, sink)
        n = self._tables.microbatches
        reduced = {run.stage: run.end_ns for run in runs if run.kind != "ALL_GATHER"}
        for order in orders if reduced else ():
            for op in order:
                if op % KINDS >= 2:  # the last W or B of a stage releases its reduction
                    timed.extra[op // KINDS // n] = op
        timed.extra = {op: reduced[stage] - end[op] for stage, op in timed.extra.items() if stage in reduced}
        return timed

    def measure(self, orders: Orders, timed: Timed) -> None:
        """Work out the tails of a run: what follows each op in its device's order, and by its message.

        Messages that stand behind one another on a pipe count too; those of several senders do not.
        """
        tables = self._tables
        duration, slot, target = tables.duration, tables.slot, tables.target
        pace = self._simulator.pace
        frontier = self.frontier
        tail = [0] * tables.size if frontier is None else frontier.tail.copy()
        onward = [NO_WAY] * tables.size
        end, arrival = timed.end, timed.arrival
        following = timed.sink.copy()
        link = [NO_WAY] * len(self._simulator.problem.pipes) if frontier is None else frontier.link.copy()
        queued = timed.run is None
        self._measured += sum(map(len, orders)) - (sum(frontier.begin) if frontier is not None else 0)
        for device, ops in self._backwards(orders, timed):
            after = following[device]
            for op in ops:
                fed = target[op]
                if fed >= 0:
                    hop = pace[op]
                    if hop is not None:
                        pipe, occupancy, delay, _ = hop
                        way = tail[fed] + (arrival[fed] - end[op] if queued else delay)
                        if occupancy and not queued:
                            behind = link[pipe] + occupancy
                            if behind > way:
                                way = behind
                            link[pipe] = way
                        onward[op] = way
                        if way > after:
                            after = way
                if op in timed.extra:
                    ending = timed.extra[op] + timed.sink[device]
                    onward[op] = max(onward[op], ending)
                    after = max(after, ending)
                after += duration[op]
                tail[slot[op]] = after
            following[device] = after
        timed.tail, timed.onward = tail, onward

    def _backwards(self, orders: Orders, timed: Timed) -> Iterator[tuple[int, Iterable[int]]]:
        """Yield (device, ops), last ops first; of a general run in order of their ends, which is all that it tells."""
        if timed.run is not None:
            first = self.frontier.begin if self.frontier is not None else [0] * len(orders)
            missing = sum(len(order) > place for order, place in zip(orders, first, strict=True))
            for device, begin, stop in reversed(timed.run.stretches):
                if stop > first[device]:
                    yield device, reversed(orders[device][begin:stop])
                    missing -= begin <= first[device]
                    if not missing:
                        return
            return
        end = timed.end
        ops = [(op, device) for device, order in enumerate(orders) for op in order]
        ops.sort(key=lambda entry: end[entry[0]])
        for op, device in reversed(ops):
            yield device, (op,)
