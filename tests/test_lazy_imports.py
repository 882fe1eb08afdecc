"""Tests that cpipe loads only what a call needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, profile_document, write_json

import cpipe

SOLVERS = {"torch", "pulp", "highspy", "ortools", "numpy"}
TERMINAL = {"typer", "rich", "click"}


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys; sys.stderr.write('LOADED ' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.split(".")[0] for name in done.stderr.rpartition("LOADED ")[2].split()}


@pytest.mark.parametrize("code", ["import cpipe", "import cpipe; cpipe.load_plan; cpipe.validate; cpipe.load_profile"])
def test_library_is_light(code: str) -> None:
    """The library loads neither solvers nor torch nor anything of the terminal."""
    assert not modules_after(code) & (SOLVERS | TERMINAL)


def test_import_alone_loads_nothing() -> None:
    """`import cpipe` does not even load the decoder."""
    assert "msgspec" not in modules_after("import cpipe")


@pytest.mark.parametrize("arguments", [["--help"], ["solve", "--help"], ["--version"]])
def test_help_is_light(arguments: list[str]) -> None:
    """Help loads typer and nothing heavier: not msgspec, not rich, no solver."""
    loaded = modules_after(f"from cpipe.cli.app import main; main({arguments!r})")
    assert not loaded & (SOLVERS | {"rich", "msgspec"})


def test_validate_is_light(tmp_path: Path) -> None:
    """Validation, with a profile too, loads neither solvers nor torch."""
    profile = write_json(tmp_path / "profile.json", profile_document())
    plan = tmp_path / "plan.json"
    solve = (
        f"from cpipe.cli.app import main; main(['solve', {str(profile)!r}, '-o', {str(plan)!r}, '--method', '1f1b'])"
    )
    modules_after(solve)
    check = (
        f"from cpipe.cli.app import main; assert main(['validate', {str(plan)!r}, '--profile', {str(profile)!r}]) == 0"
    )
    assert not modules_after(check) & SOLVERS


def test_public_names() -> None:
    """The package offers exactly its public names, each of them there; others are refused by name."""
    assert {name for name in cpipe.__all__ if getattr(cpipe, name) is not None} == set(cpipe.__all__)
    assert set(cpipe.__all__) <= set(dir(cpipe))
    with pytest.raises(AttributeError, match="module 'cpipe' has no attribute 'solv'"):
        cpipe.solv  # noqa: B018


def test_solve(tmp_path: Path) -> None:
    """From Python, too, a profile becomes a plan that validates."""
    profile = cpipe.load_profile(str(write_json(tmp_path / "profile.json", profile_document())))
    plan = cpipe.solve(profile, method="1f1b")
    assert cpipe.validate(plan) == ()
    assert plan.claims.makespan_ns >= plan.claims.lower_bound_ns > 0


def test_solve_refuses_unknown_options(tmp_path: Path) -> None:
    """An option that does not exist is refused by name."""
    profile = cpipe.load_profile(str(write_json(tmp_path / "profile.json", profile_document())))
    with pytest.raises(TypeError, match="metod"):
        cpipe.solve(profile, metod="1f1b")
