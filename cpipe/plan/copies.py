"""Copies to and from host memory as instructions, and read back from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from cpipe.ir import (
    CopyRun,
    Instruction,
    Offload,
    Op,
    OpKind,
    Plan,
    Problem,
    RankProgram,
    Schedule,
    Timeline,
    decode_op,
)

__all__ = ["CopySteps", "copy_steps", "has_offloads", "lifted_offloads"]


class CopySteps(NamedTuple):
    """Instructions of one rank: those right before the op that begins a unit, and those right behind an op."""

    before: dict[Op, list[Instruction]]
    behind: dict[Op, list[Instruction]]


def copy_steps(schedule: Schedule, timeline: Timeline, problem: Problem, device: int) -> CopySteps:
    """Return what one rank does to move activations to host memory and back.

    Parameters
    ----------
    schedule, timeline, problem
        A replay of the problem.
    device
        The rank.

    Returns
    -------
    CopySteps
        Before an op: WAITs for copies to the host, then copies back in the order of the replay, then the WAIT for what
        the op itself needs.
    """
    before: dict[Op, list[Instruction]] = defaultdict(list)
    behind: dict[Op, list[Instruction]] = defaultdict(list)
    runs = [run for run in timeline.copies if run.device == device]
    if not runs:
        return CopySteps(before, behind)
    n, order = problem.microbatches, [decode_op(op, problem.microbatches) for op in schedule.orders[device]]
    offloads = {(entry.stage, entry.microbatch): entry for entry in schedule.offloads}
    heads = {decode_op(op, n): decode_op(unit[0], n) for unit in schedule.units()[device] for op in unit}
    places = {op: place for place, op in enumerate(order)}
    turns = {key: turn for turn, key in enumerate(_turns(runs, offloads, places))}
    for key in sorted(turns, key=turns.__getitem__):
        before[order[offloads[key].freed_before]].append(_wait(key, "OFFLOAD"))
    posts = {(run.kind, run.stage, run.microbatch): _post(run) for run in runs}
    for key in sorted(turns, key=turns.__getitem__):
        before[order[offloads[key].reloaded_before]].append(posts["RELOAD", *key])
        behind[Op(OpKind.F, *key)].append(posts["OFFLOAD", *key])
    for key in sorted(turns, key=turns.__getitem__):
        before[heads[order[_backward(key, places)]]].append(_wait(key, "RELOAD"))
    return CopySteps(before, behind)


def has_offloads(plan: Plan) -> bool:
    """Whether `plan` moves activations to host memory."""
    return any(step.op == "OFFLOAD" for program in plan.ranks for step in program.ops)


def lifted_offloads(program: RankProgram) -> list[Offload]:
    """Return the offloads of a rank's program; of what is there twice, the first."""
    freed: dict[tuple[int, int], int] = {}
    reloaded: dict[tuple[int, int], int] = {}
    place = 0
    for step in program.ops:
        if step.stage is None or step.mb is None:
            continue
        key = step.stage, step.mb
        if step.op in ("F", "D", "W", "B"):
            place += 1
        elif step.op == "FB":
            place += 2
        elif step.op == "RELOAD":
            reloaded.setdefault(key, place)
        elif step.op == "WAIT" and step.copy == "OFFLOAD":
            freed.setdefault(key, place)
    return [
        Offload(stage=stage, microbatch=mb, freed_before=freed[stage, mb], reloaded_before=reloaded[stage, mb])
        for stage, mb in sorted(freed.keys() & reloaded.keys())
    ]


def _turns(
    runs: Sequence[CopyRun], offloads: dict[tuple[int, int], Offload], places: dict[Op, int]
) -> list[tuple[int, int]]:
    """Return what is copied in the order of its way back: that in which copies back are posted."""
    keys = [(run.stage, run.microbatch) for run in runs if run.kind == "RELOAD"]
    return sorted(keys, key=lambda key: (offloads[key].reloaded_before, _backward(key, places)))


def _backward(key: tuple[int, int], places: dict[Op, int]) -> int:
    split = places.get(Op(OpKind.D, *key))
    return places[Op(OpKind.B, *key)] if split is None else split


def _post(run: CopyRun) -> Instruction:
    return Instruction(op=run.kind, stage=run.stage, mb=run.microbatch, start_ns=run.start_ns, end_ns=run.end_ns)


def _wait(key: tuple[int, int], copy: Literal["OFFLOAD", "RELOAD"]) -> Instruction:
    return Instruction(op="WAIT", stage=key[0], mb=key[1], copy=copy)
