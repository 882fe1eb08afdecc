"""Tests of `cpipe show`: a plan as people read it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import call, profile_document, spawn, write_json
from helpers import signed
from sample_plans import make_problem, one_f_one_b, sample_plan

from cpipe.plan import encode_plan


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """Write 1F1B on two devices, four microbatches."""
    problem = make_problem(2, 4)
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(signed(sample_plan(problem, one_f_one_b(problem)))))
    return path


def test_show(
    plan_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str], None],
) -> None:
    """A plan is shown as one line, a chart and a table of devices, all on stdout."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    outcome = call(capsys, "show", plan_file, "--width", "80")
    assert (outcome.code, outcome.err) == (0, "")
    golden(outcome.out)


def test_standard_input(plan_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan can come from standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(plan_file.read_bytes())))
    assert call(capsys, "show", "-").out == call(capsys, "show", plan_file).out


def test_profile_adds_columns(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile adds the columns that a plan does not hold."""
    profile = write_json(tmp_path / "profile.json", profile_document())
    assert "capacity" not in call(capsys, "show", plan_file).out
    outcome = call(capsys, "show", plan_file, "--profile", profile)
    (row,) = re.findall(r"^g0 +0 .*$", outcome.out, flags=re.MULTILINE)
    assert row.split()[-2:] == ["20.00", "60.00"]


@pytest.mark.parametrize("width", [0, -5, 10_001])
def test_width_must_be_positive(width: int, plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chart has at least one column, and no more than any screen."""
    outcome = call(capsys, "show", plan_file, "--width", width)
    assert outcome == (2, "", f"error: --width: expected a number in [1, 10000], got {width} [value-out-of-range]\n")


def test_plan_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no plan is exit code 3, with its place."""
    broken = tmp_path / "plan.json"
    broken.write_text('{"format": "cpipe.plan",\n "version": }')
    outcome = call(capsys, "show", broken)
    assert (outcome.code, outcome.out) == (3, "")
    assert outcome.err.startswith(f"error: {broken}:2:13: ")
    missing = call(capsys, "show", tmp_path / "missing.json")
    assert (missing.code, missing.out) == (3, "")
    assert missing.err.startswith(f"error: {tmp_path}/missing.json: no such file")


@pytest.mark.parametrize(
    "environ",
    [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"GITHUB_ACTIONS": "true"}],
)
def test_piped_output_is_the_same_everywhere(environ: dict[str, str], plan_file: Path) -> None:
    """In a pipe there is no colour, and the surroundings change nothing."""
    plain = spawn("show", plan_file)
    assert spawn("show", plan_file, environ=environ) == plain
    assert "\x1b" not in plain.out
    assert max(len(line) for line in plain.out.split("\n\n")[1].splitlines()) == 100


def test_colour_can_be_forced(plan_file: Path) -> None:
    """FORCE_COLOR colours the chart even in a pipe, and only the chart."""
    coloured = spawn("show", plan_file, environ={"FORCE_COLOR": "1"}).out
    assert "\x1b[97;44m" in coloured
    assert "\x1b" not in coloured.split("\n\n")[3]
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == spawn("show", plan_file).out


def test_columns_scale_the_chart_only(plan_file: Path) -> None:
    """COLUMNS scales the chart; tables and numbers are never cut."""
    narrow = spawn("show", plan_file, environ={"COLUMNS": "20"}).out.split("\n\n")
    wide = spawn("show", plan_file).out.split("\n\n")
    assert [len(line) for line in narrow[1].splitlines()[2:]] == [23, 23]
    assert narrow[3:] == wide[3:]
    assert "25.000" in narrow[0]


def test_ascii_where_nothing_else_can_be_written(plan_file: Path) -> None:
    """Where the encoding has no line characters the chart is drawn in ASCII, as with --ascii."""
    forced = spawn("show", plan_file, "--ascii").out
    assert forced.isascii()
    assert spawn("show", plan_file, environ={"PYTHONIOENCODING": "ascii"}).out == forced


def test_plan_that_is_not_valid(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever can be decoded can be shown: escapes are escaped, and a rank that the profile lacks has no capacity."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    document = json.loads(plan_file.read_bytes())
    document["made_by"]["method"] = "\x1b[31mred\nok: a line of its own"
    document["ranks"].append({**document["ranks"][0], "rank": 2})
    document["ranks"][0]["ops"][0] |= {"start_ns": -7, "end_ns": 2**62}
    odd = write_json(plan_file.with_name("odd.json"), document)
    profile = write_json(tmp_path / "profile.json", profile_document())
    outcome = call(capsys, "show", odd, "--profile", profile, "--width", "60")
    assert outcome.code == 0
    assert outcome.err.endswith("changed by hand and may not be valid [plan-digest]\n")
    assert "\x1b" not in outcome.out
    assert r"made by \x1b[31mred\nok: a line of its own, bound" in outcome.out
    assert re.search(r"^g0  .* none$", outcome.out, flags=re.MULTILINE)


def test_profile_of_another_shape(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile that does not fit the plan is named in what is said about it."""
    other = write_json(tmp_path / "other.json", profile_document(3))
    outcome = call(capsys, "show", plan_file, "--profile", other)
    assert outcome.code == 3
    assert outcome.err.startswith(f"error: {other}: $.devices: the plan has 2 devices, the profile 3 [different-size]")
