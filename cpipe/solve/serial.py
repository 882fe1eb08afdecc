"""The order of last resort: one microbatch at a time, with the least memory that any order can live with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.ir import OpKind, Problem, Schedule, encode_op
from cpipe.ir.ops import KINDS
from cpipe.sim.memory import memory_rooms, memory_steps

__all__ = ["serial_schedule"]


def serial_schedule(problem: Problem) -> Schedule:
    """Return the schedule that finishes each microbatch before the next starts.

    Of several flows, one after the other. Each backward runs as B where that fits, else as D with its W as soon as that
    fits, the smallest transient first. If this does not fit in memory nothing does: every order must at some time hold
    one microbatch on all stages of a device that are in one flow, a B frees all there is to free, and a W that fits
    only frees.
    """
    n = problem.microbatches
    orders: list[tuple[int, ...]] = []
    for device, room in enumerate(memory_rooms(problem)):
        steps: list[tuple[OpKind, int]] = []
        for first in problem.flows:
            steps += _one_microbatch(problem, problem.stages_of_flow(device, first), room)
        orders.append(tuple(encode_op(kind, stage, microbatch, n) for microbatch in range(n) for kind, stage in steps))
    return Schedule(orders=tuple(orders))


def _one_microbatch(problem: Problem, stages: Sequence[int], room: int | None) -> Iterator[tuple[OpKind, int]]:
    """Yield the ops of one microbatch on one device, within `room` [bytes] if that is possible at all."""
    steps = memory_steps(problem)
    yield from ((OpKind.F, stage) for stage in stages)
    level = sum(steps[stage * KINDS + OpKind.F].after for stage in stages)
    waiting: list[int] = []
    for stage in reversed(stages):
        full, part = steps[stage * KINDS + OpKind.B], steps[stage * KINDS + OpKind.D]
        must_split = room is not None and level + full.during > room
        if must_split and problem.stages[stage].can_split:
            yield OpKind.D, stage
            level += part.after
            waiting.append(stage)
        else:
            yield OpKind.B, stage
            level += full.after
        waiting.sort(key=lambda other: steps[other * KINDS + OpKind.W].during)
        while waiting and (room is None or level + steps[waiting[0] * KINDS + OpKind.W].during <= room):
            level += steps[waiting[0] * KINDS + OpKind.W].after
            yield OpKind.W, waiting.pop(0)
    yield from ((OpKind.W, stage) for stage in waiting)
