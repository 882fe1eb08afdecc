"""Tests of cpipe.report.comparison, comparison_plot, crossover, crossover_plot and axes: text, CSV and pictures."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cpipe.ir.comparison import Comparison, Reached, Row, Shortfall
from cpipe.ir.crossing import Crossing, Crossover, LinkPoint, Side
from cpipe.report.axes import axis_for, linear_axis, log_axis
from cpipe.report.comparison import comparison_csv, comparison_lines, row_name
from cpipe.report.comparison_plot import draw_comparison
from cpipe.report.crossover import crossing_text, crossover_csv, crossover_lines
from cpipe.report.crossover_plot import draw_crossover
from cpipe.report.shapes import Drawing, Rect, Rule, Text
from cpipe.report.svg import render_svg


def reached(milliseconds: float, *peaks: int) -> Reached:
    """Return what a plan reaches, half a millisecond above its bound."""
    makespan = round(milliseconds * 1e6)
    return Reached(
        makespan_ns=makespan,
        bound_ns=makespan - 500_000,
        proved_by="bound",
        found_by="greedy",
        bubble=0.25,
        peaks=peaks,
    )


def sample(name: str = "sample") -> Comparison:
    """Return a comparison of two devices: three rows that fit, one that does not, one that does not apply."""
    rows = (
        Row(method="auto", placement="profile", outcome="fits", reached=reached(10, 6, 4), own=reached(10, 6, 4)),
        Row(
            method="1f1b",
            placement="profile",
            outcome="fits",
            reached=reached(12, 6, 5),
            own=reached(12, 6, 5),
            searched=reached(11, 6, 5),
        ),
        Row(
            method="greedy",
            placement="wave",
            outcome="fits",
            reached=reached(15, 3, 3),
            own=reached(15, 3, 3),
            memory_share=0.5,
        ),
        Row(
            method="gpipe",
            placement="profile",
            outcome="does-not-fit",
            own=reached(13, 12, 12),
            searched=reached(9, 12, 12),
            reason="needs 12 bytes on g0, which has 7: short by 5",
            shortfalls=(Shortfall(device="g0", needed_bytes=12, capacity_bytes=7),),
        ),
        Row(method="zb-v", placement="", outcome="does-not-apply", reason="needs two stages on each device"),
    )
    return Comparison(
        name=name,
        num_stages=2,
        microbatches=4,
        devices=("g0", "g1"),
        capacities=(7, 7),
        rows=rows,
        front=(True, False, True),
    )


def crossed(*, crossings: bool = True) -> Crossover:
    """Return a comparison of both sides at three bandwidths, the pipeline ahead at the first two."""

    def side(milliseconds: float) -> Side:
        return Side(makespan_ns=round(milliseconds * 1e6), bound_ns=round(milliseconds * 9e5), found_by="greedy")

    times = [(8.0, 400, 800, 900), (16.0, 300, 350, 400), (32.0, 250, 240, 260)]
    points = tuple(
        LinkPoint(gbit_s=gbit_s, pipeline=side(first), overlapped=side(second), plain=side(third))
        for gbit_s, first, second, third in times
    )
    found = Crossing(
        rival="overlapped", below="pipeline", low_gbit_s=16.0, high_gbit_s=32.0, gbit_s=16 * 2 ** (50 / 60)
    )
    return Crossover(
        name="two",
        num_devices=4,
        num_stages=4,
        microbatches=8,
        message_bytes=2_000_000,
        gradient_bytes=3_000_000_000,
        latency_ns=4_000_000,
        ideal_ns=200_000_000,
        local=side(220),
        points=points,
        crossings=(found,) if crossings else (),
        num_solves=7,
    )


def texts(drawing: Drawing) -> list[str]:
    """Return the texts of a picture."""
    return [item.text for item in drawing.items if isinstance(item, Text)]


def test_comparison_page(golden: Callable[[str], None]) -> None:
    """The page has a row for each that fits, with the front marked, then prices, what does not fit, and the rest."""
    golden(comparison_lines(sample()) + "\n")


def test_nothing_fits_page() -> None:
    """Where nothing fits the page says so, and still why."""
    found = sample()
    empty = Comparison(
        name="", num_stages=2, microbatches=4, devices=("g0",), capacities=(None,), rows=found.rows[3:], front=()
    )
    page = comparison_lines(empty)
    assert page.startswith("1 devices, 2 stages, 4 microbatches; no limit of memory\n\nnothing fits\n\ndoes not fit:")
    assert "row" in page
    assert "short by 5" in page


@pytest.mark.parametrize(
    ("capacities", "said"),
    [
        ((7, 7), "7 B on each device"),
        ((7, 2000), "from 0.01 kB to 2.00 kB on a device"),
        ((7, None), "from 7 B to no limit on a device"),
    ],
)
def test_head_tells_the_limits(capacities: tuple[int | None, int | None], said: str) -> None:
    """The first line tells within which memory rows fit."""
    found = sample()
    other = Comparison(
        name=found.name,
        num_stages=2,
        microbatches=4,
        devices=found.devices,
        capacities=capacities,
        rows=found.rows,
        front=found.front,
    )
    assert said in comparison_lines(other).splitlines()[0]


def test_names_are_escaped() -> None:
    """A control character of a name reaches neither page nor picture."""
    found = sample("a\x1b[31m")
    assert "\x1b" not in comparison_lines(found)
    assert b"\x1b" not in render_svg(draw_comparison(found))


def test_comparison_csv() -> None:
    """The CSV has a line per row; what is not known is empty, and numbers are complete."""
    lines = list(csv.DictReader(io.StringIO(comparison_csv(sample()).decode())))
    assert [line["row"] for line in lines] == ["1", "2", "3", "4", "5"]
    assert lines[1]["makespan_ms"] == "12.0"
    assert lines[1]["search_at_own_peak_ms"] == "11.0"
    assert lines[2]["memory_share"] == "0.5"
    assert (lines[3]["makespan_ms"], lines[3]["own_peak_bytes"], lines[3]["short_bytes"]) == ("", "12", "5")
    assert (lines[4]["outcome"], lines[4]["on_front"], lines[4]["reason"]) == (
        "does-not-apply",
        "",
        "needs two stages on each device",
    )
    assert [line["on_front"] for line in lines[:3]] == ["true", "false", "true"]


def test_row_names() -> None:
    """A row is named by its method, by its placement where that is not the profile's, and by its share of memory."""
    assert [row_name(row) for row in sample().rows] == [
        "auto",
        "1f1b",
        "greedy wave, 50% memory",
        "gpipe",
        "zb-v",
    ]


