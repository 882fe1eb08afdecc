"""Tests of cpipe.study.sweep.store: results files are read back as they were written, and never those of others."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sweep_cases import sample_point, small_sweep

from cpipe.errors import UsageError
from cpipe.report.sweep import SweepPoint, SweepReport
from cpipe.study.sweep import Sweep
from cpipe.study.sweep.store import Format, decode_points, encode_results, format_of

FORMATS: tuple[Format, ...] = ("csv", "json")
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20).filter(bool)
REAL = st.none() | st.floats(0, 1e12, allow_nan=False)

POINTS = st.builds(
    SweepPoint,
    key=st.uuids().map(lambda value: value.hex[:16]),
    microbatches=st.integers(1, 65_536),
    memory_factor=st.floats(0.01, 100),
    method=st.sampled_from(("auto", "1f1b")),
    placement=st.sampled_from(("ud", "wave")),
    chunks=st.none() | st.integers(1, 8),
    latency=REAL,
    bandwidth=REAL,
    status=st.sampled_from(("optimal", "feasible", "infeasible", "no_solution", "error")),
    makespan_ms=REAL,
    lower_bound_ms=REAL,
    gap=REAL,
    bubble=REAL,
    peak_bytes=st.lists(st.integers(0, 2**62), max_size=4).map(tuple),
    found_by=st.none() | TEXT,
    proved_by=st.none() | TEXT,
    reason=st.none() | TEXT,
)


def blank() -> SweepReport:
    """Return a report without points, latencies in T_F."""
    return small_sweep().blank


def solved(sweep: Sweep) -> list[SweepPoint]:
    """Return every point of a sweep with a made-up result."""
    return [
        sample_point(key=key, microbatches=point.microbatches, latency=point.latency)
        for key, point in zip(sweep.keys, sweep.points, strict=True)
    ]


@pytest.mark.parametrize("form", FORMATS)
@given(st.lists(POINTS, max_size=4, unique_by=lambda point: point.key))
def test_points_are_read_as_written(form: Format, points: list[SweepPoint]) -> None:
    """Whatever the numbers and texts, a file gives back the points that went in."""
    report = replace(blank(), points=tuple(points))
    data = encode_results(report, form)
    assert decode_points(data, form, blank(), [point.key for point in points], "r") == points
    assert encode_results(replace(report, points=tuple(points)), form) == data


def test_columns_say_their_units() -> None:
    """The header names the unit of latency and bandwidth, and nothing where links are as written."""
    rows = list(csv.reader(io.StringIO(encode_results(blank(), "csv").decode())))
    assert rows[0][6:9] == ["latency_tf", "bandwidth", "status"]
    assert len(rows) == 1


def test_csv_is_plain() -> None:
    """A row has numbers as people write them; what is not known is empty."""
    report = replace(blank(), points=(sample_point(reason="one, two"),))
    row = encode_results(report, "csv").decode().splitlines()[1]
    assert row == ('0123456789abcdef,8,1,greedy,ud,,0.5,,feasible,100.25,90.125,0.1,0.25,10 20,zb-h1,bound,"one, two"')


@pytest.mark.parametrize(
    ("path", "form"), [("a.csv", "csv"), ("a.b/c.CSV", "csv"), ("x.json", "json"), ("dir.csv/x.json", "json")]
)
def test_format_by_name(path: str, form: str) -> None:
    """The end of the name says the format."""
    assert format_of(path) == form


@pytest.mark.parametrize("path", ["results", "a.txt", "csv", "a.csv.gz"])
def test_unknown_format(path: str) -> None:
    """A name that says no format is refused."""
    if path == "csv":
        path = "csv/x"
    with pytest.raises(UsageError, match=r"expected a file that ends in \.csv or \.json, got .* \[sweep-format\]"):
        format_of(path)


@pytest.mark.parametrize("form", FORMATS)
def test_failed_points_are_tried_again(form: Format) -> None:
    """Of a file only the points that failed are left out."""
    sweep = small_sweep()
    points = solved(sweep)
    points[1] = replace(points[1], status="failed", makespan_ms=None)
    data = encode_results(sweep.report(points), form)
    kept = decode_points(data, form, sweep.blank, sweep.keys, "r")
    assert [point.key for point in kept] == [key for place, key in enumerate(sweep.keys) if place != 1]


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_file_has_no_points(form: Format) -> None:
    """A file that was only made is nobody's."""
    assert decode_points(b" \n", form, blank(), [], "r") == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_larger_grid_goes_on(form: Format) -> None:
    """More values on an axis are the same sweep, made larger."""
    small, large = small_sweep(microbatches=(2,)), small_sweep(microbatches=(2, 4, 6))
    points = solved(small)
    data = encode_results(small.report(points), form)
    assert decode_points(data, form, large.blank, large.keys, "r") == points


@pytest.mark.parametrize("form", FORMATS)
def test_points_of_another_sweep(form: Format) -> None:
    """A file with a point that is not of this sweep is not taken."""
    small, large = small_sweep(microbatches=(2,)), small_sweep(microbatches=(2, 4, 6))
    data = encode_results(large.report(solved(large)), form)
    message = r"'r' has 4 of 6 points that are not of this sweep: .* \[sweep-other-file\]"
    with pytest.raises(UsageError, match=message) as caught:
        decode_points(data, form, small.blank, small.keys, "r")
    assert caught.value.hint == "name another file, or remove this one; nothing was changed"


GOOD = encode_results(replace(blank(), points=(sample_point(),)), "csv").decode()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("csv", "name,age\nada,36\n"),
        ("csv", GOOD.replace("latency_tf", "latency_ms")),
        ("csv", GOOD.replace("0.5", "a half")),
        ("csv", GOOD.replace("feasible", "fine")),
        ("csv", GOOD.rpartition(",")[0]),
        ("csv", GOOD.replace("feasible", '"fea"sible')),
        ("csv", "\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("json", "{}"),
        ("json", "[1, 2"),
        ("json", '{"format": "cpipe.plan", "version": 1}'),
    ],
)
def test_other_files(form: Format, text: str) -> None:
    """What is no results file of such a sweep is told so."""
    with pytest.raises(UsageError, match=r"is not the (CSV|JSON) file of a sweep like this one \[sweep-other-file\]"):
        decode_points(text.encode("latin-1"), form, blank(), [], "r")


def test_report_is_in_the_order_of_the_grid() -> None:
    """Points come in the order of the grid, whenever they were finished; the status says whether all are there."""
    sweep = small_sweep()
    points = solved(sweep)
    report = sweep.report(reversed(points))
    assert report.points == tuple(points)
    assert report.status == "done"
    assert sweep.report(points[1:]).status == "incomplete"
    assert sweep.report([replace(points[0], status="failed"), *points[1:]]).status == "incomplete"
