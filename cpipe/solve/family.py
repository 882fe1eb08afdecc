"""Search over the list-scheduler family: structured knob vectors, most promising first, then mutations of the best.

Work is counted in evaluations, never in seconds, so a result can be made again. The knobs barely depend on the number
of microbatches: a large problem is tuned at about three microbatches a device and the best vectors are applied to it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from cpipe.ir import Problem, Schedule
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve.chains import Chains
from cpipe.solve.greedy import NO_LIMIT, Knobs, ListScheduler
from cpipe.solve.merging import can_merge

__all__ = ["Candidate", "FamilySearch", "structured_knobs", "tune_and_apply"]

_RAMPS = (4, NO_LIMIT, 2, 3, 5, 1, 6, 0)  # weight lag of the last device, in quarters of what memory or depth allows
_PATIENCE = (1, 0, 2, 3, 4)  # in quarters of a W
_EXTRA = (0, NO_LIMIT, 1, 3, 4, 2, 6)  # in-flight activations beyond the depth of the stage
_LEADERS = ((0, 0, 0), (1, 1, 1), (2, 1, 0))  # ranks of (patience, ramp, depth): tight memory, ample memory, slow links
_MOST = 3_000  # evaluations on small problems
_KEPT = 8  # vectors that a small tuning hands to the large problem


class Candidate(NamedTuple):
    """An order, its replayed makespan [ns] and the knobs that made it."""

    makespan: int
    schedule: Schedule
    knobs: Knobs


class FamilySearch:
    """Evaluates knob vectors on one problem and keeps the best.

    Parameters
    ----------
    problem, simulator
        The problem and its simulator.
    target_ns
        Stop as soon as a makespan is at most this (a proven bound, or what the user accepts).
    budget
        Number of evaluations allowed.
    expired
        Asked before each evaluation; True ends the search (the user's own time limit).
    """

    def __init__(
        self,
        problem: Problem,
        simulator: Simulator,
        target_ns: int,
        budget: int,
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        self.problem = problem
        self.evaluations = 0
        self._simulator = simulator
        self._scheduler = ListScheduler(problem, simulator.tables)
        self._target = target_ns
        self._budget = budget
        self._expired = expired
        self._seen: dict[Knobs, int | None] = {}
        self.ranking: list[Candidate] = []

    @property
    def best(self) -> Candidate | None:
        """The best candidate so far."""
        return self.ranking[0] if self.ranking else None

    @property
    def done(self) -> bool:
        """Whether the target is met or the work is spent."""
        met = self.best is not None and self.best.makespan <= self._target
        return met or self.evaluations >= self._budget or self._expired()

    def evaluate(self, knobs: Knobs) -> int | None:
        """Return the replayed makespan of one greedy pass [ns], or None when it does not finish or fit."""
        if knobs in self._seen:
            return self._seen[knobs]
        self.evaluations += 1
        schedule = self._scheduler.run(knobs)
        makespan = None
        if schedule is not None and fits(self.problem, schedule.orders):
            makespan = self._simulator.value(schedule.orders)
            if makespan is not None:
                self._keep(Candidate(makespan, schedule, knobs))
        self._seen[knobs] = makespan
        return makespan

    def structured(self, vectors: Iterator[Knobs]) -> None:
        """Evaluate `vectors` in order until done."""
        for knobs in vectors:
            if self.done:
                return
            self.evaluate(knobs)

    def mutate(self, seed: int) -> None:
        """Climb from the best vector by random changes, sideways steps allowed, until done."""
        if self.best is None:
            return
        rng = random.Random(seed)
        current, value = self.best.knobs, self.best.makespan
        idle = 0
        while not self.done and idle < 20 * self._budget:
            changed = _mutated(current, self.problem, rng)
            known = changed in self._seen
            idle = idle + 1 if known else 0
            makespan = self.evaluate(changed)
            if makespan is not None and makespan <= value:
                current, value = changed, makespan

    def _keep(self, candidate: Candidate) -> None:
        self.ranking.append(candidate)
        self.ranking.sort(key=lambda kept: kept.makespan)  # stable: the first of equals stays first
        del self.ranking[_KEPT:]


def structured_knobs(problem: Problem) -> Iterator[Knobs]:
    """Yield the structured vectors of a problem, most promising first (smallest sum of ranks over the dimensions)."""
    chains = Chains(problem)
    modes, depths, lags = _backward_modes(problem), _depths(problem, chains), _lag_limits(problem)
    deep_first = (True, False) if problem.num_stages > problem.num_devices else (True,)
    sizes = (len(modes), len(_PATIENCE), len(_RAMPS), len(depths), len(deep_first))
    for mode, patience, ramp, depth, deep in sorted(itertools.product(*map(range, sizes)), key=_promise):
        quarters = _RAMPS[ramp]
        lag = tuple(NO_LIMIT if quarters == NO_LIMIT else quarters * limit // 4 for limit in lags)
        yield Knobs(lag, depths[depth], _PATIENCE[patience], modes[mode], deep_first[deep])


def _promise(ranks: Sequence[int]) -> tuple[int, int]:
    """Rank a combination: the leaders first, then by the sum of the ranks of its values."""
    mode, *steering, deep = ranks
    leader = _LEADERS.index(tuple(steering)) if tuple(steering) in _LEADERS else len(_LEADERS)
    return leader + mode + deep, mode + sum(steering) + deep


def tune_and_apply(
    problem: Problem, simulator: Simulator, target_ns: int, work: int, seed: int, expired: Callable[[], bool]
) -> FamilySearch:
    """Search the family within `work` op evaluations (one greedy pass over n ops costs n).

    Returns
    -------
    FamilySearch
        Its `best` is the result, or None when no pass finished.
    """
    num_ops = 3 * problem.num_stages * problem.microbatches
    budget = max(4, min(_MOST, work // num_ops))
    search = FamilySearch(problem, simulator, target_ns, budget, expired)
    small = 3 * problem.num_devices
    if budget < 150 and problem.microbatches > 2 * small:
        tuned = msgspec.structs.replace(problem, microbatches=small)
        tuning = FamilySearch(
            tuned,
            Simulator(tuned, simulator.objective),
            0,
            max(4, budget * problem.microbatches // small // 2),
            expired,
        )
        tuning.structured(structured_knobs(tuned))
        tuning.mutate(seed)
        search.evaluations = tuning.evaluations * small // problem.microbatches
        search.structured(candidate.knobs for candidate in tuning.ranking)
    search.structured(structured_knobs(problem))
    search.mutate(seed)
    return search


def _backward_modes(problem: Problem) -> list[tuple[bool, ...]]:
    """Per stage whether B runs: split wherever possible, and everything full if B is ever better."""
    split = tuple(not stage.can_split for stage in problem.stages)
    better = any(can_merge(problem, stage) for stage in problem.stages)
    full = (True,) * problem.num_stages
    return [split, full] if better and split != full else [split]


def _lag_limits(problem: Problem) -> list[int]:
    """Largest useful W backlog per device: a ramp from none on the first device to all that is in flight."""
    order = sorted(range(problem.num_devices), key=lambda device: min(problem.stages_of(device), default=0))
    rank = {device: index for index, device in enumerate(order)}
    limits = []
    for device, owner in enumerate(problem.devices):
        stages = problem.stages_of(device)
        room = owner.capacity_bytes
        largest = max((problem.stages[stage].activation_bytes for stage in stages), default=0)
        if room is None or largest == 0:
            live = 2 * problem.num_stages
        else:
            live = (room - sum(problem.stages[stage].static_bytes for stage in stages)) // largest
        live = min(live, len(stages) * problem.microbatches)
        limits.append(live * rank[device] // max(1, problem.num_devices - 1))
    return limits


def _depths(problem: Problem, chains: Chains) -> list[tuple[int, ...]]:
    """In-flight limits per device: 1F1B's depth, and what one round trip can hide, each with some extra."""
    depth, trip = [], []
    for device in range(problem.num_devices):
        stages = problem.stages_of(device)
        depth.append(sum(problem.num_stages - stage for stage in stages) if len(stages) == 1 else NO_LIMIT)
        load = sum(chains.forward[stage] + chains.backward[stage] for stage in stages)
        trip.append(sum(-(-chains.round_trip[stage] // max(1, load)) for stage in stages))
    limits: list[tuple[int, ...]] = []
    for extra in _EXTRA:
        for base in (depth, trip):
            limits.append(tuple(min(NO_LIMIT, value + extra) for value in base))
    limits.insert(1, (NO_LIMIT,) * problem.num_devices)
    return list(dict.fromkeys(limits))


def _mutated(knobs: Knobs, problem: Problem, rng: random.Random) -> Knobs:
    """Change one thing: a lag or an in-flight limit of one device or of a run of them, the patience, a mode."""
    choice = rng.randrange(10)
    if choice == 0:
        return knobs._replace(patience=rng.choice(_PATIENCE))
    if choice == 1:
        stage = rng.randrange(problem.num_stages)
        if problem.stages[stage].can_split:
            full = list(knobs.full_backward)
            full[stage] = not full[stage]
            return knobs._replace(full_backward=tuple(full))
    first = rng.randrange(problem.num_devices)
    last = min(problem.num_devices, first + (1 if rng.random() < 0.6 else rng.randrange(1, problem.num_devices + 1)))
    step = rng.choice((-2, -1, 1, 2))
    ceiling = problem.num_stages * problem.microbatches
    values = list(knobs.weight_lag if choice < 6 else knobs.in_flight)
    for device in range(first, last):
        values[device] = max(0 if choice < 6 else 1, min(values[device], ceiling) + step)
    return knobs._replace(weight_lag=tuple(values)) if choice < 6 else knobs._replace(in_flight=tuple(values))
