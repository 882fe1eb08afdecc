"""Tests of fused pairs and two flows in the runtime: gradients and losses as a single process has them, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
import torch.distributed as dist
from flow_problems import flow_document, flow_problem
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from oracle.cases import case
from runtime_models import PATIENT, make_data, make_stage, squared_error
from runtime_workers import run_ranks
from torch import Tensor

from cpipe.ir import Plan, Schedule
from cpipe.plan import decode_plan, encode_plan, lift, validate
from cpipe.plan.exchange import plan_of_table, read_torch_csv, torch_csv
from cpipe.runtime import PlanExecutor, RuntimeFault
from cpipe.runtime.compare import compare_channels, compare_devices
from cpipe.runtime.gradient_check import accumulation_orders, added
from cpipe.runtime.records import OpRecord
from cpipe.runtime.torch_schedule import torch_messages
from cpipe.schedules import static_schedule

Found = dict[int, list[Tensor]]
MODEL = "block"
V_ORDER = """0F0 0F1 3F0 0F2+3B0 3F1 3B1 3F2 3B2 0B0 0B1 0B2
1F0 2F0 1F1 2F1 1F2+2B0 2F2 1B0 2B1 1B1 2B2 1B2"""
CHIMERA = """0F0 3F0 0F1 3B0 3F1 3B1 0B0 0B1
2F0 1F0 2F1 1B0 1F1 1B1 2B0 2B1"""
PAIRED_FLOWS = """0F0 3F0 0F1+3B0 3F1 3B1 0B0 0B1
2F0 1F0 2F1+1B0 1F1 1B1 2B0 2B1"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Compute the reference as the workers compute: sums of several threads round differently."""
    torch.set_num_threads(1)


def pair_plan() -> Plan:
    """Return a plan with fused pairs on a V of two ranks."""
    problem = case(3, (0, 1, 1, 0), full=2)
    plan = plan_of(problem, Schedule.from_text(V_ORDER, 3))
    assert_plan_ok(plan, problem)
    return plan


