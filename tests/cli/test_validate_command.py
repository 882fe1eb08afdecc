"""Tests of `cpipe validate`: the answer, every fault, and the exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import call, profile_document, spawn, write_json
from hand_plans import hand_plan, link
from helpers import signed
from msgspec.structs import replace

from cpipe.plan import encode_plan, load_plan

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
    assert against.out.endswith("; transport channels; checked against the profile, the lower bound too\n")


@pytest.mark.parametrize(
    ("transport", "hangs"),
    [("channels", False), ("gloo", False), ("nccl-pair", True), ("nccl-rank", True), ("nccl-dir2", True)],
)
def test_transport_is_the_one_asked_for(
    transport: str, hangs: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two sends that face each other hang where they share a queue with the receives, and only there."""
    channels = [link(0, 1, "activation"), link(1, 0, "activation")]
    programs = ["F0.1 S0.1@0 R2.0@1 ?2.0@1 F2.0", "F1.0 S1.0@1 R1.1@0 ?1.1@0 F1.1"]
    file = tmp_path / "plan.json"
    file.write_bytes(encode_plan(hand_plan([0, 1, 0, 1], 2, programs, channels)))
    outcome = call(capsys, "validate", file, "--transport", transport, "--json")
    assert outcome.document["transport"] == transport
    assert ("deadlock" in {fault["code"] for fault in outcome.document["diagnostics"]}) is hangs


def test_bound_that_nothing_proves(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bound said to be a closed form's is computed anew from the profile; a higher one makes the plan invalid."""
    loaded = load_plan(plan)
    claims = replace(loaded.claims, lower_bound_ns=loaded.claims.lower_bound_ns + 1)
    for prover, code, last in (
        ("bound", 1, "error"),
        ("highs", 0, "checked against the profile; the lower bound was not checked"),
    ):
        changed = signed(replace(loaded, claims=replace(claims, proved_by=prover)))
        plan.write_bytes(encode_plan(changed))
        outcome = call(capsys, "validate", plan, "--profile", profile)
        assert (outcome.code, outcome.out.strip().endswith(last)) == (code, True)
        assert ("[bound-not-proved]" in outcome.err) is (code == 1)
        document = call(capsys, "validate", plan, "--profile", profile, "--json").document
        assert document["bound_checked"] is (prover == "bound")
    assert call(capsys, "validate", plan, "--json").document["bound_checked"] is False


def test_bound_holds_for_every_window(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan made with a receive window claims the bound of all windows, which is found proved."""
    target = tmp_path / "windowed.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, "--method", "greedy", "--receive-window", "1").code == 0
    document = call(capsys, "validate", target, "--profile", profile, "--json").document
    assert (document["status"], document["bound_checked"]) == ("valid", True)


def test_memory_that_does_not_suffice(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile without room for any plan makes this one invalid; whether others exist was not asked."""
    devices = [{"id": "g0", "memory_bytes": 1}, {"id": "g1"}]
    small = write_json(tmp_path / "small.json", profile_document(devices=devices))
    outcome = call(capsys, "validate", plan, "--profile", small)
    assert outcome.code == 1
    assert "[memory]" in outcome.err


def test_placement_without_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A placement that needs a link which the profile lacks makes the plan invalid, and the link is named."""
    devices = [{"id": "g0", "site": "a"}, {"id": "g1", "site": "b"}]
    apart = profile_document(devices=devices, links=[{"between": ["a", "b"], "latency_ms": 1}])
    plan = tmp_path / "plan.json"
    solved = call(capsys, "solve", write_json(tmp_path / "apart.json", apart), "-q", "-o", plan, "--method", "1f1b")
    assert solved.code == 0
    together = profile_document(devices=devices, links=[])
    together["stages"][1]["device"] = "g0"
    other = write_json(tmp_path / "together.json", together)
    outcome = call(capsys, "validate", plan, "--profile", other)
    assert outcome.code == 1
    assert "$.problem.placement: the problem has (0, 0), the plan is for (0, 1) [other-problem]" in outcome.err
    assert f'error: {other}: $.stages[1].device: no link joins site "a" and site "b"' in outcome.err


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
    """A plan for other devices is wrong for this profile: each number that differs is a fault, beside its own."""
    other = write_json(tmp_path / "other.json", profile_document(3))
    wrong = broken(plan, makespan_ns=1)
    outcome = call(capsys, "validate", wrong, "--profile", other)
    assert outcome.code == 1
    for number in ("devices", "stages"):
        assert f"$.problem.{number}: the problem has 3, the plan is for 2 [other-problem]" in outcome.err
    assert "[wrong-makespan]" in outcome.err


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
