"""Chimera: two pipelines through the same devices in opposite directions, each with a copy of the weights."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.ir import Schedule
from cpipe.schedules.common import opposite_flows
from cpipe.schedules.listing import Rule, list_schedule

__all__ = ["chimera"]


def chimera(num_stages: int, microbatches: int, placement: Sequence[int]) -> Schedule:
    """Return Chimera (Li and Hoefler, 2021) with full backwards.

    Each device holds a stage of either flow, so that one flow's warm-up fills the other's bubble. Within a device the
    backward that is deepest goes first, then the deepest forward; each flow has at most half as many microbatches on
    their way as there are devices. The order is that of F = B = 1.

    With m microbatches in all, m = p even, F = B = 1 and free links the makespan is ``2 m + p - 2``; a device holds
    between ``p / 2 + 1`` and p activations.

    Parameters
    ----------
    num_stages
        Of both flows together, 2 p.
    microbatches
        Of each flow.
    placement
        Device of each stage, flow after flow.

    Raises
    ------
    ValueError
        When the flows do not run through the same devices in opposite directions.
    """
    p = opposite_flows(placement)
    rule = Rule(
        forward_time=1,
        backward_time=1,
        forward_first=False,
        entry_limit=max(1, p // 2),
        device_limit=None,
        backward_key=lambda position, mb: (-position, mb),
    )
    listed = list_schedule(placement, num_stages // 2, microbatches, rule)
    assert listed is not None, "without a limit on devices nothing gets stuck"
    return listed.schedule
