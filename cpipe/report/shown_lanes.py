"""The lanes of a JSON report of `show`: bars with their times, and how busy each lane is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from cpipe.report.shown import BarReport, LaneReport
from cpipe.report.time_axis import TimeWindow
from cpipe.report.view import ChannelView, PlanView
from cpipe.report.waits import Step, causes, critical_steps, describe
from cpipe.units import ns_to_ms

__all__ = ["channel_busy", "lane_reports", "share"]


def lane_reports(view: PlanView, window: TimeWindow) -> Iterable[LaneReport]:
    """Yield the lanes of the ranks that are drawn, with the bars that stand in `window`."""
    why = causes(view)
    critical = set(critical_steps(view, why))
    first, last = window.within(view.horizon)
    for place in view.visible:
        rank = view.ranks[place]
        bars = [
            _bar(op.kind, op.stage, op.mb, (op.start, op.end), Step("op", i) in critical, describe(view, why[i]))
            for i, op in ((i, view.ops[i]) for i in rank.ops)
            if op.start <= last and op.end >= first
        ]
        busy = sum(view.ops[i].end - view.ops[i].start for i in rank.ops)
        yield _lane(view, place, "compute", None, rank.device, busy, bars)
        if rank.collectives:
            bars = [
                _bar(run.kind, run.stage, None, (run.start, run.end), Step("collective", i) in critical, None)
                for i, run in ((i, view.collectives[i]) for i in rank.collectives)
                if run.start <= last and run.end >= first
            ]
            busy = sum(view.collectives[i].end - view.collectives[i].start for i in rank.collectives)
            yield _lane(view, place, "collectives", None, f"{rank.device} data parallel", busy, bars)
        for number in view.channels_of(place):
            yield _channel_lane(view, number, critical, (first, last))


def _channel_lane(view: PlanView, number: int, critical: set[Step], part: tuple[int, int]) -> LaneReport:
    channel, bars = view.channels[number], []
    for i in channel.messages:
        message = view.messages[i]
        start, end = message.span
        if start > part[1] or end < part[0]:
            continue
        arrival = None
        if message.window is not None:
            end, arrival = message.window.end, message.window.arrival
        kind = view.ops[message.producer].kind
        bars.append(
            _bar(kind, message.stage, message.mb, (start, end), Step("message", i) in critical, None, arrival),
        )
    name = view.channel_name(number)
    return _lane(view, channel.source, "channel", channel.id, name, channel_busy(view, channel), bars)


def _lane(
    view: PlanView,
    place: int,
    kind: Literal["compute", "collectives", "channel"],
    channel: int | None,
    name: str,
    busy: int | None,
    bars: Sequence[BarReport],
) -> LaneReport:
    return LaneReport(
        rank=view.ranks[place].rank,
        kind=kind,
        channel=channel,
        name=name,
        busy_ms=None if busy is None else ns_to_ms(busy),
        utilisation=None if busy is None else share(view, busy),
        bars=tuple(bars),
    )


def _bar(
    op: str,
    stage: int,
    mb: int | None,
    times: tuple[int, int],
    critical: bool,
    waits_for: str | None,
    arrival: int | None = None,
) -> BarReport:
    return BarReport(
        op=op,
        stage=stage,
        mb=mb,
        start_ms=ns_to_ms(times[0]),
        end_ms=ns_to_ms(times[1]),
        arrival_ms=None if arrival is None else ns_to_ms(arrival),
        critical=critical,
        waits_for=waits_for,
    )


def share(view: PlanView, busy: int) -> float:
    """Return the share of the makespan that `busy` [ns] is."""
    makespan = view.plan.claims.makespan_ns
    return busy / makespan if makespan > 0 else 0.0


def channel_busy(view: PlanView, channel: ChannelView) -> int | None:
    """Return how long the messages of a channel hold their link [ns]; None where that is not known."""
    windows = [view.messages[i].window for i in channel.messages]
    if view.timeline is None:
        return None
    return sum(window.end - window.start for window in windows if window is not None)
