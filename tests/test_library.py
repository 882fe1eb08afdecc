"""The library's front door: the names that `import cpipe` offers."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, profile_document, write_json
from msgspec.structs import fields, replace

import cpipe
from cpipe import errors
from cpipe.cli.app import main
from cpipe.compiler import SolveOptions
from cpipe.plan import encode_plan


@pytest.fixture
def profile(tmp_path: Path) -> Any:
    """Return a loaded profile."""
    return cpipe.load_profile(str(write_json(tmp_path / "profile.json", profile_document())))


def test_from_profile_to_plan_and_back(profile: Any, tmp_path: Path) -> None:
    """Solve, validate against the profile, replay, save and load: the same plan."""
    plan = cpipe.solve(profile, method="greedy")
    assert cpipe.validate(plan, profile) == ()
    assert cpipe.validate(plan) == ()
    assert cpipe.simulate(plan, profile).makespan_ns == plan.claims.makespan_ns
    cpipe.save_plan(plan, tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_bytes() == encode_plan(plan)
    assert cpipe.load_plan(str(tmp_path / "plan.json")) == plan


def test_validate_takes_a_problem_too(profile: Any) -> None:
    """A normalized problem does as well as the profile that it came from."""
    from cpipe.compiler import problem_for_plan

    plan = cpipe.solve(profile, method="1f1b")
    assert cpipe.validate(plan, problem_for_plan(plan, profile)) == ()


def test_validate_checks_the_bound(profile: Any) -> None:
    """A bound above what closed forms prove is no proof, though the plan was signed with it: told as on the console."""
    from cpipe.compiler.claims import claiming

    plan = cpipe.solve(profile, method="gpipe")
    makespan = plan.claims.makespan_ns
    assert plan.claims.lower_bound_ns < makespan
    boast = claiming(plan, lower_bound_ns=makespan, status="optimal", gap_ppm=0)
    assert [fault.code for fault in cpipe.validate(boast, profile)] == ["bound-not-proved"]
    assert cpipe.validate(boast) == (), "a plan alone does not know its costs"


def test_a_path_is_no_profile() -> None:
    """Handing over a path instead of a profile says what to call."""
    with pytest.raises(TypeError, match=r"expected a Profile, as cpipe\.load_profile returns, got str"):
        cpipe.solve("profile.json")  # type: ignore[arg-type]


def test_an_unknown_option_is_refused(profile: Any) -> None:
    """An option that does not exist is a TypeError, never ignored."""
    with pytest.raises(TypeError, match="fastest"):
        cpipe.solve(profile, fastest=True)


def test_the_package_and_the_function_share_their_name() -> None:
    """`cpipe.solve` is called as a function and imported from as a package, whichever comes first."""
    from cpipe.solve import lower_bound

    assert callable(cpipe.solve)
    assert callable(lower_bound)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        cpipe.nothing  # noqa: B018


SIGNATURES = {
    "explain": "(plan: 'Plan', profile: 'Profile | None' = None) -> 'Explanation'",
    "load_plan": "(path: 'str | os.PathLike[str]') -> 'Plan'",
    "load_profile": "(path: 'str | os.PathLike[str]') -> 'Profile'",
    "render_svg": "(plan: 'Plan', profile: 'Profile | None' = None) -> 'bytes'",
    "save_plan": "(plan: 'Plan', path: 'str | os.PathLike[str]') -> 'None'",
    "simulate": "(plan: 'Plan', profile: 'Profile') -> 'Timeline'",
    "solve": "(profile: 'Profile', **options: 'Any') -> 'Plan'",
    "validate": "(plan: 'Plan', against: 'Profile | Problem | None' = None, *, transport: 'str' = 'channels') "
    "-> 'tuple[Diagnostic, ...]'",
}
OPTIONS = {
    "method": "auto",
    "placement": "profile",
    "seed": 0,
    "max_gap": 0.0,
    "time_limit": None,
    "receive_window": None,
    "node_limit": None,
    "objective": "makespan",
    "group_size": None,
    "recompute": "auto",
    "offload": "auto",
}
EXCEPTIONS = [
    "CpipeError",
    "Diagnostic",
    "InfeasibleError",
    "InputError",
    "NoSolutionError",
    "PlanError",
    "ProfileError",
    "UsageError",
]


def test_signatures_are_frozen() -> None:
    """What programs call keeps its name, its parameters and their defaults; a change is a decision."""
    found = {name: str(inspect.signature(getattr(cpipe, name))) for name in cpipe.__all__ if name != "__version__"}
    assert found == SIGNATURES


def test_options_of_solve_are_frozen() -> None:
    """The options that `cpipe.solve` takes keep their names and defaults."""
    assert {field.name: field.default for field in fields(SolveOptions)} == OPTIONS


def test_exceptions_are_frozen() -> None:
    """Every exception that programs catch keeps its name, and is a CpipeError."""
    assert errors.__all__ == EXCEPTIONS
    assert all(issubclass(getattr(errors, name), errors.CpipeError) for name in EXCEPTIONS if name != "Diagnostic")


def test_every_public_name_is_documented() -> None:
    """Each public function says what it does, and the package names all of them in its own description."""
    for name in SIGNATURES:
        assert inspect.getdoc(getattr(cpipe, name)), name
        assert f"cpipe.{name}(" in (cpipe.__doc__ or ""), name


def test_explain(profile: Any) -> None:
    """The critical path fills the makespan; on the profile there are what-ifs, by the plan alone there are none."""
    plan = cpipe.solve(profile, method="1f1b")
    on_profile, alone = cpipe.explain(plan, profile), cpipe.explain(plan)
    for explanation in (on_profile, alone):
        assert explanation.makespan_ns == plan.claims.makespan_ns
        assert sum(piece.length_ns for piece in explanation.path) == plan.claims.makespan_ns
    assert on_profile.what_ifs
    assert alone.what_ifs == ()


def test_render_svg(profile: Any, tmp_path: Path) -> None:
    """The picture is the one that `cpipe show --svg` writes, with a profile and without."""
    plan = cpipe.solve(profile, method="1f1b")
    cpipe.save_plan(plan, tmp_path / "plan.json")
    for options, picture in (
        ([], cpipe.render_svg(plan)),
        (["--profile", str(tmp_path / "profile.json")], cpipe.render_svg(plan, profile)),
    ):
        assert main(["show", str(tmp_path / "plan.json"), "--svg", str(tmp_path / "plan.svg"), *options]) == 0
        assert (tmp_path / "plan.svg").read_bytes() == picture


@pytest.mark.parametrize("function", [cpipe.explain, cpipe.render_svg])
def test_an_invalid_plan_is_not_explained(function: Callable[[Any], object], profile: Any) -> None:
    """A plan with faults is refused with all of them, as nothing that its times say would be true."""
    plan = cpipe.solve(profile, method="1f1b")
    first, *others = plan.ranks
    broken = replace(plan, ranks=(replace(first, ops=first.ops[1:]), *others))
    with pytest.raises(errors.PlanError, match=r"missing-op") as caught:
        function(broken)
    faults = [fault for fault in cpipe.validate(broken) if fault.severity == "error"]
    assert list(caught.value.diagnostics) == faults


USER_SCRIPT = """
from __future__ import annotations

