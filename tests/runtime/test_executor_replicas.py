"""Tests of data parallelism in the runtime: replicas end up with what one process makes of all their data."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
import torch.distributed as dist
from msgspec.structs import replace
from runtime_models import PATIENT, Case, make_data, make_stage, optimizer_of, plan_by, reference, squared_error
from runtime_workers import run_ranks
from sample_plans import MS, make_problem
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from cpipe.ir import Collectives, Problem
from cpipe.plan import decode_plan, encode_plan
from cpipe.runtime import PlanExecutor, RuntimeFault
from cpipe.units import Ns


def problem_of(mode: str, placement: tuple[int, ...] = (0, 1)) -> Problem:
    """Return two ranks, three microbatches and data parallelism of two replicas."""
    problem = make_problem(2, 3, placement=placement)
    stages = [replace(stage, all_gather_ns=Ns(MS), reduce_ns=Ns(2 * MS)) for stage in problem.stages]
    collectives = Collectives(mode="zero1" if mode == "zero1" else "ddp", replicas=2)
    return replace(problem, stages=tuple(stages), collectives=collectives)


def train(rank: int, world_size: int, cases: list[Case], by_mesh: bool) -> list[dict[int, list[Any]]]:
    """Run cases on two replicas of two ranks; return what each stage of this rank has in the end."""
    replica, place = divmod(rank, 2)
    if by_mesh:
        groups: dict[str, Any] = {"device_mesh": init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))}
    else:
        pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        joined = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        groups = {"pipeline_group": pipelines[replica], "data_parallel_group": joined[place]}
    found: list[dict[int, list[Any]]] = []
    for case in cases:
        plan = decode_plan(case.plan, "plan.json")
        here = [stage for stage, device in enumerate(plan.problem.placement) if device == place]
        modules = {stage: make_stage(case.model, stage, plan.problem.stages) for stage in here}
        with PlanExecutor(
            plan, modules, squared_error, **groups, optimizer=optimizer_of(case), watchdog=PATIENT
        ) as executor:
            for step in range(case.steps):
                executor.step(*make_data(case.model, 3, step + 100 * replica))
            if case.adam:
                executor.gather_parameters()
                found.append({stage: [p.detach().clone() for p in modules[stage].parameters()] for stage in here})
            else:
                grads = {stage: [parameter.grad for parameter in executor.parameters(stage)] for stage in here}
                found.append(grads)
    return found


def check(case: Case, results: list[dict[int, list[Any]]], sharded: bool = False) -> None:
    """Compare all four processes with one that sees the data of both replicas."""
    expected, _ = reference(case, replicas=2)
    for rank, found in enumerate(results):
        for stage, tensors in found.items():
            wanted = expected[stage]
            if sharded:
                flat = torch.cat([tensor.reshape(-1) for tensor in known(wanted)])
                padded = nn.functional.pad(flat, (0, flat.numel() % 2))
                wanted = [padded.chunk(2)[rank // 2]]
            assert len(tensors) == len(wanted)
            for ours, theirs in zip(tensors, wanted, strict=True):
                assert (ours is None) == (theirs is None)
                assert ours is None or theirs is None or torch.equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "zero1"])
def test_weights_after_steps(mode: str) -> None:
    """Three steps on two replicas leave the weights of one process with all the data, for split and whole backwards."""
    torch.set_num_threads(1)
    cases = [
        Case(encode_plan(plan_by(method, problem_of(mode, placement))), steps=3, adam=True)
        for method, placement in (("zb-h1", (0, 1)), ("greedy", (0, 1, 1, 0)))
    ]
    results = run_ranks(train, 4, cases, mode == "ddp")
    for index, case in enumerate(cases):
        check(case, [found[index] for found in results])


def test_gradients_are_averaged() -> None:
    """Without an optimizer, every replica has the averaged gradients: all of them, or with zero1 those of its shard."""
    torch.set_num_threads(1)
    cases = [Case(encode_plan(plan_by("1f1b", problem_of(mode)))) for mode in ("ddp", "zero1")]
    results = run_ranks(train, 4, cases, False)
    check(cases[0], [found[0] for found in results])
    check(cases[1], [found[1] for found in results], sharded=True)


def test_unused_parameters() -> None:
    """With ddp, a parameter that no replica used has no gradient, so that weight decay leaves it alone."""
    torch.set_num_threads(1)
    case = Case(encode_plan(plan_by("1f1b", problem_of("ddp"))), model="uneven", steps=2, adam=True, decay=True)
    results = run_ranks(train, 4, [case], True)
    expected, _ = reference(case, replicas=2)
    made = [*make_stage("uneven", 1, 2).parameters()]
    assert any(torch.equal(first, last) for first, last in zip(made, known(expected[1]), strict=True))
    for rank in (1, 3):
        for ours, theirs in zip(results[rank][0][1], known(expected[1]), strict=True):
            assert torch.equal(ours, theirs)


def known(tensors: list[torch.Tensor | None]) -> list[torch.Tensor]:
    """Return tensors that are all there."""
    found = [tensor for tensor in tensors if tensor is not None]
    assert len(found) == len(tensors)
    return found


def start(rank: int, world_size: int, plan_bytes: bytes, fault: str) -> str:
    """Start an executor on one of four processes with something wrong; return the message."""
    replica, place = divmod(rank, 2)
    plan = decode_plan(plan_bytes, "plan.json")
    pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    joined = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    stage = make_stage("block", 10 * replica + place if fault == "weights" else place, 2)
    group = {"none": None, "wrong": pipelines[replica]}.get(fault, joined[place])
    try:
        with PlanExecutor(
            plan,
            {place: stage},
            squared_error,
            pipeline_group=pipelines[replica],
            data_parallel_group=group,
            watchdog=PATIENT,
        ):
            return ""
    except RuntimeFault as error:
        return str(error)


@pytest.mark.parametrize(
    ("mode", "fault", "told"),
    [
        ("ddp", "none", "the plan has data parallelism, but no data_parallel_group was given"),
        ("zero1", "wrong", "its data-parallel group joins processes 0, 1, expected 0, 2"),
        ("ddp", "weights", "the weights of stage 1 (a checksum of their bits) differs"),
        ("", "none", "there are replicas, but the plan has no data parallelism: they would drift apart"),
    ],
)
def test_start_is_refused(mode: str, fault: str, told: str) -> None:
    """Replicas that would not stay equal do not start, and every process says why."""
    problem = problem_of(mode) if mode else make_problem(2, 3)
    messages = run_ranks(start, 4, encode_plan(plan_by("1f1b", problem)), fault)
    assert len(set(messages)) == 1
    assert told in messages[0]


def test_single_replica() -> None:
    """A plan with data parallelism runs on one pipeline too: its collectives join one replica."""
    results = run_ranks(alone, 2, [encode_plan(plan_by("1f1b", problem_of(mode))) for mode in ("ddp", "zero1")])
    for grads in results:
        assert torch.equal(grads[0], grads[1])


def alone(rank: int, world_size: int, plans: list[bytes]) -> list[Any]:
    """Run plans on one pipeline without a data-parallel group; return the gradients as one flat tensor each."""
    found = []
    for data in plans:
        with PlanExecutor(
            decode_plan(data, "plan.json"), {rank: make_stage("block", rank, 2)}, squared_error
        ) as executor:
            executor.step(*make_data("block", 3, 0))
            grads = [parameter.grad for parameter in executor.parameters(rank)]
            found.append(torch.cat([grad.reshape(-1) for grad in grads if grad is not None]))
    return found
