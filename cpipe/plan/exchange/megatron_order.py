"""What Megatron-LM runs: an order that it makes of numbers alone.

Those are ranks, stages and microbatches, the group size and two flags (`megatron.core.pipeline_parallel.schedules` of
Megatron Core 0.16). A rank r of p runs w forwards, then one forward for one backward, then the backwards that are left:

* one stage a rank: ``w = p - r - 1``;
* V stages a rank, k-th of them ``k p + r``: ``w = 2 (p - r - 1) + (V - 1) N``, forwards N microbatches at a time
  through one stage after the other, backwards the last stage first;
* with ``--overlap-moe-expert-parallel-comm`` one more, and a forward and the backward behind it are one op, an FB;
  ``--delay-wgrad-compute``, which needs it, runs the other backwards as D and, right behind it, W.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cpipe.ir import Plan
from cpipe.plan.exchange.refusal import compute_places

__all__ = ["MegatronShape", "Slot", "Unit", "index_of", "megatron_order", "shape_of"]

Slot = tuple[str, int, int]
"""Kind, stage and microbatch."""

Unit = tuple[Slot, ...]
"""What runs at once: an F, a B, or the two of an FB."""


class MegatronShape(NamedTuple):
    """What Megatron makes its order of; `group` is N, `overlap` and `delay` are its two flags."""

    num_ranks: int
    chunks: int
    microbatches: int
    group: int
    overlap: bool
    delay: bool


def megatron_order(
    num_ranks: int, chunks: int, microbatches: int, rank: int, *, group: int = 0, overlap: bool = False
) -> Iterator[Unit]:
    """Yield what Megatron runs on `rank`, in order.

    Parameters
    ----------
    num_ranks, chunks, microbatches
        p, stages a rank, and n, all >= 1.
    rank
        0..p-1.
    group
        N >= 1, of several stages a rank.
    overlap
        With ``--overlap-moe-expert-parallel-comm``.
    """
    forwards = [("F", chunk * num_ranks + rank, mb) for chunk, mb in _table(chunks, microbatches, group)]
    backwards = [
        ("B", (chunks - 1 - chunk) * num_ranks + rank, mb) for chunk, mb in _table(chunks, microbatches, group)
    ]
    behind = num_ranks - rank - 1
    warm_up = min(len(forwards), (behind if chunks == 1 else 2 * behind + (chunks - 1) * group) + overlap)
    yield from ((slot,) for slot in forwards[:warm_up])
    for number, backward in enumerate(backwards):
        if warm_up + number >= len(forwards):
            yield (backward,)
        elif overlap:
            yield forwards[warm_up + number], backward
        else:
            yield (forwards[warm_up + number],)
            yield (backward,)


def shape_of(plan: Plan) -> MegatronShape:
    """Return the shape whose order a valid plan may have: its group is as long as the plan's first.

    Every device has as many stages.
    """
    summary = plan.problem
    p, chunks = summary.devices, summary.stages // summary.devices
    forwards = [place.step for place in compute_places(plan, index_of(plan, 0)) if place.step.op in ("F", "FB")]
    group = next((at for at, step in enumerate(forwards) if step.stage != 0), len(forwards))
    names = {step.op for program in plan.ranks for step in program.ops}
    return MegatronShape(p, chunks, summary.microbatches, group, "FB" in names, "D" in names)


def index_of(plan: Plan, rank: int) -> int:
    """Return the place of a rank in ``plan.ranks``."""
    return next(index for index, program in enumerate(plan.ranks) if program.rank == rank)


def _table(chunks: int, microbatches: int, group: int) -> Iterator[tuple[int, int]]:
    """Yield stage of the rank and microbatch in the order of the forwards."""
    size = group if chunks > 1 else microbatches
    for first in range(0, microbatches, size):
        for chunk in range(chunks):
            for mb in range(first, min(first + size, microbatches)):
                yield chunk, mb