def test_comparison_picture() -> None:
    """Every row with a plan has a mark where its time and peak are; the front is a staircase; one row is hollow."""
    drawing = draw_comparison(sample())
    ElementTree.fromstring(render_svg(drawing))
    marks = [item for item in drawing.items if isinstance(item, Rect) and item.hint]
    field = {item.hint: item for item in marks if item.x < 830}
    by_row = {hint.partition(":")[0]: item for hint, item in field.items()}
    assert sorted(by_row) == ["1", "2", "3", "4"]
    assert by_row["3"].x < by_row["1"].x < by_row["4"].x  # peaks 3, 6, 12
    assert by_row["1"].x == by_row["2"].x
    assert by_row["1"].y > by_row["2"].y > by_row["4"].y > by_row["3"].y  # 10, 12, 13 and 15 ms
    hollow = [item for item in marks if item.fill == "#ffffff"]
    assert {item.hint.partition(":")[0] for item in hollow} == {"4"}
    stairs = [item for item in drawing.items if isinstance(item, Rule) and item.colour == "#d55e00"]
    assert all(rule.x0 == rule.x1 or rule.y0 == rule.y1 for rule in stairs)
    assert len(stairs) == 4
    assert "limit" in texts(drawing)
    assert "orange: on the Pareto front; hollow: does not fit the limits" in texts(drawing)


def test_picture_of_nothing() -> None:
    """A comparison in which nothing has a plan still has a picture that says so."""
    found = sample()
    empty = Comparison(
        name="", num_stages=2, microbatches=4, devices=("g0",), capacities=(None,), rows=found.rows[4:], front=()
    )
    assert "nothing has a plan" in texts(draw_comparison(empty))


