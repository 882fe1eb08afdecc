"""Jobs with data parallelism and a step at the end, on the command line: solved, checked, explained, exchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import call, write_json
from helpers import assert_plan_ok
from jsonschema import Draft202012Validator

from cpipe.compiler import problem_for_plan
from cpipe.ir import Plan
from cpipe.plan import load_plan
from cpipe.profile import load_profile
from cpipe.report.document import report_schema

STAGE = {
    "forward_ms": 1,
    "input_grad_ms": 1,
    "weight_grad_ms": 1,
    "output_bytes": 1000,
    "parameter_bytes": 1_000_000,
    "gradient_bytes": 2_000_000,
}
JOB: dict[str, Any] = {
    "format": "cpipe.profile",
    "version": 1,
    "microbatches": 3,
    "devices": [{"id": "g0", "site": "a"}, {"id": "g1", "site": "a"}, {"id": "g2", "site": "b"}],
    "stages": [{"id": f"s{index}", "device": f"g{index}", **STAGE} for index in range(3)],
    "links": [{"between": ["a", "b"], "latency_ms": 1, "bandwidth_gbit_s": 1}],
    "data_parallel": {"mode": "zero1", "replicas": 2, "bandwidth_gbit_s": 8, "contends_with": ["a", "b"]},
    "step_ms": 2,
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile of ZeRO-1 on the slow link of a pipeline, a global step behind it."""
    return write_json(tmp_path / "p.json", JOB)


@pytest.fixture
def plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Make a plan of it."""
    target = tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, "--method", "greedy").code == 0
    loaded = load_plan(target)
    assert_plan_ok(loaded, problem_for_plan(loaded, load_profile(profile)))
    return target


def ops(plan: Plan, rank: int, name: str) -> list[tuple[int | None, int | None]]:
    """Return (stage, length in ns) of the ops of one name on a rank."""
    return [
        (step.stage, None if step.start_ns is None or step.end_ns is None else step.end_ns - step.start_ns)
        for step in plan.ranks[rank].ops
        if step.op == name
    ]


def test_the_plan_holds_collectives_and_step(plan: Path) -> None:
    """Every rank gathers, scatters and steps; ring times of two replicas: half of the bytes at 8 Gbit/s."""
    loaded = load_plan(plan)
    for rank in range(3):
        assert ops(loaded, rank, "ALL_GATHER") == [(rank, 500_000)]
        assert ops(loaded, rank, "REDUCE_SCATTER") == [(rank, 1_000_000)]
        assert ops(loaded, rank, "STEP") == [(None, 2_000_000)]
    assert [(group.kind, group.stages) for group in loaded.groups] == [("data_parallel", (rank,)) for rank in range(3)]


def test_it_validates_and_replays(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the profile and without, the plan is valid, and its replay takes what it claims."""
    assert call(capsys, "validate", plan).code == 0
    assert call(capsys, "validate", plan, "--profile", profile).code == 0
    report = call(capsys, "simulate", plan, "--profile", profile, "--json").document
    assert report["difference_ms"] == 0


def test_it_is_explained(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page names collectives and step: on the path, in the idle times, and as a what-if."""
    page = call(capsys, "explain", plan, "--profile", profile).out
    assert "the step of all devices at the end" in page
    assert "10 % faster collectives" in page
    (row,) = [line.split() for line in page.splitlines() if line.split()[1:2] == ["2.000"] and "STEP" in line]
    assert row[2:] == ["all", "STEP"]
    (title,) = [line for line in page.splitlines() if line.startswith("device  warm-up")]
    assert title.split()[-1] == "step"


@pytest.mark.parametrize("known", [True, False])
def test_the_report_is_of_the_schema(
    known: bool, plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON the kinds and causes are those of the schema; every device is idle during the step."""
    asked = ("--profile", profile) if known else ()
    report = call(capsys, "explain", plan, *asked, "--json").document
    Draft202012Validator(report_schema()).validate(report)
    assert report["path"][-1]["kind"] == "step"
    for device in report["devices"]:
        assert [idle["ms"] for idle in device["idle"] if idle["cause"] == "step"] == [2.0]


def test_it_comes_back_from_torch(
    plan: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table for torch holds no times; imported on the profile, the plan has its step and makespan again."""
    table, again = tmp_path / "t.csv", tmp_path / "again.json"
    assert call(capsys, "export", plan, "--to", "torch-csv", "-o", table).code == 0
    assert call(capsys, "import", table, "--from", "torch-csv", "--profile", profile, "-o", again).code == 0
    back = load_plan(again)
    assert ops(back, 0, "STEP") == [(None, 2_000_000)]
    assert back.claims.makespan_ns == load_plan(plan).claims.makespan_ns
    assert_plan_ok(back, problem_for_plan(back, load_profile(profile)))


def test_pictures_and_pages(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step with times is no op of a stage: every way to show a plan takes it."""
    for kind in ("svg", "html", "trace"):
        target = tmp_path / f"x.{kind}"
        assert call(capsys, "show", plan, f"--{kind}", target).code == 0
        assert target.stat().st_size > 0


@pytest.mark.parametrize("mode", ["zero2", "zero3", "fsdp"])
def test_other_modes_end_with_three(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mode that is not modelled is an input that is not valid: exit code 3, one line, nothing on stdout."""
    changed = JOB | {"data_parallel": JOB["data_parallel"] | {"mode": mode}}
    outcome = call(capsys, "solve", write_json(tmp_path / "p.json", changed))
    assert (outcome.code, outcome.out) == (3, "")
    assert f'$.data_parallel.mode: expected one of "ddp", "zero1", got "{mode}": it ' in outcome.err
