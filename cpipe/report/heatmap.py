"""A sweep as a picture: one heat map for each method and placement, latency upwards, bandwidth to the right.

All panels share one scale of colours, logarithmic; darker is slower. The fastest panel at each latency and bandwidth is
framed there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from cpipe.report.heatmap_scale import Scale
from cpipe.report.shapes import (
    ALARM,
    BACK,
    EDGE,
    FONT,
    INK,
    LANE_BACK,
    MUTED,
    SMALL,
    TITLE,
    WIDTH,
    Drawing,
    Item,
    Rect,
    Text,
    fitted,
    text_width,
)
from cpipe.report.sweep import SweepPoint, SweepReport
from cpipe.report.terminal import printable

__all__ = ["CELL_VALUES", "CellValue", "draw_sweep"]

CellValue = Literal["per-microbatch", "slowdown"]
CELL_VALUES: tuple[CellValue, ...] = ("per-microbatch", "slowdown")
"""What a cell can say: makespan per microbatch [ms], or that over the smallest of the whole sweep."""

_CELL, _ROW = 64, 28
_GAP = 24
_FRAME = 2
_MOST_TITLE = 420
_LEAST = 720
"""Width of the narrowest picture [pixels]: its legend has room."""
_AXES = {
    ("latency", "ms"): "latency, ms",
    ("latency", "factor"): "latency, times the profile's",
    ("latency", "tf"): "latency / T_F",
    ("bandwidth", "gbit_s"): "bandwidth, Gbit/s",
    ("bandwidth", "factor"): "bandwidth, times the profile's",
    ("bandwidth", "tf"): "time of a message / T_F",
}
_WITHOUT_PLAN = {
    "infeasible": "infeasible",
    "no_solution": "no plan",
    "error": "n/a",
    "failed": "failed",
}


class _Panel(NamedTuple):
    """What one heat map shows: points by latency and bandwidth."""

    title: str
    points: dict[tuple[float | None, float | None], SweepPoint]


class _Grid(NamedTuple):
    """What all panels share."""

    latencies: list[float | None]
    bandwidths: list[float | None]
    labels: list[str]
    values: dict[str, float]
    scale: Scale
    fastest: frozenset[str]
    axes: tuple[str, str]
    longest: float

    @property
    def margin(self) -> float:
        """Room for the labels of rows."""
        return max([20.0, *(text_width(label, FONT) for label in self.labels)]) + 8

    @property
    def width(self) -> float:
        """Of a panel."""
        titles = min(self.longest, _MOST_TITLE)
        columns = max(_CELL * len(self.bandwidths), text_width(self.axes[1], SMALL))
        return max(self.margin + columns, text_width(self.axes[0], SMALL), titles)

    @property
    def height(self) -> float:
        """Of a panel."""
        return TITLE + 26 + _ROW * len(self.latencies) + FONT + SMALL + 22


def draw_sweep(report: SweepReport, value: CellValue = "per-microbatch") -> Drawing:
    """Return the picture of a sweep.

    Parameters
    ----------
    report
        With its points.
    value
        What cells say.
    """
    panels = _panels(report)
    grid = _grid(report, panels, value)
    per_row = max(1, min(len(panels), int((WIDTH - 2 * EDGE + _GAP) / (grid.width + _GAP))))
    width = math.ceil(max(_LEAST, 2 * EDGE + per_row * (grid.width + _GAP) - _GAP))
    title = printable(report.name or "sweep")
    items: list[Item] = [
        Text(EDGE, EDGE + TITLE, fitted(title, TITLE, width - 2 * EDGE), TITLE, INK),
        Text(
            EDGE, EDGE + TITLE + FONT + 8, fitted(_subtitle(report, grid, value), FONT, width - 2 * EDGE), FONT, MUTED
        ),
    ]
    top = EDGE + TITLE + FONT + 28.0
    for number, panel in enumerate(panels):
        left = EDGE + (number % per_row) * (grid.width + _GAP)
        items += _panel(panel, grid, report, left, top + (number // per_row) * (grid.height + _GAP))
    bottom = top + math.ceil(len(panels) / per_row) * (grid.height + _GAP)
    items += _legend(grid, value, bottom)
    height = round(bottom) + 48 + EDGE
    return Drawing(width, height, title, (Rect(0, 0, width, height, BACK), *items))


def _subtitle(report: SweepReport, grid: _Grid, value: CellValue) -> str:
    links = f"links {', '.join(map(printable, report.links))}" if report.links else "links as in the profile"
    what = "makespan per microbatch, ms"
    if value == "slowdown" and grid.values:
        best = min(_per_microbatch(point) for point in report.points if point.makespan_ms is not None)
        what = f"makespan per microbatch over the smallest of the sweep, {best:.4g} ms"
    return f"{what}; {links}; T_F = {report.forward_ms:.4g} ms"


def _per_microbatch(point: SweepPoint) -> float:
    return (point.makespan_ms or 0.0) / point.microbatches


def _panels(report: SweepReport) -> list[_Panel]:
    """Return the panels in the order of the grid; titles say what differs between them."""
    points = report.points
    many_sizes = len({point.microbatches for point in points}) > 1
    many_factors = len({point.memory_factor for point in points}) > 1
    panels: dict[str, _Panel] = {}
    for point in points:
        title = f"{point.method} on {point.placement}"
        if point.chunks is not None:
            title += f" of {point.chunks} chunks"
        title += f", {point.microbatches} microbatches" if many_sizes else ""
        title += f", memory x {point.memory_factor:g}" if many_factors else ""
        panels.setdefault(title, _Panel(title, {})).points[point.latency, point.bandwidth] = point
    return list(panels.values())


def _grid(report: SweepReport, panels: Sequence[_Panel], value: CellValue) -> _Grid:
    timed = [point for point in report.points if point.makespan_ms is not None]
    values = {point.key: _per_microbatch(point) for point in timed}
    least: dict[tuple[float | None, float | None], float] = {}
    for point in timed:
        place = point.latency, point.bandwidth
        least[place] = min(least.get(place, math.inf), values[point.key])
    fastest = frozenset(point.key for point in timed if values[point.key] == least[point.latency, point.bandwidth])
    smallest = min(values.values(), default=0.0)
    if value == "slowdown":
        values = {key: found / smallest if smallest else 1.0 for key, found in values.items()}
    latencies = list(dict.fromkeys(point.latency for point in report.points))
    return _Grid(
        latencies=latencies,
        bandwidths=list(dict.fromkeys(point.bandwidth for point in report.points)),
        labels=[_label(latency) for latency in latencies],
        values=values,
        scale=Scale(min(values.values(), default=0.0), max(values.values(), default=0.0)),
        fastest=fastest if len(panels) > 1 else frozenset(),
        axes=(_axis(report.latency_unit, "latency"), _axis(report.bandwidth_unit, "bandwidth")),
        longest=max([0.0, *(text_width(panel.title, FONT + 1) for panel in panels)]),
    )


def _axis(unit: str | None, name: str) -> str:
    return f"{name} as in the profile" if unit is None else _AXES[name, unit]


def _label(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _panel(panel: _Panel, grid: _Grid, report: SweepReport, left: float, top: float) -> Iterator[Item]:
    """Yield one panel: its title, the name of the rows, the rows from the last up, the columns' values and name."""
    y = top + TITLE
    yield Text(left, y, fitted(panel.title, FONT + 1, grid.width), FONT + 1, INK)
    yield Text(left, y + SMALL + 6, grid.axes[0], SMALL, MUTED)
    y += SMALL + 14
    inner = left + grid.margin
    for row, latency in enumerate(reversed(grid.latencies)):
        at = y + row * _ROW
        yield Text(inner - 6, at + _ROW / 2 + 4, _label(latency), FONT, MUTED, "end")
        for column, bandwidth in enumerate(grid.bandwidths):
            point = panel.points.get((latency, bandwidth))
            if point is not None:
                yield from _cell(point, grid, report, inner + column * _CELL, at)
    y += _ROW * len(grid.latencies)
    for column, bandwidth in enumerate(grid.bandwidths):
        yield Text(inner + (column + 0.5) * _CELL, y + FONT + 3, _label(bandwidth), FONT, MUTED, "middle")
    yield Text(inner, y + FONT + SMALL + 8, grid.axes[1], SMALL, MUTED)


