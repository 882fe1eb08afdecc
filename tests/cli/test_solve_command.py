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
from typing import Any

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


def on_terminal(stream: str, other: Path, *arguments: object, **environ: str) -> tuple[int, str]:
    """Run a call with one stream on a terminal, the other in a file; return its exit code and what was shown."""
    ours, theirs = pty.openpty()
    with other.open("wb") as file:
        streams: dict[str, Any] = {"stdout": file, "stderr": file, stream: theirs}
        process = subprocess.Popen(
            [sys.executable, "-m", "cpipe.cli", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm", **environ},
            **streams,
        )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    return process.wait(), shown.decode()


def test_terminal_gets_the_summary(profile: Path, tmp_path: Path) -> None:
    """On a terminal the summary is shown instead of the plan."""
    code, shown = on_terminal("stdout", tmp_path / "errors", "solve", profile, *FAST)
    assert (code, (tmp_path / "errors").read_bytes()) == (0, b"")
    assert "makespan" in shown
    assert "cpipe.plan" not in shown


def test_nothing_to_show_is_refused(profile: Path, tmp_path: Path) -> None:
    """On a terminal --quiet would throw away what was found: without a file it is refused before the search."""
    code, shown = on_terminal("stdout", tmp_path / "errors", "solve", profile, "-q", *FAST)
    assert (code, shown) == (2, "")
    assert (tmp_path / "errors").read_text().splitlines() == [
        "error: --quiet leaves nothing to show on a terminal [nothing-to-show]",
        "hint: name a file with --output, or - for the plan itself",
    ]
    assert on_terminal("stdout", tmp_path / "e", "solve", profile, "-q", "-o", tmp_path / "p", *FAST) == (0, "")


def test_progress_on_a_terminal(profile: Path, tmp_path: Path) -> None:
    """While a search runs a terminal shows how it goes in one line; it is gone before the summary."""
    code, shown = on_terminal("stderr", tmp_path / "plan.json", "solve", profile, "--method", "greedy")
    assert code == 0
    status, erased, summary = shown.rpartition("\x1b[2K")
    assert erased
    assert "ms, bound " in status
    assert summary.startswith(("optimal: makespan", "feasible: makespan"))
    assert "\x1b" not in summary


@pytest.mark.parametrize(("options", "environ"), [(["-q"], {}), (["-v"], {}), ([], {"TERM": "dumb"})])
def test_no_progress_line(options: list[str], environ: dict[str, str], profile: Path, tmp_path: Path) -> None:
    """There is no such line when quiet, when verbose (which prints lines that stay), or on a dumb terminal."""
    code, shown = on_terminal("stderr", tmp_path / "plan.json", "solve", profile, *options, *FAST, **environ)
    assert code == 0
    assert "\x1b" not in shown
    assert (shown == "") is ("-q" in options)


def test_faults_found_later_name_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a placement or the memory makes impossible is said of the profile, by its name."""
    apart = profile_document(3, devices=[{"id": "g0", "site": "a"}, {"id": "g1", "site": "b"}], links=[])
    for stage in apart["stages"]:
        stage["device"] = "g0"
    apart["stages"].append({**apart["stages"][0], "id": "s3"})
    file = write_json(tmp_path / "p.json", apart)
    unlinked = call(capsys, "solve", file, "--placement", "loop")
    assert unlinked.code == 3
    assert f"error: {file}: $.stages[1].device: no link joins" in unlinked.err
    small = profile_document(devices=[{"id": "g0", "memory_bytes": 20_000_000_001}, {"id": "g1"}])
    full = call(capsys, "solve", write_json(file, small))
    assert full.code == 4
    assert full.err.startswith(f'error: {file}: $.devices[0].memory_bytes: device "g0" needs ')


def test_warnings_of_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the search warns of (a placement left out) stands on stderr and in the report, unless quiet."""
    document = profile_document(devices=[{"id": "g0"}, {"id": "g1", "site": "far"}], links=[])
    document["stages"][1]["device"] = "g0"
    file = write_json(tmp_path / "p.json", document)
    options = ("--placement", "auto", "--method", "greedy", "--json")
    outcome = call(capsys, "solve", file, *options)
    assert outcome.code == 0
    found = [fault["code"] for fault in outcome.document["diagnostics"]]
    assert found.count("placement-refused") == outcome.err.count("[placement-refused]") >= 1
    assert call(capsys, "solve", file, *options, "-q").err == ""


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
    for output in ("-", "/dev/stdout"):
        outcome = call(capsys, "solve", profile, "--json", "-o", output)
        assert outcome.code == 2
        assert outcome.document["diagnostics"][0]["code"] == "stdout-twice"


def test_plan_to_the_device_of_stdout(profile: Path, tmp_path: Path) -> None:
    """Standard output by the name of its device gets the same bytes, wherever it leads."""
    plain = spawn("solve", profile, "-q", *FAST)
    assert plain.code == 0
    assert spawn("solve", profile, "-q", "-o", "/dev/stdout", *FAST).out == plain.out
    log = tmp_path / "log"
    command = [sys.executable, "-m", "cpipe.cli", "solve", str(profile), "-q", "-o", "/dev/stdout", *FAST]
    with log.open("wb") as file:
        file.write(b"before\n")
        file.flush()
        subprocess.run(command, stdout=file, check=True, cwd=ROOT)
    assert log.read_text() == "before\n" + plain.out


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
    names = text.rstrip(".").replace(" or a schedule of the field: ", " ").replace(" or ", ", ").split(", ")
    assert names == list(METHODS)


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
    outcome = call(capsys, "solve", write_json(tmp_path / "p.json", document), "--placement", "loop", "--json")
    assert outcome.code == 2
    assert outcome.document["diagnostics"][0]["code"] == "placement-does-not-apply"


def test_max_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The search ends with the first plan within the gap that was asked for; without one it goes on to the best."""
    document = profile_document(4, 6)
    for device in document["devices"]:
        device["memory_bytes"] = 25_500_000_000
    for link in document["links"]:
        link["latency_ms"] = 4
    wide = write_json(tmp_path / "wide.json", document)
    accepted = call(capsys, "solve", wide, "--max-gap", "0.5", "--json").document
    assert (accepted["status"], accepted["found_by"]) == ("feasible", "1f1b-split")
    assert 0 < accepted["gap"] <= 0.5
    best = call(capsys, "solve", wide, "--json").document
    assert (best["status"], best["gap"]) == ("optimal", 0)
