"""GPipe: every forward, then every backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.ir import OpKind, Schedule
from cpipe.schedules.common import Step, per_stage_schedule

__all__ = ["gpipe"]


def gpipe(num_stages: int, microbatches: int, placement: Sequence[int]) -> Schedule:
    """Return GPipe (Huang et al., 2019) with full backwards.

    Two stages, three microbatches::

        device 0   F0 F1 F2 B0 B1 B2
        device 1   F0 F1 F2 B0 B1 B2

    With equal stages and free links the makespan is ``(n + p - 1) (F + B)``; every device holds n activations.

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

    def steps(_: int) -> Iterator[Step]:
        for kind in (OpKind.F, OpKind.B):
            for microbatch in range(microbatches):
                yield kind, microbatch

    return per_stage_schedule(num_stages, microbatches, placement, steps)
