"""Tests of `cpipe validate`: the answer, every fault, and the exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import call, profile_document, spawn, write_json

PROFILE = profile_document()


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile of two devices and four microbatches."""
    return write_json(tmp_path / "profile.json", PROFILE)


@pytest.fixture
def plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Make a plan of it."""
    target = tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, "--method", "1f1b").code == 0
    return target


def broken(plan: Path, **claims: Any) -> Path:
    """Write the plan with other claims."""
    document = json.loads(plan.read_bytes())
    document["claims"] |= claims
    return write_json(plan.with_name("broken.json"), document)


def test_valid_plan(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A valid plan is one line on stdout and exit code 0; it says what was checked."""
    alone = call(capsys, "validate", plan)
    assert (alone.code, alone.err) == (0, "")
    assert re.fullmatch(r"ok: \S+plan\.json: sample: 2 devices, .*; no profile given: .*\n", alone.out)
    against = call(capsys, "validate", plan, "--profile", profile)
    assert (against.code, against.err) == (0, "")
    assert against.out.endswith("; transport channels; checked against the profile\n")


@pytest.mark.parametrize("transport", ["channels", "gloo", "nccl-pair", "nccl-rank", "nccl-dir2"])
def test_every_transport_can_be_asked(transport: str, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every transport is known to the validator, and its answer is yes or no."""
    outcome = call(capsys, "validate", plan, "--transport", transport, "--json")
    assert outcome.code in (0, 1)
    assert outcome.document["transport"] == transport
    assert outcome.document["status"] == ("valid" if outcome.code == 0 else "invalid")


def test_unknown_transport(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A transport that does not exist is a wrong call."""
    outcome = call(capsys, "validate", plan, "--transport", "glo")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == "hint: did you mean 'gloo'?"


def test_invalid_plan(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every fault is one line on stderr, the verdict is on stdout, the exit code is 1."""
    wrong = broken(plan, makespan_ns=1, lower_bound_ns=1)
    outcome = call(capsys, "validate", wrong, "--profile", profile)
    assert outcome.code == 1
    lines = outcome.err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith(f"error: {wrong}: $.") for line in lines)
    assert any("[plan-digest]" in line for line in lines)
    assert any("[wrong-makespan]" in line for line in lines)
    assert outcome.out == f"invalid: {wrong}: {len(lines)} errors\n"


def test_invalid_plan_as_json(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document holds what stderr says."""
    wrong = broken(plan, makespan_ns=1, lower_bound_ns=1)
    outcome = call(capsys, "validate", wrong, "--json")
    assert (outcome.code, outcome.document["status"]) == (1, "invalid")
    assert outcome.document["profile_checked"] is False
    assert len(outcome.document["diagnostics"]) == len(outcome.err.splitlines())


def test_unreadable_plan_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that cannot be read is no answer: exit code 3, status error."""
    outcome = call(capsys, "validate", tmp_path / "missing.json", "--json")
    assert (outcome.code, outcome.document["status"]) == (3, "error")


def test_profile_of_another_shape(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile with other devices is not the one of this plan, and cpipe says so."""
    other = write_json(tmp_path / "other.json", profile_document(3))
    outcome = call(capsys, "validate", plan, "--profile", other)
    assert (outcome.code, outcome.out) == (3, "")
    assert outcome.err.splitlines()[0].endswith("the plan has 2 devices, the profile 3 [different-size]")


def test_plan_from_standard_input(plan: Path) -> None:
    """A plan can come from standard input, but not together with its profile."""
    assert spawn("validate", "-", stdin=plan.read_bytes()).out.startswith("ok: -: sample: ")
    twice = spawn("validate", "-", "--profile", "-", stdin=plan.read_bytes())
    assert (twice.code, twice.out) == (2, "")
    assert "[stdin-twice]" in twice.err


def test_head_too_wrong_for_a_profile(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When a plan names devices that do not exist its own faults are the answer, not a wrong call."""
    document = json.loads(plan.read_bytes())
    document["problem"]["placement"] = [0, 7]
    wrong = write_json(plan.with_name("wrong.json"), document)
    outcome = call(capsys, "validate", wrong, "--profile", profile)
    assert outcome.code == 1
    assert "$.problem.placement" in outcome.err
