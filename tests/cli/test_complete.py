"""Tests of cpipe.cli.complete: what a shell is offered, and that asking for it is cheap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, call, profile_document, write_json

from cpipe.cli import complete
from cpipe.cli.completion import with_shell
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


def asked(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """Run a call in surroundings that hold nothing but these variables; return its code and what it wrote."""
    script = "import sys; from cpipe.cli.app import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={"PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("shell", "sign"),
    [("bash", "complete -o default"), ("zsh", "#compdef cpipe"), ("fish", "complete --command cpipe")],
)
def test_scripts(shell: str, sign: str) -> None:
    """Each of the three shells gets its own script, whatever shell asks, and with = as well."""
    code, out, err = asked("--show-completion", shell)
    assert (code, err) == (0, "")
    assert sign in out
    assert f"_CPIPE_COMPLETE=complete_{shell}" in out
    assert asked(f"--show-completion={shell}", SHELL="/bin/other") == (code, out, err)


def test_scripts_of_other_shells() -> None:
    """A shell that there is no script for is refused with those that there are."""
    code, out, err = asked("--show-completion", "tcsh")
    assert (code, out) == (2, "")
    assert err.startswith("error: --show-completion: expected one of bash, zsh, fish, got 'tcsh' [unknown-value]\n")
    assert asked("--install-completion", "tcsh")[0] == 2


@pytest.mark.parametrize(
    ("own", "error"),
    [
        ("", "--show-completion: your shell cannot be told from here [unknown-shell]"),
        ("/bin/tcsh", "--show-completion: there is no completion for 'tcsh' [unknown-shell]"),
    ],
)
def test_shells_that_nobody_knows(
    own: str, error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the shell is not named and cannot be told, the call says how to name it."""
    monkeypatch.setitem(sys.modules, "shellingham", None)
    monkeypatch.setenv("SHELL", own)
    outcome = call(capsys, "--show-completion")
    assert outcome == (2, "", f"error: {error}\nhint: name one: --show-completion bash, zsh, fish\n")


def test_the_users_own_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the shell is not named it is the user's own."""
    monkeypatch.setitem(sys.modules, "shellingham", None)
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    outcome = call(capsys, "--show-completion")
    assert outcome == call(capsys, "--show-completion", "zsh")
    assert outcome.out.startswith("#compdef cpipe")


def test_a_script_is_installed(tmp_path: Path) -> None:
    """The script is written below the user's home, and the call says where."""
    code, out, err = asked("--install-completion", "fish", HOME=str(tmp_path))
    (written,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert (code, out, err) == (0, f"fish completion is in {written}; it works in every new shell\n", "")
    assert written.read_text(encoding="utf-8").strip() == asked("--show-completion", "fish")[1].strip()


def test_a_script_that_cannot_be_installed(tmp_path: Path) -> None:
    """When the place cannot be written, that is an error of the call in one line."""
    (tmp_path / ".config").touch()
    code, out, err = asked("--install-completion", "fish", HOME=str(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: --install-completion: {tmp_path}/.config")
    assert err.endswith("[output-not-writable]\n")


def test_a_shell_is_joined_at_the_start_only() -> None:
    """The shell is joined to the option that begins a call; any other call is left as it is."""
    assert with_shell(["--show-completion", "zsh"]) == ["--show-completion=zsh"]
    assert with_shell(["--show-completion"]) == ["--show-completion=current"]
    assert with_shell(["--install-completion", "--help"]) == ["--install-completion=current", "--help"]
    for others in ([], ["solve", "--show-completion", "zsh"], ["--show-completion=zsh"]):
        assert with_shell(others) == others
