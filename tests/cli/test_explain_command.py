"""Tests of `cpipe explain`: the page, the report, and what is said of plans and profiles that do not fit."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command_line import call, profile_document, write_json
from helpers import assert_plan_ok
from jsonschema import Draft202012Validator

from cpipe.compiler import problem_for_plan
from cpipe.plan import load_plan
from cpipe.profile import load_profile
from cpipe.report.document import report_schema
from cpipe.sim import BlockedOp, DeadlockError


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile of three devices and four microbatches, with little memory on the first."""
    document = profile_document(3)
    document["devices"][0]["memory_bytes"] = 22_500_000_000
    return write_json(tmp_path / "profile.json", document)


@pytest.fixture
def plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Make a plan of it."""
    target = tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, "--method", "greedy").code == 0
    loaded = load_plan(target)
    assert_plan_ok(loaded, problem_for_plan(loaded, load_profile(profile)))
    return target


def explained(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """Return the report of a call that succeeds, held against the schema."""
    outcome = call(capsys, "explain", *arguments, "--json")
    assert outcome.code == 0
    Draft202012Validator(report_schema()).validate(outcome.document)
    return outcome.document


def test_page(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page of a plan on its profile tells quality, critical path, devices, idle time and what-ifs."""
    outcome = call(capsys, "explain", plan, "--profile", profile)
    assert (outcome.code, outcome.err) == (0, "")
    for part in ("makespan ", "bound: ", "order: ", "critical path", "idle", "wait for", "What a change would give"):
        assert part in outcome.out
    assert "--profile" not in outcome.out


