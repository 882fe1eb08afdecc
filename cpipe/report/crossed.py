"""The JSON report of `cpipe crossover`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cpipe.errors import Diagnostic
from cpipe.ir.base import Frozen
from cpipe.ir.crossing import Crossover, Rival, Side
from cpipe.report.document import DiagnosticReport, diagnostic_reports
from cpipe.units import ns_to_ms

__all__ = [
    "CrossingReport",
    "CrossoverReport",
    "LinkPointReport",
    "SideReport",
    "crossover_report",
]

Failure = Literal["infeasible", "no_solution", "error"]
"""How a comparison can fail; the last is for all other reasons."""


class SideReport(Frozen, frozen=True, kw_only=True):
    """The best iteration that was found on one side, what none can beat [ms], and the gap between, in [0, 1]."""

    makespan_ms: float
    lower_bound_ms: float
    gap: float
    found_by: str


class LinkPointReport(Frozen, frozen=True, kw_only=True):
    """All sides at one bandwidth of the link; see `cpipe.ir.crossing.Rival`."""

    bandwidth_gbit_s: float
    pipeline: SideReport
    overlapped: SideReport
    plain: SideReport


class CrossingReport(Frozen, frozen=True, kw_only=True):
    """Where the faster side changes: between two bandwidths that were solved, and an interpolation [Gbit/s]."""

    rival: Rival
    faster_below: Literal["pipeline", "data-parallel"]
    low_gbit_s: float
    high_gbit_s: float
    bandwidth_gbit_s: float


class CrossoverReport(Frozen, frozen=True, kw_only=True):
    """What `cpipe crossover` found; times [ms], sizes [bytes].

    `status` is ``done``, ``error``, or what a search proved or met (``infeasible``, ``no_solution``). `ideal_ms` is a
    pipeline without bubbles, `local` the schedule without delay.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["crossover"] = "crossover"
    status: Literal["done", "infeasible", "no_solution", "error"]
    message_bytes: int | None = None
    gradient_bytes: int | None = None
    latency_ms: float | None = None
    ideal_ms: float | None = None
    local: SideReport | None = None
    points: tuple[LinkPointReport, ...] = ()
    crossings: tuple[CrossingReport, ...] = ()
    num_solves: int | None = None
    diagnostics: tuple[DiagnosticReport, ...] = ()


def crossover_report(found: Crossover, diagnostics: Sequence[Diagnostic]) -> CrossoverReport:
    """Return the report of a comparison."""
    return CrossoverReport(
        status="done",
        message_bytes=found.message_bytes,
        gradient_bytes=found.gradient_bytes,
        latency_ms=ns_to_ms(found.latency_ns),
        ideal_ms=ns_to_ms(found.ideal_ns),
        local=_side(found.local),
        points=tuple(
            LinkPointReport(
                bandwidth_gbit_s=point.gbit_s,
                pipeline=_side(point.pipeline),
                overlapped=_side(point.overlapped),
                plain=_side(point.plain),
            )
            for point in found.points
        ),
        crossings=tuple(
            CrossingReport(
                rival=crossing.rival,
                faster_below=crossing.below,
                low_gbit_s=crossing.low_gbit_s,
                high_gbit_s=crossing.high_gbit_s,
                bandwidth_gbit_s=crossing.gbit_s,
            )
            for crossing in found.crossings
        ),
        num_solves=found.num_solves,
        diagnostics=diagnostic_reports(diagnostics),
    )


def _side(side: Side) -> SideReport:
    return SideReport(
        makespan_ms=ns_to_ms(side.makespan_ns),
        lower_bound_ms=ns_to_ms(side.bound_ns),
        gap=side.gap,
        found_by=side.found_by,
    )
