"""The lanes of a static picture: bars of ops and collectives, messages on their links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cpipe.report.drawing_messages import channel_label, message_items
from cpipe.report.palette import KINDS, Kind
from cpipe.report.shapes import (
    BACK,
    EDGE,
    FONT,
    GAP,
    INK,
    LANE,
    LANE_BACK,
    MIDDLE,
    MUTED,
    RANK_GAP,
    SMALL,
    THIN,
    Frame,
    Item,
    Rect,
    Text,
    fitted,
    text_width,
)
from cpipe.report.tables import format_ms
from cpipe.report.terminal import printable
from cpipe.report.view import PlanView
from cpipe.report.waits import Step, critical_steps

__all__ = ["lane_items"]


def lane_items(view: PlanView, frame: Frame, y: float) -> Iterator[Item]:
    """Yield the lanes of the ranks that are drawn, from `y` down."""
    critical = set(critical_steps(view))
    room = frame.left - EDGE - 8
    several = len(set(view.plan.problem.placement)) < len(view.plan.problem.placement)
    for place in view.visible:
        rank = view.ranks[place]
        device = printable(rank.device)
        yield _back(frame, y, LANE)
        yield Text(frame.left - 8, y + 15, fitted(device, FONT, room), FONT, INK, "end")
        for i in rank.ops:
            op = view.ops[i]
            short = (f"F{op.mb}B{op.backward[1]}" if op.backward else f"{op.kind}{op.mb}", op.kind)
            labels = (op.label, *short) if several or op.backward else short
            bar = _Bar(KINDS[op.kind], op.start, op.end, op.label, labels, Step("op", i) in critical)
            yield from _bar(frame, y, LANE, bar)
        y += LANE + GAP
        if any(view.collectives[i].start < view.collectives[i].end for i in rank.collectives):
            yield _back(frame, y, MIDDLE)
            yield Text(frame.left - 8, y + 10, "data parallel", SMALL, MUTED, "end")
            for i in rank.collectives:
                run = view.collectives[i]
                found = Step("collective", i) in critical
                yield from _bar(
                    frame, y, MIDDLE, _Bar(KINDS[run.kind], run.start, run.end, run.label, (run.label,), found)
                )
            y += MIDDLE + GAP
        for number in view.channels_of(place):
            yield _back(frame, y, THIN)
            yield Text(frame.left - 8, y + 8, fitted(channel_label(view, number), SMALL, room), SMALL, MUTED, "end")
            yield from message_items(view, frame, y, number, critical)
            y += THIN + GAP
        y += RANK_GAP


def _back(frame: Frame, y: float, height: float) -> Rect:
    return Rect(frame.left, y, frame.right - frame.left, height, LANE_BACK)


class _Bar(NamedTuple):
    """An op or a collective; `labels` are texts for it, longest first; [ns]."""

    kind: Kind
    start: int
    end: int
    name: str
    labels: tuple[str, ...]
    critical: bool


def _bar(frame: Frame, y: float, height: float, bar: _Bar) -> Iterator[Item]:
    if bar.end < frame.first or bar.start > frame.last:
        return
    x, width = frame.x(bar.start), frame.x(bar.end) - frame.x(bar.start)
    hint = f"{bar.name}: {bar.kind.name}, {format_ms(bar.start)} to {format_ms(bar.end)} ms"
    yield Rect(x, y, width, height, bar.kind.fill, outline=BACK if width > 3 else "", hint=hint)
    edge = 3 if height == LANE else 2
    if bar.critical and width > 0:
        yield Rect(x, y + height - edge, width, edge, INK)
    sizes = (FONT - 1, SMALL) if height == LANE else (SMALL,)
    fitting = [(text, size) for text in bar.labels for size in sizes if text_width(text, size) + 3 <= width]
    if fitting:
        label, size = fitting[0]
        yield Text(
            x + width / 2, y + (height - 2) / 2 + size * 0.36 + (height == LANE), label, size, bar.kind.ink, "middle"
        )
