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
        "flows": len(problem.flows),
        "recompute": tuple(index for index, stage in enumerate(problem.stages) if stage.recomputes),
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
    """Check the claimed lower bound: within the objective, by a known prover, and what closed forms can prove."""
    claims = plan.claims
    reached = claims.makespan_ns if claims.objective == "makespan" else claims.span_ns
    if reached is None:
        report.header("no-span", "$.claims.objective", "the objective is the span, and the plan claims no span_ns")
    elif not 0 <= claims.lower_bound_ns <= reached:
        message = f"lower bound {claims.lower_bound_ns} ns is not between 0 and the {claims.objective} {reached} ns"
        report.header("bound", "$.claims.lower_bound_ns", message)
    if claims.proved_by not in PROVERS:
        message = f"expected one of {', '.join(PROVERS)}, got {claims.proved_by!r}"
        report.header("unknown-prover", "$.claims.proved_by", message)
    if claims.proved_by == "bound" and closed_bound_ns is not None and claims.lower_bound_ns > closed_bound_ns:
        message = f"closed forms prove no more than {closed_bound_ns} ns, the plan says {claims.lower_bound_ns} ns"
        report.header("bound-not-proved", "$.claims.lower_bound_ns", message)
    if reached is not None and 0 <= claims.lower_bound_ns <= reached:
        _check_certificate(plan, reached, report)
    for field in ("evaluations", "solver_nodes"):
        count = getattr(plan.made_by, field)
        if count < 0:
            report.header("negative-work", f"$.made_by.{field}", f"expected a count >= 0, got {count}")


def _check_certificate(plan: Plan, reached: int, report: Report) -> None:
    """Hold what a plan says of its own quality against its numbers: the objective `reached` [ns] and its bound."""
    claims = plan.claims
    status = "optimal" if claims.lower_bound_ns == reached else "feasible"
    if claims.status is not None and claims.status != status:
        message = (
            f"the {claims.objective} is {reached} ns and the lower bound {claims.lower_bound_ns} ns: "
            f"that is {status}, the plan says {claims.status}"
        )
        report.header("wrong-status", "$.claims.status", message)
    if claims.gap_ppm is None:
        return
    whole, rest = divmod((reached - claims.lower_bound_ns) * 1_000_000, reached) if reached else (0, 0)
    gap = whole + (rest > 0)
    if claims.gap_ppm != gap:
        message = f"from the lower bound to the {claims.objective} it is {gap} ppm, the plan says {claims.gap_ppm}"
        report.header("wrong-gap", "$.claims.gap_ppm", message)


def same_shape(plan: Plan, problem: Problem) -> bool:
    """Return whether the problem can be asked about the plan's ops at all."""
    shape = (problem.num_devices, problem.num_stages, problem.microbatches, problem.placement, len(problem.flows))
    summary = plan.problem
    return (summary.devices, summary.stages, summary.microbatches, summary.placement, summary.flows) == shape