def test_marks_stay_inside() -> None:
    """All marks, rules and texts lie on the picture."""
    for drawing in (draw_comparison(sample()), draw_crossover(crossed())):
        for item in drawing.items:
            if isinstance(item, Rule):
                assert 0 <= min(item.x0, item.x1) <= max(item.x0, item.x1) <= drawing.width
                assert 0 <= min(item.y0, item.y1) <= max(item.y0, item.y1) <= drawing.height
            else:
                assert 0 <= item.x <= drawing.width
                assert 0 <= item.y <= drawing.height


def test_crossover_page(golden: Callable[[str], None]) -> None:
    """The page has a line per bandwidth, a sentence per crossing, and one for a rival that never changes places."""
    golden(crossover_lines(crossed()) + "\n")


def test_crossing_sentence() -> None:
    """The sentence names the faster side below and above, and the bandwidths that were solved."""
    (crossing,) = crossed().crossings
    assert crossing_text(crossing) == (
        "pipeline across the link is faster below about 28.509 Gbit/s, overlapped all-reduce above (between 16 and 32)"
    )


def test_crossover_csv() -> None:
    """The CSV of the curves has a line per bandwidth, in milliseconds."""
    lines = list(csv.DictReader(io.StringIO(crossover_csv(crossed()).decode())))
    assert [line["bandwidth_gbit_s"] for line in lines] == ["8.0", "16.0", "32.0"]
    assert (lines[0]["pipeline_ms"], lines[0]["pipeline_bound_ms"], lines[0]["plain_ms"]) == ("400.0", "360.0", "900.0")


def test_crossover_picture() -> None:
    """Three curves with a mark per bandwidth, equally far apart per doubling; a dashed line at the crossing."""
    drawing = draw_crossover(crossed())
    ElementTree.fromstring(render_svg(drawing))
    marks = [item for item in drawing.items if isinstance(item, Rect) and item.hint]
    assert len(marks) == 9
    first, second, third = [item.x for item in marks if item.hint.startswith("pipeline")]
    assert third - second == pytest.approx(second - first)
    (dashed,) = [item for item in drawing.items if isinstance(item, Rule) and item.dashed]
    assert second < dashed.x0 < third
    assert "red: where the faster side changes" in texts(drawing)
    none = draw_crossover(crossed(crossings=False))
    assert "red: where the faster side changes" not in texts(none)
    assert not [item for item in none.items if isinstance(item, Rule) and item.dashed]


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(40, 2000))
@example(0.0, 5e-324, 40.0)
@example(1e12, 1e12 - 2.0**-13, 40.0)
def test_linear_axis(first: float, second: float, length: float) -> None:
    """An axis holds its values between round ends, with few ticks that rise."""
    least, most = sorted((first, second))
    axis = linear_axis(least, most, "x", length)
    assert axis.first < axis.last
    if axis.last - axis.first > 1e-3:
        assert axis.first <= least * (1 + 1e-9) + 1e-6
        assert axis.last >= most * (1 - 1e-9) - 1e-6
    assert list(axis.ticks) == sorted(axis.ticks)
    assert len(axis.ticks) <= length / 80 + 4
    assert 0 <= axis.share(least) <= axis.share(most) <= 1


@given(st.floats(1e-6, 1e9), st.floats(1, 1e6))
def test_log_axis(least: float, factor: float) -> None:
    """Ticks of a logarithmic axis double from its first value; equal factors are equal lengths."""
    axis = log_axis(least, least * factor, "x")
    assert axis.ticks[0] == least
    assert axis.share(least) == pytest.approx(0)
    assert axis.share(axis.last) == pytest.approx(1)
    middle = least * factor**0.5
    if factor > 2:
        assert axis.share(middle) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("least", "most", "scale", "first"),
    [(10, 39, "linear", 10), (10, 41, "log", 10), (7, 100, "log", 5), (0, 100, "linear", 0), (0.03, 3, "log", 0.02)],
)
def test_axis_for(least: float, most: float, scale: str, first: float) -> None:
    """Values that differ fourfold stand on a logarithmic axis that begins at a round number, others on a linear one."""
    axis = axis_for(least, most, "x", 400)
    assert axis.scale == scale
    assert axis.first == pytest.approx(first)
    assert axis.last >= most
