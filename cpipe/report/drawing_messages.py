"""The lane of a channel in a static picture: its messages on their link and on their way."""

from __future__ import annotations

from collections.abc import Iterator

from cpipe.report.palette import CARRIES
from cpipe.report.shapes import INK, THIN, Frame, Item, Rect
from cpipe.report.tables import format_ms
from cpipe.report.terminal import printable
from cpipe.report.view import PlanView
from cpipe.report.waits import Step

__all__ = ["channel_label", "message_items"]


def message_items(view: PlanView, frame: Frame, y: float, number: int, critical: set[Step]) -> Iterator[Item]:
    """Draw the messages of a channel: solid while they hold their link, pale while they are on their way."""
    kind = CARRIES[view.channels[number].carries]
    for i in view.channels[number].messages:
        message = view.messages[i]
        start, end = message.span
        if end < frame.first or start > frame.last:
            continue
        made = view.ops[message.producer].label
        held = message.window.end if message.window is not None else start
        hint = f"{kind.name} of {made}, {format_ms(start)} to {format_ms(end)} ms"
        x = frame.x(held)
        if frame.x(end) > x:
            yield Rect(x, y + 2, frame.x(end) - x, THIN - 4, kind.fill, opacity=0.35, hint=hint)
        yield Rect(frame.x(start), y, max(1.0, x - frame.x(start)), THIN, kind.fill, hint=hint)
        if Step("message", i) in critical:
            yield Rect(frame.x(start), y + THIN - 2, max(1.0, frame.x(end) - frame.x(start)), 2, INK)


def channel_label(view: PlanView, number: int) -> str:
    """Return the name of a channel's lane, which stands below those of its sender."""
    channel = view.channels[number]
    return f"to {printable(view.ranks[channel.target].device)}, {channel.carries}"
