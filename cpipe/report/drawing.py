"""The static picture of plans, as a list of rectangles, lines and texts; SVG and PNG are two ways to write it down.

Lanes stand under each other: for each rank its compute, its collectives, and the channels that it sends on. All plans
of one picture share one time scale. Sizes are in pixels at scale 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.report.drawing_lanes import lane_items
from cpipe.report.drawing_legend import add_legend
from cpipe.report.drawing_messages import channel_label
from cpipe.report.shapes import (
    ALARM,
    BACK,
    EDGE,
    FONT,
    GRID,
    INK,
    LANE,
    MUTED,
    SMALL,
    TITLE,
    WIDTH,
    Drawing,
    Frame,
    Item,
    Rect,
    Rule,
    Text,
    fitted,
    text_width,
)
from cpipe.report.summary import verdict
from cpipe.report.terminal import printable
from cpipe.report.time_axis import TimeWindow, ticks
from cpipe.report.view import PlanView

__all__ = ["draw_plans"]

_TICK_EVERY = 90


def draw_plans(views: Sequence[PlanView], titles: Sequence[str], window: TimeWindow | None = None) -> Drawing:
    """Return the picture of plans under each other.

    Parameters
    ----------
    views
        What is drawn.
    titles
        Of each; control characters are escaped.
    window
        Draw this part of time alone.
    """
    horizon = max([1, *(view.horizon for view in views)])
    first, last = (window or TimeWindow()).within(horizon)
    widths = [text_width(name, size) for view in views for name, size in _lane_names(view)]
    margin = min(240.0, max([60.0, *widths])) + 1
    frame = Frame(EDGE + margin + 8, WIDTH - EDGE, first, last)
    items: list[Item] = []
    y = float(EDGE)
    for view, title in zip(views, titles, strict=True):
        y = _plan(items, y, frame, view, printable(title))
    y = add_legend(items, y, views)
    title = " and ".join(map(printable, titles))
    return Drawing(WIDTH, round(y) + EDGE, title, (Rect(0, 0, WIDTH, round(y) + EDGE, BACK), *items))


def _lane_names(view: PlanView) -> Iterator[tuple[str, int]]:
    """Yield the names of lanes and their sizes."""
    for place in view.visible:
        yield printable(view.ranks[place].device), FONT
        for number in view.channels_of(place):
            yield channel_label(view, number), SMALL


def _plan(items: list[Item], y: float, frame: Frame, view: PlanView, title: str) -> float:
    """Draw one plan from `y` down; return where it ends."""
    y += TITLE
    items.append(Text(EDGE, y, fitted(title, TITLE, WIDTH - 2 * EDGE), TITLE, INK))
    y += FONT + 6
    items.append(Text(EDGE, y, verdict(view), FONT, MUTED))
    y += 24
    top = y
    lanes = list(lane_items(view, frame, y))
    bottom = max([top + LANE, *(item.y + item.height for item in lanes if isinstance(item, Rect))]) + 4
    items += _axis(frame, top, bottom)
    items += lanes
    for time, colour in ((view.plan.claims.makespan_ns, INK), (_bound(view), ALARM)):
        if time is not None and frame.first <= time <= frame.last:
            items.append(Rule(frame.x(time), top - 4, frame.x(time), bottom, colour, dashed=True))
    return bottom + 20


def _bound(view: PlanView) -> int | None:
    """Return the lower bound [ns] where it can stand on the axis: a bound on a span has no place there."""
    return view.bound_ns if view.plan.claims.objective == "makespan" else None


def _axis(frame: Frame, top: float, bottom: float) -> Iterator[Item]:
    most = int((frame.right - frame.left) / _TICK_EVERY)
    for time, label in ticks(frame.first, frame.last, most):
        x = frame.x(time)
        yield Rule(x, top - 4, x, bottom, GRID)
        room = text_width(label, SMALL) / 2
        yield Text(min(x, WIDTH - 4 - room), top - 7, label, SMALL, MUTED, "middle")
    yield Text(frame.left - 12, top - 7, "ms", SMALL, MUTED, "end")
