"""The picture of `cpipe compare`: makespan against peak memory, the Pareto front as stairs, rows numbered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cpipe.ir.comparison import Comparison, Reached, Row
from cpipe.report.axes import Field, axis_for, axis_items, linear_axis
from cpipe.report.comparison import row_name
from cpipe.report.shapes import (
    ALARM,
    BACK,
    EDGE,
    FONT,
    INK,
    MUTED,
    SMALL,
    TITLE,
    WIDTH,
    Drawing,
    Item,
    Rect,
    Rule,
    Text,
    fitted,
    text_width,
)
from cpipe.report.summary import stage_ranges
from cpipe.report.tables import byte_unit, format_bytes, format_ms
from cpipe.report.terminal import printable

__all__ = ["draw_comparison"]

_HEIGHT = 560
_LIST = 430
"""Width of the list of rows beside the field [pixels]."""
_MARK = 9
_FITS, _TIGHT, _FRONT = "#0072b2", "#ffffff", "#d55e00"


class _Point(NamedTuple):
    number: int
    row: Row
    reached: Reached
    front: bool


def draw_comparison(found: Comparison) -> Drawing:
    """Return the picture: filled marks fit within the limits, hollow ones would need more memory."""
    points = list(_points(found))
    height = max(_HEIGHT, 150 + 17 * len(points))
    title = f"{printable(found.name) or 'comparison'}: makespan against peak memory"
    items: list[Item] = [
        Rect(0, 0, WIDTH, height, BACK),
        Text(EDGE, EDGE + TITLE, fitted(title, TITLE, WIDTH - 2 * EDGE), TITLE, INK),
    ]
    if points:
        field = _field(points, height)
        items += axis_items(field)
        items += _limit(found, field)
        items += _stairs([point for point in points if point.front], field)
        items += _marks(points, field)
        items += _list(points)
    else:
        items.append(Text(EDGE, EDGE + 60, "nothing has a plan", FONT, MUTED))
    return Drawing(WIDTH, height, title, tuple(items))


def _points(found: Comparison) -> Iterator[_Point]:
    for number, row in enumerate(found.rows, start=1):
        reached = row.reached or row.own
        if reached is not None:
            yield _Point(number, row, reached, row.outcome == "fits" and found.front[number - 1])


def _field(points: Sequence[_Point], height: int) -> Field:
    left, right, top, bottom = 96.0, float(WIDTH - EDGE - _LIST - 24), 76.0, float(height - 64)
    unit = byte_unit(max(point.reached.peak_bytes for point in points))
    peaks = [point.reached.peak_bytes / unit[0] for point in points]
    times = [point.reached.makespan_ns / 1e6 for point in points]
    across = linear_axis(0, max(peaks), f"peak memory of the fullest device [{unit[1]}]", right - left)
    up = axis_for(min(times), max(times), "makespan [ms]", bottom - top)
    return Field(left, right, top, bottom, across, up)


def _place(point: _Point, field: Field) -> tuple[float, float]:
    divisor = _divisor(field)
    return field.x(point.reached.peak_bytes / divisor), field.y(point.reached.makespan_ns / 1e6)


def _divisor(field: Field) -> int:
    """Return the size of the unit [bytes] that the level axis counts in."""
    name = field.across.name.rpartition("[")[2].rstrip("]")
    return {"GB": 10**9, "MB": 10**6, "kB": 10**3}.get(name, 1)


def _limit(found: Comparison, field: Field) -> Iterator[Item]:
    """Yield the limit of memory, where all devices have the same and it is on the axis."""
    limits = {*found.capacities}
    if len(limits) != 1 or None in limits:
        return
    value = (limits.pop() or 0) / _divisor(field)
    if value <= field.across.last:
        yield Rule(field.x(value), field.top, field.x(value), field.bottom, ALARM, dashed=True)
        yield Text(field.x(value) + 4, field.top + 10, "limit", SMALL + 1, ALARM)


def _stairs(front: Sequence[_Point], field: Field) -> Iterator[Item]:
    """Yield the front: with more memory nothing is slower, so it is a staircase from the leanest to the fastest."""
    places = sorted(_place(point, field) for point in front)
    if not places:
        return
    x, y = places[0]
    yield Rule(x, field.top, x, y, _FRONT)
    for right, lower in places[1:]:
        yield Rule(x, y, right, y, _FRONT)
        yield Rule(right, y, right, lower, _FRONT)
        x, y = right, lower
    yield Rule(x, y, field.right, y, _FRONT)


def _marks(points: Sequence[_Point], field: Field) -> Iterator[Item]:
    """Yield a mark per point; the numbers of those that lie on each other stand together."""
    groups: list[tuple[float, float, list[int]]] = []
    for point in sorted(points, key=lambda point: point.front):  # the front on top
        yield from _mark(*_place(point, field), point)
    for point in points:
        x, y = _place(point, field)
        near = next((group for group in groups if abs(group[0] - x) < 14 and abs(group[1] - y) < 12), None)
        if near is None:
            groups.append((x, y, [point.number]))
        else:
            near[2].append(point.number)
    for x, y, numbers in groups:
        label = stage_ranges(numbers).replace(",", ", ")
        outside = x + 8 + text_width(label, FONT) > field.right + 20
        yield Text(x - 8 if outside else x + 8, y - 5, label, FONT, INK, "end" if outside else "start")


def _mark(x: float, y: float, point: _Point) -> Iterator[Item]:
    half = _MARK / 2
    hint = f"{point.number}: {printable(row_name(point.row))}, {format_ms(point.reached.makespan_ns)} ms"
    edge = _FRONT if point.front else _FITS
    yield Rect(x - half, y - half, _MARK, _MARK, edge, hint=hint)
    if point.row.outcome != "fits":
        yield Rect(x - half + 2, y - half + 2, _MARK - 4, _MARK - 4, _TIGHT, hint=hint)


def _list(points: Sequence[_Point]) -> Iterator[Item]:
    """Yield the numbered rows beside the field, and what the marks mean."""
    left = float(WIDTH - EDGE - _LIST)
    unit = byte_unit(max(point.reached.peak_bytes for point in points))
    right = float(WIDTH - EDGE)
    y = 64.0
    yield Text(left + 34, y, "row", SMALL + 2, MUTED)
    yield Text(right - 84, y, "makespan ms", SMALL + 2, MUTED, "end")
    yield Text(right, y, f"peak {unit[1]}", SMALL + 2, MUTED, "end")
    for point in points:
        y += 17
        yield from _mark(left + 5, y - 4, point)
        yield Text(left + 28, y, str(point.number), SMALL + 2, INK, "end")
        yield Text(left + 34, y, fitted(printable(row_name(point.row)), SMALL + 2, 225), SMALL + 2, INK)
        yield Text(right - 84, y, format_ms(point.reached.makespan_ns), SMALL + 2, INK, "end")
        yield Text(right, y, format_bytes(point.reached.peak_bytes, unit), SMALL + 2, INK, "end")
    y += 26
    meanings = ["orange: on the Pareto front"]
    if any(point.row.outcome != "fits" for point in points):
        meanings.append("hollow: does not fit the limits")
    yield Text(left, y, "; ".join(meanings), SMALL + 2, MUTED)