def flow_plan(order: str = CHIMERA, devices: int = 2, microbatches: int = 4) -> Plan:
    """Return a plan of two flows; without an order that of Chimera."""
    problem = flow_problem(flow_document(devices, microbatches, gradient_bytes=100))
    schedule = Schedule.from_text(order, microbatches // 2) if order else static_schedule("chimera", problem)
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    return plan


def run(
    rank: int, world_size: int, text: bytes, scale: bool, replicas: int, shift: int
) -> tuple[Found, dict[int, Tensor], list[OpRecord]]:
    """Run one step of a plan on this rank; return gradients, losses and records. A worker for `run_ranks`."""
    plan = decode_plan(text, "plan.json")
    replica, place = divmod(rank, len(plan.ranks))
    options: dict[str, Any] = {}
    if replicas > 1:
        ranks = len(plan.ranks)
        pipelines = [dist.new_group([*range(ranks * r, ranks * r + ranks)]) for r in range(replicas)]
        joined = [dist.new_group([p + ranks * r for r in range(replicas)]) for p in range(ranks)]
        options = {"pipeline_group": pipelines[replica], "data_parallel_group": joined[place]}
    length, flows = plan.problem.flow_length, plan.problem.flows
    modules = {
        stage: make_stage(MODEL, stage % length + (shift if stage >= length else 0), length)
        for stage, home in enumerate(plan.problem.placement)
        if home == place
    }
    n = plan.problem.microbatches
    inputs, targets = make_data(MODEL, flows * n, 100 * replica)
    first = next((stage // length for stage in modules if plan.problem.is_first(stage)), 0)
    last = next((stage // length for stage in modules if plan.problem.is_last(stage)), 0)
    with PlanExecutor(
        plan, modules, squared_error, scale_grads=scale, record=True, watchdog=PATIENT, **options
    ) as executor:
        result = executor.step(inputs[first * n : first * n + n], targets[last * n : last * n + n])
        grads = {stage: [parameter.grad for parameter in executor.parameters(stage)] for stage in modules}
    return grads, result.losses, list(result.records)  # type: ignore[return-value]


def reference(plan: Plan, scale: bool, replica: int = 0) -> tuple[list[list[Tensor]], list[float]]:
    """Return gradients by stage and losses of a single process that has all microbatches of all flows.

    Each stage adds up every flow's gradients in the order of its W and B, then the flows' sums.
    """
    length, flows, n = plan.problem.flow_length, plan.problem.flows, plan.problem.microbatches
    modules = [make_stage(MODEL, stage, length) for stage in range(length)]
    inputs, targets = make_data(MODEL, flows * n, 100 * replica)
    losses: list[float] = []
    grads: list[list[list[Tensor]]] = []
    for data, target in zip(inputs, targets, strict=True):
        for module in modules:
            module.zero_grad()
            data = module(data)
        loss = squared_error(data, target)
        torch.autograd.backward(loss / (flows * n if scale else 1))
        losses.append(loss.item())
        grads.append([[parameter.grad for parameter in module.parameters()] for module in modules])  # type: ignore[misc]
    totals = []
    for stage in range(length):
        parts = []
        for flow in range(flows):
            order = _order(plan, flow * length + stage)
            parts.append(_sum([grads[flow * n + mb][stage] for mb in order]))
        totals.append(_sum(parts))
    return totals, losses


def _order(plan: Plan, stage: int) -> list[int]:
    found = []
    for program in plan.ranks:
        for step in program.ops:
            if step.op in ("W", "B") and step.stage == stage:
                found.append(step.mb or 0)
            elif step.op == "FB" and step.backward_stage == stage:
                found.append(step.backward_mb or 0)
    return found


def _sum(parts: Sequence[list[Tensor]]) -> list[Tensor]:
    total = [tensor.clone() for tensor in parts[0]]
    for part in parts[1:]:
        total = [a + b for a, b in zip(total, part, strict=True)]
    return total


def check(plan: Plan, *, scale: bool = True) -> list[Any]:
    """Run a plan and compare all its ranks with a single process; return what the ranks gave."""
    outcomes = run_ranks(run, len(plan.ranks), encode_plan(plan), scale, 1, 0)
    expected, losses = reference(plan, scale)
    length, n = plan.problem.flow_length, plan.problem.microbatches
    for stage, rank in enumerate(plan.problem.placement):
        found = outcomes[rank][0][stage]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected[stage % length], strict=True))
    for stage in (stage for stage in range(plan.problem.stages) if plan.problem.is_last(stage)):
        flow = stage // length
        told = outcomes[plan.problem.placement[stage]][1]
        assert [told[mb].item() for mb in range(n)] == losses[flow * n : flow * n + n]
    return outcomes


def test_fused_pairs() -> None:
    """An FB runs its forward and its backward; gradients are exact, and it has one record of its own."""
    plan = pair_plan()
    outcomes = check(plan)
    for rank, (_, _, records) in enumerate(outcomes):
        computed = [(record.op, record.stage, record.mb) for record in records if record.op in ("F", "B", "FB")]
        planned = [(step.op, step.stage, step.mb) for step in plan.ranks[rank].ops if step.op in ("F", "B", "FB")]
        assert computed == planned
        assert sum(record.op == "FB" for record in records) == 1
    measured = {rank: outcome[2] for rank, outcome in enumerate(outcomes)}
    assert all(device.order_kept for device in compare_devices(plan, measured))
    waits = {channel.id: channel.predicted_wait_ms for channel in compare_channels(plan, measured)}
    pair = next(step for step in plan.ranks[1].ops if step.op == "FB")
    assert pair.start_ns is not None and len(waits) == 4


@pytest.mark.parametrize("scale", [True, False])
def test_two_flows_on_two_ranks(scale: bool) -> None:
    """Two flows of two microbatches: both copies of a stage end up with the gradients of all four."""
    plan = flow_plan()
    outcomes = check(plan, scale=scale)
    for stage in range(2):
        first = outcomes[plan.problem.placement[stage]][0][stage]
        second = outcomes[plan.problem.placement[stage + 2]][0][stage + 2]
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_pairs_in_two_flows() -> None:
    """A forward of one flow fused with a backward of the other is as exact."""
    check(flow_plan(PAIRED_FLOWS))


@pytest.mark.slow
def test_chimera_on_four_ranks() -> None:
    """Chimera's own order on four ranks, eight microbatches."""
    check(flow_plan("", 4, 8))


@pytest.mark.slow
def test_copies_and_replicas() -> None:
    """Two replicas of a pipeline in both directions: gradients are added up over copies and averaged over replicas."""
    plan = flow_plan()
    outcomes = run_ranks(run, 4, encode_plan(plan), True, 2, 0)
    parts = [reference(plan, True, replica)[0] for replica in range(2)]
    for rank, (grads, _, _) in enumerate(outcomes):
        for stage, found in grads.items():
            for index, ours in enumerate(found):
                theirs = (parts[0][stage % 2][index] + parts[1][stage % 2][index]) / 2
                assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14), (rank, stage)


def test_copies_must_start_equal() -> None:
    """Copies of a stage with different weights would drift apart: refused before the first step, by all ranks."""
    outcomes = run_ranks(run, 2, encode_plan(flow_plan()), True, 1, 7, allow_errors=True)
    for outcome in outcomes:
        assert isinstance(outcome, RuntimeFault)
        assert [fault.code for fault in outcome.diagnostics] == ["weights-differ", "weights-differ"]
        assert outcome.diagnostics[0].message.startswith(
            "the weights of the copies of stage 0 (a checksum of their bits)"
        )


def test_accumulation_order_of_pairs() -> None:
    """The backward of an FB adds its gradients where the FB stands."""
    assert accumulation_orders(pair_plan()) == {stage: (0, 1, 2) for stage in range(4)}


def test_sums_of_flows() -> None:
    """What several flows give is added up by parameter; nothing counts as nothing."""
    one, two = torch.ones(2), torch.full((2,), 2.0)
    total = added([{0: {"a": one, "b": None, "c": one}}, {0: {"a": two, "b": two, "c": None}}])
    assert torch.equal(total[0]["a"], one + two)  # type: ignore[arg-type]
    assert total[0]["b"] is two and total[0]["c"] is one
    assert added([{0: {"a": None}}, {0: {"a": None}}]) == {0: {"a": None}}


def test_missing_loss_of_any_flow() -> None:
    """The rank on which the second flow ends needs the loss function as well."""
    from cpipe.runtime.startup import local_faults

    plan = flow_plan()
    modules = {stage: make_stage(MODEL, stage % 2, 2) for stage in (0, 3)}
    assert [fault.code for fault in local_faults(plan, 0, modules, has_loss=False)] == ["missing-loss"]
    assert local_faults(plan, 0, modules, has_loss=True) == ()
    assert replace(plan.problem, flows=1).is_last(3) and not replace(plan.problem, flows=1).is_last(1)


def test_torch_takes_fused_pairs() -> None:
    """Torch adds its messages to a table with OVERLAP_F_B cells; what comes back is the same order, and can run."""
    plan = pair_plan()
    table = torch_messages(torch_csv(plan), 3)
    assert "(0F2;3B0)OVERLAP_F_B" in table
    again = plan_of_table(read_torch_csv(table.encode(), "t.csv"), case(3, (0, 1, 1, 0), full=2), plan.made_by)
    assert lift(again)[0] == lift(plan)[0]
    assert validate(again) == ()
