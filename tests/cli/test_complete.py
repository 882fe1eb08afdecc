"""Tests of cpipe.cli.complete: what a shell is offered, and that asking for it is cheap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, profile_document, write_json

from cpipe.cli import complete
from cpipe.compiler import PLACEMENTS
from cpipe.plan import TRANSPORTS
from cpipe.solve.methods import METHODS


def offered(line: str, cwd: Path | None = None) -> list[str]:
    """Return what bash is offered at the end of a command line."""
    words = line.split(" ")
    environ = {"_CPIPE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from cpipe.cli.app import main; sys.exit(main())"],
        env={**os.environ, **environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_names() -> None:
    """Methods, placements and transports are completed from the very tables that the commands check."""
    assert complete.methods("") == list(METHODS)
    assert complete.methods("zb-h") == ["zb-h1", "zb-h2"]
    assert complete.placements("") == list(PLACEMENTS)
    assert complete.transports("nccl") == [name for name in TRANSPORTS if name.startswith("nccl")]
    assert complete.choices("one", "two", "three")("t") == ["two", "three"]
    assert complete.listed(complete.methods)("auto,zb-h") == ["auto,zb-h1", "auto,zb-h2"]
    assert complete.methods("no such") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cpipe val", ["validate"]),
        ("cpipe solve p.json --method zb-h", ["zb-h1", "zb-h2"]),
        ("cpipe solve p.json --placement w", ["wave"]),
        ("cpipe validate p.json --transport nccl-p", ["nccl-pair"]),
        ("cpipe import x --from hf", ["hf-config"]),
        ("cpipe sweep p.json --placement ud,w", ["ud,wave"]),
        ("cpipe import x --dtype b", ["bf16"]),
    ],
)
def test_bash_is_offered(line: str, expected: list[str]) -> None:
    """At the end of a command line, bash is offered commands and the names that an option takes."""
    assert offered(line) == expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a profile, a plan, another JSON file and a folder of more profiles."""
    write_json(tmp_path / "profile.json", profile_document())
    write_json(tmp_path / "plan.json", {"format": "cpipe.plan"})
    write_json(tmp_path / "other.json", {"format": "other"})
    (tmp_path / "notes.txt").write_text('"cpipe.profile"', encoding="utf-8")
    (tmp_path / "cases").mkdir()
    write_json(tmp_path / "cases" / "one.json", profile_document())
    write_json(tmp_path / "cases" / "two.json", profile_document())
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles and plans are told apart by what they say they are; folders are left to the shell."""
    monkeypatch.chdir(folder)
    assert complete.profile_files("p") == ["profile.json"]
    assert complete.plan_files("p") == ["plan.json"]
    assert complete.profile_files("o") == []
    assert complete.profile_files("") == complete.profile_files("c") == []
    assert complete.profile_files("cases/") == ["cases/one.json", "cases/two.json"]
    assert complete.profile_files("cases/t") == ["cases/two.json"]
    assert complete.profile_files(f"{folder}/p") == [f"{folder}/profile.json"]
    assert complete.profile_files("no/such/") == []


def test_bash_is_offered_profiles(folder: Path) -> None:
    """Solve is offered profiles, show is offered plans."""
    assert offered("cpipe solve p", folder) == ["profile.json"]
    assert offered("cpipe show p", folder) == ["plan.json"]


def test_completion_is_light() -> None:
    """Completing a name loads no solver and no torch."""
    script = (
        "import sys; from cpipe.cli import complete\n"
        "complete.methods(''), complete.placements(''), complete.transports('')\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {name.split(".")[0] for name in done.stdout.split()} & {"torch", "pulp", "highspy", "ortools", "numpy"}


@pytest.mark.parametrize(
    ("shell", "sign"),
    [("bash", "complete -o default"), ("zsh", "#compdef cpipe"), ("fish", "complete --command cpipe")],
)
def test_scripts(shell: str, sign: str) -> None:
    """Each of the three shells gets a script that calls cpipe."""
    script = "import sys; from cpipe.cli.app import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "--show-completion", shell],
        env={**os.environ, "PYTHONPATH": str(ROOT), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sign in done.stdout
    assert "_CPIPE_COMPLETE" in done.stdout
