"""Random offloads for random problems and orders."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from cpipe.ir import Offload, OpKind, Problem, Schedule, encode_op
from cpipe.units import Bytes, Ns

__all__ = ["draw_offering", "draw_offloads"]


def draw_offering(draw: Random, problem: Problem) -> Problem:
    """Return `problem` with stages that may move part of their activation, or all of it, to host memory."""
    stages = []
    for stage in problem.stages:
        size = max(1, stage.activation_bytes)
        moved, length = draw.randint(0, size), draw.choice((0, 1, 2, 5))
        stages.append(
            replace(stage, activation_bytes=Bytes(size), offload_bytes=Bytes(moved), offload_ns=Ns(moved and length))
        )
    return replace(problem, stages=tuple(stages))


def draw_offloads(draw: Random, problem: Problem, schedule: Schedule) -> Schedule:
    """Return `schedule` with some activations in host memory between random positions."""
    n, often = problem.microbatches, draw.random()
    fused = {second for _, second in schedule.pairs}
    offloads = []
    for stage, costs in enumerate(problem.stages):
        order = schedule.orders[costs.device]
        for mb in range(n):
            first = order.index(encode_op(OpKind.F, stage, mb, n))
            backwards = [encode_op(kind, stage, mb, n) for kind in (OpKind.D, OpKind.B)]
            last = next(place for place, op in enumerate(order) if op in backwards)
            places = [place for place in range(first + 1, last + 1) if order[place] not in fused]
            if costs.offload_bytes and places and draw.random() < often:
                freed, reloaded = sorted(draw.choices(places, k=2))
                offloads.append(Offload(stage=stage, microbatch=mb, freed_before=freed, reloaded_before=reloaded))
    found = replace(schedule, offloads=tuple(offloads))
    found.verify(problem)
    return found
