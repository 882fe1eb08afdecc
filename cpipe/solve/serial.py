"""The order of last resort: one microbatch at a time, the least memory that any order can live with."""

from __future__ import annotations

from cpipe.ir import OpKind, Problem, Schedule, encode_op

__all__ = ["serial_schedule"]


def serial_schedule(problem: Problem) -> Schedule:
    """Return the schedule that finishes each microbatch before the next starts, with full backwards.

    If this does not fit in memory, nothing does: every order must at some time hold one microbatch on all stages of a
    device, and B frees at once.
    """
    n = problem.microbatches
    orders: list[list[int]] = [[] for _ in problem.devices]
    for microbatch in range(n):
        for index, stage in enumerate(problem.stages):
            orders[stage.device].append(encode_op(OpKind.F, index, microbatch, n))
        for index, stage in reversed(list(enumerate(problem.stages))):
            orders[stage.device].append(encode_op(OpKind.B, index, microbatch, n))
    return Schedule(orders=tuple(map(tuple, orders)))
