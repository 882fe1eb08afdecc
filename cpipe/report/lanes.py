"""The lanes of a Gantt chart: what each rank does when, taken from a plan's own times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cpipe.ir import Instruction, Plan, RankProgram
from cpipe.report.figures import COMPUTE

__all__ = ["COLLECTIVES", "Bar", "Lane", "op_times", "plan_lanes"]

COLLECTIVES = {"ALL_GATHER": "G", "REDUCE_SCATTER": "R", "ALL_REDUCE": "A"}


class Bar(NamedTuple):
    """One op: `kind` is its letter, `labels` its texts, longest first; times [ns]."""

    kind: str
    labels: tuple[str, ...]
    start: int
    end: int


class Lane(NamedTuple):
    """One line of the chart; its bars do not overlap and stand in order of time."""

    name: str
    bars: tuple[Bar, ...]


def plan_lanes(plan: Plan) -> tuple[Lane, ...]:
    """Return one lane per rank, and a second one for ranks with data-parallel collectives.

    Ops are labelled by microbatch (``F0``), on ranks of several stages also as ``2F0`` (stage first); collectives
    by stage (``G2``). Ops without times, which only a plan that is not valid has, are left out.
    """
    lanes = []
    for program in plan.ranks:
        several = len({op.stage for op in program.ops if op.op in COMPUTE}) > 1
        lanes.append(Lane(program.device, tuple(_compute_bars(program, several))))
        collectives = tuple(_collective_bars(program))
        if collectives:
            lanes.append(Lane(f"{program.device} dp", collectives))
    return tuple(lanes)


def _compute_bars(program: RankProgram, several: bool) -> Iterable[Bar]:
    for op in program.ops:
        if op.op in COMPUTE and op.start_ns is not None and op.end_ns is not None:
            labels = (f"{op.op}{op.mb}", op.op)
            if op.op == "FB":
                labels = (f"F{op.mb}B{op.backward_mb}", op.op)
                yield Bar(op.op, (f"{op.stage}F{op.mb}+{op.backward_stage}B{op.backward_mb}", *labels), *op_times(op))
                continue
            yield Bar(op.op, (f"{op.stage}{op.op}{op.mb}", *labels) if several else labels, *op_times(op))


def _collective_bars(program: RankProgram) -> Iterable[Bar]:
    for op in program.ops:
        if op.op in COLLECTIVES and op.start_ns is not None and op.end_ns is not None:
            letter = COLLECTIVES[op.op]
            yield Bar(letter, (f"{letter}{op.stage}", letter), *op_times(op))


def op_times(op: Instruction) -> tuple[int, int]:
    """Return start and end [ns] as they can be drawn: a plan that is not valid may state anything."""
    start = max(0, op.start_ns or 0)
    return start, max(start, op.end_ns or 0)
