"""Replay of one order after another that differ little: only what a change can touch is done again.

The engine executes *stretches*: a device runs ahead until it waits. A stretch depends on earlier ones only, so after a
change to one device's order everything before the stretch that holds the first changed place stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cpipe.sim.engine import Simulator
from cpipe.sim.tables import NO_SLOT

__all__ = ["Rerun", "Run", "Stretch"]


class Stretch(NamedTuple):
    """Places `begin` .. `stop` - 1 of a device's order, run without a wait for another device in between."""

    device: int
    begin: int
    stop: int


class Run(NamedTuple):
    """One finished replay: by op id the end of every op and by slot the arrival of its input [ns]; its stretches.

    Stretches are in an order in which everything comes after what it depends on.
    """

    end: list[int]
    arrival: list[int]
    stretches: list[Stretch]


class Rerun:
    """Replays orders of one problem whose messages never queue for windows, shared pipes or collectives.

    Parameters
    ----------
    simulator
        Of the problem; it must be `Simulator.is_direct`.

    Attributes
    ----------
    visits
        Number of ops replayed so far: what all of it cost.
    """

    def __init__(self, simulator: Simulator) -> None:
        assert simulator.is_direct, "queued messages need the general engine"
        tables = simulator.tables
        self.visits = 0
        self._tables = tables
        self._num_pipes = len(simulator.problem.pipes)
        self._pace = simulator.pace
        busy: list[set[int]] = [set() for _ in simulator.problem.devices]
        for hop in (*simulator.problem.forward_hops, *simulator.problem.backward_hops):
            if hop is not None and hop.occupancy_ns:
                busy[hop.source].add(hop.pipe)
        self._busy = busy  # per device: the pipes that its messages hold for a time
        self._blank = [-1] * tables.size
        self._opened = tables.opened()

    def run(self, orders: Sequence[Sequence[int]]) -> Run | None:
        """Replay `orders` from the start; None when they deadlock."""
        fresh = Run(self._blank.copy(), self._opened.copy(), [])
        return self._finish(orders, fresh, [0] * len(orders), [0] * self._num_pipes)

    def again(self, orders: Sequence[Sequence[int]], before: Run, device: int, place: int) -> Run | None:
        """Replay `orders`, which equal those of the run `before` except on `device` from `place` on.

        The orders hold the same ops. None when they deadlock.
        """
        stretches = before.stretches
        first = len(stretches) - 1  # changes are often near the end of what is timed
        while stretches[first].device != device or stretches[first].begin > place:
            first -= 1
        kept = stretches[:first]
        position = [0] * len(orders)
        missing = len(orders)
        for stretch in reversed(kept):
            if not position[stretch.device]:
                position[stretch.device] = stretch.stop
                missing -= 1
                if not missing:
                    break
        arrival = before.arrival.copy()
        self._forget(orders, position, arrival)
        return self._finish(
            orders, Run(before.end.copy(), arrival, kept), position, self.pipes(orders, position, arrival)
        )

    def _forget(self, orders: Sequence[Sequence[int]], position: Sequence[int], arrival: list[int]) -> None:
        """Take back what the ops from `position` on gave to others."""
        target = self._tables.target
        for order, place in zip(orders, position, strict=True):
            for op in order[place:]:
                if target[op] >= 0:
                    arrival[target[op]] = -1

    def pipes(self, orders: Sequence[Sequence[int]], position: Sequence[int], arrival: Sequence[int]) -> list[int]:
        """Return when each pipe is free after the ops before `position`."""
        free = [0] * self._num_pipes
        for order, place, pipes in zip(orders, position, self._busy, strict=True):
            missing = pipes.copy()
            while missing and place:
                place -= 1
                hop = self._pace[order[place]]
                if hop is not None and hop[0] in missing:
                    missing.remove(hop[0])
                    free[hop[0]] = arrival[self._tables.target[order[place]]] - hop[2] + hop[1]
        return free

    def _finish(self, orders: Sequence[Sequence[int]], run: Run, position: list[int], free: list[int]) -> Run | None:
        """Replay from `position` on; same rules as `Simulator`."""
        tables, pace = self._tables, self._pace
        duration, slot, target = tables.duration, tables.slot, tables.target
        end, arrival, stretches = run
        awaited = [NO_SLOT] * len(orders)
        runnable = list(range(len(orders) - 1, -1, -1))
        left = sum(map(len, orders)) - sum(position)
        self.visits += left
        while runnable:
            device = runnable.pop()
            order = orders[device]
            begin = index = position[device]
            now = end[order[index - 1]] if index else 0
            for index in range(begin, len(order)):
                op = order[index]
                kind = op & 3
                if kind != 2:  # the input of a W comes from its own device, before it in the order
                    arrived = arrival[slot[op]]
                    if arrived < 0:
                        awaited[device] = slot[op]
                        break
                    if arrived > now:
                        now = arrived
                now += duration[op]
                end[op] = now
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
                index = len(order)
            if index > begin:
                stretches.append(Stretch(device, begin, index))
                position[device] = index
                left -= index - begin
        return None if left else run
