"""A plan's replay as the pictures show it."""

from __future__ import annotations

from cpipe.ir import Plan, Problem, Timeline
from cpipe.plan import lift, posting_gates, problem_digest
from cpipe.report.build_view import plan_view
from cpipe.report.figures import replay_figures
from cpipe.report.view import PlanView
from cpipe.sim import Runs, critical_path, memory_peaks

__all__ = ["replayed_view"]


def replayed_view(plan: Plan, problem: Problem, timeline: Timeline) -> PlanView:
    """Return the view of a plan on a problem.

    Parameters
    ----------
    plan
        A valid plan.
    problem
        What it is replayed on, under the plan's own placement.
    timeline
        Its replay there; see `cpipe.compiler.simulate_plan`.
    """
    schedule, _ = lift(plan)
    peaks = memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads)
    figures = list(replay_figures(plan, problem, schedule, timeline, peaks))
    same_job = problem_digest(problem) == plan.problem.digest
    path = critical_path(Runs(problem, schedule, timeline, posting_gates(plan)))
    figures = [figures[program.rank] for program in plan.ranks]  # of devices; the file may list ranks in any order
    return plan_view(plan, problem, timeline, figures, same_job=same_job, path=path)
