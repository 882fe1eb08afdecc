"""Ctrl-C during `cpipe solve`, with real processes and real signals, each sent when the program says where it is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import ROOT, profile_document, write_json

from cpipe.cli.interrupts import stoppable
from cpipe.plan import load_plan, validate

DEAF = ("-m", "unproven", "deaf")
"""The command line with a solver that ignores the wish to stop."""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile whose search takes many seconds: eight uneven stages, memory for a few microbatches."""
    document = profile_document(8, 64)
    for index, stage in enumerate(document["stages"]):
        stage["forward_ms"] += 0.137 * (index * 5 % 8)
        stage["weight_grad_ms"] += 0.071 * (index * 3 % 8)
    for device in document["devices"]:
        device["memory_bytes"] = 28_000_000_000
    return write_json(tmp_path / "profile.json", document)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write a small profile."""
    return write_json(tmp_path / "small.json", profile_document(2, 3))


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    out: str
    err: str


class Running:
    """A command that runs; its standard error is read line by line."""

    def __init__(self, *arguments: object, program: tuple[str, ...] = ("-m", "cpipe.cli")) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "TERM": "dumb"},
        )
        self._lines: list[str] = []

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read standard error up to a line that has the pattern."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            if match := re.search(pattern, line):
                return match
        pytest.fail(f"it ended without {pattern!r}: {''.join(self._lines)}")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> Ended:
        """Wait for the end."""
        out, err = self.process.communicate(timeout=120)
        return Ended(self.process.returncode, out, "".join(self._lines) + err)


@pytest.fixture
def running() -> Iterator[Any]:
    """Give a function that starts a command; whatever still runs at the end is killed."""
    started: list[Running] = []

    def start(*arguments: object, **options: Any) -> Running:
        started.append(Running(*arguments, **options))
        return started[-1]

    yield start
    for command in started:
        with command.process as process:
            process.kill()


def is_running(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_first_one_delivers_the_incumbent(profile: Path, tmp_path: Path, running: Any) -> None:
    """The plan so far is written and reported as that of a finished run: one document, exit code 130, one warning."""
    target = tmp_path / "plan.json"
    command = running("solve", profile, "-o", target, "--json", "-v")
    command.wait_for("greedy family")
    command.interrupt()
    ended = command.end()
    assert ended.code == 130, ended.err
    document = json.loads(ended.out)
    assert document["status"] == "feasible"
    assert [warning["code"] for warning in document["diagnostics"]] == ["interrupted"]
    assert "warning: interrupted: the best order so far is used [interrupted]" in ended.err.splitlines()
    plan = load_plan(target)
    assert validate(plan) == ()
    assert document["makespan_ms"] == plan.claims.makespan_ns / 1e6


@pytest.mark.slow
def test_local_search_listens(profile: Path, running: Any) -> None:
    """In the local search, too, Ctrl-C ends the search; without -o the plan goes to standard output whole."""
    command = running("solve", profile, "-v")
    command.wait_for("local search")
    command.interrupt()
    ended = command.end()
    assert ended.code == 130, ended.err
    assert json.loads(ended.out)["format"] == "cpipe.plan"


def test_the_second_one_ends_at_once(small: Path, tmp_path: Path, running: Any) -> None:
    """While the solver is still asked to stop, a second Ctrl-C ends the program: nothing written, the child killed."""
    target = tmp_path / "plan.json"
    command = running("solve", small, "--method", "milp", "-o", target, "--json", "-v", program=DEAF)
    pid = int(command.wait_for(r"milp: process (\d+)")[1])
    command.interrupt()
    command.wait_for("milp: asked to stop")
    command.interrupt()
    ended = command.end()
    assert ended.code == 130
    assert ended.err.splitlines()[-1] == "error: interrupted [interrupted]"
    assert [fault["code"] for fault in json.loads(ended.out)["diagnostics"]] == ["interrupted"]
    assert not target.exists()
    assert not is_running(pid)


def test_a_deaf_solver_does_not_keep_the_plan(small: Path, tmp_path: Path, running: Any) -> None:
    """A solver that does not listen is killed soon after the first Ctrl-C, and the heuristics' plan is delivered."""
    target = tmp_path / "plan.json"
    command = running("solve", small, "--method", "milp", "-o", target, "-v", program=DEAF)
    pid = int(command.wait_for(r"milp: process (\d+)")[1])
    command.interrupt()
    ended = command.end()
    assert (ended.code, ended.out) == (130, "")
    assert validate(load_plan(target)) == ()
    assert not is_running(pid)


def test_before_there_is_anything(tmp_path: Path, running: Any) -> None:
    """Before any answer exists Ctrl-C ends the program with 130 and one line."""
    pipe = tmp_path / "profile.json"
    os.mkfifo(pipe)
    command = running("solve", pipe)
    with open(pipe, "w", encoding="utf-8"):  # opened when the program opens it for reading, and then it waits
        command.interrupt()
        ended = command.end()
    assert ended == (130, "", "error: interrupted [interrupted]\n")


def test_library_callers_are_interrupted(small: Path, running: Any) -> None:
    """In a library call Ctrl-C is a KeyboardInterrupt, and no child outlives it."""
    program = (
        "import sys, cpipe, unproven; from cpipe.compiler import *\n"
        "unproven.prepare('deaf')\n"
        "try:\n"
        "    compile_profile(cpipe.load_profile(sys.argv[1]), SolveOptions(method='milp'),\n"
        "                    progress=lambda line: print(line, file=sys.stderr, flush=True))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    command = running(small, program=("-c", program))
    pid = int(command.wait_for(r"milp: process (\d+)")[1])
    command.interrupt()
    ended = command.end()
    assert (ended.code, ended.out) == (0, "interrupted\n")
    assert not is_running(pid)


def press() -> None:
    """Press Ctrl-C in this process, and let its handler run."""
    signal.raise_signal(signal.SIGINT)
    time.sleep(0)


def test_what_the_handler_does() -> None:
    """Without an answer Ctrl-C raises; with one the first stops, the second raises; afterwards all is as before."""
    with stoppable() as stop, pytest.raises(KeyboardInterrupt, match=r"^$"):
        press()
    assert not stop.requested
    with stoppable() as stop:
        stop.has_incumbent = True
        press()
        assert stop.requested
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_callers_own_handler_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ctrl-C is ignored or handled by the caller, or in another thread, the handler is not touched."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stoppable():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    seen: list[object] = []

    def elsewhere() -> None:
        with stoppable():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]
