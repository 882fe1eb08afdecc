"""Hanayo: waves. The stages run down the devices and back up, so that a microbatch turns round without waiting."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.ir import Schedule
from cpipe.schedules.common import wave_chunks
from cpipe.schedules.listing import Rule, list_schedule

__all__ = ["hanayo"]


def hanayo(num_stages: int, microbatches: int, placement: Sequence[int]) -> Schedule:
    """Return Hanayo (Liu et al., 2023) with full backwards; W waves are 2 W stages on each device.

    Of the forwards that are ready the deepest in the pipeline goes first, of the backwards the oldest; no device holds
    more than 1F1B would. Whether forwards go before backwards, and how many microbatches may be on their way, p or
    ``2 p - 1``, is what makes the shortest order in times of F = 1, B = 2. Two devices, one wave, two microbatches::

        device 0   0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1
        device 1   1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1

    With p = n = 8, free links and a device's F = 1, B = 2 the makespan is 38, 31.5 and 27.75 for 1, 2 and 4 waves,
    where 1F1B takes 45; no device holds more than p activations for each of its stages.

    Parameters
    ----------
    num_stages, microbatches
        2 W p and n, both >= 1.
    placement
        Device of each stage, in waves.

    Raises
    ------
    ValueError
        When the stages are not placed in waves.
    """
    chunks = wave_chunks(placement)
    p = num_stages // chunks
    found = [
        list_schedule(
            placement,
            num_stages,
            microbatches,
            Rule(
                forward_time=1,
                backward_time=2,
                forward_first=forward_first,
                entry_limit=entry_limit,
                device_limit=p * chunks,
                backward_key=lambda position, microbatch: (microbatch, -position),
            ),
        )
        for forward_first in (False, True)
        for entry_limit in (p, 2 * p - 1)
    ]
    finished = [listed for listed in found if listed is not None]
    assert finished, "with p microbatches on their way no device is ever full"
    return min(finished, key=lambda listed: listed.makespan).schedule