import cpipe
from cpipe.errors import CpipeError, InfeasibleError


def compile_job(file: str, target: str) -> float:
    profile = cpipe.load_profile(file)
    try:
        plan = cpipe.solve(profile, method="1f1b", seed=0)
    except InfeasibleError as error:
        raise SystemExit(error.diagnostics[0].message) from error
    faults = cpipe.validate(plan, profile)
    names: list[str] = [fault.code for fault in faults]
    timeline = cpipe.simulate(plan, profile)
    explanation = cpipe.explain(plan, profile)
    longest: int = max(piece.length_ns for piece in explanation.path)
    cpipe.save_plan(plan, target)
    picture: bytes = cpipe.render_svg(cpipe.load_plan(target))
    bound: int = plan.claims.lower_bound_ns
    return (timeline.makespan_ns - bound) / timeline.makespan_ns + len(names) * longest * len(picture)


try:
    print(compile_job("profile.json", "plan.json"))
except CpipeError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_users_program_is_typed(tmp_path: Path) -> None:
    """A program that uses the library passes mypy --strict, a wrong one does not: the types are there for users."""
    (tmp_path / "job.py").write_text(USER_SCRIPT, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text("[mypy]\n", encoding="utf-8")
    (tmp_path / "wrong.py").write_text(USER_SCRIPT + "cpipe.load_plan(3)\n", encoding="utf-8")
    api = pytest.importorskip("mypy.api")
    shared = [
        "--strict",
        "--config-file",
        str(tmp_path / "mypy.ini"),
        "--cache-dir",
        str(tmp_path / "cache"),
        "--no-error-summary",
    ]
    out, err, code = api.run([*shared, str(tmp_path / "job.py")])
    assert (out, err, code) == ("", "", 0)
    out, err, code = api.run([*shared, str(tmp_path / "wrong.py")])
    assert (code, out.count("error:")) == (1, 1)
    assert 'Argument 1 to "load_plan" has incompatible type "int"' in out
    assert (Path(cpipe.__file__).parent / "py.typed").is_file()


def test_a_users_program_runs(tmp_path: Path) -> None:
    """The same program runs in a process of its own, from a folder of its own."""
    write_json(tmp_path / "profile.json", profile_document())
    done = subprocess.run(
        [sys.executable, "-c", USER_SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 <= float(done.stdout) < 1
    assert (tmp_path / "plan.json").is_file()
