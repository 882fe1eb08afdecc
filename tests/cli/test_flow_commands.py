"""Tests of the commands on pipelines in both directions and on fused pairs, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call, spawn, write_json
from flow_problems import flow_document

from cpipe.plan import load_plan


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile of two devices whose pairs are shorter than their parts."""
    document = flow_document(2, 4, latency_ms=0.5, gradient_bytes=1000, forward_backward_ms=1.75)
    return write_json(tmp_path / "profile.json", document)


def test_way_of_a_plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan of two flows is solved, validated against its profile, replayed and shown; torch's table refuses it."""
    plan = tmp_path / "plan.json"
    solved = call(capsys, "solve", profile, "--placement", "bidirectional", "--method", "greedy", "-o", plan, "--json")
    assert solved.code == 0
    assert solved.document["placement"] == [0, 1, 1, 0]
    assert load_plan(plan).problem.flows == 2
    assert call(capsys, "validate", plan, "--profile", profile).code == 0
    replayed = call(capsys, "simulate", plan, "--profile", profile, "--json")
    assert replayed.document["makespan_ms"] == solved.document["makespan_ms"]
    assert "all-reduce" in call(capsys, "show", plan).out
    refused = call(capsys, "export", plan, "--to", "torch-csv")
    assert refused.code != 0 and "torch-flows" in refused.err


def test_exact_method_is_refused(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method without a model of two flows says so, with what to do instead."""
    outcome = call(capsys, "solve", profile, "--placement", "bidirectional", "--method", "milp")
    assert outcome.code == 2
    assert "error: the MILP has no model of bidirectional pipelines [no-exact-model]" in outcome.err
    assert "hint: --method auto searches without it" in outcome.err


def test_odd_devices_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three devices have no two flows in opposite directions: a usage error, on stdout one document."""
    path = write_json(tmp_path / "odd.json", flow_document(3, 4))
    outcome = call(capsys, "solve", path, "--placement", "bidirectional", "--json")
    assert outcome.code == 2
    assert [fault["code"] for fault in outcome.document["diagnostics"]] == ["placement-does-not-apply"]


@pytest.mark.slow
def test_run_of_two_flows(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cpipe run` trains both flows, and both copies have the gradients that one process makes of all microbatches."""
    pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")
    plan = tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "--method", "chimera", "-o", plan).code == 0
    outcome = spawn("run", plan, "--steps", 1, "--json", "--timeout", 60, "--emulate", profile)
    report = json.loads(outcome.out)
    assert (outcome.code, report["status"]) == (0, "done")
    assert (report["gradients_checked"], report["max_abs_difference"]) == (True, 0.0)