def _cell(point: SweepPoint, grid: _Grid, report: SweepReport, x: float, y: float) -> Iterator[Item]:
    value = grid.values.get(point.key)
    fill, ink = (LANE_BACK, MUTED) if value is None else grid.scale.colours(value)
    yield Rect(x, y, _CELL - 1, _ROW - 1, fill, hint=_hint(point, report))
    text = _WITHOUT_PLAN.get(point.status, "") if value is None else _short(value)
    size = FONT - 2 if value is None else FONT
    yield Text(x + _CELL / 2, y + _ROW / 2 + 4, fitted(text, size, _CELL - 2), size, ink, "middle")
    if point.key in grid.fastest:
        yield from _frame(x, y)


def _frame(x: float, y: float) -> Iterator[Rect]:
    wide, high = _CELL - 1, _ROW - 1
    yield Rect(x, y, wide, _FRAME, ALARM)
    yield Rect(x, y + high - _FRAME, wide, _FRAME, ALARM)
    yield Rect(x, y, _FRAME, high, ALARM)
    yield Rect(x + wide - _FRAME, y, _FRAME, high, ALARM)


def _short(value: float) -> str:
    """Return a value with four digits, and no exponent."""
    return f"{value:.{min(3, max(0, 3 - math.floor(math.log10(value))))}f}" if value > 0 else "0"


