"""Compute ops: each exactly once, in microbatch order, never before what it needs from its own rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cpipe.ir import Problem
from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.report import Report

__all__ = ["Computed", "check_compute"]

_PHASE = {"F": "F", "D": "D", "B": "D", "W": "W"}
_Slot = tuple[str, int, int]  # phase, stage, microbatch

Computed = dict[_Slot, Step]
"""Where each slot runs: the phase of an op is ``D`` for D and B, else the op itself."""


def check_compute(layout: Layout, programs: dict[int, list[Step]], problem: Problem | None, report: Report) -> Computed:
    """Check all compute ops; return the first op of every slot."""
    computed: Computed = {}
    for rank, steps in programs.items():
        place = layout.programs[rank][0]
        _check_once(rank, place, steps, computed, report)
    for rank, steps in programs.items():
        place = layout.programs[rank][0]
        _check_order(rank, place, steps, report)
        for step in steps:
            if step.op in _PHASE:
                _check_needs(layout, rank, place, step, computed, report)
                if problem is not None and step.op in "DW" and not problem.stages[step.stage].can_split:
                    report.step("cannot-split", place, step.at, f"rank {rank}: {step}: the stage has only B")
    _check_missing(layout, computed, report)
    return computed


def _check_once(rank: int, place: int, steps: Iterable[Step], computed: Computed, report: Report) -> None:
    """No slot runs twice; a microbatch has D and W, or B, not both."""
    for step in steps:
        if step.op not in _PHASE:
            continue
        slot = (_PHASE[step.op], step.stage, step.mb)
        first = computed.setdefault(slot, step)
        if first is not step:
            message = f"rank {rank}: {step} comes after {first} at ops[{first.at}], which does the same"
            report.step("duplicate-op", place, step.at, message)


def _check_order(rank: int, place: int, steps: Iterable[Step], report: Report) -> None:
    """A stage runs each kind of op (D and B being one kind) in microbatch order."""
    last: dict[tuple[str, int], Step] = {}
    for step in steps:
        if step.op in _PHASE:
            key = (_PHASE[step.op], step.stage)
            if key in last and step.mb < last[key].mb:
                message = f"rank {rank}: {step} comes after {last[key]}: microbatches go in order"
                report.step("mb-order", place, step.at, message)
            last[key] = step


def _check_needs(layout: Layout, rank: int, place: int, step: Step, computed: Computed, report: Report) -> None:
    """D and B come after their F, W after its D, and an op after the op on the same rank that makes its input."""
    for phase, stage in _needs(layout, rank, step):
        need = computed.get((phase, stage, step.mb))
        if need is not None and need is not step and need.at >= step.at:
            when = f"comes later, at ops[{need.at}]" if need.at > step.at else "runs at the same time"
            message = f"rank {rank}: {step} needs {need}, which {when}"
            report.step("dependency", place, step.at, message)
        if step.op == "W" and need is not None and need.op == "B":
            report.step("mixed-backward", place, step.at, f"rank {rank}: {step} beside {need}, which includes it")


def _needs(layout: Layout, rank: int, step: Step) -> Iterator[tuple[str, int]]:
    """Yield phase and stage of what an op needs from its own rank."""
    if step.op == "W":
        yield "D", step.stage
        return
    if step.op != "F":
        yield "F", step.stage
    if layout.source_of(step.op, step.stage) == rank:
        yield _PHASE[step.op], layout.neighbour(step.stage, -1 if step.op == "F" else 1)


def _check_missing(layout: Layout, computed: Computed, report: Report) -> None:
    """Every stage runs F and its backward for every microbatch; every D has its W."""
    found: dict[tuple[str, int], list[int]] = {}
    for phase, stage, mb in computed:
        found.setdefault((phase, stage), []).append(mb)
    for stage, rank in enumerate(layout.placement):
        if rank not in layout.programs:
            continue
        place = layout.programs[rank][0]
        for phase, name in (("F", "F"), ("D", "D or B")):
            for gap in _gaps(found.get((phase, stage), ()), layout.microbatches):
                report.rank("missing-op", place, f"rank {rank}: {name} of stage {stage} {gap} is missing")
    for (phase, stage, mb), step in computed.items():
        rank = layout.placement[stage]
        place = layout.programs[rank][0]
        if step.op == "D" and ("W", stage, mb) not in computed:
            report.step("missing-op", place, step.at, f"rank {rank}: {step} has no W")
        if phase == "W" and ("D", stage, mb) not in computed:
            report.step("missing-op", place, step.at, f"rank {rank}: {step} has no D")


def _gaps(found: Iterable[int], count: int) -> Iterator[str]:
    """Yield the ranges of 0..count-1 that are not in `found` (a plan may state any count)."""
    expected = 0
    for mb in (*sorted(found), count):
        if mb == expected + 1:
            yield f"mb {expected}"
        elif mb > expected:
            yield f"mb {expected}..{mb - 1}"
        expected = mb + 1
