"""How long work shows itself: one line on a terminal's stderr while it runs, nothing anywhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, profile_document, write_json

from cpipe.cli.app import main

ERASED = "\x1b[2K"

CALLS: dict[str, tuple[list[str], str]] = {
    "solve": (["solve", "PROFILE", "--method", "greedy", "-o", "OUT"], "bound 23.000 ms"),
    "explain": (["explain", "PLAN", "--profile", "PROFILE"], "what if"),
    "compare": (["compare", "PROFILE", "--method", "1f1b,gpipe", "--memory", "equal"], "the fastest row"),
    "sweep": (
        ["sweep", "PROFILE", "--method", "1f1b", "--microbatches", "2", "--jobs", "1", "-o", "OUT.csv"],
        "1 of 1",
    ),
    "check": (["check", "PLAN", "--resolve"], "1 of 1"),
    "crossover": (["crossover", "PROFILE", "--parameters", "1e6", "--bandwidth-gbit-s", "1,2"], "Gbit"),
    "export": (["export", "PLAN", "--to", "timeline-csv", "-o", "OUT"], "writing timeline-csv"),
    "import": (["import", "TABLE", "--from", "torch-csv", "--profile", "PROFILE", "-o", "OUT"], "reading "),
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Write a profile of two sites and a plan; return the file of each name."""
    document = profile_document()
    for device, site in zip(document["devices"], ("east", "west"), strict=True):
        device["site"] = site
    document["links"] = [{"between": ["east", "west"], "latency_ms": 1}]
    profile, plan = write_json(tmp_path / "profile.json", document), tmp_path / "plan.json"
    assert main(["solve", str(profile), "--method", "1f1b", "-q", "-o", str(plan)]) == 0
    table = tmp_path / "table.csv"
    assert main(["export", str(plan), "--to", "torch-csv", "-o", str(table)]) == 0
    names = {"PROFILE": profile, "PLAN": plan, "TABLE": table, "OUT": tmp_path / "out", "OUT.csv": tmp_path / "out.csv"}
    return {name: str(path) for name, path in names.items()}


def watched(arguments: list[str], *, terminal: bool) -> tuple[int, str, str]:
    """Run a call with stderr on a terminal or in a pipe; return its code, its stdout and its stderr."""
    ours, theirs = os.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "cpipe.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # what a terminal whose other end is closed answers
            break
        if not part:
            break
        shown += part
    os.close(ours)
    out, _ = process.communicate()
    return process.returncode, out.decode(), shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_terminal_sees_how_it_goes(name: str, files: dict[str, str]) -> None:
    """On a terminal one line says what happens and how far it is; it is erased, and stdout never has any of it."""
    arguments, words = CALLS[name]
    given = [files.get(argument, argument) for argument in arguments]
    code, out, shown = watched(given, terminal=True)
    assert code == 0
    assert words in shown
    assert ERASED in shown
    assert "\x1b" not in out
    assert "\x1b" not in shown.rpartition("\x1b[")[2][3:]


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_nothing_else_sees_it(name: str, files: dict[str, str]) -> None:
    """In a pipe, also of a document, and when quiet on a terminal, there is no trace of it."""
    arguments = [files.get(argument, argument) for argument in CALLS[name][0]]
    ways = [([], False), (["--json"], False), (["--quiet"], True)]
    for options, terminal in ways[: 2 if name == "export" else 3]:  # export has nothing to be quiet about
        code, out, shown = watched([*arguments, *options], terminal=terminal)
        assert code == 0
        assert "\x1b" not in out + shown
        assert "searching" not in shown
