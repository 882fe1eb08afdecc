"""Tests of --offload, and of plans with activations in host memory in the other commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call, write_json

from cpipe.plan import load_plan


def document(memory: int = 25, **changes: Any) -> dict[str, Any]:
    """Return a profile in line, each stage of which may offload."""
    return {
        "format": "cpipe.profile",
        "version": 1,
        "name": "toy",
        "microbatches": 8,
        "devices": [{"id": f"g{index}", "memory_bytes": memory} for index in range(4)],
        "stages": [
            {
                "id": f"s{index}",
                "device": f"g{index}",
                "forward_ms": 2,
                "input_grad_ms": 2,
                "weight_grad_ms": 2,
                "activation_bytes": 10,
                "held_for_weight_grad_bytes": 2,
                "offload": {"bytes": 8, "latency_ms": 1},
                **changes,
            }
            for index in range(4)
        ],
    }


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the profile."""
    return write_json(tmp_path_factory.mktemp("offload") / "profile.json", document())


@pytest.fixture
def plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Write a plan that offloads."""
    target = tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "-o", target, "--method", "1f1b").code == 0
    return target


def test_choice_is_told(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary and the report count what is offloaded; the plan has it op by op."""
    target = tmp_path / "plan.json"
    outcome = call(capsys, "solve", profile, "-o", target, "--method", "1f1b")
    assert outcome.code == 0
    count = sum(step.op == "OFFLOAD" for program in load_plan(target).ranks for step in program.ops)
    assert count > 0
    assert outcome.err.splitlines()[-1].startswith(f"in host memory meanwhile: {count} activations of stages 0-")
    again = call(capsys, "solve", profile, "--method", "1f1b", "--json")
    assert again.document["offloads"] == count


def test_none(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `none` nothing is offloaded, the plan says that this was asked, and no report has a word of it."""
    target = tmp_path / "plan.json"
    arguments = ("solve", profile, "--method", "greedy", "--offload", "none")
    outcome = call(capsys, *arguments, "-o", target)
    assert outcome.code == 0
    assert "host memory" not in outcome.err and "LOAD" not in target.read_text(encoding="utf-8")
    assert load_plan(target).made_by.limits == {"offload": "none"}
    assert "offloads" not in call(capsys, *arguments, "--json").document


def test_another_word(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another word is refused, and the words that there are are told."""
    outcome = call(capsys, "solve", profile, "--offload", "all")
    assert outcome.code == 2
    assert "--offload: expected one of auto, none, got 'all' [unknown-value]" in outcome.err


def test_too_large(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More than the activation cannot be offloaded."""
    profile = write_json(tmp_path / "p.json", document(offload={"bytes": 11}))
    outcome = call(capsys, "solve", profile)
    assert outcome.code == 3
    assert "$.stages[0].offload.bytes: offloading moves part of the stage's activation_bytes 10, got 11" in outcome.err


def test_other_commands(profile: Path, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that offloads is checked, replayed, shown, explained and compared like any other."""
    checked = call(capsys, "validate", plan, "--profile", profile)
    assert checked.code == 0 and "the lower bound too" in checked.out + checked.err
    replayed = call(capsys, "simulate", plan, "--profile", profile, "--json").document
    assert replayed["difference_ms"] == 0
    explained = call(capsys, "explain", plan, "--profile", profile, "--json").document
    causes = {part["cause"] for device in explained["devices"] for part in device["idle"]}
    assert "copy" in causes
    assert "copies" in call(capsys, "explain", plan).out
    for arguments in (("show", plan, "--profile", profile), ("diff", plan, plan)):
        assert call(capsys, *arguments).code == 0
    table = tmp_path / "times.csv"
    assert call(capsys, "export", plan, "--to", "timeline-csv", "--profile", profile, "-o", table).code == 0
    assert ",RELOAD," in table.read_text(encoding="utf-8")


def test_on_another_profile(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile that does not offer to offload is not one for this plan."""
    other = document()
    for stage in other["stages"]:
        del stage["offload"]
    profile = write_json(tmp_path / "other.json", other)
    outcome = call(capsys, "simulate", plan, "--profile", profile)
    assert outcome.code != 0
    assert "moves activations of stage 0 to host memory, the profile does not offer it" in outcome.err
    invalid = call(capsys, "validate", plan, "--profile", profile, "--json")
    assert invalid.code == 1
    assert "copy-not-offered" in {fault["code"] for fault in invalid.document["diagnostics"]}


@pytest.mark.parametrize("target", ["torch-csv", "megatron", "deepspeed"])
def test_exports(target: str, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other systems are not given such a plan; the first op is named, and what to do."""
    output = tmp_path / "out"
    layers = ("--layers", "1x4") if target == "megatron" else ()
    outcome = call(capsys, "export", plan, "--to", target, *layers, "-o", output)
    assert outcome.code == 1 and not output.exists()
    assert "OFFLOAD of stage 0 mb " in outcome.err and "[export-offload]" in outcome.err
    assert "solve with --offload none" in outcome.err


def test_pinned(profile: Path, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pinned plan that offloads is made again the same."""
    pin = tmp_path / "pins" / "toy"
    pin.mkdir(parents=True)
    (pin / "profile.json").write_bytes(profile.read_bytes())
    (pin / "plan.json").write_bytes(plan.read_bytes())
    assert call(capsys, "check", pin.parent).code == 0


def test_report_of_a_plan_changed_by_hand(profile: Path, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan whose copy back is gone is refused with the place of what is left of it."""
    lines = plan.read_text(encoding="utf-8").splitlines(keepends=True)
    gone = next(index for index, line in enumerate(lines) if '"op": "RELOAD"' in line)
    plan.write_text("".join(lines[:gone] + lines[gone + 1 :]), encoding="utf-8")
    outcome = call(capsys, "validate", plan, "--profile", profile, "--json")
    assert outcome.code == 1
    faults = [fault for fault in outcome.document["diagnostics"] if fault["code"] == "missing-copy"]
    assert len(faults) == 1 and "comes without RELOAD" in faults[0]["message"]
    assert json.dumps(faults[0]["path"]).startswith('"$.ranks[0].ops[')
