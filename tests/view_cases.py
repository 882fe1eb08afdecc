"""Views of plans for the tests of pictures: small jobs replayed, random ones, and names that want to break out."""

from __future__ import annotations

from random import Random

from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from random_plans import draw_problem, draw_schedule
from sample_plans import make_problem, one_f_one_b

from cpipe.ir import Plan, Problem, Schedule
from cpipe.plan import posting_gates
from cpipe.report.build_view import plan_view
from cpipe.report.figures import replay_figures
from cpipe.report.view import PlanView
from cpipe.sim import Runs, critical_path, memory_peaks, simulate

__all__ = ["NASTY", "alone", "random_views", "replayed", "small_plan", "small_view", "with_names"]

NASTY = (
    "</script><script>alert(1)</script>",
    "\"quoted\" & 'quoted' <b>",
    "ノード é \u2028 \x1b[31m",
    "<!--<script>]]>${x}`\\",
)
"""Names of devices that would do harm, or look odd, where they are not escaped."""


def replayed(problem: Problem, schedule: Schedule, plan: Plan | None = None, *, same_job: bool = True) -> PlanView:
    """Return the view of the plan of a schedule, replayed on `problem`."""
    if plan is None:
        plan = plan_of(problem, schedule)
        assert_plan_ok(plan, problem)
    gates = posting_gates(plan)
    timeline = simulate(problem, schedule, gates)
    figures = replay_figures(plan, problem, schedule, timeline, memory_peaks(problem, schedule.orders, schedule.pairs))
    path = critical_path(Runs(problem, schedule, timeline, gates))
    return plan_view(plan, problem, timeline, figures, same_job=same_job, path=path)


def alone(problem: Problem, schedule: Schedule) -> PlanView:
    """Return the view of the plan of a schedule, without a profile."""
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    return plan_view(plan)


def small_plan(num_devices: int = 2, microbatches: int = 3, *, split: bool = True, latency_ms: int = 1) -> Plan:
    """Return 1F1B with real messages."""
    problem = make_problem(num_devices, microbatches, latency_ms=latency_ms)
    return plan_of(problem, one_f_one_b(problem, split=split))


def small_view(
    num_devices: int = 2, microbatches: int = 3, *, split: bool = True, latency_ms: int = 1, capacity: int | None = None
) -> PlanView:
    """Return the replayed view of 1F1B."""
    problem = make_problem(num_devices, microbatches, latency_ms=latency_ms, capacity_bytes=capacity)
    return replayed(problem, one_f_one_b(problem, split=split))


def with_names(names: tuple[str, ...] = NASTY, name: str = NASTY[0]) -> PlanView:
    """Return a replayed view whose devices, links and job have these names."""
    problem = make_problem(len(names), 3, latency_ms=1, names=names)
    problem = replace(problem, name=name, pipes=tuple(f"{name} {pipe}" for pipe in problem.pipes))
    return replayed(problem, one_f_one_b(problem, split=True))


def random_views(count: int, seed: int = 0) -> list[PlanView]:
    """Return replayed views of random jobs: shared pipes, odd placements, zero durations, collectives."""
    views = []
    for number in range(count):
        draw = Random(f"{seed}-{number}")
        problem = draw_problem(draw, windows=False)
        views.append(replayed(problem, draw_schedule(draw, problem)))
    return views
