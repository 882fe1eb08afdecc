"""Tests of cpipe.cli.app and failures: help, global options, exit codes and how errors look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer
from command_line import ROOT, call, spawn

from cpipe import __version__
from cpipe.cli import app as program
from cpipe.cli.app import COMMANDS, main
from cpipe.cli.failures import failure_of
from cpipe.errors import (
    CpipeError,
    Diagnostic,
    InfeasibleError,
    NoSolutionError,
    PlanError,
    ProfileError,
    UsageError,
)

NAMES = [command.__name__ for command in COMMANDS]

# What users' scripts rely on; a new option is a decision, a lost one breaks them.
OPTIONS = {
    "": ["--version/-V", "--traceback", "--install-completion", "--show-completion", "--help/-h"],
    "solve": [
        "PROFILE",
        "--output/-o",
        "--method",
        "--placement",
        "--max-gap",
        "--time-limit",
        "--seed",
        "--objective",
        "--receive-window",
        "--group-size",
        "--recompute",
        "--offload",
        "--json",
        "--quiet/-q",
        "--verbose/-v",
        "--help/-h",
    ],
    "validate": ["PLAN", "--profile", "--transport", "--json", "--help/-h"],
    "simulate": ["PLAN", "--profile", "--output/-o", "--json", "--help/-h"],
    "show": [
        "PLAN",
        "OTHER",
        "--profile",
        "--ranks",
        "--from",
        "--to",
        "--width",
        "--ascii",
        "--svg",
        "--png",
        "--html",
        "--trace",
        "--json",
        "--help/-h",
    ],
    "explain": ["PLAN", "--profile", "--top", "--json", "--quiet/-q", "--help/-h"],
    "diff": ["PLAN", "OTHER", "--profile", "--json", "--quiet/-q", "--help/-h"],
    "compare": [
        "PROFILE",
        "--method",
        "--memory",
        "--search",
        "--seed",
        "--output/-o",
        "--save",
        "--svg",
        "--png",
        "--json",
        "--quiet/-q",
        "--verbose/-v",
        "--help/-h",
    ],
    "crossover": [
        "[PROFILE]",
        "--bandwidth-gbit-s",
        "--latency-ms",
        "--parameters",
        "--hidden",
        "--sequence",
        "--microbatch-size",
        "--microbatches",
        "--devices",
        "--replicas",
        "--forward-ms",
        "--input-grad-ms",
        "--weight-grad-ms",
        "--bytes-per-element",
        "--memory-factor",
        "--placement",
        "--method",
        "--refinements",
        "--seed",
        "--output/-o",
        "--svg",
        "--png",
        "--json",
        "--quiet/-q",
        "--verbose/-v",
        "--help/-h",
    ],
    "sweep": [
        "PROFILE",
        "--latency-ms",
        "--latency-factor",
        "--latency-tf",
        "--bandwidth-gbit-s",
        "--bandwidth-factor",
        "--bandwidth-tf",
        "--links",
        "--memory-factor",
        "--microbatches",
        "--method",
        "--placement",
        "--chunks",
        "--max-gap",
        "--time-limit",
        "--seed",
        "--jobs",
        "--dask",
        "--dask-timeout",
        "--output/-o",
        "--svg",
        "--png",
        "--cells",
        "--json",
        "--quiet/-q",
        "--verbose/-v",
        "--help/-h",
    ],
    "check": [
        "PATH",
        "--profile",
        "--resolve",
        "--tolerance",
        "--update",
        "--json",
        "--quiet/-q",
        "--verbose/-v",
        "--help/-h",
    ],
    "export": [
        "PLAN",
        "--to",
        "--format",
        "--fsdp",
        "--layers",
        "--profile",
        "--output/-o",
        "--json",
        "--help/-h",
    ],
    "import": [
        "FILE",
        "--from",
        "--profile",
        "--output/-o",
        "--transport",
        "--devices",
        "--link",
        "--intra-link",
        "--link-replicas",
        "--chunks",
        "--stages",
        "--split",
        "--placement",
        "--microbatches",
        "--data-parallel",
        "--zero",
        "--dp-link",
        "--gpu-memory",
        "--first-stage",
        "--offer-recompute",
        "--name",
        "--gpu-tflops",
        "--tensor-parallel",
        "--sequence-parallel",
        "--microbatch-size",
        "--sequence",
        "--dtype",
        "--attention",
        "--attention-backward",
        "--recompute",
        "--activation-factor",
        "--held-factor",
        "--gradient-bytes",
        "--optimizer-bytes",
        "--json",
        "--quiet/-q",
        "--help/-h",
    ],
    "init": ["--output/-o", "--stages", "--devices", "--microbatches", "--quiet/-q", "--help/-h"],
    "profile": [
        "--model",
        "--stages",
        "--devices",
        "--microbatches",
        "--repeats",
        "--seed",
        "--name",
        "--output/-o",
        "--timeout",
        "--quiet/-q",
        "--help/-h",
    ],
    "run": [
        "PLAN",
        "--model",
        "--steps",
        "--profile",
        "--emulate",
        "--time-scale",
        "--trace",
        "--check",
        "--seed",
        "--timeout",
        "--json",
        "--verbose/-v",
        "--help/-h",
    ],
    "schema": ["FORMAT", "--help/-h"],
    "doctor": ["--full", "--json", "--help/-h"],
}


@pytest.mark.parametrize("command", ["", *NAMES])
def test_help(
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str], None],
) -> None:
    """Help goes to stdout with exit code 0, the same for -h and --help."""
    monkeypatch.setenv("COLUMNS", "80")
    arguments = [command] if command else []
    shown = call(capsys, *arguments, "--help")
    assert shown == call(capsys, *arguments, "-h")
    assert (shown.code, shown.err) == (0, "")
    golden(shown.out)


def test_no_arguments_show_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments the help goes to stdout, and that is no error."""
    assert call(capsys) == call(capsys, "--help")


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The version is one line on stdout."""
    assert call(capsys, option) == (0, f"cpipe {__version__}\n", "")


def test_options_are_frozen() -> None:
    """No option appears or disappears unnoticed; short ones are only -o -q -v -h -V."""
    root = typer.main.get_command(program.app)
    context = typer.Context(root, info_name="cpipe")
    found = {"": root, **{name: root.get_command(context, name) for name in root.list_commands(context)}}  # type: ignore[attr-defined]
    assert list(found) == list(OPTIONS)
    for name, command in found.items():
        inner = typer.Context(command, parent=context, help_option_names=["-h", "--help"])
        spelled = [
            "/".join(sorted(parameter.opts, key=len, reverse=True))
            if parameter.param_type_name == "option"
            else str(parameter.metavar)
            for parameter in command.get_params(inner)
        ]
        assert spelled == OPTIONS[name], name
    short = {part for options in OPTIONS.values() for option in options for part in option.split("/")[1:]}
    assert short == {"-o", "-q", "-v", "-h", "-V"}


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["slove"], "no such command 'slove'", "did you mean 'solve'?"),
        (["frobnicate"], "no such command 'frobnicate'", "see 'cpipe --help'"),
        (["--colour"], "no such option: --colour", "see 'cpipe --help'"),
        (["solve"], "missing argument 'PROFILE'", "see 'cpipe solve --help'"),
        (["solve", "p", "--methd", "x"], "no such option: --methd", "did you mean --method?"),
        (["solve", "p", "--method"], "option '--method' requires an argument", "see 'cpipe solve --help'"),
        (["solve", "p", "q"], "got unexpected extra argument(s) (q)", "see 'cpipe solve --help'"),
        (["simulate", "p"], "missing option '--profile'", "see 'cpipe simulate --help'"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong call is one plain error line and one hint on stderr, with exit code 2."""
    assert call(capsys, *arguments) == (2, "", f"error: {message} [usage]\nhint: {hint}\n")


