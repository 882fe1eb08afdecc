"""Tests of searches and bounds on pipelines in both directions: no wrong bound, and a clear no where there is none."""

from __future__ import annotations

from itertools import permutations, product
from random import Random

import pytest
from flow_problems import draw_flows, flow_document, flow_problem, flow_profile
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from oracle.orders import random_schedule
from oracle.paired import draw_paired, naive_makespan, pairings

from cpipe.compiler import PLACEMENTS, SolveOptions, compile_profile
from cpipe.errors import UsageError
from cpipe.ir import OpKind, Problem, Schedule, decode_op, encode_op
from cpipe.sim import simulate
from cpipe.sim.memory import fits
from cpipe.solve import SolveLimits, solve
from cpipe.solve.bounds import lower_bound, span_bound
from cpipe.solve.serial import serial_schedule
from cpipe.units import Bytes, Ns


def every_order(problem: Problem) -> list[Schedule]:
    """Return every schedule of one microbatch a flow, pairs included."""
    choices = []
    for device in range(problem.num_devices):
        mine = problem.stages_of(device)
        ways: list[tuple[int, ...]] = []
        for kinds in product(*(("B", "DW") if problem.stages[stage].can_split else ("B",) for stage in mine)):
            ops = [
                encode_op(OpKind[kind], stage, 0, 1)
                for stage, backward in zip(mine, kinds, strict=True)
                for kind in ("F", *backward)
            ]
            ways += [order for order in permutations(ops) if _in_stage_order(order)]
        choices.append(ways)
    return [
        paired
        for orders in product(*choices)
        for paired in pairings(problem, Schedule(orders=tuple(map(tuple, orders))))
    ]


def _in_stage_order(order: tuple[int, ...]) -> bool:
    rank = {OpKind.F: 0, OpKind.D: 1, OpKind.B: 1, OpKind.W: 2}
    decoded = [decode_op(op, 1) for op in order]
    return all(
        rank[a.kind] < rank[b.kind] for i, a in enumerate(decoded) for b in decoded[i + 1 :] if a.stage == b.stage
    )


@pytest.mark.parametrize("seed", range(25))
def test_bound_and_best_of_all_orders(seed: int) -> None:
    """On two devices, of all orders with all pairs none beats the bounds; the search finds the best unpaired one."""
    draw = Random(50 + seed)
    while len((problem := draw_flows(draw, splits=False)).devices) != 2:
        pass
    problem = replace(problem, microbatches=1)
    times = {order: naive_makespan(problem, order) for order in every_order(problem)}
    best = min(time for time in times.values() if time is not None)
    assert lower_bound(problem).value_ns <= best
    result = solve(problem, "greedy")
    assert result.bound.value_ns <= best <= result.makespan_ns
    if seed < 8:
        result = solve(problem)
        assert result.makespan_ns == min(time for order, time in times.items() if time is not None and not order.pairs)


@pytest.mark.parametrize("seed", range(6))
def test_bound_with_split_backwards(seed: int) -> None:
    """With D and W apart, too, no order of all that there are beats the bounds."""
    draw = Random(150 + seed)
    while len((problem := draw_flows(draw)).devices) != 2:
        pass
    problem = replace(problem, microbatches=1)
    times = [naive_makespan(problem, order) for order in every_order(problem)]
    assert lower_bound(problem).value_ns <= min(time for time in times if time is not None)


@pytest.mark.parametrize("seed", range(40))
def test_bounds_hold_for_random_flows(seed: int) -> None:
    """No random order, with random pairs, beats the bounds on makespan and span."""
    draw = Random(seed)
    problem = draw_flows(draw, shared=seed % 3 == 0)
    for _ in range(8):
        timeline = simulate(problem, draw_paired(draw, problem, random_schedule(problem, draw)))
        assert timeline.makespan_ns >= lower_bound(problem).value_ns
        assert timeline.span_ns >= span_bound(problem).value_ns


def test_serial_order_holds_one_flow_at_a_time() -> None:
    """The order of last resort finishes a microbatch of one flow before it starts one of the other: least memory."""
    problem = flow_problem(flow_document(2, 4, activation_bytes=10, static_bytes=3))
    problem = replace(problem, devices=tuple(replace(device, capacity_bytes=Bytes(16)) for device in problem.devices))
    order = serial_schedule(problem)
    order.verify(problem)
    assert fits(problem, order.orders)
    assert_plan_ok(plan_of(problem, order), problem)
    assert solve(problem).makespan_ns <= simulate(problem, order).makespan_ns


