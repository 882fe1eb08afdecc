"""The JSON report of `sweep`: every point of the grid with what was found there; a results file in JSON is the same.

Times are [ms], sizes [bytes], shares in [0, 1].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from cpipe.ir.base import Frozen
from cpipe.report.document import DiagnosticReport

__all__ = ["POINT_STATUSES", "PointStatus", "SweepPoint", "SweepReport", "sweep_lines"]

PointStatus = Literal["optimal", "feasible", "infeasible", "no_solution", "error", "failed"]

POINT_STATUSES: dict[PointStatus, str] = {
    "optimal": "proven optimal",
    "feasible": "feasible",
    "infeasible": "proven infeasible",
    "no_solution": "without a plan within the limits",
    "error": "not applicable",
    "failed": "failed",
}
"""What became of a point -> in words."""


class SweepPoint(Frozen, frozen=True, kw_only=True):
    """One point of the grid and what was found there; fields of the result are null without a plan.

    Attributes
    ----------
    key
        Of all that decides the result: profile, version, parameters and options.
    microbatches, memory_factor, method, placement
        Parameters; capacities were multiplied by the factor.
    chunks
        Stages of each device in a loop or wave, after cutting the profile's; null where they are as written.
    latency, bandwidth
        Of the links that vary, in the units of the report; null where they are the profile's.
    status
        ``optimal``, ``feasible``, ``infeasible``, ``no_solution``; ``error``: method, placement or values do not apply
        to this profile; ``failed``: the process that solved it died, or met a bug.
    makespan_ms, lower_bound_ms, gap
        Of the plan, and what no plan can beat.
    bubble
        Idle share of all devices together.
    peak_bytes
        Of each device, in rank order.
    found_by, proved_by
        The generator or solver of the order, and of the bound.
    reason
        Why there is no plan.
    """

    key: str
    microbatches: int
    memory_factor: float
    method: str
    placement: str
    chunks: int | None
    latency: float | None
    bandwidth: float | None
    status: PointStatus
    makespan_ms: float | None = None
    lower_bound_ms: float | None = None
    gap: float | None = None
    bubble: float | None = None
    peak_bytes: tuple[int, ...] = ()
    found_by: str | None = None
    proved_by: str | None = None
    reason: str | None = None


class SweepReport(Frozen, frozen=True, kw_only=True):
    """A sweep of one profile.

    Attributes
    ----------
    status
        ``done``; ``incomplete``: points failed, or the sweep was interrupted; ``error``: it never ran.
    cpipe
        Version that solved the points.
    name, profile
        Name of the profile, and its digest.
    forward_ms
        T_F, the unit of relative delays: the longest forward of a whole device [ms].
    links
        Ends of the links that vary (``dc-a<->dc-b``).
    latency_unit, bandwidth_unit
        ``ms``, ``factor`` (times the profile's) or ``tf`` (times T_F); ``gbit_s``, ``factor`` or ``tf``; null where
        links are as written.
    num_points
        Of the whole grid.
    points
        Those that were solved, in the order of the grid.
    diagnostics
        Errors and warnings.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["sweep"] = "sweep"
    status: Literal["done", "incomplete", "error"]
    cpipe: str | None = None
    name: str | None = None
    profile: str | None = None
    forward_ms: float | None = None
    links: tuple[str, ...] = ()
    latency_unit: Literal["ms", "factor", "tf"] | None = None
    bandwidth_unit: Literal["gbit_s", "factor", "tf"] | None = None
    num_points: int = 0
    points: tuple[SweepPoint, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


def sweep_lines(points: Sequence[SweepPoint], num_points: int, num_kept: int) -> str:
    """Return how a sweep went: how many points ended how, and which was the fastest.

    Parameters
    ----------
    points
        What was solved.
    num_points
        Of the whole grid.
    num_kept
        Points that were there already.
    """
    counts = Counter(point.status for point in points)
    parts = [f"{counts[status]} {words}" for status, words in POINT_STATUSES.items() if counts[status]]
    first = f"{len(points)} of {num_points} points: {', '.join(parts) or 'none'}"
    lines = [first + (f"; {num_kept} were there already" if num_kept else "")]
    timed = [(point.makespan_ms / point.microbatches, point) for point in points if point.makespan_ms is not None]
    if timed:
        best, point = min(timed, key=lambda entry: entry[0])
        count = f"{point.microbatches} microbatch{'' if point.microbatches == 1 else 'es'}"
        where = f"{point.method} on {point.placement}, {count}"
        lines.append(f"fastest: {best:.3f} ms per microbatch ({where})")
    return "\n".join(lines)
