"""The library's front door: the names that `import cpipe` offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import profile_document, write_json

import cpipe
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
