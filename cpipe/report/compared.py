"""The JSON report of `cpipe compare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cpipe.errors import Diagnostic
from cpipe.ir.base import Frozen
from cpipe.ir.comparison import Comparison, Outcome, Reached, Row
from cpipe.report.document import DiagnosticReport, diagnostic_reports
from cpipe.units import ns_to_ms

__all__ = ["CompareReport", "ReachedReport", "RowReport", "ShortfallReport", "compare_report"]


class ReachedReport(Frozen, frozen=True, kw_only=True):
    """What a plan reaches; see `cpipe.ir.comparison.Reached`.

    `peak_bytes` is that of the fullest device, `peaks_bytes` of each in rank order; `bubble` and `gap` are in [0, 1].
    """

    makespan_ms: float
    lower_bound_ms: float
    gap: float
    proved_by: str
    found_by: str
    bubble: float
    peak_bytes: int
    peaks_bytes: tuple[int, ...]


class ShortfallReport(Frozen, frozen=True, kw_only=True):
    """A device that a schedule does not fit."""

    device: str
    needed_bytes: int
    capacity_bytes: int
    short_bytes: int


class RowReport(Frozen, frozen=True, kw_only=True):
    """One method on one placement.

    Attributes
    ----------
    row
        Its number, from 1.
    method, placement
        As `cpipe solve` takes them; `placement` is null where the method applies on none.
    outcome
        ``fits``, ``does-not-fit`` or ``does-not-apply``.
    on_front
        Whether no other row is at least as fast with no more memory; null unless it fits.
    memory_share
        Of a row with less memory than the fastest: its share of what lies between the least memory and that row's.
    reached, own, searched
        Within the limits; with as much memory as it takes; the best that a search finds with exactly that much.
    reason, shortfalls
        Why it does not fit or apply; null and empty where it fits.
    """

    row: int
    method: str
    placement: str | None
    outcome: Outcome
    on_front: bool | None
    memory_share: float | None
    reached: ReachedReport | None
    own: ReachedReport | None
    searched: ReachedReport | None
    reason: str | None
    shortfalls: tuple[ShortfallReport, ...]


class CompareReport(Frozen, frozen=True, kw_only=True):
    """What `cpipe compare` found: rows that fit, by makespan and peak, those that do not, and those that do not apply.

    `status` is ``done``; ``infeasible``: it is proven that nothing fits; ``error``: nothing was compared. `capacities`
    are the limits of each device [bytes], null is none.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["compare"] = "compare"
    status: Literal["done", "infeasible", "error"]
    search: str | None = None
    devices: tuple[str, ...] = ()
    capacities: tuple[int | None, ...] = ()
    rows: tuple[RowReport, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


def compare_report(found: Comparison, search: str, diagnostics: Sequence[Diagnostic]) -> CompareReport:
    """Return the report of a comparison; `search` is the method that looked at the memory of others."""
    return CompareReport(
        status="done" if found.front else "infeasible",
        search=search,
        devices=found.devices,
        capacities=found.capacities,
        rows=tuple(_row(number, row, found) for number, row in enumerate(found.rows, start=1)),
        diagnostics=diagnostic_reports(diagnostics),
    )


def _row(number: int, row: Row, found: Comparison) -> RowReport:
    return RowReport(
        row=number,
        method=row.method,
        placement=row.placement or None,
        outcome=row.outcome,
        on_front=found.front[number - 1] if row.outcome == "fits" else None,
        memory_share=row.memory_share,
        reached=_reached(row.reached),
        own=_reached(row.own),
        searched=_reached(row.searched),
        reason=row.reason or None,
        shortfalls=tuple(
            ShortfallReport(
                device=entry.device,
                needed_bytes=entry.needed_bytes,
                capacity_bytes=entry.capacity_bytes,
                short_bytes=entry.short_bytes,
            )
            for entry in row.shortfalls
        ),
    )


def _reached(reached: Reached | None) -> ReachedReport | None:
    if reached is None:
        return None
    return ReachedReport(
        makespan_ms=ns_to_ms(reached.makespan_ns),
        lower_bound_ms=ns_to_ms(reached.bound_ns),
        gap=reached.gap,
        proved_by=reached.proved_by,
        found_by=reached.found_by,
        bubble=reached.bubble,
        peak_bytes=reached.peak_bytes,
        peaks_bytes=reached.peaks,
    )
