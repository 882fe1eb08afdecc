"""Tests of cpipe.report.heatmap, heatmap_scale and sweep: pictures of a sweep, their colours, and its summary."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import sample_point

from cpipe.report.heatmap import CELL_VALUES, CellValue, draw_sweep
from cpipe.report.heatmap_scale import Scale
from cpipe.report.png import render_png
from cpipe.report.shapes import ALARM, Drawing, Rect, Text
from cpipe.report.svg import render_svg
from cpipe.report.sweep import SweepPoint, SweepReport, sweep_lines

VALUES = st.floats(1e-6, 1e9)


def point(
    method: str, latency: float | None, bandwidth: float | None, makespan: float | None, **more: Any
) -> SweepPoint:
    """Return a point of 8 microbatches; without a makespan it is infeasible."""
    key = f"{method}-{latency}-{bandwidth}-{sorted(more.items())}"
    fields: dict[str, Any] = {"key": key, "method": method, "latency": latency, "bandwidth": bandwidth}
    if makespan is None:
        fields |= {"status": "infeasible", "gap": None, "reason": "too little memory [memory-too-small]"}
    return sample_point(**(fields | {"makespan_ms": makespan} | more))


def report(*points: SweepPoint, **more: Any) -> SweepReport:
    """Return a report of points whose delays are in T_F."""
    fields: dict[str, Any] = {"forward_ms": 40.0, "latency_unit": "tf", "bandwidth_unit": "tf", "name": "job"}
    fields |= {"status": "done", "links": ("a<->b",), "num_points": len(points), "points": points}
    return SweepReport(**(fields | more))


def small() -> SweepReport:
    """Return two panels of 2 x 2; the first is fastest below, the second above, one point has no plan."""
    return report(
        *[point("1f1b", 0.0, bandwidth, 800.0 + 100 * bandwidth) for bandwidth in (0.0, 1.0)],
        *[point("1f1b", 2.0, bandwidth, 1600.0 + 100 * bandwidth) for bandwidth in (0.0, 1.0)],
        *[point("auto", 0.0, bandwidth, 880.0 + 100 * bandwidth) for bandwidth in (0.0, 1.0)],
        *[point("auto", 2.0, 0.0, 1200.0), point("auto", 2.0, 1.0, None)],
    )


def cells(drawing: Drawing) -> dict[str, Rect]:
    """Return the cells by what they say on hover."""
    return {item.hint: item for item in drawing.items if isinstance(item, Rect) and item.hint}


def texts(drawing: Drawing) -> list[str]:
    """Return all texts."""
    return [item.text for item in drawing.items if isinstance(item, Text)]


def text_in(drawing: Drawing, cell: Rect) -> str:
    """Return the one text that stands in a cell."""
    (found,) = [
        item.text
        for item in drawing.items
        if isinstance(item, Text)
        and cell.x < item.x < cell.x + cell.width
        and cell.y < item.y < cell.y + cell.height
        and item.anchor == "middle"
    ]
    return found


def is_framed(drawing: Drawing, cell: Rect) -> bool:
    """Return whether a frame starts at the corner of a cell."""
    return any(
        isinstance(item, Rect) and item.fill == ALARM and (item.x, item.y) == (cell.x, cell.y) for item in drawing.items
    )


@pytest.mark.parametrize("value", CELL_VALUES)
def test_picture(value: CellValue, golden: Callable[[str], None]) -> None:
    """The picture of a small sweep, byte by byte."""
    golden(render_svg(draw_sweep(small(), value)).decode())


def test_every_point_is_a_cell() -> None:
    """Each point has one cell that says its makespan per microbatch, and more on hover."""
    drawing = draw_sweep(small())
    found = cells(drawing)
    assert len(found) == 8
    for hint, cell in found.items():
        if "makespan" in hint:
            makespan = float(hint.partition("makespan ")[2].partition(" ms")[0])
            assert text_in(drawing, cell) == f"{makespan / 8:.1f}"
    (without,) = [cell for hint, cell in found.items() if "too little memory [memory-too-small]" in hint]
    assert text_in(drawing, without) == "infeasible"


def test_latency_grows_upwards_and_bandwidth_to_the_right() -> None:
    """Cells stand where their latency and the time of a message say."""
    found = cells(draw_sweep(small()))

    def place(method: str, latency: int, bandwidth: int) -> Rect:
        """Return the cell of a point."""
        start = f"{method} on ud; latency / T_F: {latency}; time of a message / T_F: {bandwidth};"
        (cell,) = [cell for hint, cell in found.items() if hint.startswith(start)]
        return cell

    for method in ("1f1b", "auto"):
        assert place(method, 2, 0).y < place(method, 0, 0).y
        assert place(method, 0, 0).x < place(method, 0, 1).x
        assert place(method, 2, 0).x == place(method, 0, 0).x
    assert place("1f1b", 0, 1).x < place("auto", 0, 0).x


def test_slowdown_is_over_the_smallest() -> None:
    """A slowdown is the makespan per microbatch over the smallest of all panels."""
    drawing = draw_sweep(small(), "slowdown")
    shown = {text_in(drawing, cell) for hint, cell in cells(drawing).items() if "makespan" in hint}
    assert shown == {"1.000", "1.125", "2.000", "2.125", "1.100", "1.225", "1.500"}
    assert any("over the smallest of the sweep, 100 ms" in text for text in texts(drawing))


def test_fastest_panel_is_framed() -> None:
    """At each latency and bandwidth the fastest panel has a frame, and no other."""
    drawing = draw_sweep(small())
    framed = [hint.partition("; makespan")[0] for hint, cell in cells(drawing).items() if is_framed(drawing, cell)]
    assert sorted(framed) == [
        "1f1b on ud; latency / T_F: 0; time of a message / T_F: 0",
        "1f1b on ud; latency / T_F: 0; time of a message / T_F: 1",
        "1f1b on ud; latency / T_F: 2; time of a message / T_F: 1",
        "auto on ud; latency / T_F: 2; time of a message / T_F: 0",
    ]


def test_a_single_panel_has_no_frames() -> None:
    """Where there is nothing to compare with, nothing is framed."""
    drawing = draw_sweep(report(point("auto", 0.0, 0.0, 8.0), point("auto", 0.0, 1.0, 9.0)))
    assert not any(is_framed(drawing, cell) for cell in cells(drawing).values())


def test_slower_is_darker() -> None:
    """Cells of all panels are coloured by one scale: what takes longer is darker."""
    found = [
        (float(hint.partition("makespan ")[2].partition(" ms")[0]), cell.fill)
        for hint, cell in cells(draw_sweep(small())).items()
        if "makespan" in hint
    ]
    shades = [luminance(fill) for _, fill in sorted(found)]
    assert shades == sorted(shades, reverse=True)
    assert len(set(shades)) > 5


def test_titles_say_what_differs() -> None:
    """Microbatches and memory are in the title of a panel only where there is more than one of them."""
    points = [
        point("auto", 0.0, None, 8.0 * number, microbatches=number, memory_factor=factor, chunks=2, placement="wave")
        for number in (4, 8)
        for factor in (1.0, 1.5)
    ]
    shown = texts(draw_sweep(report(*points, bandwidth_unit=None)))
    assert [text for text in shown if text.startswith("auto")] == [
        f"auto on wave of 2 chunks, {number} microbatches, memory x {factor}"
        for number in (4, 8)
        for factor in ("1", "1.5")
    ]
    assert "bandwidth as in the profile" in shown


@pytest.mark.parametrize("points", [[], [point("auto", None, None, None)], [point("auto", None, None, 0.0)]])
def test_odd_sweeps(points: list[SweepPoint]) -> None:
    """Sweeps without points, without plans and without time can be drawn, both ways."""
    for value in CELL_VALUES:
        drawing = draw_sweep(report(*points, name=None), value)
        assert len(cells(drawing)) == len(points)
        ElementTree.fromstring(render_svg(drawing))


def test_names_are_text() -> None:
    """Names and reasons with characters of markup stay what they are."""
    nasty = '<b>&"\x1b[31m'
    drawing = draw_sweep(report(point("auto", 0.0, 0.0, None, reason=nasty), name=nasty, links=(nasty,)))
    root = ElementTree.fromstring(render_svg(drawing))
    shown = [element.text or "" for element in root.iter()]
    assert any('<b>&"\\x1b[31m' in text for text in shown)
    assert not any("\x1b" in text for text in shown)


def test_many_panels_stand_in_rows() -> None:
    """Panels that do not fit side by side go on below; nothing is outside of the picture, no two cells meet."""
    points = [point(f"m{number}", float(row), 0.0, 8.0 + number) for number in range(30) for row in range(3)]
    drawing = draw_sweep(report(*points))
    found = list(cells(drawing).values())
    assert len({(cell.x, cell.y) for cell in found}) == len(points)
    assert all(cell.x >= 0 and cell.x + cell.width <= drawing.width for cell in found)
    assert all(cell.y >= 0 and cell.y + cell.height <= drawing.height for cell in found)
    assert drawing.width <= 1280


def test_a_wide_panel_makes_a_wide_picture() -> None:
    """A panel wider than a page is not cut."""
    points = [point("auto", 0.0, float(column), 8.0) for column in range(40)]
    drawing = draw_sweep(report(*points))
    assert all(cell.x + cell.width <= drawing.width for cell in cells(drawing).values())
    assert len(cells(drawing)) == 40


def test_png() -> None:
    """The same picture can be painted."""
    pytest.importorskip("PIL")
    assert render_png(draw_sweep(small())).startswith(b"\x89PNG")


def luminance(fill: str) -> float:
    """Return how light a colour is."""
    red, green, blue = (int(fill[place : place + 2], 16) for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


@given(st.tuples(VALUES, VALUES, VALUES))
def test_scale_keeps_the_order(values: tuple[float, float, float]) -> None:
    """Of two numbers the larger is never lighter, and text can be read on both."""
    low, middle, high = sorted(values)
    scale = Scale(low, high)
    shades = [luminance(scale.colours(value)[0]) for value in (low, middle, high)]
    assert shades == sorted(shades, reverse=True)
    for value in (low, middle, high):
        fill, ink = scale.colours(value)
        assert abs(luminance(fill) - luminance(ink)) > 70


@given(VALUES, VALUES, st.floats(0, 1))
def test_scale_is_read_both_ways(first: float, second: float, share: float) -> None:
    """The number at a share of the scale lies within it, and the ends are the ends."""
    scale = Scale(min(first, second), max(first, second))
    assert scale.least <= scale.at(share) * (1 + 1e-12)
    assert scale.at(share) <= scale.most * (1 + 1e-12)
    assert scale.at(0) == pytest.approx(scale.least)
    assert scale.at(1) == pytest.approx(scale.most)


def test_scale_from_zero() -> None:
    """A scale that starts at 0 is an even one: it has no logarithm."""
    scale = Scale(0.0, 8.0)
    assert [scale.at(share) for share in (0, 0.5, 1)] == [0.0, 4.0, 8.0]
    assert len({scale.colours(value)[0] for value in (0.0, 4.0, 8.0)}) == 3


def test_summary() -> None:
    """The summary counts the points by how they ended, and names the fastest per microbatch."""
    points = [
        *small().points,
        point("auto", 9.0, 9.0, 1.0, microbatches=1),
        point("x", 0.0, 0.0, None, status="failed"),
    ]
    assert sweep_lines(points, 12, 3).splitlines() == [
        "10 of 12 points: 8 feasible, 1 proven infeasible, 1 failed; 3 were there already",
        "fastest: 1.000 ms per microbatch (auto on ud, 1 microbatch)",
    ]
    assert sweep_lines([], 4, 0) == "0 of 4 points: none"
