"""Tests of cpipe.runtime.executor: what the ranks compute is what a single process computes, bit for bit."""

from __future__ import annotations

import threading
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
from helpers import assert_plan_ok, plan_of
from random_plans import draw_problem, draw_schedule
from runtime_models import (
    Case,
    Outcome,
    case_of,
    make_data,
    make_stage,
    mixed_schedule,
    plan_by,
    reference,
    run_cases,
    squared_error,
)
from runtime_workers import run_ranks
from sample_plans import make_problem

from cpipe.plan import decode_plan, encode_plan
from cpipe.runtime import PlanExecutor, RuntimeFault
from cpipe.runtime.executor import _groups_of as groups_of
from cpipe.schedules import static_schedule

METHODS = ("gpipe", "1f1b", "zb-h1", "greedy", "milp")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Compute the reference as the workers compute: sums of several threads round differently."""
    torch.set_num_threads(1)


def check(case: Case, outcomes: list[Outcome]) -> None:
    """Compare all ranks of one case with a single process: equal bits; no gradient is as good as zeros."""
    expected, losses = reference(case)
    found = {stage: tensors for outcome in outcomes for stage, tensors in outcome.tensors.items()}
    assert sorted(found) == sorted(expected)
    for stage, tensors in expected.items():
        for ours, theirs in zip(found[stage], tensors, strict=True):
            if ours is None or theirs is None:
                assert theirs is None and (ours is None or not ours.any())
            else:
                assert torch.equal(ours, theirs), stage
    plan = decode_plan(case.plan, "plan.json")
    last = outcomes[plan.problem.placement[-1]]
    for step, wanted in enumerate(losses):
        assert [last.losses[step][mb].item() for mb in range(len(wanted))] == [loss.item() for loss in wanted]
    windows = {channel.id: channel.window for channel in plan.channels}
    for outcome in outcomes:
        assert all(count <= windows[channel] for channel, count in outcome.buffers.items())
        assert case.frozen or all(outcome.buffers.values())


def check_all(world_size: int, cases: list[Case]) -> None:
    """Run all cases in one launch and check each."""
    results = run_ranks(run_cases, world_size, cases, timeout=60)
    for index, case in enumerate(cases):
        check(case, [outcomes[index] for outcomes in results])


def test_methods() -> None:
    """Gradients and losses of 4 ranks and 8 microbatches are those of a single process, whatever made the order."""
    check_all(4, [case_of(method, 4, 8, latency_ms=3) for method in METHODS])


@pytest.mark.parametrize("placement", [(0, 1, 2, 2, 1, 0), (0, 1, 2, 0, 1, 2), (2, 0, 0, 1, 0)])
def test_placements(placement: tuple[int, ...]) -> None:
    """Several stages on a rank, in a V, in a loop or anyhow, change nothing, also with outputs of many kinds."""
    model = "uneven" if len(placement) == 5 else "block"
    check_all(3, [case_of("greedy", 3, 5, placement=placement, model=model, latency_ms=1)])


def test_uneven_stages() -> None:
    """Widths that differ, tuples, integers passed along, unused and non-contiguous outputs are all carried."""
    cases = [case_of(method, 4, 5, model="uneven") for method in ("1f1b", "zb-h1")]
    cases += [case_of("greedy", 4, 4, placement=(0, 1, 1, 3, 0), model="uneven", steps=2, adam=True)]
    check_all(4, cases)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_sizes(num_ranks: int) -> None:
    """One microbatch, one less or more than ranks, or as many: all run."""
    counts = sorted({1, max(1, num_ranks - 1), num_ranks, num_ranks + 1})
    check_all(num_ranks, [case_of("zb-h1", num_ranks, count) for count in counts])


def test_steps_with_an_optimizer() -> None:
    """Three steps with Adam leave the weights of a single process."""
    check_all(2, [case_of(method, 2, 4, steps=3, adam=True) for method in ("1f1b", "zb-h1", "greedy")])


def test_whole_and_split_backwards() -> None:
    """A plan may run some backwards whole and split others."""
    problem = make_problem(3, 6)
    plan = plan_of(problem, mixed_schedule(static_schedule("1f1b", problem)))
    assert_plan_ok(plan, problem)
    ops = {step.op for program in plan.ranks for step in program.ops}
    assert ops >= {"B", "D", "W"}
    check_all(3, [Case(encode_plan(plan)), Case(encode_plan(plan), model="uneven")])


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_random_plans(num_ranks: int) -> None:
    """Any valid plan gives the gradients of a single process: odd placements, windows, ranks without stages."""
    cases = []
    for seed in range(300):
        draw = Random(seed)
        problem = draw_problem(draw, windows=False)
        sharded = problem.collectives is not None and problem.collectives.mode == "zero1"
        if problem.num_devices == num_ranks and problem.num_stages <= 5 and not sharded:
            plan = plan_of(problem, draw_schedule(draw, problem))
            cases.append(Case(encode_plan(plan), model=draw.choice(("block", "uneven"))))
    check_all(num_ranks, cases[:12])


def test_frozen_stages() -> None:
    """Stages that do not train, first or in between, get and give no more gradients than they need."""
    cases = [case_of(method, 3, 3, frozen=frozen) for method in ("1f1b", "zb-h1") for frozen in ((0,), (1,), (0, 1))]
    check_all(3, cases)


def close_early(rank: int, world_size: int, data: bytes) -> list[str]:
    """Close an executor twice, then ask it for a step; return the threads that are left."""
    executor = PlanExecutor(decode_plan(data, "plan.json"), {rank: make_stage("block", rank, 2)}, squared_error)
    executor.step(*make_data("block", 2, 0))
    executor.close()
    executor.close()
    with pytest.raises(RuntimeFault, match=r"the executor is closed \[closed\]"):
        executor.step(*make_data("block", 2, 0))
    for thread in threading.enumerate():
        if thread.name.startswith("cpipe"):
            thread.join(5.0)
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("cpipe")]


def test_close() -> None:
    """A closed executor says so, and has ended its threads."""
    results = run_ranks(close_early, 2, encode_plan(plan_by("1f1b", make_problem(2, 2))))
    assert results == [[], []]


def test_device_mesh() -> None:
    """A device mesh without a pipeline dimension is refused by name."""
    mesh = SimpleNamespace(mesh_dim_names=("dp", "tp"))
    with pytest.raises(RuntimeFault, match=r"dimensions dp, tp, expected pp, and dp if any \[device-mesh\]"):
        groups_of(mesh)


def test_records() -> None:
    """A recorded step tells each op once, compute apart from waits, on one clock for all ranks."""
    case = case_of("1f1b", 2, 3, record=True)
    results = run_ranks(run_cases, 2, [case])
    plan = decode_plan(case.plan, "plan.json")
    ends: dict[tuple[str, int, int], float] = {}
    for program, outcomes in zip(plan.ranks, results, strict=True):
        records = outcomes[0].records[0]
        told = sorted((record.op, record.stage, record.mb, record.channel or 0) for record in records)
        assert told == sorted(
            (step.op, step.stage, step.mb, step.channel or 0) for step in program.ops if step.op != "STEP"
        )
        compute = [record for record in records if record.op in "FDWB"]
        assert [record.op for record in compute] == [step.op for step in program.ops if step.op in "FDWB"]
        assert all(one.end_s <= other.start_s for one, other in pairwise(compute))
        assert all(record.start_s <= record.end_s for record in records)
        waits = {(record.stage, record.mb): record.wait_s for record in records if record.op == "WAIT"}
        assert all(record.wait_s <= record.end_s - record.start_s for record in records if record.op == "WAIT")
        assert len(waits) == 3
        ends |= {(record.op, record.stage, record.mb): record.end_s for record in compute}
    starts = {(record.stage, record.mb): record.start_s for record in results[1][0].records[0] if record.op == "F"}
    assert all(starts[1, mb] >= ends["F", 0, mb] for mb in range(3))
