"""The shipped sweeps: made by the commands in their READMEs, and as CrossPipe says they should look."""

from __future__ import annotations

import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import pytest
from command_line import ROOT, call
from m70 import Delays, m70_profile, profile_text

from cpipe.compiler import PLACEMENTS
from cpipe.profile import encode_profile, load_profile, profile_warnings
from cpipe.report.sweep import SweepPoint
from cpipe.solve.methods import METHODS
from cpipe.study.sweep import Point, Settings, point_outcome

SWEEPS = ROOT / "plans" / "sweeps"
NAMES = tuple(sorted(path.parent.name for path in SWEEPS.glob("*/profile.json")))
PARAMETERS = ("microbatches", "memory_factor", "method", "placement", "chunks", "latency", "bandwidth")


def command_of(name: str) -> list[str]:
    """Return the arguments of the one command in a sweep's README."""
    (line,) = re.findall(r"^\$ cpipe (sweep .*)$", (SWEEPS / name / "README.md").read_text(), flags=re.MULTILINE)
    return shlex.split(line)


@cache
def points_of(name: str) -> tuple[SweepPoint, ...]:
    """Return the points of a shipped results file."""
    import csv

    from cpipe.study.sweep.store import _row_point

    rows = list(csv.reader((SWEEPS / name / "results.csv").read_text().splitlines()))
    return tuple(map(_row_point, rows[1:]))


def makespan(name: str, method: str, placement: str, latency: float, bandwidth: float) -> float:
    """Return the makespan of one shipped point [ms]."""
    (found,) = [
        point.makespan_ms
        for point in points_of(name)
        if (point.method, point.placement, point.latency, point.bandwidth) == (method, placement, latency, bandwidth)
    ]
    assert found is not None
    return found


def test_there_are_sweeps() -> None:
    """Two sweeps are shipped, each with its four files."""
    assert NAMES == ("figure-11", "figure-8")
    for name in NAMES:
        files = {path.name for path in (SWEEPS / name).iterdir()}
        assert files == {"README.md", "heatmap.svg", "profile.json", "results.csv"}


@pytest.mark.parametrize("name", NAMES)
def test_command_makes_the_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's command takes the shipped table as its own, every point of it, and draws the shipped picture."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "plans" / "sweeps" / name
    folder.mkdir(parents=True)
    for file in ("profile.json", "results.csv"):
        shutil.copy(SWEEPS / name / file, folder)
    ended = call(capsys, *command_of(name))
    count = len(points_of(name))
    assert ended.code == 0
    assert ended.err.startswith(f"{count} of {count} points: ")
    assert f"; {count} were there already" in ended.err
    for file in ("results.csv", "heatmap.svg"):
        assert (folder / file).read_bytes() == (SWEEPS / name / file).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_profiles_are_clean(name: str) -> None:
    """A shipped profile is named after its folder, says where it comes from, and raises no warning."""
    profile = load_profile(SWEEPS / name / "profile.json")
    assert (profile.name, bool(profile.extensions)) == (name, True)
    assert profile_warnings(profile) == ()


def test_figure_11_is_m70() -> None:
    """The second profile is the model's without delay, but for its name and source."""
    document = m70_profile(Delays("0", "0"))
    text = (SWEEPS / "figure-11" / "profile.json").read_text()
    document |= {"name": "figure-11", "extensions": load_profile(SWEEPS / "figure-11" / "profile.json").extensions}
    assert text == profile_text(document)


@pytest.mark.parametrize(
    ("name", "method", "placement", "latency", "bandwidth"),
    [
        ("figure-8", "greedy", "ud", 0.0, 0.0),
        ("figure-8", "greedy", "loop", 4.0, 0.0),
        ("figure-8", "greedy", "wave", 0.5, 1.0),
        ("figure-11", "1f1b", "ud", 2.0, 2.0),
        ("figure-11", "zb-v", "wave", 0.0, 0.5),
        ("figure-11", "zb-h1", "ud", 1.0, 0.0),
    ],
)
def test_points_are_what_solving_gives(
    name: str, method: str, placement: str, latency: float, bandwidth: float
) -> None:
    """Solving a point anew gives every stored figure of it."""
    (stored,) = [
        point
        for point in points_of(name)
        if (point.method, point.placement, point.latency, point.bandwidth) == (method, placement, latency, bandwidth)
    ]
    settings = Settings(links=(0,), latency_unit="tf", bandwidth_unit="tf")
    point = Point(**{parameter: getattr(stored, parameter) for parameter in PARAMETERS})
    outcome = point_outcome(encode_profile(load_profile(SWEEPS / name / "profile.json")), point, settings)
    for field in ("status", "makespan_ms", "lower_bound_ms", "gap", "bubble", "peak_bytes", "found_by", "proved_by"):
        assert getattr(outcome, field) == getattr(stored, field), field


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_sound(name: str) -> None:
    """Every point has a plan by a method that exists, not below its bound."""
    for point in points_of(name):
        assert point.method in METHODS
        assert point.placement in PLACEMENTS
        assert point.status in ("optimal", "feasible")
        assert point.makespan_ms is not None
        assert point.lower_bound_ms is not None
        assert 0 < point.lower_bound_ms <= point.makespan_ms