def test_page_without_profile(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a profile the page tells what the plan's own times say, and what they cannot."""
    outcome = call(capsys, "explain", plan)
    assert (outcome.code, outcome.err) == (0, "")
    assert "What a change would give" not in outcome.out
    assert outcome.out.endswith("and waits for memory and what-ifs are told.\n")


@pytest.mark.parametrize("with_profile", [False, True])
def test_report_adds_up(with_profile: bool, plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path touches from 0 to the makespan, shares add up to 1, and busy and idle fill it on every device."""
    document = explained(capsys, plan, *(["--profile", profile] if with_profile else []))
    assert document["profile_checked"] == with_profile
    makespan = document["makespan_ms"]
    assert makespan == document["claimed_ms"]
    path = document["path"]
    assert (path[0]["start_ms"], path[-1]["end_ms"]) == (0, makespan)
    assert all(first["end_ms"] == second["start_ms"] for first, second in pairwise(path))
    assert sum(share["share"] for share in document["shares"]) == pytest.approx(1)
    for device in document["devices"]:
        assert device["busy_ms"] + sum(part["ms"] for part in device["idle"]) == pytest.approx(makespan)
    assert bool(document["what_ifs"]) == with_profile
    causes = {part["cause"] for device in document["devices"] for part in device["idle"]}
    assert ("memory" in causes) == with_profile
    kinds = {piece["kind"] for piece in path}
    assert ("transfer" in kinds) != with_profile


def test_it_is_the_same_every_time(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Searches are counted, not timed: the same call gives the same bytes."""
    first = call(capsys, "explain", plan, "--profile", profile, "--json").out
    assert call(capsys, "explain", plan, "--profile", profile, "--json").out == first


def test_certificate_is_told(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the plan says of its quality is on the page: status, bound, prover, and how the order was found."""
    loaded = load_plan(plan)
    document = explained(capsys, plan)
    assert document["plan_status"] == loaded.claims.status
    assert document["reason"] == loaded.claims.reason
    assert document["found_by"] == loaded.made_by.found_by
    assert document["evaluations"] == loaded.made_by.evaluations
    page = call(capsys, "explain", plan).out
    assert f"{loaded.claims.reason}, proved by a closed form" in page
    assert f"found by {loaded.made_by.found_by}, method greedy, seed 0" in page


def test_in_flight_of_1f1b(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal stages fill the first device most, and the page says why: 1F1B has 4, 3, 2, 1 microbatches in flight."""
    document = profile_document(4, 8)
    profile, target = write_json(tmp_path / "profile.json", document), tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, "--method", "1f1b").code == 0
    report = explained(capsys, target)
    assert [device["in_flight"] for device in report["devices"]] == [4, 3, 2, 1]
    page = call(capsys, "explain", target).out
    assert "fullest: device g0, " in page
    assert ": up to 4 microbatches await their gradients there" in page


def test_bottleneck_and_balance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The heaviest stage is named, with mean by maximum: seven stages of 3.15 and a last one of 3.90 ms are 83 %."""
    document = profile_document(8, 8)
    for index, stage in enumerate(document["stages"]):
        for name in ("input_grad_ms", "weight_grad_ms"):
            del stage[name]
        stage |= {"forward_ms": 3.9 if index == 7 else 3.15, "full_backward_ms": 0}
    profile, target = write_json(tmp_path / "profile.json", document), tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, "--method", "1f1b").code == 0
    report = explained(capsys, target)
    assert report["bottleneck"] == "g7"
    assert report["load_balance"] == pytest.approx((7 * 3.15 + 3.9) / 8 / 3.9)
    assert "bottleneck: device g7" in call(capsys, "explain", target).out


def test_top(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--top shortens the lists of the page, never the report; what is left out is counted."""
    short = call(capsys, "explain", plan, "--top", "1").out
    assert len(short.splitlines()) < len(call(capsys, "explain", plan).out.splitlines())
    assert "its longest runs of" in short
    assert explained(capsys, plan, "--top", "1") == explained(capsys, plan)
    outcome = call(capsys, "explain", plan, "--top", "0")
    assert outcome.code == 2
    assert "--top: expected a number >= 1, got 0 [value-out-of-range]" in outcome.err


def test_lines_are_short_and_plain(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page is plain text without colour, and fits an ordinary terminal."""
    page = call(capsys, "explain", plan, "--profile", profile).out
    assert "\x1b" not in page
    long = [line for line in page.splitlines() if len(line) > 80 and not line.startswith(("bottleneck:", "bound:"))]
    assert long == []


def test_plan_changed_by_hand(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan changed by hand is explained, with a warning that what it says of itself is stale."""
    document = json.loads(plan.read_bytes())
    document["claims"]["makespan_ns"] += 1_000_000
    edited = write_json(plan.with_name("edited.json"), document)
    outcome = call(capsys, "explain", edited, "--profile", profile, "--json")
    assert outcome.code == 0
    assert "[plan-digest]" in outcome.err
    assert outcome.document["claimed_ms"] == outcome.document["makespan_ms"] + 1
    assert "warning" in {found["severity"] for found in outcome.document["diagnostics"]}


def test_times_that_contradict_each_other(plan: Path, capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    """Without a profile the plan's times are all there is: when they contradict each other there is no answer."""
    document = json.loads(plan.read_bytes())
    (step, *_) = [step for step in document["ranks"][1]["ops"] if step["op"] == "F"]
    step["start_ns"] = 0
    edited = write_json(plan.with_name("edited.json"), document)
    outcome = call(capsys, "explain", edited, "--json")
    assert (outcome.code, outcome.document["status"]) == (1, "invalid")
    assert "[before-input]" in outcome.err
    assert outcome.document["path"] == []
    assert call(capsys, "explain", edited, "--profile", profile).code == 0


def test_other_profile(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a profile that is not the plan's the replay counts, and a warning says that its proof does not."""
    document = profile_document(3)
    for link in document["links"]:
        link["latency_ms"] = 9
    outcome = call(capsys, "explain", plan, "--profile", write_json(tmp_path / "slow.json", document), "--json")
    assert outcome.code == 0
    assert outcome.document["makespan_ms"] > outcome.document["claimed_ms"]
    (found,) = [found for found in outcome.document["diagnostics"] if found["code"] == "problem-digest"]
    assert (found["severity"], found["file"]) == ("warning", str(plan))
    assert "the plan was made for another problem" in outcome.err


def test_profile_of_another_shape(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile with other devices has no costs for the plan: exit code 3 and a report of its own."""
    other = write_json(tmp_path / "other.json", profile_document(2))
    outcome = call(capsys, "explain", plan, "--profile", other, "--json")
    assert (outcome.code, outcome.document["status"], outcome.document["command"]) == (3, "error", "explain")
    Draft202012Validator(report_schema()).validate(outcome.document)


def test_plan_that_cannot_run(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that cannot finish has no makespan to explain: exit code 1, with the validator's faults."""
    document = json.loads(plan.read_bytes())
    ops = document["ranks"][1]["ops"]
    document["ranks"][1]["ops"] = [op for op in ops if op["op"] != "SEND"]
    wrong = write_json(plan.with_name("wrong.json"), document)
    outcome = call(capsys, "explain", wrong, "--profile", profile, "--json")
    assert (outcome.code, outcome.document["status"], outcome.document["makespan_ms"]) == (1, "invalid", None)
    assert "[missing-send]" in outcome.err
    Draft202012Validator(report_schema()).validate(outcome.document)
    plain = call(capsys, "explain", wrong)
    assert (plain.code, plain.out) == (1, "")


def test_network_that_blocks_the_plan(
    plan: Path, profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the replay itself stops, each device that stands is a fault."""

    def stop(*arguments: object) -> object:
        raise DeadlockError([BlockedOp(0, "0B0", "the gradient of 1B0")])

    monkeypatch.setattr("cpipe.compiler.simulate_plan", stop)
    outcome = call(capsys, "explain", plan, "--profile", profile, "--json")
    assert (outcome.code, outcome.document["status"]) == (1, "invalid")
    assert "device g0 at 0B0 waits for the gradient of 1B0 [deadlock]" in outcome.err


def test_too_little_memory(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On devices too small for it a plan is explained all the same, with a warning for each of them."""
    document = profile_document(3)
    document["devices"][1]["memory_bytes"] = 1
    outcome = call(capsys, "explain", plan, "--profile", write_json(tmp_path / "small.json", document))
    assert outcome.code == 0
    assert "[over-capacity]" in outcome.err


def test_quiet(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet leaves out warnings, never the answer."""
    document = profile_document(3)
    outcome = call(capsys, "explain", plan, "-q", "--profile", write_json(tmp_path / "other.json", document))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("sample: 3 devices")
