"""What the static generators share: their precondition and how a table of per-stage orders becomes a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cpipe.ir import OpKind, Schedule, encode_op

__all__ = ["Step", "per_stage_schedule"]

Step = tuple[OpKind, int]
"""An op of the stage at hand: its kind and microbatch."""


def per_stage_schedule(
    num_stages: int, microbatches: int, placement: Sequence[int], steps: Callable[[int], Iterator[Step]]
) -> Schedule:
    """Build a schedule from one generator of steps per stage.

    Parameters
    ----------
    num_stages, microbatches
        Sizes, both >= 1.
    placement
        Device of each stage (length `num_stages`); no device holds two.
    steps
        Yields the ops of a stage, in order.

    Raises
    ------
    ValueError
        When a device holds several stages.
    """
    if len(set(placement)) != num_stages:
        raise ValueError(f"needs one stage on each device, got the placement {list(placement)}")
    orders: list[tuple[int, ...]] = [()] * (max(placement) + 1)
    for stage, device in enumerate(placement):
        orders[device] = tuple(encode_op(kind, stage, microbatch, microbatches) for kind, microbatch in steps(stage))
    return Schedule(orders=tuple(orders))
