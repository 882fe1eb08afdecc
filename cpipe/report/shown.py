"""The JSON report of `show`: devices, lanes with their bars, channels and links of one plan, or of two.

Every picture takes its numbers from here. Times are [ms], sizes [bytes], shares in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from cpipe.errors import Diagnostic
from cpipe.ir.base import Frozen
from cpipe.report.document import DeviceReport, DiagnosticReport, diagnostic_reports
from cpipe.report.time_axis import TimeWindow
from cpipe.units import ns_to_ms

__all__ = ["BarReport", "ChannelReport", "LaneReport", "LinkReport", "ShowReport", "ShownPlan", "show_report"]


class BarReport(Frozen, frozen=True, kw_only=True):
    """One bar of a lane.

    Attributes
    ----------
    op, stage, mb
        What it is; of a message, the op that made it. `mb` is null for a collective.
    start_ms, end_ms
        Of a message: from when to when it holds its link; without a profile from when it is ready until it is read.
    arrival_ms
        When a message arrives; null otherwise, or where it is not known.
    critical
        Whether it is part of the chain that makes the plan as long as it is.
    waits_for
        What a compute op waited for last, in words; null for other bars.
    """

    op: str
    stage: int
    mb: int | None
    start_ms: float
    end_ms: float
    arrival_ms: float | None
    critical: bool
    waits_for: str | None


class LaneReport(Frozen, frozen=True, kw_only=True):
    """One lane of a rank: its compute, its collectives, or a channel that it sends on (`channel` is its id).

    `busy_ms` is the sum of its bars, `utilisation` its share of the makespan; null where times are not known.
    """

    rank: int
    kind: Literal["compute", "collectives", "channel"]
    channel: int | None
    name: str
    busy_ms: float | None
    utilisation: float | None
    bars: tuple[BarReport, ...]


class ChannelReport(Frozen, frozen=True, kw_only=True):
    """One channel.

    `busy_ms` is how long its messages hold their link, `utilisation` that share of the makespan; both are null without
    a profile. `idle_ms` is how long its receiver stood still for it.
    """

    id: int
    source: str
    target: str
    carries: Literal["activation", "gradient"]
    link: str | None
    num_messages: int
    busy_ms: float | None
    utilisation: float | None
    idle_ms: float


class LinkReport(Frozen, frozen=True, kw_only=True):
    """One link of the profile, with all that goes over it, collectives too."""

    name: str
    num_messages: int
    busy_ms: float
    utilisation: float


class ShownPlan(Frozen, frozen=True, kw_only=True):
    """One plan.

    Attributes
    ----------
    file, name, method
        As the user named the file and the profile; how the plan was made.
    replayed
        Whether times and peaks are those of a replay on the profile; else they are the plan's own.
    makespan_ms, span_ms, lower_bound_ms, gap
        `span_ms` where the span was the objective; bound and gap are null where the bound is of another job.
    proved_by
        What proved the bound.
    critical_ops
        The compute ops of the critical chain, in the order of time, as ``2F0``.
    devices, lanes, channels, links
        In rank order, and by id; `links` is empty without a replay.
    """

    file: str
    name: str
    method: str
    replayed: bool
    makespan_ms: float
    span_ms: float | None
    lower_bound_ms: float | None
    gap: float | None
    proved_by: str | None
    critical_ops: tuple[str, ...]
    devices: tuple[DeviceReport, ...]
    lanes: tuple[LaneReport, ...]
    channels: tuple[ChannelReport, ...]
    links: tuple[LinkReport, ...]


class ShowReport(Frozen, frozen=True, kw_only=True):
    """What `cpipe show` shows: ``done`` with one or two plans, or ``error``.

    `ranks`, `from_ms` and `to_ms` are what was asked for of lanes, devices and bars; null for all.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["show"] = "show"
    status: Literal["done", "error"]
    ranks: tuple[int, ...] | None = None
    from_ms: float | None = None
    to_ms: float | None = None
    plans: tuple[ShownPlan, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


def show_report(
    plans: Iterable[ShownPlan],
    warnings: Sequence[Diagnostic] = (),
    *,
    ranks: Sequence[int] | None = None,
    window: TimeWindow | None = None,
) -> ShowReport:
    """Return the report of plans of which `ranks` were shown in `window`; None for all."""
    first, last = window or TimeWindow()
    return ShowReport(
        status="done",
        ranks=None if ranks is None else tuple(ranks),
        from_ms=None if first is None else ns_to_ms(first),
        to_ms=None if last is None else ns_to_ms(last),
        plans=tuple(plans),
        diagnostics=diagnostic_reports(warnings),
    )
