"""Which stages recompute: what the user asks for, or a search by counted work over the stages that offer it.

Recomputing costs time and saves memory, so a stage whose device could keep everything never does. Of the others all
choices are tried where they are few; else a greedy search flips devices and stages, those first whose memory is the
scarcest. A choice is judged by a quick look at the problem that it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from cpipe.compiler.options import SolveOptions
from cpipe.errors import InfeasibleError, UsageError
from cpipe.ir import Bound, Objective, Problem, Schedule
from cpipe.profile import Profile
from cpipe.profile.memory import everything_bytes, receive_bytes
from cpipe.profile.recompute import offers
from cpipe.solve import SolveLimits
from cpipe.solve.bounds import lower_bound, span_bound
from cpipe.solve.quick import quick_order

__all__ = ["Choice", "Ranked", "asked_choice", "closed_bound", "least_bound", "rank_choices", "worth_it"]

_LOOKS = 40  # choices looked at
_FEW = 5  # stages of which every combination is tried
_FEW_BOUNDS = 4  # stages of which every combination is bounded

Choice = tuple[int, ...]
"""Stages that recompute, in flow order."""


class Ranked(NamedTuple):
    """A choice, the best order of a quick look at it, and its objective [ns]."""

    value: int
    choice: Choice
    schedule: Schedule


def asked_choice(profile: Profile, asked: str, flows: int) -> Choice | None:
    """Return the stages that `asked` names (of all flows); None is ``auto`` where stages offer it.

    Raises
    ------
    UsageError
        When `asked` is neither a word that is known nor a list of stages that offer it.
    """
    size, offered = len(profile.stages), offers(profile)
    if asked == "auto":
        return None if offered else ()
    if asked in ("none", "all"):
        wanted = set(offered if asked == "all" else ())
    else:
        words = [word.strip() for word in asked.split(",")]
        if not all(word.isascii() and word.isdigit() for word in words):
            message = f"recompute: expected auto, none, all or stage numbers like 0,3,5, got {asked!r}"
            raise UsageError(message, code="recompute-choice")
        wanted = {int(word) for word in words}
        if wrong := sorted(stage for stage in wanted if stage >= size):
            message = f"recompute: expected stages below {size}, got {wrong[0]}"
            raise UsageError(message, code="recompute-choice")
    return tuple(sorted(stage + flow * size for stage in wanted for flow in range(flows)))


def closed_bound(problem: Problem, objective: Objective) -> Bound:
    """Return what closed forms prove of the objective."""
    return span_bound(problem) if objective == "span" else lower_bound(problem)


def worth_it(problem: Problem, profile: Profile) -> Choice:
    """Return the stages that offer to recompute on devices that cannot keep everything, scarcest memory first.

    Scarce is memory that holds few microbatches of all that the device may keep. `problem` is the profile's with no
    choice taken.
    """
    scarcity: dict[int, float] = {}
    for index, device in enumerate(problem.devices):
        stages = problem.stages_of(index)
        if device.capacity_bytes is None or not stages:
            continue
        once = sum(everything_bytes(problem.stages[stage]) for stage in stages) + receive_bytes(problem, index)
        room = device.capacity_bytes - sum(problem.stages[stage].static_bytes for stage in stages)
        if room < problem.microbatches * once:
            scarcity[index] = room / once
    size, offered = len(profile.stages), offers(profile)
    scarce = [index for index, stage in enumerate(problem.stages) if stage.device in scarcity]
    kept = [stage for stage in scarce if stage % size in offered]
    return tuple(sorted(kept, key=lambda stage: (scarcity[problem.stages[stage].device], stage)))


def _all_choices(stages: Sequence[int]) -> Iterator[Choice] | None:
    """Yield every choice of `stages`, those of few stages first; None where they are too many to try."""
    if len(stages) > _FEW:
        return None
    return (tuple(sorted(some)) for count in range(len(stages) + 1) for some in combinations(stages, count))


def rank_choices(
    problem_of: Callable[[Choice], Problem],
    stages: Choice,
    options: SolveOptions,
    limits: SolveLimits,
    starts: Sequence[Schedule] = (),
) -> list[Ranked]:
    """Return the choices that were looked at and fit, the best first; of equals the one of fewer stages.

    Parameters
    ----------
    problem_of
        The problem of a choice.
    stages
        Those that may recompute, as `worth_it` returns them.
    options, limits
        Method, objective, seed and when to stop.
    starts
        Orders known of the problem with no choice taken.
    """
    search = _Search(problem_of, options, limits, starts)
    every = _all_choices(stages)
    if every is None:
        search.climb(stages)
    else:
        for choice in every:
            search.look(choice)
    return sorted(search.found.values(), key=_rank)


def least_bound(
    problem_of: Callable[[Choice], Problem], stages: Choice, known: Mapping[Choice, int], objective: Objective
) -> int | None:
    """Return the smallest bound [ns] of all choices; None where they are too many to ask.

    Parameters
    ----------
    problem_of, stages
        As for `rank_choices`: stages that are not in `stages` gain nothing by recomputing.
    known
        Bounds [ns] that searches have proved already.
    objective
        What is bounded.
    """
    if len(stages) > _FEW_BOUNDS:
        return None
    found: list[int] = []
    for choice in _all_choices(stages) or ():
        try:
            found.append(known[choice] if choice in known else closed_bound(problem_of(choice), objective).value_ns)
        except InfeasibleError:
            continue  # no schedule, whatever its length
    return min(found, default=None)


class _Search:
    """One search over choices."""

    def __init__(
        self,
        problem_of: Callable[[Choice], Problem],
        options: SolveOptions,
        limits: SolveLimits,
        starts: Sequence[Schedule],
    ) -> None:
        self.found: dict[Choice, Ranked] = {}
        self._seen: set[Choice] = set()
        self._problem_of, self._options, self._limits = problem_of, options, limits
        self._starts = tuple(starts)

    def look(self, choice: Choice) -> Ranked | None:
        """Look at a choice, once, while there is work left; None when it does not fit."""
        if choice not in self._seen and not self._spent:
            self._seen.add(choice)
            try:
                problem = self._problem_of(choice)
            except InfeasibleError:
                return None
            options, best = self._options, min(self.found.values(), key=_rank, default=None)
            found = quick_order(
                problem,
                options.method,
                options.objective,
                starts=self._starts if best is None else (*self._starts, best.schedule),
                seed=options.seed,
                group_size=options.group_size,
                expired=self._expired,
            )
            if found is not None:
                self.found[choice] = Ranked(found[0], choice, found[1])
        return self.found.get(choice)

    def climb(self, stages: Choice) -> None:
        """Flip devices and single stages as long as that helps, from the better of all and none."""
        for start in ((), tuple(sorted(stages))):
            self.look(start)
        current = min(self.found.values(), key=_rank, default=None)
        if current is None:
            return
        moves = self._moves(self._problem_of(current.choice), stages)
        waiting = len(moves)
        while waiting and not self._spent:
            for move in moves:
                waiting -= 1
                taken = set(current.choice)
                changed = taken - move if move <= taken else taken | move
                other = self.look(tuple(sorted(changed)))
                if other is not None and _rank(other) < _rank(current):
                    current, waiting = other, len(moves)
                if not waiting:
                    break

    @staticmethod
    def _moves(problem: Problem, stages: Choice) -> list[set[int]]:
        """Return what is flipped at once: the stages of a device together, then each alone."""
        devices = list(dict.fromkeys(problem.stages[stage].device for stage in stages))
        groups = [{stage for stage in stages if problem.stages[stage].device == device} for device in devices]
        return [*groups, *({stage} for stage in stages if {stage} not in groups)]

    @property
    def _spent(self) -> bool:
        return len(self._seen) >= _LOOKS or self._expired()

    def _expired(self) -> bool:
        clock, stop = self._limits.time_limit, self._limits.stop
        return (clock is not None and clock.remaining_s == 0) or (stop is not None and stop.requested)


def _rank(ranked: Ranked) -> tuple[int, int, Choice]:
    return ranked.value, len(ranked.choice), ranked.choice
