"""Offload: while a microbatch waits between its forward and its backward, part of its activation is in host memory.

Which microbatches do is decided with the order. What no such decision can beat is a job in which every copy is free.
"""

from __future__ import annotations

from fractions import Fraction

from msgspec.structs import replace

from cpipe.ir.problem import Problem, Stage
from cpipe.units import Bytes, Ns

__all__ = ["bounded", "offers_offload", "unloaded"]


def offers_offload(problem: Problem) -> bool:
    """Whether some stage of `problem` may move activations to host memory, on a device of limited memory."""
    return any(
        stage.offload_bytes and problem.devices[stage.device].capacity_bytes is not None for stage in problem.stages
    )


def bounded(problem: Problem, offloads: bool) -> Problem:
    """Return the problem whose bounds hold for schedules of `problem`, with `offloads` or without any."""
    return unloaded(problem) if offloads else problem


def unloaded(problem: Problem, share: Fraction = Fraction(1)) -> Problem:
    """Return `problem` as if `share` of what may be offloaded always were, in no time.

    It offers nothing any more. While F, D or B of a microbatch runs its whole activation is there, in between the rest.
    With a share of 1 it is never harder than `problem`: what no order of it can reach, no choice of offloads can.
    """
    return replace(problem, stages=tuple(_unloaded(stage, share) for stage in problem.stages))


def _unloaded(stage: Stage, share: Fraction) -> Stage:
    moved = int(stage.offload_bytes * share)
    kept = stage.activation_bytes - moved
    grown = max(0, stage.held_bytes - stage.activation_bytes)  # by D, above the whole activation
    return replace(
        stage,
        activation_bytes=Bytes(kept),
        forward_transient_bytes=Bytes(stage.forward_transient_bytes + moved),
        input_grad_transient_bytes=Bytes(
            stage.input_grad_transient_bytes + moved + grown - max(0, stage.held_bytes - kept)
        ),
        full_backward_transient_bytes=Bytes(stage.whole_transient_bytes + moved),
        offload_bytes=Bytes(0),
        offload_ns=Ns(0),
    )