@pytest.mark.parametrize("arguments", [["solve", "--json"], ["--json", "slove"], ["export", "x.json", "--json"]])
def test_usage_errors_as_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With --json among the arguments a wrong call, too, gives exactly one document."""
    outcome = call(capsys, *arguments)
    assert outcome.code == 2
    assert outcome.document["status"] == "error"
    (diagnostic,) = outcome.document["diagnostics"]
    assert diagnostic["code"] == "usage"
    assert outcome.err.startswith("error: ")


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (UsageError("x"), 2, "error"),
        (ProfileError("x"), 3, "error"),
        (PlanError("x"), 3, "error"),
        (InfeasibleError("x"), 4, "infeasible"),
        (NoSolutionError("x"), 5, "no_solution"),
        (CpipeError("x"), 70, "error"),
        (ValueError("x"), 70, "error"),
        (RecursionError("x"), 70, "error"),
        (KeyboardInterrupt(), 130, "error"),
        (typer.Abort(), 130, "error"),
        (BrokenPipeError(), 141, "error"),
    ],
)
def test_exit_codes(error: BaseException, code: int, status: str) -> None:
    """Every way a command can stop has its own exit code, and the status that --json reports."""
    failure = failure_of(error, "solve")
    assert (failure.exit_code, failure.status) == (code, status)


def raise_in_show(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make every plan that `show` loads raise `error`."""

    def fail(path: str) -> object:
        raise error

    monkeypatch.setattr("cpipe.plan.load_plan", fail)


