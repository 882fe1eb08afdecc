"""How a plan is refused that another system cannot express: by the first op that it would not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cpipe.errors import Diagnostic
from cpipe.ir import Instruction, Plan
from cpipe.plan.validate import validate

__all__ = ["COMPUTE_OPS", "Place", "compute_places", "first_place", "invalid", "offload_faults", "op_text", "refused"]

COMPUTE_OPS = ("F", "D", "W", "B", "FB")


class Place(NamedTuple):
    """A compute op of a plan: `rank` and `at` index the plan's ranks and their ops, `position` counts compute ops."""

    rank: int
    at: int
    position: int
    step: Instruction


def invalid(plan: Plan, file: str | None) -> tuple[Diagnostic, ...]:
    """Return what makes the plan wrong whatever runs it."""
    return tuple(fault for fault in validate(plan, file=file) if fault.severity == "error")


def offload_faults(plan: Plan, system: str, file: str | None) -> tuple[Diagnostic, ...]:
    """Return why `system` cannot run a plan that moves activations to host memory: the first of its OFFLOADs."""
    found = [
        (at, program.rank, place, step)
        for place, program in enumerate(plan.ranks)
        for at, step in enumerate(program.ops)
        if step.op == "OFFLOAD"
    ]
    if not found:
        return ()
    at, rank, place, step = min(found, key=lambda entry: entry[:2])
    message = f"rank {rank}: {op_text(step)}: {system} keeps every activation on its device"
    hint = "solve with --offload none"
    path = f"$.ranks[{place}].ops[{at}]"
    return (Diagnostic(code="export-offload", message=message, file=file, path=path, hint=hint),)


def compute_places(plan: Plan, rank: int) -> Iterator[Place]:
    """Yield the compute ops of ``plan.ranks[rank]`` in order."""
    computes = ((at, step) for at, step in enumerate(plan.ranks[rank].ops) if step.op in COMPUTE_OPS)
    for position, (at, step) in enumerate(computes):
        yield Place(rank, at, position, step)


def first_place(plan: Plan, breaks: Callable[[Instruction], bool]) -> Place | None:
    """Return the first compute op that breaks a rule: the earliest of its rank, then the lowest rank."""
    places = [
        next((place for place in compute_places(plan, rank) if breaks(place.step)), None)
        for rank in range(len(plan.ranks))
    ]
    return min((place for place in places if place is not None), key=lambda it: (it.position, it.rank), default=None)


def refused(plan: Plan, place: Place, code: str, reason: str, file: str | None) -> Diagnostic:
    """Return the refusal: rank, position and op, then the reason."""
    message = f"rank {plan.ranks[place.rank].rank}: compute op {place.position}, {op_text(place.step)}: {reason}"
    return Diagnostic(code=code, message=message, file=file, path=f"$.ranks[{place.rank}].ops[{place.at}]")


def op_text(step: Instruction) -> str:
    """Return a compute op in words."""
    text = f"{step.op} of stage {step.stage} mb {step.mb}"
    return text if step.op != "FB" else f"{text} with backward of stage {step.backward_stage} mb {step.backward_mb}"