@pytest.mark.parametrize("method", ["auto", "greedy", "greedy-crosspipe", "chimera"])
def test_methods_on_two_flows(method: str) -> None:
    """Every searching method gives a valid plan of both flows, no longer than two pipelines one after the other."""
    compiled = compile_profile(
        flow_profile(flow_document(4, 8, latency_ms=0.25, output_bytes=4, gradient_bytes=1000)),
        SolveOptions(method=method, placement="bidirectional"),
    )
    assert_plan_ok(compiled.plan, compiled.problem)
    assert (compiled.placement, compiled.plan.problem.flows) == ("bidirectional", 2)
    assert compiled.result.makespan_ns < 2 * 8 * 2_000_000


def test_search_beats_one_direction() -> None:
    """With free links and F = B two flows fill the bubble of 1F1B: at most 2n + p - 2 against 2(n + p - 1)."""
    profile = flow_profile(flow_document(4, 4))
    both = compile_profile(profile, SolveOptions(placement="bidirectional"))
    one = compile_profile(profile, SolveOptions(method="1f1b"))
    assert both.result.makespan_ns <= 10_000_000 < one.result.makespan_ns == 14_000_000
    assert both.result.bound.value_ns <= both.result.makespan_ns


@pytest.mark.parametrize(("method", "name"), [("milp", "the MILP"), ("cpsat", "CP-SAT")])
def test_exact_methods_say_no(method: str, name: str) -> None:
    """Asked for a model that leaves out two flows or short pairs, cpipe says so: it would prove what is wrong."""
    with pytest.raises(UsageError, match=rf"{name} has no model of bidirectional pipelines \[no-exact-model\]"):
        solve(flow_problem(flow_document(2, 2)), method)
    profile = flow_profile(flow_document(2, 2, forward_backward_ms=1.5))
    with pytest.raises(UsageError, match=rf"{name} has no model of fused pairs that are shorter than their parts"):
        compile_profile(profile, SolveOptions(method=method))
    same = flow_profile(flow_document(2, 2, forward_backward_ms=2))
    assert compile_profile(same, SolveOptions(method="milp")).result.status == "optimal"


def test_auto_goes_without_exact_methods() -> None:
    """On two flows `auto` searches as far as heuristics go, and its bound is a closed form."""
    problem = flow_problem(flow_document(2, 4, latency_ms=1))
    result = solve(problem, "auto", SolveLimits(max_gap=0.5))
    assert result.bound.proved_by == "bound"
    assert result.bound.value_ns <= result.makespan_ns


@pytest.mark.parametrize(
    ("devices", "stages", "message"), [(3, 3, "got 3 stages on 3 devices"), (2, 4, "got 4 stages on 2 devices")]
)
def test_placement_bidirectional_needs(devices: int, stages: int, message: str) -> None:
    """Two flows stand on an even number of devices with one stage each."""
    document = flow_document(devices, 4)
    document["stages"] = [document["stages"][k % devices] | {"id": f"s{k}"} for k in range(stages)]
    with pytest.raises(UsageError, match=message + r" \[placement-does-not-apply\]"):
        compile_profile(flow_profile(document), SolveOptions(placement="bidirectional"))
    assert "bidirectional" in PLACEMENTS


def test_schedule_of_two_flows_implies_the_placement() -> None:
    """Chimera asked for alone is bidirectional; on one flow it is refused, as one-flow schedules are on two."""
    profile = flow_profile(flow_document(2, 4))
    compiled = compile_profile(profile, SolveOptions(method="chimera"))
    assert compiled.placement == "bidirectional"
    assert_plan_ok(compiled.plan, compiled.problem)
    with pytest.raises(UsageError, match=r"\[schedule-does-not-apply\]"):
        compile_profile(profile, SolveOptions(method="chimera", placement="ud"))
    with pytest.raises(UsageError, match=r"\[schedule-does-not-apply\]"):
        compile_profile(profile, SolveOptions(method="1f1b", placement="bidirectional"))


def test_auto_placement_keeps_one_copy() -> None:
    """`auto` compares placements of one copy of the weights: a second copy is the user's choice."""
    compiled = compile_profile(flow_profile(flow_document(2, 4)), SolveOptions(placement="auto", method="greedy"))
    assert compiled.plan.problem.flows == 1


def test_pair_saving_of_a_device() -> None:
    """What a pair can save is the best over the stages beside it, none when it is longer than its parts."""
    problem = flow_problem(flow_document(2, 2))
    stages = [replace(stage, forward_backward_ns=Ns(1_200_000)) for stage in problem.stages]
    assert replace(problem, stages=tuple(stages)).pair_saving_ns(0) == 800_000
    assert problem.pair_saving_ns(0) == 0
    longer = [replace(stage, forward_backward_ns=Ns(3_000_000)) for stage in problem.stages]
    assert replace(problem, stages=tuple(longer)).pair_saving_ns(0) == 0
    assert not replace(problem, stages=tuple(longer)).pairs_save_time
