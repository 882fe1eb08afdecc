"""Tests of `cpipe simulate`: what a plan costs, on its own profile and on others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call, profile_document, write_json

from cpipe.plan import load_plan
from cpipe.sim import BlockedOp, DeadlockError


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile of two devices and four microbatches."""
    return write_json(tmp_path / "profile.json", profile_document())


@pytest.fixture
def plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Make a plan of it."""
    target = tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, "--method", "1f1b").code == 0
    return target


def slow(tmp_path: Path, latency_ms: float) -> Path:
    """Write the same profile with other links."""
    document = profile_document()
    for link in document["links"]:
        link["latency_ms"] = latency_ms
    return write_json(tmp_path / "slow.json", document)


def test_own_profile(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On its own profile a plan costs exactly what it claims, in time and in memory."""
    claims = load_plan(plan).claims
    document = call(capsys, "simulate", plan, "--profile", profile, "--json").document
    assert document["status"] == "done"
    assert document["makespan_ms"] == document["claimed_ms"] == claims.makespan_ns / 1e6
    assert document["difference_ms"] == 0
    assert [device["peak_bytes"] for device in document["devices"]] == list(claims.peak_bytes)


def test_other_network(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On slower links the same orders take longer, and the difference to the claim is shown."""
    claimed = load_plan(plan).claims.makespan_ns / 1e6
    other = slow(tmp_path, 4)
    document = call(capsys, "simulate", plan, "--profile", other, "--json").document
    assert document["difference_ms"] == pytest.approx(document["makespan_ms"] - claimed)
    assert document["difference_ms"] >= 6  # at least the first activation and the last gradient are 3 ms later
    outcome = call(capsys, "simulate", plan, "--profile", other)
    assert (outcome.code, outcome.err) == (0, "")
    first = outcome.out.splitlines()[0]
    assert first.startswith(f"makespan {document['makespan_ms']:.3f} ms, the plan claims {claimed:.3f} ms")
    assert first.endswith(" %)")


def test_edited_plan(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan edited by hand is replayed, with a warning that what it says of itself is stale."""
    document = json.loads(plan.read_bytes())
    document["claims"]["makespan_ns"] += 1_000_000
    edited = write_json(plan.with_name("edited.json"), document)
    outcome = call(capsys, "simulate", edited, "--profile", profile)
    assert outcome.code == 0
    assert all(line.startswith("warning: ") for line in outcome.err.splitlines())
    assert "[plan-digest]" in outcome.err
    assert "difference -1.000 ms" in outcome.out


def test_plan_that_cannot_run(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that cannot finish gets no makespan: exit code 1, with the validator's faults."""
    document = json.loads(plan.read_bytes())
    ops = document["ranks"][1]["ops"]
    document["ranks"][1]["ops"] = [op for op in ops if op["op"] != "SEND"]
    wrong = write_json(plan.with_name("wrong.json"), document)
    outcome = call(capsys, "simulate", wrong, "--profile", profile, "--json")
    assert outcome.code == 1
    assert outcome.document["status"] == "invalid"
    assert outcome.document["makespan_ms"] is None
    assert "[missing-send]" in outcome.err
    plain = call(capsys, "simulate", wrong, "--profile", profile)
    assert (plain.code, plain.out) == (1, "")


def test_profile_of_another_shape(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan cannot be replayed on a profile with other stages."""
    other = write_json(tmp_path / "other.json", profile_document(3))
    outcome = call(capsys, "simulate", plan, "--profile", other, "--json")
    assert (outcome.code, outcome.document["status"]) == (3, "error")
    assert {fault["code"] for fault in outcome.document["diagnostics"]} == {"different-size"}


def test_profile_is_required(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a profile there is nothing to replay on."""
    assert call(capsys, "simulate", plan).err.startswith("error: missing option '--profile'")


def test_network_that_blocks_the_plan(
    plan: Path, profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the replay itself stops, each device that stands is one fault, and there is no makespan."""

    def stop(*arguments: object) -> object:
        raise DeadlockError([BlockedOp(0, "0B0", "the gradient of 1B0"), BlockedOp(1, "1F1", "its activation")])

    monkeypatch.setattr("cpipe.compiler.simulate_plan", stop)
    outcome = call(capsys, "simulate", plan, "--profile", profile, "--json")
    assert (outcome.code, outcome.document["status"]) == (1, "invalid")
    assert outcome.err.splitlines()[:2] == [
        f"error: {plan}: device g0 at 0B0 waits for the gradient of 1B0 [deadlock]",
        f"error: {plan}: device g1 at 1F1 waits for its activation [deadlock]",
    ]
