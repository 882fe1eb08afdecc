"""A slow link between two sites: a pipeline across it, against one in each site and an all-reduce across it."""

from __future__ import annotations

from typing import Literal

from cpipe.ir.base import Frozen

__all__ = ["Crossing", "Crossover", "LinkPoint", "Rival", "Side"]

Rival = Literal["overlapped", "plain"]
"""What the pipeline is compared with.

``plain``: the schedule without delay, then one all-reduce of all gradients; ``overlapped``: the all-reduce of a stage
starts after its last weight gradient, one stage at a time on the link.
"""


class Side(Frozen, frozen=True, kw_only=True):
    """The best iteration that was found on one side [ns], and what none can beat."""

    makespan_ns: int
    bound_ns: int
    found_by: str

    @property
    def gap(self) -> float:
        """(makespan - bound) / makespan, in [0, 1]."""
        return (self.makespan_ns - self.bound_ns) / self.makespan_ns if self.makespan_ns else 0.0


class LinkPoint(Frozen, frozen=True, kw_only=True):
    """Both sides at one bandwidth [Gbit/s = 10^9 bit/s].

    Attributes
    ----------
    gbit_s
        Of the link, each way.
    pipeline
        The pipeline across both sites.
    overlapped, plain
        A pipeline in each site; see `Rival`.
    """

    gbit_s: float
    pipeline: Side
    overlapped: Side
    plain: Side

    def ahead_ns(self, rival: Rival) -> int:
        """Return by how much the pipeline across sites is faster than `rival` [ns]; negative when it is slower."""
        return (self.plain if rival == "plain" else self.overlapped).makespan_ns - self.pipeline.makespan_ns


class Crossing(Frozen, frozen=True, kw_only=True):
    """Where the faster side changes.

    Attributes
    ----------
    rival
        What the pipeline is compared with.
    below
        Which is faster at less bandwidth.
    low_gbit_s, high_gbit_s
        Two bandwidths that were solved, between which it changes.
    gbit_s
        Where straight lines between the two, over the logarithm of the bandwidth, meet.
    """

    rival: Rival
    below: Literal["pipeline", "data-parallel"]
    low_gbit_s: float
    high_gbit_s: float
    gbit_s: float


class Crossover(Frozen, frozen=True, kw_only=True):
    """The whole comparison.

    Attributes
    ----------
    name
        Of the job.
    num_devices, num_stages, microbatches
        Sizes of the pipeline.
    message_bytes
        Of the largest message that crosses [bytes].
    gradient_bytes
        What one site's gradients are in sum [bytes].
    latency_ns
        Of the link, each way [ns].
    ideal_ns
        What the busiest device computes: a pipeline without any bubble [ns].
    local
        The schedule without delay, no all-reduce.
    points
        By bandwidth; those that were added to narrow a crossing are among them.
    crossings
        By rival, then bandwidth.
    num_solves
        Searches that were made.
    """

    name: str
    num_devices: int
    num_stages: int
    microbatches: int
    message_bytes: int
    gradient_bytes: int
    latency_ns: int
    ideal_ns: int
    local: Side
    points: tuple[LinkPoint, ...]
    crossings: tuple[Crossing, ...]
    num_solves: int
