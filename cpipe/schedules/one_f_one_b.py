"""1F1B: after a warm-up, one forward for one backward, so that a stage never holds more than its depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.ir import OpKind, Schedule
from cpipe.schedules.common import Step, per_stage_schedule

__all__ = ["one_f_one_b", "one_f_one_b_split", "warm_up_order"]


def warm_up_order(num_stages: int, microbatches: int, stage: int) -> Iterator[tuple[bool, int]]:
    """Yield (is forward, microbatch) of `stage` in 1F1B order: ``min(n, p - stage)`` forwards, then in turns."""
    in_flight = min(microbatches, num_stages - stage)
    for microbatch in range(in_flight):
        yield True, microbatch
    for microbatch in range(microbatches):
        yield False, microbatch
        if in_flight + microbatch < microbatches:
            yield True, in_flight + microbatch


def one_f_one_b(num_stages: int, microbatches: int, placement: Sequence[int]) -> Schedule:
    """Return 1F1B (PipeDream-Flush; Narayanan et al., 2021) with full backwards.

    Three stages, four microbatches::

        device 0   F0 F1 F2 B0 F3 B1 B2 B3
        device 1   F0 F1 B0 F2 B1 F3 B2 B3
        device 2   F0 B0 F1 B1 F2 B2 F3 B3

    With equal stages and free links the makespan is ``(n + p - 1) (F + B)``; stage s holds ``min(n, p - s)``
    activations.

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
            yield (OpKind.F if forward else OpKind.B), microbatch

    return per_stage_schedule(num_stages, microbatches, placement, steps)


def one_f_one_b_split(num_stages: int, microbatches: int, placement: Sequence[int]) -> Schedule:
    """Return 1F1B with every backward split: W right after its D, so that the gradient leaves after D.

    Two stages, three microbatches::

        device 0   F0 F1 D0 W0 F2 D1 W1 D2 W2
        device 1   F0 D0 W0 F1 D1 W1 F2 D2 W2

    Parameters, memory and errors are those of `one_f_one_b`.
    """

    def steps(stage: int) -> Iterator[Step]:
        for forward, microbatch in warm_up_order(len(set(placement)), microbatches, stage):
            if forward:
                yield OpKind.F, microbatch
            else:
                yield OpKind.D, microbatch
                yield OpKind.W, microbatch

    return per_stage_schedule(num_stages, microbatches, placement, steps)
