"""Orders without a search: all of them for tiny problems, a random one, and one microbatch after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

from cpipe.ir import OpKind, Problem, Schedule, encode_op

__all__ = ["all_schedules", "random_schedule", "serial_schedule"]


def serial_schedule(problem: Problem) -> Schedule:
    """Return the schedule that finishes each microbatch before it starts the next: the least memory."""
    n = problem.microbatches
    orders: list[list[int]] = [[] for _ in problem.devices]
    for microbatch in range(n):
        for index, stage in enumerate(problem.stages):
            orders[stage.device].append(encode_op(OpKind.F, index, microbatch, n))
        for index, stage in reversed(list(enumerate(problem.stages))):
            kinds = (OpKind.D, OpKind.W) if stage.can_split else (OpKind.B,)
            orders[stage.device] += (encode_op(kind, index, microbatch, n) for kind in kinds)
    return Schedule(orders=tuple(map(tuple, orders)))


def random_schedule(problem: Problem, draw: Random) -> Schedule:
    """Return a schedule, of any number of flows, that has every op after its inputs; which op is next is drawn."""
    n, size = problem.microbatches, problem.num_stages
    orders: list[list[int]] = [[] for _ in problem.devices]
    forward, backward = [0] * size, [0] * size
    pending: list[list[int]] = [[] for _ in problem.stages]

    def ready() -> Iterator[tuple[OpKind, int, int]]:
        for index, stage in enumerate(problem.stages):
            before, after = problem.previous_stage(index), problem.next_stage(index)
            if forward[index] < (n if before is None else forward[before]):
                yield OpKind.F, index, forward[index]
            if backward[index] < min(forward[index], n if after is None else backward[after]):
                yield OpKind.B, index, backward[index]
                if stage.can_split:
                    yield OpKind.D, index, backward[index]
            if pending[index]:
                yield OpKind.W, index, pending[index][0]

    while options := list(ready()):
        kind, index, microbatch = draw.choice(options)
        orders[problem.stages[index].device].append(encode_op(kind, index, microbatch, n))
        if kind is OpKind.F:
            forward[index] += 1
        elif kind is OpKind.W:
            pending[index].pop(0)
        else:
            backward[index] += 1
            if kind is OpKind.D:
                pending[index].append(microbatch)
    return Schedule(orders=tuple(map(tuple, orders)))


def all_schedules(problem: Problem) -> Iterator[Schedule]:
    """Yield every schedule of a problem with one stage a device."""
    orders: list[list[tuple[int, ...]]] = [[()] for _ in problem.devices]
    for index, stage in enumerate(problem.stages):
        orders[stage.device] = list(_stage_orders(problem, index, (), 0, 0, ()))
    for combination in product(*orders):
        yield Schedule(orders=combination)


def _stage_orders(
    problem: Problem, index: int, done: tuple[int, ...], forward: int, backward: int, pending: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    n = problem.microbatches
    if backward == n and not pending:
        yield done
    if forward < n:
        op = encode_op(OpKind.F, index, forward, n)
        yield from _stage_orders(problem, index, (*done, op), forward + 1, backward, pending)
    if backward < forward:
        op = encode_op(OpKind.B, index, backward, n)
        yield from _stage_orders(problem, index, (*done, op), forward, backward + 1, pending)
        if problem.stages[index].can_split:
            op = encode_op(OpKind.D, index, backward, n)
            yield from _stage_orders(problem, index, (*done, op), forward, backward + 1, (*pending, backward))
    if pending:
        op = encode_op(OpKind.W, index, pending[0], n)
        yield from _stage_orders(problem, index, (*done, op), forward, backward, pending[1:])