def test_internal_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bug of ours is exit code 70 and one line that says so; the traceback is shown on request only."""
    raise_in_show(monkeypatch, KeyError("no such\nstage"))
    plain = call(capsys, "show", "plan.json")
    assert plain.code == 70
    assert plain.err.splitlines() == [
        "error: internal error: KeyError: 'no such\\nstage' [internal-error]",
        "hint: run again with --traceback and report what it shows",
    ]
    for arguments in (["--traceback", "show", "plan.json"], ["show", "plan.json", "--traceback"]):
        traced = call(capsys, *arguments)
        assert traced.code == 70
        assert traced.err.startswith("Traceback (most recent call last):\n")
        assert traced.err.endswith(plain.err)


def test_traceback_after_two_dashes_is_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    """After -- nothing is an option, not even a file called --traceback or --json."""
    outcome = call(capsys, "show", "--", "--traceback", "--json", "--third")
    assert outcome.err.startswith("error: got unexpected extra argument(s) (--third)")
    assert outcome.out == ""


def test_all_errors_then_one_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All faults are shown, one a line in their order, then one hint; users' text is printed as it is."""
    faults = [
        Diagnostic(code="negative-duration", message="got -1 [red]", file="[b]p[/b].json", path="$.stages[0]"),
        Diagnostic(code="syntax", message="two\nlines \x1b[31m", file="p.json", line=4, column=20),
    ]
    raise_in_show(monkeypatch, ProfileError(faults, hint="look at [bold]both[/bold]"))
    outcome = call(capsys, "show", "plan.json")
    assert outcome == (
        3,
        "",
        "error: [b]p[/b].json: $.stages[0]: got -1 [red] [negative-duration]\n"
        "error: p.json:4:20: two\\nlines \\x1b[31m [syntax]\n"
        "hint: look at [bold]both[/bold]\n",
    )


def test_interrupt_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C is exit code 130, and one document with --json."""
    raise_in_show(monkeypatch, KeyboardInterrupt())
    outcome = call(capsys, "validate", "plan.json", "--json")
    assert outcome.code == 130
    assert outcome.document["diagnostics"][0]["code"] == "interrupted"


def test_closed_pipe() -> None:
    """When the reader of stdout has gone, the command ends by SIGPIPE and says nothing (shells report 141)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cpipe.cli", "schema", "report"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors) == (-signal.SIGPIPE, b"")


