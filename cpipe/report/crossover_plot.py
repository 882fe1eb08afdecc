"""The picture of `cpipe crossover`: the time of an iteration over the bandwidth, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from cpipe.ir.crossing import Crossover
from cpipe.report.axes import Field, axis_for, axis_items, log_axis, number_text
from cpipe.report.crossover import RIVALS
from cpipe.report.shapes import (
    ALARM,
    BACK,
    EDGE,
    FONT,
    INK,
    MUTED,
    SMALL,
    TITLE,
    Drawing,
    Item,
    Rect,
    Rule,
    Text,
    fitted,
)
from cpipe.report.tables import format_ms
from cpipe.report.terminal import printable

__all__ = ["draw_crossover"]

_WIDTH, _HEIGHT = 960, 620
_MARK = 7

Curve = tuple[str, str, Sequence[float]]
"""Name, colour and a time [s] for each bandwidth."""


def draw_crossover(found: Crossover) -> Drawing:
    """Return the picture: a curve per side, a red line at each change of sides."""
    title = f"{printable(found.name) or 'two sites'}: pipeline or data parallelism across the link"
    curves = _curves(found)
    field = _field(found, curves)
    items: list[Item] = [
        Rect(0, 0, _WIDTH, _HEIGHT, BACK),
        Text(EDGE, EDGE + TITLE, fitted(title, TITLE, _WIDTH - 2 * EDGE), TITLE, INK),
        *axis_items(field),
    ]
    ideal = field.y(found.ideal_ns / 1e9)
    items.append(Rule(field.left, ideal, field.right, ideal, MUTED))
    items.append(Text(field.left + 6, ideal - 4, "no bubbles", SMALL + 1, MUTED))
    items += _crossings(found, field)
    for curve in curves:
        items += _curve(curve, found, field)
    items += _legend(curves, field, marked=bool(found.crossings))
    return Drawing(_WIDTH, _HEIGHT, title, tuple(items))


def _curves(found: Crossover) -> list[Curve]:
    points = found.points
    return [
        ("pipeline across the link", "#0072b2", [point.pipeline.makespan_ns / 1e9 for point in points]),
        (RIVALS["overlapped"], "#d55e00", [point.overlapped.makespan_ns / 1e9 for point in points]),
        (RIVALS["plain"], "#cc79a7", [point.plain.makespan_ns / 1e9 for point in points]),
    ]


def _field(found: Crossover, curves: Sequence[Curve]) -> Field:
    bandwidths = [point.gbit_s for point in found.points]
    times = [time for _, _, times in curves for time in times]
    across = log_axis(min(bandwidths), max(bandwidths), "bandwidth between the sites, each way [Gbit/s]")
    low = min(found.ideal_ns / 1e9, *times)
    top, bottom = 78.0, float(_HEIGHT - 108)
    up = axis_for(low, max(times), "iteration [s]", bottom - top)
    return Field(84.0, float(_WIDTH - EDGE - 8), top, bottom, across, up)


def _curve(curve: Curve, found: Crossover, field: Field) -> Iterator[Item]:
    name, colour, times = curve
    places = [
        (field.x(point.gbit_s), field.y(time), point.gbit_s, time)
        for point, time in zip(found.points, times, strict=True)
    ]
    for first, second in pairwise(places):
        yield Rule(first[0], first[1], second[0], second[1], colour)
    for x, y, gbit_s, time in places:
        hint = f"{name}: {format_ms(round(time * 1e9))} ms at {number_text(gbit_s)} Gbit/s"
        yield Rect(x - _MARK / 2, y - _MARK / 2, _MARK, _MARK, colour, hint=hint)


def _crossings(found: Crossover, field: Field) -> Iterator[Item]:
    for number, crossing in enumerate(found.crossings):
        x = field.x(crossing.gbit_s)
        yield Rule(x, field.top, x, field.bottom, ALARM, dashed=True)
        left = x > (field.left + field.right) / 2
        label = f"{crossing.gbit_s:.4g} Gbit/s: {RIVALS[crossing.rival]}"
        y = field.top + 12 + 14 * number
        yield Text(x - 4 if left else x + 4, y, label, SMALL + 1, ALARM, "end" if left else "start")


def _legend(curves: Sequence[Curve], field: Field, *, marked: bool) -> Iterator[Item]:
    x, y = field.left, field.bottom + 62
    for name, colour, _ in curves:
        yield Rect(x, y, 12, 12, colour)
        yield Text(x + 18, y + 10, name, FONT, INK)
        x += 210
    if marked:
        yield Text(field.left, y + 28, "red: where the faster side changes", SMALL + 2, MUTED)
