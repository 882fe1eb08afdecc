"""The bound by contradiction: deadlines that no schedule can meet.

For a deadline T, `cpipe.solve.windows` derives what every schedule of at most T must obey. Where that contradicts
itself there is no such schedule, and the makespan is at least T + 1. The largest such T is looked for by bisection
(destructive improvement, Klein and Scholl 1999); it need not be the largest that there is: every refutation holds
on its own. What is known under a longer deadline is kept for the shorter ones.

Where that is not enough, *shaving* asks for one pair of ops after the other what would follow if the second went
first (Martin and Shmoys 1996; Carlier and Pinson 1994): what contradicts itself is ruled out, and its opposite kept.

Everything stops by counted work.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from cpipe.ir import Bound, Problem
from cpipe.solve.series import build_series
from cpipe.solve.windows import RefutedError, Windows

__all__ = ["MAX_SHAVING_WORK", "MAX_WORK", "raised_bound", "tightened_bound"]

MAX_WORK = 150_000
"""Relations looked at, `SeriesModel.num_relations` a round: less than a second."""

MAX_SHAVING_WORK = 600_000
"""The same for shaving: a few seconds."""

_LEAST_SHAVING_ROUNDS = 100  # as below, for shaving
_PROBE_ROUNDS = 4  # of one pair
_MANY_DEADLINES = 64  # more, between bound and makespan, and shaving has not been seen to close the gap ...
_WORK_ON_MANY = 60_000  # ... but in the smallest problems
_LEAST_ROUNDS = 10  # a problem for which the work does not suffice for so many rounds is left as it is
_MAX_ROUNDS = 8  # most refutations take one or two rounds; a deadline that stands after so many is not pursued
_FIRST_STEP = 64  # the first deadline above a refuted one is longer by this share of it


def raised_bound(problem: Problem, known: Bound, max_work: int = MAX_WORK) -> Bound:
    """Return a bound of at least `known`.

    Parameters
    ----------
    problem
        The problem.
    known
        A bound that holds.
    max_work
        Relations to look at before it stops.

    Returns
    -------
    Bound
        `known` itself where nothing longer is refuted, where the problem is too large, or not plain.
    """
    if not problem.is_plain:  # several flows and fused pairs have no series
        return known
    model = build_series(problem)
    if _LEAST_ROUNDS * model.num_relations > max_work:
        return known
    search = _Refutation(Windows(model), max_work)
    search.raise_from(-(-known.value_ns // model.unit_ns) - 1)
    return search.bound(known)


def tightened_bound(problem: Problem, known: Bound, makespan_ns: int, max_work: int = MAX_SHAVING_WORK) -> Bound:
    """Return a bound of at least `known` and at most `makespan_ns`, with shaving.

    First it tries to show that nothing is below `makespan_ns`; with the rest of the work it bisects. Where very many
    deadlines lie between the two the gap is not closed like this, and only small problems are tried at all.

    Parameters
    ----------
    problem
        The problem.
    known
        A bound that holds.
    makespan_ns
        What some schedule reaches: nothing longer is looked at.
    max_work
        Relations to look at before it stops.

    Returns
    -------
    Bound
        `known` itself where nothing longer is refuted, where the problem is too large, or not plain.
    """
    if known.value_ns >= makespan_ns or not problem.is_plain:
        return known
    model = build_series(problem)
    least, reached = -(-known.value_ns // model.unit_ns), -(-makespan_ns // model.unit_ns)
    if reached - least > _MANY_DEADLINES:
        max_work = min(max_work, _WORK_ON_MANY)
    if _LEAST_SHAVING_ROUNDS * model.num_relations > max_work:
        return known
    search = _Refutation(Windows(model), max_work)
    search.refuted = least - 1
    search.shave_between(reached)
    return search.bound(known)


class _Refutation:
    """Deadlines tried so far, and the work that is left.

    Attributes
    ----------
    windows
        What is known under the shortest deadline that was not refuted.
    refuted
        The longest deadline that was.
    """

    def __init__(self, windows: Windows, work: int) -> None:
        self.windows, self.work = windows, work
        self.cost = windows.model.num_relations
        self.refuted = -1
        self._resource: int | None = None

    def bound(self, known: Bound) -> Bound:
        """Return the bound that follows, or `known` if that is no worse."""
        model = self.windows.model
        value = (self.refuted + 1) * model.unit_ns
        if self._resource is None or value <= known.value_ns:
            return known
        name = model.names[self._resource]
        return Bound(value_ns=value, reason=f"no shorter order fits work, memory and messages at {name}")

    def raise_from(self, refuted: int) -> None:
        """Look for the longest deadline that can be refuted, from one on that is: by growing steps, then bisection."""
        longest = self.windows.model.serial_length()
        low, high, step = refuted, longest + 1, max(1, refuted // _FIRST_STEP)
        deadline = refuted + 1
        while self.work > 0 and low < deadline < high:
            if self._settle(self.windows.copy(), deadline, _MAX_ROUNDS):
                low = deadline
            else:
                high = deadline
            deadline = min((low + high) // 2, low + step)
            step *= 2
        # where even the longest schedule is refuted nothing fits, and no bound means anything
        self.refuted = low if low < longest else refuted

    def shave_between(self, high: int) -> None:
        """Shave the last deadline before `high`, with most of the work, then bisect, each with half of what is left."""
        if high - self.refuted > 1:
            if self._shave(high - 1, self.work * 4 // 5):
                self.refuted = high - 1
            else:
                high -= 1
        while self.work > self.cost and high - self.refuted > 1:
            deadline = (self.refuted + high) // 2
            if self._shave(deadline, self.work // 2):
                self.refuted = deadline
            else:
                high = deadline

    def _settle(self, windows: Windows, deadline: int, rounds: int) -> bool:
        """Settle some windows; return whether the deadline is refuted, and if not keep them."""
        refuted = self._contradicts(windows, deadline, rounds)
        if not refuted:
            self.windows = windows
        return refuted

    def _contradicts(self, windows: Windows, deadline: int, rounds: int) -> bool:
        try:
            windows.settle(deadline, max(1, min(rounds, self.work // self.cost)))
        except RefutedError as contradiction:
            self._resource = contradiction.resource
            return True
        finally:
            self.work -= self.cost * windows.rounds
        return False

    def _shave(self, deadline: int, work: int) -> bool:
        """Return whether a deadline is refuted, by at most so much work."""
        if self._settle(self.windows.copy(), deadline, _MAX_ROUNDS):
            return True
        least = self.work - work
        progress = True
        while progress:
            progress = False
            for first, second in self._pairs():
                if self.work <= least:
                    return False
                if not self.windows.may_precede(first, second):
                    continue
                trial = self.windows.copy()
                trial.order(first, second)
                if self._contradicts(trial, deadline, _PROBE_ROUNDS):
                    progress = True
                    trial = self.windows.copy()
                    trial.order(second, first)
                    if self._settle(trial, deadline, _MAX_ROUNDS):
                        return True
        return False

    def _pairs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Return pairs of ops of one resource, the first that need not come before the second; the tightest first."""
        return sorted(self._open(), key=lambda pair: -self.windows.span(*pair))

    def _open(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        model = self.windows.model
        for members in model.resources:
            for one, other in permutations(members, 2):
                for microbatch in range(model.microbatches):
                    count = self.windows.next_open(one, microbatch, other)
                    if count < model.microbatches:
                        yield (other, count), (one, microbatch)
