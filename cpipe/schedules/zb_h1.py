"""ZB-H1: 1F1B's order with the weight gradients of later stages moved into the bubble, at 1F1B's peak memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.ir import OpKind, Schedule
from cpipe.schedules.common import Step, per_stage_schedule
from cpipe.schedules.one_f_one_b import warm_up_order

__all__ = ["zb_h1"]


def zb_h1(num_stages: int, microbatches: int, placement: Sequence[int]) -> Schedule:
    """Return ZB-H1 (Qi et al., 2023): stage s delays each W by s microbatches.

    Three stages, four microbatches::

        device 0   F0 F1 F2 D0 W0 F3 D1 W1 D2 W2 D3 W3
        device 1   F0 F1 D0 F2 D1 W0 F3 D2 W1 D3 W2 W3
        device 2   F0 D0 F1 D1 F2 D2 W0 F3 D3 W1 W2 W3

    With F = D = W = 1 on every stage and free links the makespan is ``3 n + p - 1`` for n >= p; no stage holds more
    than ``min(n, p)`` activations until W.

    Parameters
    ----------
    num_stages, microbatches
        Number of stages, p where each device holds one, and n, both >= 1.
    placement
        Device of each stage: one stage on each, or a run of adjacent ones, which acts as one.

    Raises
    ------
    ValueError
        When a device holds stages that do not follow each other.
    """

    def steps(stage: int) -> Iterator[Step]:
        for forward, microbatch in warm_up_order(len(set(placement)), microbatches, stage):
            if forward:
                yield OpKind.F, microbatch
            else:
                yield OpKind.D, microbatch
                if microbatch >= stage:
                    yield OpKind.W, microbatch - stage
        for microbatch in range(max(0, microbatches - stage), microbatches):
            yield OpKind.W, microbatch

    return per_stage_schedule(num_stages, microbatches, placement, steps)
