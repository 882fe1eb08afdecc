"""Which plans Megatron-LM can run: those whose order is the one that it makes by itself, op by op."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from cpipe.errors import Diagnostic
from cpipe.ir import Instruction, Plan
from cpipe.plan.exchange.megatron_order import MegatronShape, Unit, index_of, megatron_order, shape_of
from cpipe.plan.exchange.refusal import Place, compute_places, first_place, invalid, offload_faults, refused

__all__ = ["megatron_faults"]


def megatron_faults(plan: Plan, *, file: str | None = None) -> tuple[Diagnostic, ...]:
    """Return why Megatron cannot run `plan`, with the first op that it would not run; empty if it can."""
    if found := invalid(plan, file) or offload_faults(plan, "Megatron", file):
        return found
    if found := tuple(_placement_faults(plan, file)):
        return found
    shape = shape_of(plan)
    if found := tuple(_flag_faults(plan, shape, file)):
        return found
    differing = [_first_difference(plan, rank, shape) for rank in range(plan.problem.devices)]
    found_places = [entry for entry in differing if entry is not None]
    if not found_places:
        return ()
    place, expected = min(found_places, key=lambda entry: (entry[0].position, entry[0].rank))
    return (refused(plan, place, "megatron-order", f"Megatron would run {expected}", file),)


def _placement_faults(plan: Plan, file: str | None) -> Iterator[Diagnostic]:
    """Yield why stages do not stand where Megatron has them, at the first op of such a stage."""
    p, summary = plan.problem.devices, plan.problem
    if summary.flows > 1:
        place = first_place(plan, lambda step: (step.stage or 0) >= summary.flow_length)
        reason = f"one of {summary.flows} flows over copies of the weights, and Megatron has one"
    elif summary.placement != tuple(stage % p for stage in range(summary.stages)):
        place = first_place(plan, lambda step: summary.placement[step.stage or 0] != (step.stage or 0) % p)
        stage = 0 if place is None else place.step.stage or 0
        reason = f"Megatron has stage {stage} on rank {stage % p}, and stage k on rank k mod {p}"
    elif summary.stages % p:
        place = first_place(plan, lambda step: (step.stage or 0) >= summary.stages // p * p)
        reason = f"Megatron wants the same number of stages on each of {p} ranks, got {summary.stages} stages"
    else:
        return
    if place is not None:
        yield refused(plan, place, "megatron-placement", reason, file)


def _flag_faults(plan: Plan, shape: MegatronShape, file: str | None) -> Iterator[Diagnostic]:
    """Yield the flag that Megatron would refuse, at the first op that asks for it."""
    p, n, group = shape.num_ranks, shape.microbatches, shape.group
    if shape.chunks > 1 and p == 1:
        place = first_place(plan, lambda step: step.stage != 0)
        reason = "Megatron has one stage on a single rank"
    elif shape.overlap and shape.chunks == 1 and p > 1:
        place = first_place(plan, lambda step: step.op == "FB")
        reason = "--overlap-moe-expert-parallel-comm needs several stages a rank"
    elif shape.delay and not shape.overlap:
        place = first_place(plan, lambda step: step.op == "D")
        reason = "Megatron runs a full backward: --delay-wgrad-compute is for plans with FB"
    elif shape.chunks > 1 and not (p <= group <= n and (n % group == 0 or n % group >= p)):
        place = first_place(plan, lambda step: step.op in ("F", "FB") and step.stage == p)
        allowed = f"{p} to {n} that leaves a remainder of 0 or at least {p}" if n >= p else f"at least {p}"
        reason = f"a group of {group} of {n} microbatches, and Megatron wants one of {allowed}"
    else:
        return
    if place is not None:
        yield refused(plan, place, "megatron-flag", reason, file)


def _first_difference(plan: Plan, rank: int, shape: MegatronShape) -> tuple[Place, str] | None:
    """Return the first op of a rank that Megatron would not run there, and what it would run."""
    units = megatron_order(
        shape.num_ranks, shape.chunks, shape.microbatches, rank, group=shape.group, overlap=shape.overlap
    )
    expected = (slots for unit in units for slots in _steps(unit, shape.delay))
    places = list(compute_places(plan, index_of(plan, rank)))
    for place, slots in zip_longest(places, expected):
        if place is None or slots is None or _slots(place.step) != slots:
            text = "nothing more" if slots is None else _text(slots)
            return place or places[-1], text
    return None


def _steps(unit: Unit, delay: bool) -> Iterator[Unit]:
    """Yield the ops of a unit as a plan has them."""
    (kind, stage, mb), *_ = unit
    if delay and len(unit) == 1 and kind == "B":
        yield (("D", stage, mb),)
        yield (("W", stage, mb),)
    else:
        yield unit


def _slots(step: Instruction) -> Unit:
    stage, mb = step.stage or 0, step.mb or 0
    if step.op != "FB":
        return ((step.op, stage, mb),)
    return ("F", stage, mb), ("B", step.backward_stage or 0, step.backward_mb or 0)


def _text(unit: Unit) -> str:
    return " with ".join(f"{kind} of stage {stage} mb {mb}" for kind, stage, mb in unit)
