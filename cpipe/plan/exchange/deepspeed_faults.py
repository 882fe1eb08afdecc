"""Which plans DeepSpeed's pipeline engine can run.

What the engine (DeepSpeed 0.19) holds once only bounds it: the last stage has one loss, so that a forward there is
followed by its own backward.
"""

from __future__ import annotations

from collections.abc import Callable

from cpipe.errors import Diagnostic
from cpipe.ir import Instruction, Plan
from cpipe.plan.exchange.refusal import Place, compute_places, first_place, invalid, offload_faults, refused

__all__ = ["deepspeed_faults"]


def deepspeed_faults(plan: Plan, *, file: str | None = None) -> tuple[Diagnostic, ...]:
    """Return why DeepSpeed cannot run `plan`, with the first op that it cannot run; empty if it can."""
    if found := invalid(plan, file) or offload_faults(plan, "DeepSpeed", file):
        return found
    summary = plan.problem
    broken = [
        (place, code, reason)
        for code, reason, breaks in _rules(plan)
        if (place := first_place(plan, breaks)) is not None
    ]
    if broken:
        place, code, reason = min(broken, key=lambda entry: (entry[0].position, entry[0].rank))
        return (refused(plan, place, code, reason, file),)
    if summary.stages < summary.devices:
        message = f"{summary.stages} stages on {summary.devices} ranks: DeepSpeed needs one on each"
        return (Diagnostic(code="deepspeed-placement", message=message, file=file, path="$.problem.placement"),)
    late = _late_backward(plan)
    if late is None:
        return ()
    reason = "the last stage holds one loss: each forward there is followed by its own backward"
    return (refused(plan, late, "deepspeed-loss", reason, file),)


def _rules(plan: Plan) -> tuple[tuple[str, str, Callable[[Instruction], bool]], ...]:
    """Return the code and the words of each rule, and which op breaks it."""
    summary = plan.problem

    def other_flow(step: Instruction) -> bool:
        return summary.flows > 1 and (step.stage or 0) >= summary.flow_length

    def misplaced(step: Instruction) -> bool:
        return summary.placement[step.stage or 0] != step.stage

    return (
        (
            "deepspeed-placement",
            f"one of {summary.flows} flows over copies of the weights, and DeepSpeed has one",
            other_flow,
        ),
        ("deepspeed-placement", "DeepSpeed has one stage on each rank, in line: stage k on rank k", misplaced),
        (
            "deepspeed-op",
            "DeepSpeed has forward and full backward passes alone",
            lambda step: step.op in ("D", "W", "FB"),
        ),
    )


def _late_backward(plan: Plan) -> Place | None:
    """Return the first forward on the last stage that follows another one."""
    last = plan.problem.stages - 1
    rank = next(index for index, program in enumerate(plan.ranks) if program.rank == last)
    forwards = (place for place in compute_places(plan, rank) if place.step.op == "F")
    return next((place for number, place in enumerate(forwards) if place.position != 2 * number), None)