def run_on(*arguments: str, closed: int | None = None, unbuffered: bool = False, **streams: Any) -> tuple[int, bytes]:
    """Run a call on these streams, one of them closed before it starts; return its exit code and its errors."""
    done = subprocess.run(
        [sys.executable, "-m", "cpipe.cli", *arguments],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""},
        preexec_fn=None if closed is None else lambda: os.close(closed),
        **{"stderr": subprocess.PIPE, **streams},
    )
    return done.returncode, done.stderr or b""


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("arguments", [["schema", "report"], ["--help"], ["--version"], ["no-such-command", "--json"]])
def test_full_disk(arguments: list[str], unbuffered: bool) -> None:
    """When stdout cannot take the answer, long or short, that is an error of the call, told once."""
    with open("/dev/full", "wb") as full:
        code, errors = run_on(*arguments, unbuffered=unbuffered, stdout=full)
    refused = [line for line in errors.splitlines() if line.startswith(b"error: standard output cannot be written: ")]
    own = [line for line in errors.splitlines() if b"no-such-command" in line]
    assert (code, len(refused), len(own)) == (2, 1, int("--json" in arguments))
    assert len(errors.splitlines()) == 1 + 2 * len(own)  # an error of its own has a hint


@pytest.mark.parametrize("arguments", [["schema", "plan"], ["--help"]])
def test_closed_output(arguments: list[str]) -> None:
    """A closed stdout is one that cannot be written; nothing else is written to in its place."""
    code, errors = run_on(*arguments, closed=1)
    assert (code, errors.count(b"\n")) == (2, 1)
    assert errors.startswith(b"error: standard output cannot be written: ")


def test_closed_input() -> None:
    """A closed standard input is an input that cannot be read."""
    assert run_on("validate", "-", closed=0) == (3, b"error: -: standard input is closed [unreadable]\n")


def test_errors_that_nobody_takes() -> None:
    """When stderr is closed or full, the exit code is what it would be otherwise."""
    assert run_on("validate", "missing.json", closed=2, stderr=None)[0] == 3
    with open("/dev/full", "wb") as full:
        assert run_on("validate", "missing.json", stderr=full)[0] == 3
        assert run_on("slove", stderr=full)[0] == 2


def test_failure_while_reporting(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """When even the report of an error fails, that is a bug of ours: exit code 70 and one line."""

    def fail(report: object) -> bytes:
        raise ValueError("no")

    monkeypatch.setattr("cpipe.report.document.encode_report", fail)
    outcome = call(capsys, "validate", "missing.json", "--json")
    assert (outcome.code, outcome.out) == (70, "")
    assert outcome.err.splitlines()[-1] == (
        "error: internal error: ValueError while reporting an error [internal-error]"
    )


def test_odd_bytes_in_a_name() -> None:
    """A file name that is no UTF-8 gives one document all the same, the odd bytes escaped."""
    done = subprocess.run(
        [sys.executable, "-m", "cpipe.cli", "validate", b"\xff.json", "--json"],
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    (fault,) = json.loads(done.stdout)["diagnostics"]
    assert (done.returncode, fault["file"], fault["code"]) == (3, "\\udcff.json", "file-not-found")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"FORCE_COLOR": "1"},
        {"NO_COLOR": "1"},
        {"TERM": "dumb"},
        {"COLUMNS": "20"},
        {"GITHUB_ACTIONS": "true", "FORCE_COLOR": "1"},
        {"PYTHONIOENCODING": "ascii"},
    ],
)
def test_errors_are_plain_everywhere(environ: dict[str, str]) -> None:
    """Neither colour nor width nor encoding of the surroundings changes an error or a document."""
    outcome = spawn("solve", "a-profile-with-a-long-name-é.json", "--methd=x", "--json", environ=environ)
    assert outcome.code == 2
    assert outcome.err == "error: no such option: --methd [usage]\nhint: did you mean --method?\n"
    assert json.loads(outcome.out)["diagnostics"][0]["hint"] == "did you mean --method?"


def test_main_returns_its_code() -> None:
    """The program returns its exit code and leaves exiting to its caller."""
    assert main(["solve", "--methd"]) == 2
