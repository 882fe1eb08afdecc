"""Tests of `cpipe solve`: what goes where, and what is refused before the search."""

from __future__ import annotations

import io
import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ROOT, call, profile_document, spawn, write_json

from cpipe.plan import load_plan

FAST = ["--method", "1f1b"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile of two devices and four microbatches."""
    return write_json(tmp_path / "profile.json", profile_document())


def test_plan_to_file(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -o the plan goes to the file, the summary to stderr, and nothing to stdout."""
    target = tmp_path / "plan.json"
    outcome = call(capsys, "solve", profile, "-o", target, *FAST)
    assert (outcome.code, outcome.out) == (0, "")
    plan = load_plan(target)
    assert plan.made_by.method == "1f1b"
    assert f"makespan {plan.claims.makespan_ns / 1e6:.3f} ms" in outcome.err.splitlines()[0]
    assert not stat.S_IMODE(target.stat().st_mode) & stat.S_IXUSR


def test_plan_to_stdout(profile: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Without -o a pipe gets exactly the bytes that the file would; -o - says so explicitly."""
    from cpipe.cli.app import main

    target = tmp_path / "plan.json"
    main(["solve", str(profile), "-o", str(target), *FAST])
    for extra in ([], ["-o", "-"]):
        capsysbinary.readouterr()
        assert main(["solve", str(profile), *extra, *FAST]) == 0
        assert capsysbinary.readouterr().out == target.read_bytes()


def test_profile_from_standard_input(profile: Path) -> None:
    """A profile can come from standard input; the plan is the same, whatever the file was called."""
    piped = spawn("solve", "-", *FAST, stdin=profile.read_bytes())
    assert piped.code == 0
    assert piped.out == spawn("solve", profile, *FAST).out


def test_summary(profile: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], None]) -> None:
    """The summary is a verdict, a table of devices, the bottleneck and the reason of the bound."""
    golden(call(capsys, "solve", profile, *FAST).err)


def test_json_report(profile: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], None]) -> None:
    """With --json the report is the only thing on stdout, and there is no summary."""
    outcome = call(capsys, "solve", profile, "--json", *FAST)
    assert (outcome.code, outcome.err) == (0, "")
    golden(json.dumps(outcome.document, indent=2) + "\n")


def test_json_and_file(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -o and --json the plan goes to the file and the report to stdout; they agree."""
    target = tmp_path / "plan.json"
    document = call(capsys, "solve", profile, "--json", "-o", target, *FAST).document
    plan = load_plan(target)
    assert document["makespan_ms"] == plan.claims.makespan_ns / 1e6
    assert document["lower_bound_ms"] == plan.claims.lower_bound_ns / 1e6
    assert [device["peak_bytes"] for device in document["devices"]] == list(plan.claims.peak_bytes)
    assert document["placement"] == list(plan.problem.placement)


def test_quiet(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet leaves nothing but the artefact; errors stay."""
    target = tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, *FAST) == (0, "", "")
    assert call(capsys, "solve", tmp_path / "missing.json", "-q").err.startswith("error: ")


def test_default_method_prints_only_json(profile: Path) -> None:
    """Whatever solver ran, stdout holds one document and nothing that a library printed."""
    outcome = spawn("solve", profile, "--json", "--time-limit", "20")
    assert outcome.code == 0
    assert outcome.out.count("\n") == 1
    assert outcome.document["status"] in ("optimal", "feasible")


def test_milp_prints_only_json(profile: Path) -> None:
    """The MILP solver's own text reaches neither stdout nor the report."""
    outcome = spawn("solve", profile, "--json", "--method", "milp", "--time-limit", "30")
    assert outcome.code == 0
    assert outcome.out.count("\n") == 1
    assert outcome.document["method"] == "milp"


def test_terminal_gets_the_summary(profile: Path) -> None:
    """On a terminal the summary is shown instead of the plan."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cpipe.cli", "solve", str(profile), *FAST],
        stdout=theirs,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
    assert b"makespan" in shown
    assert b"cpipe.plan" not in shown


@pytest.mark.parametrize(
    "environ",
    [{"FORCE_COLOR": "1"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"COLUMNS": "20"}, {"PYTHONHASHSEED": "7"}],
)
def test_output_is_the_same_everywhere(environ: dict[str, str], profile: Path) -> None:
    """Colour, width, terminal and hash seed change neither the plan nor the summary; no number is cut."""
    plain = spawn("solve", profile, *FAST)
    assert plain.code == 0
    assert spawn("solve", profile, *FAST, environ=environ) == plain


def test_input_is_never_overwritten(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The profile is never overwritten, not through a link and not as standard input."""
    before = profile.read_bytes()
    link = tmp_path / "link.json"
    link.symlink_to(profile)
    for output in (profile, link):
        outcome = call(capsys, "solve", profile, "-o", output, *FAST)
        assert (outcome.code, outcome.out) == (2, "")
        assert "[output-is-input]" in outcome.err
    with profile.open("rb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "cpipe.cli", "solve", "-", "-o", str(profile)],
            stdin=file,
            capture_output=True,
            check=False,
            cwd=ROOT,
        )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"the same file as the input standard input [output-is-input]" in done.stderr
    assert profile.read_bytes() == before


def test_output_is_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An output that cannot be written is reported before the profile is even read."""
    outcome = call(capsys, "solve", tmp_path / "missing.json", "-o", tmp_path / "no" / "plan.json")
    assert outcome.code == 2
    assert (
        outcome.err == f"error: {tmp_path}/no/plan.json: cannot be written: no such directory [output-not-writable]\n"
    )


def test_json_and_plan_cannot_share_stdout(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two documents on stdout are refused."""
    outcome = call(capsys, "solve", profile, "--json", "-o", "-")
    assert outcome.code == 2
    assert outcome.document["diagnostics"][0]["code"] == "stdout-twice"


def test_bad_options_come_together(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All options that are wrong are reported at once, also as JSON."""
    outcome = call(capsys, "solve", profile, "--method", "mlip", "--max-gap", "1.5", "--time-limit", "0", "--json")
    assert outcome.code == 2
    assert [fault["code"] for fault in outcome.document["diagnostics"]] == [
        "unknown-value",
        "value-out-of-range",
        "value-out-of-range",
    ]
    assert outcome.err.splitlines()[-1] == "hint: did you mean 'milp'?"


def test_methods_in_help() -> None:
    """The help of --method names exactly the methods there are."""
    import inspect

    from cpipe.cli.solve import solve
    from cpipe.solve.methods import METHODS

    annotation = inspect.get_annotations(solve, eval_str=True)["method"]
    text = annotation.__metadata__[0].help
    assert text.rstrip(".").replace(" or ", ", ").split(", ") == list(METHODS)


def test_invalid_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every fault of a profile is one line, with exit code 3, and the same in the JSON report."""
    document = profile_document()
    document["stages"][0]["forward_ms"] = -1
    document["stages"][1]["device"] = "g[9]"
    broken = write_json(tmp_path / "profile.json", document)
    outcome = call(capsys, "solve", broken, "--json")
    assert outcome.code == 3
    faults = outcome.document["diagnostics"]
    assert [fault["path"] for fault in faults] == ["$.stages[0].forward_ms", "$.stages[1].device"]
    lines = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[2] for line in lines] == [fault["path"] for fault in faults]


def test_infeasible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When memory proves that no schedule exists the exit code is 4 and the report says infeasible."""
    document = profile_document(devices=[{"id": "g0", "memory_bytes": 20_000_000_001}, {"id": "g1"}])
    outcome = call(capsys, "solve", write_json(tmp_path / "profile.json", document), "--json")
    assert outcome.code == 4
    assert outcome.document["status"] == "infeasible"
    assert outcome.document["makespan_ms"] is None
    assert outcome.err.startswith("error: ")


def test_standard_input_as_text(
    profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults of standard input are reported for the file -."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{")))
    outcome = call(capsys, "solve", "-")
    assert outcome.code == 3
    assert outcome.err.startswith("error: -:1:2: ")


def test_placement_that_does_not_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A placement that the profile's stages cannot take is a wrong call."""
    document = profile_document(3, devices=[{"id": "g0"}, {"id": "g1"}], links=[])
    document["stages"][2]["device"] = "g1"
    outcome = call(capsys, "solve", write_json(tmp_path / "p.json", document), "--placement", "ud", "--json")
    assert outcome.code == 2
    assert outcome.document["diagnostics"][0]["code"] == "placement-does-not-apply"


def test_max_gap(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gap of an accepted plan is within the one that was asked for."""
    outcome = call(capsys, "solve", profile, "--max-gap", "0.5", "--json")
    assert outcome.code == 0
    assert outcome.document["gap"] <= 0.5
