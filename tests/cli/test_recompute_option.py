"""Tests of --recompute, and of plans with stages that recompute in the other commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call, write_json

from cpipe.plan import load_plan


def document(memory: int = 25, num_devices: int = 3) -> dict[str, Any]:
    """Return a profile in line, each stage of which may recompute."""
    return {
        "format": "cpipe.profile",
        "version": 1,
        "name": "toy",
        "microbatches": 4,
        "devices": [{"id": f"g{index}", "memory_bytes": memory} for index in range(num_devices)],
        "stages": [
            {
                "id": f"s{index}",
                "device": f"g{index}",
                "forward_ms": 10,
                "input_grad_ms": 10,
                "weight_grad_ms": 10,
                "activation_bytes": 10,
                "held_for_weight_grad_bytes": 5,
                "recompute": {"activation_bytes": 2, "extra_ms": 4},
            }
            for index in range(num_devices)
        ],
    }


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write the profile."""
    return write_json(tmp_path / "profile.json", document())


@pytest.fixture
def plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Write a plan in which stages 0 and 1 recompute."""
    target = tmp_path / "plan.json"
    outcome = call(capsys, "solve", profile, "-o", target, "--method", "1f1b", "--recompute", "0,1")
    assert outcome.code == 0
    return target


def test_choice_is_told(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary, the report and the plan name the stages that recompute; by default they are searched for."""
    target = tmp_path / "plan.json"
    outcome = call(capsys, "solve", profile, "-o", target, "--method", "1f1b", "--json")
    assert outcome.code == 0
    assert outcome.document["recompute"] == list(load_plan(target).problem.recompute) != []
    outcome = call(capsys, "solve", profile, "-o", target, "--method", "1f1b", "--recompute", "all")
    assert outcome.err.splitlines()[-1] == "recomputing: stages 0-2"
    assert load_plan(target).made_by.limits == {"recompute": "all"}


def test_nothing_is_told_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no stage recomputes neither report nor summary mentions it."""
    profile = write_json(tmp_path / "profile.json", document(memory=500))
    outcome = call(capsys, "solve", profile, "--json", "--method", "1f1b")
    assert "recompute" not in outcome.document
    assert "recomput" not in call(capsys, "solve", profile, "-o", tmp_path / "p.json", "--method", "1f1b").err


def test_one_stage(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A single stage is told as one."""
    outcome = call(
        capsys, "solve", profile, "-o", tmp_path / "p.json", "--method", "greedy-crosspipe", "--recompute", "1"
    )
    assert outcome.err.splitlines()[-1] == "recomputing: stage 1"


@pytest.mark.parametrize("value", ["some", "0,", "7", "-1"])
def test_wrong_value(profile: Path, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is no choice is a usage error, in one line, and with --json in one document."""
    outcome = call(capsys, "solve", profile, f"--recompute={value}")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: recompute: expected ")
    document = call(capsys, "solve", profile, f"--recompute={value}", "--json").document
    assert [found["code"] for found in document["diagnostics"]] == ["recompute-choice"]


def test_stage_without_the_offer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage that does not offer it cannot be asked for."""
    changed = document()
    del changed["stages"][1]["recompute"]
    outcome = call(capsys, "solve", write_json(tmp_path / "p.json", changed), "--recompute", "1")
    assert outcome.code == 2
    assert 'stage 1 ("s1") offers no recomputation [recompute-not-offered]' in outcome.err


def test_job_that_fits_only_recomputing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it does not fit without, the error says what else there is."""
    changed = document(memory=14, num_devices=2)
    changed["devices"].pop()
    changed["stages"][1]["device"] = "g0"
    profile = write_json(tmp_path / "p.json", changed)
    outcome = call(capsys, "solve", profile, "--recompute", "none")
    assert outcome.code == 4
    assert "[memory-too-small]" in outcome.err
    assert "or let more stages recompute" in outcome.err.splitlines()[-1]
    assert call(capsys, "solve", profile, "--method", "greedy", "-o", tmp_path / "plan.json").code == 0


@pytest.mark.parametrize("command", ["validate", "simulate", "explain"])
def test_other_commands_need_no_option(
    command: str, plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plan and profile say all that the other commands need."""
    outcome = call(capsys, command, plan, "--profile", profile)
    assert outcome.code == 0, outcome.err
    assert "warning" not in outcome.err
    if command != "simulate":
        assert "3 devices, 3 stages, 4 microbatches, stages 0-1 recomputing" in outcome.out


def test_show(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is shown names the stages that recompute."""
    outcome = call(capsys, "show", plan, "--profile", profile)
    assert outcome.code == 0
    assert "stages 0-1 recomputing" in outcome.out


def test_changed_list(plan: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan whose list was changed is neither valid nor for this profile's job any more."""
    text = plan.read_text(encoding="utf-8").replace('"recompute": [0, 1]', '"recompute": [1]')
    changed = tmp_path / "changed.json"
    changed.write_text(text, encoding="utf-8")
    outcome = call(capsys, "validate", changed, "--profile", profile, "--json")
    assert outcome.code == 1
    codes = {found["code"] for found in outcome.document["diagnostics"]}
    assert codes >= {"plan-digest", "problem-digest", "wrong-peak"}


def test_profile_without_the_offer(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a profile whose stages do not offer it the plan cannot be replayed, and is not valid."""
    changed = document()
    for stage in changed["stages"]:
        del stage["recompute"]
    profile = write_json(tmp_path / "without.json", changed)
    outcome = call(capsys, "simulate", plan, "--profile", profile)
    assert outcome.code == 3
    assert outcome.err.count("[recompute-not-offered]") == 2
    assert call(capsys, "validate", plan, "--profile", profile).code == 1


def test_schema_knows_the_field(capsys: pytest.CaptureFixture[str]) -> None:
    """The schemas of profile, plan and report have the field, and none requires it."""
    for name, holder in (("profile", "StageSpec"), ("plan", "ProblemSummary"), ("report", "SolveReport")):
        schema = json.loads(call(capsys, "schema", name).out)
        definition = schema["$defs"][holder]
        assert "recompute" in definition["properties"]
        assert "recompute" not in definition["required"]
