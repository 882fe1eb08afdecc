"""Tests of `cpipe simulate`: what a plan costs, on its own profile and on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def edited_profile(tmp_path: Path, **changes: Any) -> Path:
    """Write the profile with other fields."""
    return write_json(tmp_path / "other.json", profile_document() | changes)


@pytest.fixture
def split_plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Make a plan that runs D and W apart."""
    target = tmp_path / "split.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, "--method", "1f1b-split").code == 0
    return target


def test_stage_that_cannot_split(split_plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan with D and W has no cost on a profile that knows B alone: it is refused, and no number is printed."""
    stages = profile_document()["stages"]
    for name in ("input_grad_ms", "weight_grad_ms"):
        del stages[1][name]
    outcome = call(capsys, "simulate", split_plan, "--profile", edited_profile(tmp_path, stages=stages))
    assert (outcome.code, outcome.out) == (3, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"error: {split_plan}: $.ranks[1].ops[")
    assert line.endswith(
        "the plan runs D and W of stage 1, but the profile gives 's1' a full backward alone [cannot-split]"
    )


@pytest.mark.parametrize(("mode", "replicas", "found"), [("ddp", 2, "ddp"), ("zero1", 2, "zero1")])
def test_other_data_parallelism(
    mode: str, replicas: int, found: str, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plan and profile have the same data parallelism, or neither says what the other would cost."""
    job = {"mode": mode, "replicas": replicas}
    other = edited_profile(tmp_path, data_parallel=job)
    outcome = call(capsys, "simulate", plan, "--profile", other, "--json")
    assert (outcome.code, outcome.document["makespan_ms"]) == (3, None)
    (fault,) = outcome.document["diagnostics"]
    assert (fault["code"], fault["file"]) == ("different-job", str(plan))
    assert fault["message"] == f"the plan's data parallelism is none, that of the profile is {found}"
    back = tmp_path / "back.json"
    assert call(capsys, "solve", other, "-q", "-o", back, "--method", "1f1b").code == 0
    assert (
        f"is {found}, that of the profile is none [different-job]"
        in call(capsys, "simulate", back, "--profile", edited_profile(tmp_path)).err
    )


def test_one_replica_is_no_data_parallelism(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job of one replica exchanges nothing, so a plan without collectives is right for it."""
    other = edited_profile(tmp_path, data_parallel={"mode": "zero1", "replicas": 1})
    assert call(capsys, "simulate", plan, "--profile", other).code == 0


def test_memory_that_does_not_suffice(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On devices too small for it a plan is replayed all the same, with a warning for each of them."""
    devices = [{"id": "g0", "memory_bytes": 1}, {"id": "g1", "memory_bytes": 60_000_000_000}]
    other = edited_profile(tmp_path, devices=devices)
    outcome = call(capsys, "simulate", plan, "--profile", other, "--json")
    assert (outcome.code, outcome.document["status"]) == (0, "done")
    peak = outcome.document["devices"][0]["peak_bytes"]
    (found,) = [fault for fault in outcome.document["diagnostics"] if fault["code"] == "over-capacity"]
    assert (found["file"], found["path"]) == (str(other), "$.devices[0].memory_bytes")
    assert found["message"] == f"device g0 would need {peak} bytes and has 1"
    assert "[over-capacity]" in outcome.err


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"lower_bound_ns": -1}, "bound"),
        ({"proved_by": "potato"}, "unknown-prover"),
        ({"peak_bytes": [0, 0]}, "wrong-peak"),
        ({"makespan_ns": 10**9}, "wrong-makespan"),
        ({"transports": ["pigeons"]}, "wrong-transport"),
    ],
)
def test_wrong_claims_are_stale(
    claims: dict[str, Any], code: str, plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a plan merely claims does not keep it from being replayed: each is a warning."""
    document = json.loads(plan.read_bytes())
    document["claims"] |= claims
    outcome = call(capsys, "simulate", write_json(plan.with_name("edited.json"), document), "--profile", profile)
    assert outcome.code == 0
    assert f"[{code}]" in outcome.err
    assert all(line.startswith("warning: ") for line in outcome.err.splitlines())


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
