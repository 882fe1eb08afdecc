"""Identity: the digests, and whether the plan is one for the problem at hand."""

from __future__ import annotations

from cpipe.ir import Plan, Problem
from cpipe.plan.digest import plan_digest, problem_digest
from cpipe.plan.validate.report import Report

__all__ = ["check_identity", "same_shape"]


def check_identity(plan: Plan, problem: Problem | None, report: Report) -> None:
    """Check the digests, and the problem's summary in the plan field by field."""
    digest = plan_digest(plan)
    if plan.digest != digest:
        message = f"the plan was changed after it was made: its digest is {digest}, it says {plan.digest}"
        report.header("plan-digest", "$.digest", message)
    claims = plan.claims
    if not 0 <= claims.lower_bound_ns <= claims.makespan_ns:
        message = f"lower bound {claims.lower_bound_ns} ns is not between 0 and the makespan {claims.makespan_ns} ns"
        report.header("bound", "$.claims.lower_bound_ns", message)
    if problem is None:
        return
    expected = {
        "digest": problem_digest(problem),
        "name": problem.name,
        "devices": problem.num_devices,
        "stages": problem.num_stages,
        "microbatches": problem.microbatches,
        "placement": problem.placement,
    }
    for field, value in expected.items():
        stated = getattr(plan.problem, field)
        if stated != value:
            code = "problem-digest" if field == "digest" else "other-problem"
            report.header(code, f"$.problem.{field}", f"the problem has {value}, the plan is for {stated}")
    for place, program in enumerate(plan.ranks):
        if 0 <= program.rank < problem.num_devices and program.device != problem.devices[program.rank].name:
            message = f"rank {program.rank} is {program.device}, the problem has {problem.devices[program.rank].name}"
            report.rank("other-device", place, message)


def same_shape(plan: Plan, problem: Problem) -> bool:
    """Return whether the problem can be asked about the plan's ops at all."""
    shape = (problem.num_devices, problem.num_stages, problem.microbatches, problem.placement)
    summary = plan.problem
    return (summary.devices, summary.stages, summary.microbatches, summary.placement) == shape
