"""Pipeline or data parallelism across a slow link: which is faster at which bandwidth (CrossPipe, section 5.2).

Both sides have the same devices, half of them in each of two sites, and train the same microbatches. Either the
pipeline is laid across the link, and all replicas' activations and gradients cross it; or each site has whole pipelines
for half of the replicas, and what crosses is one all-reduce of the gradients between the two sites,
``2 alpha + 2 N beta`` for N parameters of two bytes (appendix E). What the replicas inside a site exchange is left out
on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from cpipe.ir import Collectives, Problem, Schedule, SolveResult
from cpipe.ir.crossing import Crossing, Crossover, LinkPoint, Rival, Side
from cpipe.sim import simulate
from cpipe.solve import SolveLimits, solve
from cpipe.study.sites import TwoSites

__all__ = ["CROSSOVER_METHODS", "crossover"]

CROSSOVER_METHODS = ("greedy", "greedy-crosspipe", "auto")

Progress = Callable[[str], None]


class _Found(NamedTuple):
    """An order that was found for one variant (a placement) of one side."""

    variant: int
    schedule: Schedule
    found_by: str


def crossover(
    jobs: Sequence[TwoSites],
    bandwidths: Sequence[float],
    *,
    method: str = "greedy",
    refinements: int = 4,
    seed: int = 0,
    progress: Progress = lambda line: None,
) -> Crossover:
    """Return both sides at every bandwidth, and where the faster one changes.

    Every order that is found counts at every bandwidth, so that no curve rises with it. A change of sides between two
    neighbours is narrowed by halving, with a search at each new bandwidth.

    Parameters
    ----------
    jobs
        The same job in one or more placements, of which each side takes the best.
    bandwidths
        Of the link [Gbit/s], positive.
    method
        One of `CROSSOVER_METHODS`.
    refinements
        Halvings of each change of sides, >= 0.
    seed
        Of every random choice.
    progress
        Called with a line before each search.

    Raises
    ------
    InfeasibleError
        When not even one microbatch fits.
    """
    study = _Study(jobs, method, seed, progress)
    grid = sorted(set(bandwidths))
    for gbit_s in grid:
        study.solve_at(gbit_s)
    rivals: tuple[Rival, ...] = ("overlapped", "plain")
    for rival in rivals:
        for low, high in list(_changes(study.points(grid), rival)):
            grid = sorted({*grid, *study.narrow(low.gbit_s, high.gbit_s, rival, refinements)})
    points = study.points(grid)
    return Crossover(
        name=jobs[0].name,
        num_devices=study.local[0].num_devices,
        num_stages=study.local[0].num_stages,
        microbatches=study.local[0].microbatches,
        message_bytes=max(job.message_bytes for job in jobs),
        gradient_bytes=jobs[0].gradient_bytes,
        latency_ns=jobs[0].latency_ns,
        ideal_ns=min(map(_ideal, study.local)),
        local=study.local_side(),
        points=points,
        crossings=tuple(_crossing(low, high, rival) for rival in rivals for low, high in _changes(points, rival)),
        num_solves=study.num_solves,
    )


class _Study:
    """Orders that were found so far, and their times at any bandwidth."""

    def __init__(self, jobs: Sequence[TwoSites], method: str, seed: int, progress: Progress) -> None:
        self.jobs, self.method, self.progress = jobs, method, progress
        self.limits = SolveLimits(node_limit=0, seed=seed)
        self.num_solves = 0
        self.local = [job.local_problem() for job in jobs]
        self._pipelines: list[_Found] = []
        self._locals: list[_Found] = []
        self._bounds: dict[tuple[float, int], int] = {}
        self._times: dict[tuple[str, float, int], int] = {}
        results = [self._search(problem, variant, self._locals) for variant, problem in enumerate(self.local)]
        self._best_variant = min(range(len(results)), key=lambda variant: results[variant].makespan_ns)
        self._local_best = results[self._best_variant]
        for variant in range(len(jobs)):  # an order for no delay may be good where there is little
            self._pipelines += [found for found in self._locals if found.variant == variant]

    def local_side(self) -> Side:
        """Return the schedule without delay."""
        best = self._local_best
        bound = min(best.bound.value_ns, best.makespan_ns)
        return Side(makespan_ns=best.makespan_ns, bound_ns=bound, found_by=best.found_by)

    def solve_at(self, gbit_s: float) -> None:
        """Search on both sides at a bandwidth."""
        for variant, job in enumerate(self.jobs):
            self.progress(f"pipeline across sites at {gbit_s:g} Gbit/s")
            result = self._search(job.pipeline_problem(gbit_s), variant, self._pipelines)
            self._bounds[gbit_s, variant] = result.bound.value_ns
            self.progress(f"all-reduce across sites at {gbit_s:g} Gbit/s")
            self._search(self._reducing(variant, gbit_s), variant, self._locals)

    def points(self, grid: Sequence[float]) -> tuple[LinkPoint, ...]:
        """Return the best of all orders at each bandwidth."""
        return tuple(self._point(gbit_s) for gbit_s in grid)

    def narrow(self, low: float, high: float, rival: Rival, times: int) -> Iterator[float]:
        """Yield the bandwidths solved to halve the interval `times` times, over its logarithm."""
        first = self._point(low).ahead_ns(rival) > 0
        for _ in range(times):
            middle = float(f"{math.sqrt(low * high):.6g}")
            if not low < middle < high:
                return
            self.solve_at(middle)
            yield middle
            if (self._point(middle).ahead_ns(rival) > 0) == first:
                low = middle
            else:
                high = middle

    def _search(self, problem: Problem, variant: int, found: list[_Found]) -> SolveResult:
        self.num_solves += 1
        starts = [entry.schedule for entry in found if entry.variant == variant]
        result = solve(problem, self.method, self.limits, starts=starts)
        if all(entry.schedule != result.schedule for entry in found if entry.variant == variant):
            found.append(_Found(variant, result.schedule, result.found_by))
        return result

    def _point(self, gbit_s: float) -> LinkPoint:
        job, local = self.jobs[self._best_variant], self.local_side()
        # stage by stage, so that the whole and its parts are rounded alike
        added = 2 * job.latency_ns + sum(job.reduce_ns(gbit_s, size) for size in job.stage_gradient_bytes)
        plain = Side(makespan_ns=local.makespan_ns + added, bound_ns=local.bound_ns + added, found_by=local.found_by)
        pipeline = self._best("pipeline", self._pipelines, gbit_s)
        overlapped = self._best("overlapped", self._locals, gbit_s)
        bounds = [self._bounds.get((gbit_s, variant), 0) for variant in range(len(self.jobs))]
        return LinkPoint(
            gbit_s=gbit_s,
            pipeline=Side(makespan_ns=pipeline[0], bound_ns=min(*bounds, pipeline[0]), found_by=pipeline[1]),
            overlapped=Side(
                makespan_ns=overlapped[0], bound_ns=min(local.bound_ns, overlapped[0]), found_by=overlapped[1]
            ),
            plain=plain,
        )

    def _best(self, side: str, found: Sequence[_Found], gbit_s: float) -> tuple[int, str]:
        times = [(self._time(side, number, entry, gbit_s), number) for number, entry in enumerate(found)]
        makespan, number = min(times)
        return makespan, found[number].found_by

    def _time(self, side: str, number: int, entry: _Found, gbit_s: float) -> int:
        key = (side, gbit_s, number)
        if key not in self._times:
            job = self.jobs[entry.variant]
            if side == "pipeline":
                time = simulate(job.pipeline_problem(gbit_s), entry.schedule).makespan_ns
            else:
                time = _reduced(self._reducing(entry.variant, gbit_s), entry.schedule, 2 * job.latency_ns)
            self._times[key] = time
        return self._times[key]

    def _reducing(self, variant: int, gbit_s: float) -> Problem:
        """Return a site's pipeline whose all-reduces take turns on the link: what holds it, without the latency."""
        local, job = self.local[variant], self.jobs[variant]
        stages = tuple(
            replace(stage, reduce_ns=job.reduce_ns(gbit_s, size))
            for stage, size in zip(local.stages, job.stage_gradient_bytes, strict=True)
        )
        collectives = Collectives(mode="ddp", replicas=2, pipes=(len(local.pipes),))
        return replace(local, stages=stages, collectives=collectives, pipes=(*local.pipes, "between sites"))


