"""Tests of `cpipe show`: a plan as people read it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ROOT, call, profile_document, spawn, write_json
from helpers import signed
from sample_plans import make_problem, one_f_one_b, sample_plan
from view_cases import small_plan

from cpipe.plan import encode_plan, load_plan


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


@pytest.fixture
def real_plan(tmp_path: Path) -> Path:
    """Write a plan with messages, of the profile that `profile_document` returns."""
    path = tmp_path / "real.json"
    path.write_bytes(encode_plan(small_plan(2, 4)))
    return path


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile with the times of `real_plan` on links of 1 ms."""
    return write_json(tmp_path / "profile.json", profile_document())


def test_profile_replays_the_plan(
    real_plan: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a profile the times shown are those of the replay there; without, the plan's own."""
    slow = profile_document()
    for link in slow["links"]:
        link["latency_ms"] = 9
    slower = write_json(tmp_path / "slow.json", slow)
    own = call(capsys, "show", real_plan, "--json").document["plans"][0]
    same = call(capsys, "show", real_plan, "--profile", profile, "--json").document["plans"][0]
    late = call(capsys, "show", real_plan, "--profile", slower, "--json").document["plans"][0]
    assert (own["replayed"], same["replayed"], late["replayed"]) == (False, True, True)
    assert own["makespan_ms"] == same["makespan_ms"] < late["makespan_ms"]
    simulated = call(capsys, "simulate", real_plan, "--profile", slower, "--json").document
    assert late["makespan_ms"] == simulated["makespan_ms"]
    assert late["devices"] == simulated["devices"]
    assert late["lower_bound_ms"] is None
    assert f"makespan {late['makespan_ms']:.3f} ms; made by" in call(capsys, "show", real_plan, "--profile", slower).out


def test_bound_holds_for_its_own_job(tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replayed on the profile that it was made for, a plan keeps its bound."""
    plan = tmp_path / "solved.json"
    assert call(capsys, "solve", profile, "-o", plan, "--method", "1f1b").code == 0
    own = call(capsys, "show", plan, "--json").document["plans"][0]
    same = call(capsys, "show", plan, "--profile", profile, "--json").document["plans"][0]
    assert same["lower_bound_ms"] == own["lower_bound_ms"] > 0
    assert same["gap"] == own["gap"]
    assert same["devices"][0]["peak_bytes"] == own["devices"][0]["peak_bytes"]


def test_plan_that_cannot_be_replayed(real_plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that cannot run is shown with its own times, and a warning says why: `not-replayed`."""
    document = json.loads(real_plan.read_bytes())
    ops = document["ranks"][0]["ops"]
    document["ranks"][0]["ops"] = [op for op in ops if (op["op"], op.get("mb")) != ("F", 2)]
    broken = write_json(real_plan.with_name("broken.json"), document)
    outcome = call(capsys, "show", broken, "--profile", profile, "--json")
    assert outcome.code == 0
    assert [fault["code"] for fault in outcome.document["diagnostics"]] == ["not-replayed", "plan-digest"]
    assert "cannot be replayed, its own times are shown: device 0: 0F3 out of microbatch order" in outcome.err
    assert outcome.document["plans"][0]["replayed"] is False


def test_json_is_one_document(real_plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json stdout has one document, which names the lanes; on failure too."""
    outcome = call(capsys, "show", real_plan, "--json")
    assert (outcome.code, outcome.document["command"], outcome.document["status"]) == (0, "show", "done")
    (plan,) = outcome.document["plans"]
    assert [lane["kind"] for lane in plan["lanes"]] == ["compute", "channel"] * 2
    failed = call(capsys, "show", real_plan.with_name("missing.json"), "--json")
    assert (failed.code, failed.document["status"], failed.document["plans"]) == (3, "error", [])


def test_zoom(real_plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--ranks, --from and --to choose lanes and time; the axis says which."""
    whole = call(capsys, "show", real_plan, "--ascii", "--width", "83").out
    part = call(capsys, "show", real_plan, "--ascii", "--width", "83", "--ranks", "1", "--from", "4", "--to", "8").out
    assert re.search(r"^g0 F0", whole, flags=re.MULTILINE)
    assert not re.search(r"^g0 ", part, flags=re.MULTILINE)
    assert part.split("\n\n")[1].splitlines()[0].split() == [
        "4.0",
        "4.5",
        "5.0",
        "5.5",
        "6.0",
        "6.5",
        "7.0",
        "7.5",
        "ms",
    ]
    (lane,) = re.findall(r"^g1 (\S+)$", part.split("\n\n")[1], flags=re.MULTILINE)
    assert len(lane) == 80
    assert lane.startswith("F0")
    document = call(capsys, "show", real_plan, "--json", "--ranks", "0-1", "--to", "4").document
    assert (document["ranks"], document["from_ms"], document["to_ms"]) == ([0, 1], None, 4.0)
    (shown,) = document["plans"]
    assert [bar["op"] + str(bar["mb"]) for bar in shown["lanes"][0]["bars"]] == ["F0", "F1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "a"], "--ranks: expected numbers and ranges such as 0-3,5, got 'a' [rank-list]"),
        (["--ranks", "3-1"], "--ranks: expected numbers and ranges such as 0-3,5, got '3-1' [rank-list]"),
        (["--ranks", "0,"], "--ranks: expected numbers and ranges such as 0-3,5, got '0,' [rank-list]"),
        (["--ranks", "7"], "--ranks: {plan} has ranks 0 to 1 [no-such-rank]"),
        (["--from", "-1"], "--from: expected milliseconds >= 0, got -1 [value-out-of-range]"),
        (["--from", "nan"], "--from: expected milliseconds >= 0, got nan [value-out-of-range]"),
        (
            ["--from", "9e9"],
            "--from: expected milliseconds below the makespan, {end:g}, got 9e+09 [value-out-of-range]",
        ),
        (["--from", "5", "--to", "5"], "--to: expected milliseconds > 5, got 5 [value-out-of-range]"),
        (["--profile", "a", "--profile", "b"], "2 profiles for 1 plans [too-many-profiles]"),
        (["--svg", "{plan}"], "{plan}: --svg is the same file as the input {plan} [output-is-input]"),
        (["--svg", "{plan}.x", "--html", "{plan}.x"], "two files would be written to {plan}.x [output-twice]"),
        (["--svg", "-", "--trace", "-"], "--svg and --trace both want standard output [stdout-twice]"),
        (["--trace", "{plan}/x"], "{plan}/x: cannot be written: no such directory [output-not-writable]"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str, real_plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A call that is wrong is refused before anything is written, and says what is wrong with it."""
    before, end = real_plan.read_bytes(), load_plan(real_plan).claims.makespan_ns / 1e6
    outcome = call(capsys, "show", real_plan, *(text.format(plan=real_plan) for text in arguments))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[0] == f"error: {message.format(plan=real_plan, end=end)}"
    assert real_plan.read_bytes() == before
    assert not list(real_plan.parent.glob("*.x"))


def test_pictures_are_files(real_plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pictures, page and trace are written together in one call, and nothing is printed."""
    pytest.importorskip("PIL", reason="needs Pillow (extra png)")
    folder = real_plan.parent
    kinds = ("svg", "png", "html", "trace")
    arguments = [part for kind in kinds for part in (f"--{kind}", folder / f"out.{kind}")]
    assert call(capsys, "show", real_plan, "--profile", profile, *arguments) == (0, "", "")
    starts = {kind: (folder / f"out.{kind}").read_bytes()[:14] for kind in kinds}
    assert starts["svg"].startswith(b"<svg xmlns=")
    assert starts["png"].startswith(b"\x89PNG")
    assert starts["html"] == b"<!doctype html"
    assert json.loads((folder / "out.trace").read_bytes())["traceEvents"]


def test_picture_on_stdout(real_plan: Path) -> None:
    """A picture may go to standard output, byte for byte what goes to a file."""
    written = real_plan.with_name("x.svg")
    assert spawn("show", real_plan, "--svg", written).code == 0
    assert spawn("show", real_plan, "--svg", "-").out == written.read_text(encoding="utf-8")


def test_two_plans(real_plan: Path, plan_file: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two plans are shown one after the other; two profiles are one for each, one profile is for both."""
    outcome = call(capsys, "show", real_plan, plan_file, "--width", "80")
    assert outcome.out.count("bottleneck: ") == 2
    first = call(capsys, "show", real_plan, "--width", "80").out
    assert outcome.out.startswith(first.rstrip("\n"))
    both = call(capsys, "show", real_plan, real_plan, "--profile", profile, "--json").document["plans"]
    assert both[0] == both[1]
    each = ["--profile", profile, "--profile", profile]
    assert call(capsys, "show", real_plan, real_plan, *each, "--json").document["plans"] == both
    piped = spawn("show", real_plan, real_plan, "--profile", "-", "--json", stdin=profile.read_bytes()).document
    assert piped["plans"] == both
    page = real_plan.with_name("two.html")
    assert call(capsys, "show", real_plan, plan_file, "--html", page).code == 0
    assert page.read_bytes().count(b'class="chart"') == 2


def test_png_without_pillow(
    real_plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Pillow --png is refused with the command that installs it: `png-library`."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.ImageFont", None)
    outcome = call(capsys, "show", real_plan, "--png", real_plan.with_name("x.png"))
    assert outcome.code == 2
    assert outcome.err == (
        "error: --png needs Pillow, which is not installed [png-library]\nhint: pip install 'cpipe[png]'\n"
    )


def test_reader_loads_no_solver(real_plan: Path, profile: Path) -> None:
    """Showing a plan, even replayed and as a page, loads neither solvers nor torch, nor Pillow."""
    arguments = ["show", str(real_plan), "--profile", str(profile), "--html", str(real_plan.with_name("p.html"))]
    code = f"from cpipe.cli.app import main; assert main({arguments!r}) == 0; import sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "pulp", "highspy", "ortools", "PIL", "rich"}
