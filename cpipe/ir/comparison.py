"""Schedules and methods against each other on one job: what each takes, in time and memory."""

from __future__ import annotations

from typing import Literal

from cpipe.ir.base import Frozen

__all__ = ["Comparison", "Outcome", "Reached", "Row", "Shortfall", "on_front"]

Outcome = Literal["fits", "does-not-fit", "does-not-apply"]
"""What became of a row: it has a plan within the limits, none within them, or none at all for this job."""


class Reached(Frozen, frozen=True, kw_only=True):
    """What a plan reaches.

    Attributes
    ----------
    makespan_ns
        Its makespan [ns].
    bound_ns, proved_by
        No order within the same limits is shorter [ns], and who proved it; see `cpipe.ir.Bound`.
    found_by
        Whose order it is.
    bubble
        Mean idle share of the devices, in [0, 1].
    peaks
        Memory of each device at its fullest, posted receives included [bytes].
    """

    makespan_ns: int
    bound_ns: int
    proved_by: str
    found_by: str
    bubble: float
    peaks: tuple[int, ...]

    @property
    def gap(self) -> float:
        """(makespan - bound) / makespan, in [0, 1]."""
        return (self.makespan_ns - self.bound_ns) / self.makespan_ns if self.makespan_ns else 0.0

    @property
    def peak_bytes(self) -> int:
        """Peak of the fullest device [bytes]."""
        return max(self.peaks)


class Shortfall(Frozen, frozen=True, kw_only=True):
    """A device that a schedule does not fit: what it needs there and what there is [bytes]."""

    device: str
    needed_bytes: int
    capacity_bytes: int

    @property
    def short_bytes(self) -> int:
        """What is missing [bytes]."""
        return self.needed_bytes - self.capacity_bytes


class Row(Frozen, frozen=True, kw_only=True):
    """One method on one placement.

    Attributes
    ----------
    method
        As `cpipe solve --method` takes it.
    placement
        As ``--placement`` takes it; empty where the method applies on none.
    outcome
        What became of it.
    reached
        Within the limits of the comparison; None unless it fits.
    own
        With as much memory as it takes; that of `reached` where it fits, None where that is not known.
    searched
        The best that a search finds on the same placement when every device has exactly the memory of `own`; the
        schedule itself is among what it chooses from. None where nothing was searched.
    reason
        Why it does not fit or apply; empty otherwise.
    shortfalls
        The devices that it does not fit.
    memory_share
        Of a row with less memory than the fastest one: its share of what lies between the least memory that any order
        needs and the fastest row's peak, on every device, in [0, 1]. None of all others.
    """

    method: str
    placement: str
    outcome: Outcome
    reached: Reached | None = None
    own: Reached | None = None
    searched: Reached | None = None
    reason: str = ""
    shortfalls: tuple[Shortfall, ...] = ()
    memory_share: float | None = None


class Comparison(Frozen, frozen=True, kw_only=True):
    """All rows.

    Attributes
    ----------
    name
        Of the profile.
    num_stages, microbatches
        Of the profile.
    devices, capacities
        Names of the devices, and their memory within which rows fit [bytes]; None is no limit.
    rows
        Those that fit, by makespan, then peak memory; those that do not, by makespan without limits; the rest.
    front
        Of each row that fits, whether no other is at least as fast with no more memory (`on_front`).
    """

    name: str
    num_stages: int
    microbatches: int
    devices: tuple[str, ...]
    capacities: tuple[int | None, ...]
    rows: tuple[Row, ...]
    front: tuple[bool, ...]


def on_front(points: list[tuple[int, int]]) -> tuple[bool, ...]:
    """Return, for each point (time, memory), whether no other is better in one and at least as good in the other.

    Of equal points the first alone is on the front.
    """
    least: int | None = None
    found = [False] * len(points)
    for index in sorted(range(len(points)), key=lambda index: points[index]):
        memory = points[index][1]
        if least is None or memory < least:
            found[index], least = True, memory
    return tuple(found)
