"""The turns of copies to and from host memory among what stands between two ops of a rank."""

from __future__ import annotations

from cpipe.plan.validate.layout import Step
from cpipe.plan.validate.report import Report

__all__ = ["check_stretches", "collect_units", "place_units"]

_COMPUTE = ("F", "D", "W", "B")


def collect_units(steps: list[Step]) -> list[list[Step]]:
    """Return what computes at once, in order."""
    units: list[list[Step]] = []
    for step in steps:
        if step.op in _COMPUTE:
            if units and units[-1][0].at == step.at:
                units[-1].append(step)
            else:
                units.append([step])
    return units


def place_units(units: list[list[Step]]) -> dict[tuple[str, int, int], int]:
    """Return the unit of each op; of a split backward also as B: what it reads it needs where D stands."""
    where = {(op.op, op.stage, op.mb): index for index, unit in enumerate(units) for op in unit}
    return where | {("B", stage, mb): index for (kind, stage, mb), index in where.items() if kind == "D"}


def check_stretches(rank: int, place: int, units: list[list[Step]], steps: list[Step], report: Report) -> None:
    """Between two ops posts come first, then WAITs for copies to the host, copies back, and all other WAITs.

    Copies back stand in the order of their backwards. So a replay of the orders has them, see `cpipe.ir.Offload`.
    """
    where = place_units(units)
    before: Step | None = None  # the last of the highest turn since the last op
    for step in steps:
        if step.op in _COMPUTE:
            before = None
            continue
        if before is not None and _is_late(step, before, where):
            message = f"rank {rank}: {step} comes behind {before}, ops[{before.at}]"
            report.step("copy-order", place, step.at, message)
        if before is None or _turn(step) >= _turn(before):
            before = step


def _is_late(step: Step, before: Step, where: dict[tuple[str, int, int], int]) -> bool:
    """Whether `step` belongs before `before`, and one of them is of a copy."""
    if step.op == before.op == "RELOAD":
        return where.get(("B", step.stage, step.mb), 0) < where.get(("B", before.stage, before.mb), 0)
    moving = step.op in ("OFFLOAD", "RELOAD") or step.copy or before.copy
    return bool(moving) and _turn(step) < _turn(before)


def _turn(step: Step) -> int:
    """Return when an instruction that is no compute has its turn between two ops."""
    if step.op == "RELOAD":
        return 2
    if step.op == "WAIT":
        return 1 if step.copy == "OFFLOAD" else 3
    return 0