def _hint(point: SweepPoint, report: SweepReport) -> str:
    """Return what a cell shows, in words."""
    parts = [f"{point.method} on {point.placement}"]
    for value, unit, name in (
        (point.latency, report.latency_unit, "latency"),
        (point.bandwidth, report.bandwidth_unit, "bandwidth"),
    ):
        if value is not None:
            parts.append(f"{_axis(unit, name)}: {value:g}")
    if point.makespan_ms is None:
        parts.append(f"{point.status}: {printable(point.reason or '')}")
    else:
        parts.append(f"makespan {point.makespan_ms:.3f} ms, {point.status}, gap {100 * (point.gap or 0):.2f} %")
    return "; ".join(parts)


_STEPS = 64


def _legend(grid: _Grid, value: CellValue, top: float) -> Iterator[Item]:
    """Yield the scale of colours and what a frame means."""
    x, y, width = float(EDGE), top + 4, 4.0
    if grid.values:
        for step in range(_STEPS):
            fill, _ = grid.scale.colours(grid.scale.at(step / (_STEPS - 1)))
            yield Rect(x + step * width, y, width + 0.5 * (step < _STEPS - 1), 14, fill)
        length = _STEPS * width
        anchors: Sequence[tuple[float, Literal["start", "middle", "end"]]]
        anchors = ((0, "start"), (0.5, "middle"), (1, "end"))
        for share, anchor in anchors:
            label = _short(grid.scale.at(share)) + ("" if value == "slowdown" else " ms")
            yield Text(x + share * length, y + 28, label, FONT, MUTED, anchor)
        x += length + 2 * _GAP
    if grid.fastest:
        yield Rect(x, y - 4, _CELL - 1, _ROW - 1, LANE_BACK)
        yield from _frame(x, y - 4)
        yield Text(x + _CELL + 8, y + 14, "fastest of all panels at that latency and bandwidth", FONT, INK)