def _reduced(problem: Problem, schedule: Schedule, tail: int) -> int:
    """Return when the last all-reduce has arrived, `tail` [ns] after it left the link, and all is computed."""
    timeline = simulate(problem, schedule)
    compute = max((ends[-1] for ends in timeline.ends if ends), default=0)
    return max(compute, max(run.end_ns for run in timeline.collectives) + tail)


def _ideal(problem: Problem) -> int:
    """Return what the busiest device computes, its backwards split where that is possible [ns]."""
    work = [0] * problem.num_devices
    for stage in problem.stages:
        split = stage.input_grad_ns + stage.weight_grad_ns
        backward = min(split, stage.full_backward_ns) if stage.can_split else stage.full_backward_ns
        work[stage.device] += problem.microbatches * (stage.forward_ns + backward)
    return max(work)


def _changes(points: Sequence[LinkPoint], rival: Rival) -> Iterator[tuple[LinkPoint, LinkPoint]]:
    """Yield neighbours between which the faster side changes; a tie counts for data parallelism."""
    for low, high in pairwise(points):
        if (low.ahead_ns(rival) > 0) != (high.ahead_ns(rival) > 0):
            yield low, high


def _crossing(low: LinkPoint, high: LinkPoint, rival: Rival) -> Crossing:
    first, second = low.ahead_ns(rival), high.ahead_ns(rival)
    share = first / (first - second)
    return Crossing(
        rival=rival,
        below="pipeline" if first > 0 else "data-parallel",
        low_gbit_s=low.gbit_s,
        high_gbit_s=high.gbit_s,
        gbit_s=low.gbit_s * (high.gbit_s / low.gbit_s) ** share,
    )
