"""What the script of the page draws from: everything of a view in whole nanoseconds, packed in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpipe.report.levels import Level, memory_levels
from cpipe.report.palette import CARRIES, KINDS
from cpipe.report.terminal import printable
from cpipe.report.time_axis import TimeWindow
from cpipe.report.view import ChannelView, PlanView
from cpipe.report.waits import Cause, causes, critical_steps

__all__ = ["page_data"]


def page_data(views: Sequence[PlanView], names: Sequence[str], window: TimeWindow | None = None) -> dict[str, Any]:
    """Return what the script of the page draws from; times [ns]."""
    window = window or TimeWindow()
    first, last = window.within(max([1, *(view.horizon for view in views)]))
    return {
        "kinds": {letters: {"name": row.name, "fill": row.fill, "ink": row.ink} for letters, row in KINDS.items()},
        "carries": {name: {"fill": row.fill} for name, row in CARRIES.items()},
        "first": None if window.first is None else first,
        "last": None if window.last is None else last,
        "plans": [_plan_data(view, name) for view, name in zip(views, names, strict=True)],
    }


def _plan_data(view: PlanView, name: str) -> dict[str, Any]:
    levels, why = memory_levels(view), causes(view)
    steps = critical_steps(view, why)
    placement = view.plan.problem.placement
    return {
        "name": printable(view.plan.problem.name or name),
        "letters": list(KINDS),
        "several": len(set(placement)) < len(placement),
        "horizon": view.horizon,
        "makespan": view.plan.claims.makespan_ns,
        "bound": view.bound_ns if view.plan.claims.objective == "makespan" else None,
        "visible": view.visible,
        "ranks": [_rank_data(view, place, levels[place]) for place in range(len(view.ranks))],
        "channels": [_channel_data(view, channel) for channel in view.channels],
        "local": [
            end
            for consumer, inputs in enumerate(view.inputs)
            for producer, message in inputs
            if message < 0
            for end in (producer, consumer)
        ],
        "why": "".join(_LETTERS[cause.kind] for cause in why),
        "whyAt": [_why_at(view, cause) for cause in why],
        "critical": {
            kind: [step.at for step in steps if step.kind == kind] for kind in ("op", "message", "collective")
        },
    }


_LETTERS = {"start": "s", "device": "d", "input": "i", "message": "m", "gather": "g", "unknown": "u"}


def _why_at(view: PlanView, cause: Cause) -> int:
    return view.collectives[cause.at].stage if cause.kind == "gather" else cause.at


def _rank_data(view: PlanView, place: int, level: Level) -> dict[str, Any]:
    rank = view.ranks[place]
    ops = [view.ops[i] for i in rank.ops]
    before = [0, *(op.end for op in ops)]
    letters = list(KINDS)
    runs = [(i, view.collectives[i]) for i in rank.collectives]
    return {
        "rank": rank.rank,
        "device": printable(rank.device),
        "ops": {
            "kind": [letters.index(op.kind) for op in ops],
            "stage": [op.stage for op in ops],
            "mb": [op.mb for op in ops],
            "gap": [op.start - end for op, end in zip(ops, before, strict=False)],
            "length": [op.end - op.start for op in ops],
            "back": {str(i): op.backward for i, op in enumerate(ops) if op.backward is not None},
        },
        "runs": [
            {"at": i, "kind": run.kind, "stage": run.stage, "start": run.start, "end": run.end} for i, run in runs
        ],
        "channels": view.channels_of(place),
        "level": {
            "unit": level.unit,
            "capacity": level.capacity,
            "peak": level.peak,
            "points": [number for point in level.points for number in point],
        },
    }


def _channel_data(view: PlanView, channel: ChannelView) -> dict[str, Any]:
    messages = [view.messages[i] for i in channel.messages]
    windows = [message.window for message in messages]
    known = view.timeline is not None and all(window is not None for window in windows)
    link = view.problem.pipes[channel.pipe] if view.problem is not None and channel.pipe is not None else ""
    return {
        "source": channel.source,
        "target": channel.target,
        "carries": channel.carries,
        "link": printable(link),
        "made": [message.producer for message in messages],
        "read": [message.consumer for message in messages],
        "times": [time for window in windows if window is not None for time in window] if known else None,
    }