@pytest.mark.parametrize("bandwidth", [0.0, 0.5])
def test_wave_is_best_at_low_delay(bandwidth: float) -> None:
    """CrossPipe, section 5.1: under small delays the wave is best, and without any no worse than a loop."""
    for latency in (0.0, 0.5, 1.0):
        wave, loop, line = (makespan("figure-8", "greedy", name, latency, bandwidth) for name in ("wave", "loop", "ud"))
        assert wave < line
        assert wave < loop or latency == bandwidth == 0.0
    assert makespan("figure-8", "greedy", "wave", 0.0, 0.0) == makespan("figure-8", "greedy", "loop", 0.0, 0.0)


@pytest.mark.parametrize("bandwidth", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("latency", [2.0, 4.0])
def test_line_is_best_at_high_delay(latency: float, bandwidth: float) -> None:
    """CrossPipe, section 5.1: as delay grows, stages in line are better than a wave, and a loop is worst."""
    line, wave, loop = (makespan("figure-8", "greedy", name, latency, bandwidth) for name in ("ud", "wave", "loop"))
    assert line < wave < loop


def test_loop_is_most_sensitive() -> None:
    """CrossPipe, section 5.1: a loop, with six crossings, loses most to latency; a line, with two, least."""
    lost = {
        name: makespan("figure-8", "greedy", name, 4.0, 0.0) - makespan("figure-8", "greedy", name, 0.0, 0.0)
        for name in ("ud", "wave", "loop")
    }
    assert lost["ud"] < lost["wave"] < lost["loop"]


def test_small_delays_cost_the_same() -> None:
    """CrossPipe, section 5.1: a small latency costs what as long a time of a message costs."""
    for placement in ("ud", "wave", "loop"):
        assert makespan("figure-8", "greedy", placement, 0.5, 0.0) == pytest.approx(
            makespan("figure-8", "greedy", placement, 0.0, 0.5), rel=0.03
        )


@pytest.mark.parametrize("placement", ["ud", "wave", "loop"])
def test_no_delay_helps(placement: str) -> None:
    """More latency, or messages that hold the link longer, never make a shipped point faster by more than 1 %."""
    points = {
        (point.latency, point.bandwidth): point.makespan_ms
        for point in points_of("figure-8")
        if point.placement == placement
    }
    for (latency, bandwidth), value in points.items():
        for (more_latency, more_bandwidth), slower in points.items():
            assert None not in (latency, bandwidth, more_latency, more_bandwidth, value, slower)
            if more_latency >= latency and more_bandwidth >= bandwidth:  # type: ignore[operator]
                assert slower >= 0.99 * value  # type: ignore[operator]


def test_order_of_the_static_schedules() -> None:
    """CrossPipe's Table 5: without delay ZB-V is faster than ZB-H1, and that faster than 1F1B."""
    names = (("zb-v", "wave"), ("zb-h1", "ud"), ("1f1b", "ud"))
    times = [makespan("figure-11", *name, 0.0, 0.0) for name in names]
    assert times == sorted(times)
    assert len(set(times)) == 3


def test_searched_orders_win_where_bandwidth_is_short() -> None:
    """CrossPipe, section 7.1: where a message holds the link for 2 T_F, searched orders take over a fifth less."""
    static = min(
        makespan("figure-11", method, placement, 0.0, 2.0)
        for method, placement in (("1f1b", "ud"), ("zb-h1", "ud"), ("zb-v", "wave"))
    )
    searched = min(makespan("figure-11", "greedy", placement, 0.0, 2.0) for placement in ("ud", "wave"))
    assert searched < 0.8 * static
