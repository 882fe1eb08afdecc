"""When a resource is free of a growing set of ops, and when memory is free for one more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from cpipe.solve.series import SeriesModel
from cpipe.solve.staircases import Staircase

__all__ = ["Busy", "Releases", "Room", "memory_plan"]


class Busy:
    """How long what must come before the ops of a series keeps their resource busy.

    The stretches in which it is busy without a pause follow from heads and durations, whatever the order; the end of
    the last one is when the resource is free at the earliest.

    Parameters
    ----------
    own
        Heads of the series itself, of which all earlier ops come first, and their duration.
    others
        Per other series of the resource: staircase, heads, duration.
    """

    def __init__(self, own: tuple[Sequence[int], int], others: Sequence[tuple[Staircase, Sequence[int], int]]) -> None:
        self._own, self._duration = own
        self._others = others
        self._counts = [0] * len(others)
        self._starts: list[int] = []
        self._ends: list[int] = []

    def advance(self, microbatch: int) -> int:
        """Return when all that comes before op `microbatch` has left; to be called for 0, 1, 2, ..."""
        if microbatch:
            self._add(self._own[microbatch - 1], self._duration)
        counts = self._counts
        for row, (steps, heads, duration) in enumerate(self._others):
            count = steps[microbatch]
            if count > counts[row]:
                for m in range(counts[row], count):
                    self._add(heads[m], duration)
                counts[row] = count
        return self._ends[-1] if self._ends else 0

    def _add(self, head: int, duration: int) -> None:
        starts, ends = self._starts, self._ends
        if not ends or head > ends[-1]:
            starts.append(head)
            ends.append(head + duration)
            return
        index = bisect_right(starts, head) - 1
        if index >= 0 and ends[index] >= head:
            ends[index] += duration
        else:
            index += 1
            starts.insert(index, head)
            ends.insert(index, head + duration)
        while index + 1 < len(starts) and starts[index + 1] <= ends[index]:
            ends[index] += ends[index + 1] - starts[index + 1]
            del starts[index + 1], ends[index + 1]


class Room:
    """The memory of one device: what its series hold, and how much there is.

    Attributes
    ----------
    openers, closers
        Series that begin and that end a holding.
    holdings
        (size, position of its opener, position of its closer).
    """

    def __init__(self, model: SeriesModel, resource: int, room: int) -> None:
        holdings = model.holdings[resource]
        self.room = room
        self.openers = list(dict.fromkeys(holding.opens for holding in holdings))
        self.closers = list(dict.fromkeys(holding.closes for holding in holdings))
        self.holdings = [(one.size, self.openers.index(one.opens), self.closers.index(one.closes)) for one in holdings]
        self._ended_by = [
            [(size, opens) for size, opens, closes in self.holdings if closes == index]
            for index in range(len(self.closers))
        ]
        self._begun_by = [
            [(size, closes) for size, opens, closes in self.holdings if opens == index]
            for index in range(len(self.openers))
        ]

    def level(self, opened: Sequence[int], closed: Sequence[int]) -> int:
        """Return the bytes held when so many of each opener have started and of each closer have ended."""
        level = 0
        for size, opens, closes in self.holdings:
            if opened[opens] > closed[closes]:
                level += size * (opened[opens] - closed[closes])
        return level

    def fewest_closed(self, opened: Sequence[int], closed: Sequence[int], index: int, least: int, spare: int) -> int:
        """Return how many of closer `index` must have ended, at least `least`, if of the others `closed` have.

        `spare` is what is free [bytes] when `closed` of all have ended.
        """
        most = closed[index]
        if most <= least:
            return least
        mine = [(opened[opens], size) for size, opens in self._ended_by[index]]
        count = min(most, max(mine)[0])
        while count > least:
            for have, size in mine:
                if have >= count:
                    spare -= size
            if spare < 0:
                return count
            count -= 1
        return least

    def most_opened(self, opened: Sequence[int], closed: Sequence[int], index: int, most: int, spare: int) -> int:
        """Return how many of opener `index` may have started, at most `most`; the rest as in `fewest_closed`."""
        if most <= opened[index]:
            return most
        mine = [(closed[closes], size) for size, closes in self._begun_by[index]]
        count = max(opened[index], min(mine)[0])
        while count < most:
            for have, size in mine:
                if have <= count:
                    spare -= size
            if spare < 0:
                return count
            count += 1
        return most


Counts = tuple[list[int], list[int]]
"""Of each opener at least so many have started before an op; of each closer at most so many have ended."""


def memory_plan(room: Room, before: Sequence[dict[int, Staircase]], series: int, n: int) -> list[Counts]:
    """Return, per op of a series, what must have been allocated and what may have been freed when it starts."""
    openers = [None if one == series else before[series][one] for one in room.openers]
    closers = [None if one == series else before[one][series] for one in room.closers]
    possible = [0] * len(closers)
    plan: list[Counts] = []
    for microbatch in range(n):
        opened = [microbatch + 1 if steps is None else steps[microbatch] for steps in openers]
        for index, behind in enumerate(closers):
            if behind is None:
                possible[index] = microbatch
                continue
            count = possible[index]
            while count < n and behind[count] <= microbatch:
                count += 1
            possible[index] = count
        plan.append((opened, list(possible)))
    return plan


class Releases:
    """Earliest moments at which the ops of a series find room, given when what they wait for can end.

    Parameters
    ----------
    room
        The device's memory; `need` of it are taken while an op runs, beyond what it holds.
    plan
        Of `memory_plan`.
    closers
        Heads and duration of each closer.
    """

    def __init__(
        self, room: Room, need: int, plan: Sequence[Counts], closers: Sequence[tuple[Sequence[int], int]]
    ) -> None:
        self._room, self._limit = room, room.room - need
        self._plan, self._closers = plan, closers
        self._ended = [0] * len(closers)

    def advance(self, microbatch: int, start: int) -> int:
        """Return the first moment from `start` on at which op `microbatch` fits; to be called for 0, 1, 2, ..."""
        opened, possible = self._plan[microbatch]
        room, ended, limit = self._room, self._ended, self._limit
        if room.level(opened, ended) <= limit:
            return start
        for index, (heads, duration) in enumerate(self._closers):
            while ended[index] < possible[index] and heads[ended[index]] + duration <= start:
                ended[index] += 1
        while room.level(opened, ended) > limit:
            start, index = min(
                (heads[ended[index]] + duration, index)
                for index, (heads, duration) in enumerate(self._closers)
                if ended[index] < possible[index]
            )
            ended[index] += 1
        return start
