"""Tests of `cpipe compare`: the page, the report, files, and calls that are wrong."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import call, profile_document, spawn, write_json
from helpers import assert_plan_ok
from jsonschema import Draft202012Validator

from cpipe.compiler import problem_for_plan
from cpipe.plan import load_plan
from cpipe.profile import load_profile
from cpipe.report.document import report_schema

FEW = ("--method", "1f1b,gpipe,zb-v,greedy-crosspipe")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile of two devices that GPipe does not fit."""
    document = profile_document(2, 6)
    for device in document["devices"]:
        device["memory_bytes"] = 23_000_000_000
    return write_json(tmp_path / "profile.json", document)


def compared(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    """Return the report of a call, held against the schema."""
    outcome = call(capsys, "compare", *arguments, "--json")
    assert outcome.code == code
    Draft202012Validator(report_schema()).validate(outcome.document)
    return outcome.document


def test_page(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page lists what fits by time, what does not with the bytes short, and what does not apply with the reason."""
    outcome = call(capsys, "compare", profile, *FEW)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("sample: 2 devices, 2 stages, 6 microbatches; 23.00 GB on each device\n")
    for part in (
        "search at that peak ms",
        "does not fit:",
        "short by 3001000000",
        "does not apply:",
        "needs two stages on each device",
    ):
        assert part in outcome.out
    assert "\x1b" not in outcome.out


def test_report(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report has all rows in the order of the page, with times, peaks, bounds and shortfalls."""
    document = compared(capsys, profile, *FEW)
    rows = document["rows"]
    assert [row["row"] for row in rows] == list(range(1, len(rows) + 1))
    fitting = [row["reached"]["makespan_ms"] for row in rows if row["outcome"] == "fits"]
    assert fitting == sorted(fitting)
    assert rows[0]["on_front"]
    by_method = {row["method"]: row for row in rows if row["memory_share"] is None}
    assert by_method["1f1b"]["own"] == by_method["1f1b"]["reached"]
    assert by_method["1f1b"]["searched"]["makespan_ms"] <= by_method["1f1b"]["reached"]["makespan_ms"]
    gpipe = by_method["gpipe"]
    assert (gpipe["outcome"], gpipe["reached"]) == ("does-not-fit", None)
    assert [entry["device"] for entry in gpipe["shortfalls"]] == ["g0", "g1"]
    assert gpipe["shortfalls"][0]["short_bytes"] == 3_001_000_000  # six activations, static bytes and one receive
    assert (by_method["zb-v"]["outcome"], by_method["zb-v"]["placement"]) == ("does-not-apply", None)
    for row in rows:
        if row["reached"] is not None:
            assert all(peak <= 23_000_000_000 for peak in row["reached"]["peaks_bytes"])
            assert row["reached"]["peak_bytes"] == max(row["reached"]["peaks_bytes"])


def test_saved_plans(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--save writes the plan of a row, which is the one that its numbers are of, and is right for the profile."""
    document = compared(capsys, profile, *FEW)
    fitting = [row for row in document["rows"] if row["outcome"] == "fits"]
    targets = {row["row"]: tmp_path / f"{row['row']}.json" for row in fitting}
    saves = [part for number, path in targets.items() for part in ("--save", f"{number}={path}")]
    assert call(capsys, "compare", profile, *FEW, *saves).code == 0
    loaded = load_profile(profile)
    for row in fitting:
        plan = load_plan(targets[row["row"]])
        assert_plan_ok(plan, problem_for_plan(plan, loaded))
        assert plan.claims.makespan_ns / 1e6 == row["reached"]["makespan_ms"]
        assert list(plan.claims.peak_bytes) == row["reached"]["peaks_bytes"]


def test_files(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CSV and pictures are written beside the page; the same call writes the same bytes."""
    table, svg = tmp_path / "rows.csv", tmp_path / "rows.svg"
    first = call(capsys, "compare", profile, *FEW, "-o", table, "--svg", svg)
    contents = table.read_bytes(), svg.read_bytes()
    again = call(capsys, "compare", profile, *FEW, "-o", table, "--svg", svg)
    assert first == again
    assert (table.read_bytes(), svg.read_bytes()) == contents
    methods = [line["method"] for line in csv.DictReader(table.read_text().splitlines())]
    assert {*methods} == {"1f1b", "gpipe", "zb-v", "greedy-crosspipe"}
    assert contents[1].startswith(b"<svg ")


def test_png(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The picture as PNG has the SVG's size, doubled."""
    image = pytest.importorskip("PIL.Image")
    png, svg = tmp_path / "rows.png", tmp_path / "rows.svg"
    assert call(capsys, "compare", profile, "--method", "1f1b", "--png", png, "--svg", svg).code == 0
    with image.open(png) as picture:
        assert f'width="{picture.width // 2}" height="{picture.height // 2}"' in svg.read_text()


def test_csv_to_stdout(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``-o -`` writes the CSV in place of the page."""
    outcome = call(capsys, "compare", profile, "--method", "1f1b", "-o", "-")
    assert outcome.out.startswith("row,method,placement,outcome,")
    assert "less memory" not in outcome.out


def test_piped_output_is_whole(profile: Path) -> None:
    """Piped output is never cut to a width, and has no colour."""
    outcome = spawn("compare", profile, *FEW, environ={"COLUMNS": "20", "FORCE_COLOR": "1", "TERM": "dumb"})
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) > 100
    assert "\x1b" not in outcome.out
    assert "…" not in outcome.out


def test_profile_from_stdin(profile: Path) -> None:
    """``-`` reads the profile from standard input; progress goes to stderr alone."""
    outcome = spawn("compare", "-", "--method", "1f1b", "--json", "-v", stdin=profile.read_bytes())
    assert outcome.code == 0
    assert json.loads(outcome.out)["status"] == "done"
    assert "1f1b on placement profile" in outcome.err


def test_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no method fits the exit code is 4 and each row says why."""
    document = profile_document(2, 4)
    document["devices"][0]["memory_bytes"] = 1
    profile = write_json(tmp_path / "profile.json", document)
    report = compared(capsys, profile, *FEW, code=4)
    assert report["status"] == "infeasible"
    assert {row["outcome"] for row in report["rows"]} == {"does-not-fit", "does-not-apply"}
    assert "nothing fits" in call(capsys, "compare", profile, *FEW).out


def test_own_memory(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--memory own lifts the limits, so that every schedule shows its own peak; equal searches nothing more."""
    own = compared(capsys, profile, *FEW, "--memory", "own")
    assert own["capacities"] == [None, None]
    assert "does-not-fit" not in {row["outcome"] for row in own["rows"]}
    equal = compared(capsys, profile, *FEW, "--memory", "equal")
    assert {row["searched"] is None for row in equal["rows"]} == {True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "1f1b,zbh1"], "--method: expected one of auto, .*, got 'zbh1' [unknown-value]"),
        (["--method", ""], "--method: expected one of auto, .*, got '' [unknown-value]"),
        (["--memory", "most"], "--memory: expected one of both, equal, own, got 'most' [unknown-value]"),
        (["--search", "milp"], "--search: expected one of greedy-crosspipe, greedy, auto, got 'milp' [unknown-value]"),
        (["--seed", "-1"], "--seed: expected a number in [0, 2147483647], got -1 [value-out-of-range]"),
        (
            ["--save", "plan.json"],
            "--save: expected a row and a file such as 2=plan.json, got 'plan.json' [row-to-save]",
        ),
        (["--save", "0=a"], "--save: expected a row and a file such as 2=plan.json, got '0=a' [row-to-save]"),
        (["--save", "1=a.json", "--save", "01=b.json"], "--save: row 1 is given twice [row-to-save]"),
        (["--save", "1=x.json", "--svg", "x.json"], "two files would be written to x.json [output-twice]"),
        (["--svg", "-", "--json"], "--svg and --json both want standard output [stdout-twice]"),
    ],
)
def test_wrong_calls(
    arguments: list[str],
    message: str,
    profile: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong call names the option and the value, with exit code 2, before any work."""
    monkeypatch.chdir(tmp_path)
    outcome = call(capsys, "compare", profile, *arguments)
    assert outcome.code == 2
    first, _, last = message.partition(".*")
    assert first in outcome.err
    assert last in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profile.json"]


def test_rows_without_a_plan_are_not_saved(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that does not fit, or does not exist, has no plan to save, and then nothing is written."""
    target = tmp_path / "rows.csv"
    outcome = call(capsys, "compare", profile, "--method", "gpipe", "-o", target, "--save", f"1={tmp_path / 'p.json'}")
    assert outcome.code == 2
    assert "--save: row 1 has no plan; rows 1 to 0 have one [row-to-save]" in outcome.err
    assert not target.exists()


def test_profile_is_not_overwritten(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No result goes over the profile."""
    before = profile.read_bytes()
    outcome = call(capsys, "compare", profile, "--svg", profile)
    assert outcome.code == 2
    assert "--svg is the same file as the input" in outcome.err
    assert profile.read_bytes() == before


def test_png_needs_pillow(profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Pillow --png says how to get it, before the work starts."""
    monkeypatch.setitem(sys.modules, "PIL.ImageFont", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    outcome = call(capsys, "compare", profile, "--png", "x.png")
    assert outcome.code == 2
    assert "[png-library]" in outcome.err
    assert "pip install 'cpipe[png]'" in outcome.err


def test_unreadable_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile that does not exist gives a report with its error, and exit code 3."""
    report = compared(capsys, tmp_path / "no.json", code=3)
    assert (report["command"], report["status"], report["rows"]) == ("compare", "error", [])
    assert report["diagnostics"][0]["code"] == "file-not-found"
