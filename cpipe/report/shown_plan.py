"""What `show` says of one plan: the numbers of its report, from which every table takes its own."""

from __future__ import annotations

from collections.abc import Iterable

from cpipe.report.document import device_report
from cpipe.report.shown import ChannelReport, LinkReport, ShownPlan
from cpipe.report.shown_lanes import channel_busy, lane_reports, share
from cpipe.report.time_axis import TimeWindow
from cpipe.report.view import PlanView
from cpipe.report.waits import causes, critical_steps
from cpipe.units import ns_to_ms

__all__ = ["shown"]


def shown(view: PlanView, file: str, window: TimeWindow | None = None) -> ShownPlan:
    """Return what there is to say of a plan; bars are those that stand in `window`, all other numbers of all of it."""
    plan = view.plan
    return ShownPlan(
        file=file,
        name=plan.problem.name,
        method=plan.made_by.method,
        replayed=view.timeline is not None,
        makespan_ms=ns_to_ms(plan.claims.makespan_ns),
        span_ms=None if plan.claims.span_ns is None else ns_to_ms(plan.claims.span_ns),
        lower_bound_ms=None if view.bound_ns is None else ns_to_ms(view.bound_ns),
        gap=view.gap,
        proved_by=None if view.bound_ns is None else plan.claims.proved_by,
        critical_ops=tuple(view.ops[step.at].label for step in critical_steps(view) if step.kind == "op"),
        devices=tuple(map(device_report, view.shown_figures)),
        lanes=tuple(lane_reports(view, window or TimeWindow())),
        channels=tuple(_channels(view)),
        links=tuple(_links(view)),
    )


def _channels(view: PlanView) -> Iterable[ChannelReport]:
    idle = [0] * len(view.channels)
    for op, cause in zip(view.ops, causes(view), strict=True):
        if cause.kind == "message":
            idle[view.messages[cause.at].channel] += op.start - (view.ops[op.previous].end if op.previous >= 0 else 0)
    for number, channel in enumerate(view.channels):
        busy = channel_busy(view, channel)
        named = view.problem is not None and channel.pipe is not None
        yield ChannelReport(
            id=channel.id,
            source=view.ranks[channel.source].device,
            target=view.ranks[channel.target].device,
            carries=channel.carries,
            link=view.problem.pipes[channel.pipe] if named and view.problem and channel.pipe is not None else None,
            num_messages=len(channel.messages),
            busy_ms=None if busy is None else ns_to_ms(busy),
            utilisation=None if busy is None else share(view, busy),
            idle_ms=ns_to_ms(idle[number]),
        )


def _links(view: PlanView) -> Iterable[LinkReport]:
    if view.problem is None or view.timeline is None:
        return
    counts, busy = [0] * len(view.problem.pipes), [0] * len(view.problem.pipes)
    for run in view.timeline.messages:
        counts[run.pipe] += 1
        busy[run.pipe] += run.end_ns - run.start_ns
    shared = view.problem.collectives.pipes if view.problem.collectives else ()
    collective = sum(run.end_ns - run.start_ns for run in view.timeline.collectives)
    for pipe, name in enumerate(view.problem.pipes):
        taken = busy[pipe] + (collective if pipe in shared else 0)
        if counts[pipe] or taken:
            yield LinkReport(
                name=name, num_messages=counts[pipe], busy_ms=ns_to_ms(taken), utilisation=share(view, taken)
            )
