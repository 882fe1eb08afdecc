"""Identity: the digests, and whether the plan is one for the problem at hand."""

from __future__ import annotations

from cpipe.ir import Plan, Problem
from cpipe.plan.digest import plan_digest, problem_digest
from cpipe.plan.validate.report import Report

__all__ = ["PROVERS", "check_bound", "check_identity", "same_shape"]

PROVERS = ("bound", "highs", "cpsat")
"""What can prove a lower bound: a closed form, or one of two solvers."""


def check_identity(plan: Plan, problem: Problem | None, report: Report) -> None:
    """Check the digests, and the problem's summary in the plan field by field."""
    digest = plan_digest(plan)
    if plan.digest != digest:
        message = f"the plan was changed after it was made: its digest is {digest}, it says {plan.digest}"
        report.header("plan-digest", "$.digest", message)
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


def check_bound(plan: Plan, closed_bound_ns: int | None, report: Report) -> None:
    """Check the claimed lower bound: within the makespan, by a known prover, and what closed forms can prove."""
    claims = plan.claims
    if not 0 <= claims.lower_bound_ns <= claims.makespan_ns:
        message = f"lower bound {claims.lower_bound_ns} ns is not between 0 and the makespan {claims.makespan_ns} ns"
        report.header("bound", "$.claims.lower_bound_ns", message)
    if claims.proved_by not in PROVERS:
        message = f"expected one of {', '.join(PROVERS)}, got {claims.proved_by!r}"
        report.header("unknown-prover", "$.claims.proved_by", message)
    if claims.proved_by == "bound" and closed_bound_ns is not None and claims.lower_bound_ns > closed_bound_ns:
        message = f"closed forms prove no more than {closed_bound_ns} ns, the plan says {claims.lower_bound_ns} ns"
        report.header("bound-not-proved", "$.claims.lower_bound_ns", message)


def same_shape(plan: Plan, problem: Problem) -> bool:
    """Return whether the problem can be asked about the plan's ops at all."""
    shape = (problem.num_devices, problem.num_stages, problem.microbatches, problem.placement)
    summary = plan.problem
    return (summary.devices, summary.stages, summary.microbatches, summary.placement) == shape
