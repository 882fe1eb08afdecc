"""Tests of plans with stages that recompute: what they say of it, and every change of that caught."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import jsonschema
import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from oracle.cases import case
from plan_edits import edit_op, edit_problem
from random_plans import draw_problem, draw_schedule

from cpipe.ir import Device, InvariantError, OpKind, Plan, Problem, Schedule, Stage, encode_op
from cpipe.plan import decode_plan, encode_plan, lift, plan_schema, posting_gates, problem_digest, validate
from cpipe.plan.exchange import LAYOUTS, plan_of_table, read_torch_csv, torch_csv, with_times
from cpipe.profile import RecomputeSpec
from cpipe.profile.recompute import recomputing
from cpipe.schedules import static_schedule
from cpipe.sim import memory_peaks, simulate
from cpipe.units import Bytes, Ns

MS = 1_000_000


def drawn(seed: int) -> Problem:
    """Return a drawn problem, some of whose stages recompute."""
    draw = Random(seed)
    problem = draw_problem(draw, windows=False)
    stages = []
    for stage in problem.stages:
        kept = draw.randint(0, stage.activation_bytes)
        spec = RecomputeSpec(activation_bytes=kept, extra_ms=draw.randint(0, 3) * 1e-6)
        stages.append(recomputing(stage, spec) if draw.random() < 0.6 else stage)
    return replace(problem, stages=tuple(stages))


@cache
def made() -> tuple[Problem, Plan]:
    """Return a problem in which stages 0 and 2 of 3 recompute, and a plan for it, checked."""
    problem = case(4, (0, 1, 2), forward=MS, input_grad=MS, weight_grad=MS, activation=9, held=3, message=1)
    stages = [*problem.stages]
    for index in (0, 2):
        stages[index] = recomputing(stages[index], RecomputeSpec(activation_bytes=2, extra_ms=1))
    problem = replace(problem, stages=tuple(stages))
    plan = plan_of(problem, static_schedule("1f1b", problem))
    assert_plan_ok(plan, problem)
    return problem, plan


def codes(plan: Plan, problem: Problem | None) -> set[str]:
    """Return the codes of a plan's faults once it is signed again."""
    return {fault.code for fault in validate(signed(plan), problem)}


@pytest.mark.parametrize("seed", range(60))
def test_random_plans_are_valid(seed: int) -> None:
    """Simulator and validator agree on times and memory of any order, whichever stages recompute."""
    problem = drawn(seed)
    free = replace(problem, devices=tuple(replace(device, capacity_bytes=None) for device in problem.devices))
    plan = plan_of(free, draw_schedule(Random(seed), free))
    assert_plan_ok(plan, free)
    assert plan.problem.recompute == free.recompute


def test_plan_says_which() -> None:
    """The plan lists the stages, in order, and its text comes back; the schema knows the list."""
    problem, plan = made()
    assert plan.problem.recompute == problem.recompute == (0, 2)
    text = encode_plan(plan)
    assert decode_plan(text, "plan.json") == plan
    assert b'"placement": [0, 1, 2], "recompute": [0, 2]}' in text
    jsonschema.validate(json.loads(text), plan_schema())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_table_for_a_job_that_recomputes(layout: str) -> None:
    """A table cannot say which stages recompute, but a plan that is made of it for such a problem does."""
    problem, plan = made()
    table = read_torch_csv(torch_csv(plan, layout=layout).encode(), "t.csv")
    again = plan_of_table(table, problem, plan.made_by)
    assert again.problem == plan.problem
    timed = with_times(again, simulate(problem, lift(again)[0], posting_gates(again)))
    assert {fault.code for fault in validate(timed, problem)} <= {"wrong-peak"}, "peaks are not stated yet"


def test_plan_without_any() -> None:
    """Where no stage recomputes the plan says nothing of it."""
    problem, _ = made()
    plain = replace(
        problem,
        stages=tuple(replace(stage, recomputes=False, recompute_ns=Ns(0)) for stage in problem.stages),
    )
    plan = plan_of(plain, static_schedule("1f1b", plain))
    assert b"recompute" not in encode_plan(plan)
    assert plan.problem.digest != made()[1].problem.digest


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ((0,), {"other-problem"}),
        ((), {"other-problem"}),
        ((0, 1, 2), {"other-problem"}),
        ((2, 0), {"other-problem", "recompute"}),
        ((0, 0, 2), {"other-problem", "recompute"}),
        ((0, 3), {"other-problem", "recompute"}),
        ((-1, 0), {"other-problem", "recompute"}),
    ],
)
def test_other_stages(stages: tuple[int, ...], expected: set[str]) -> None:
    """Another list is found against the problem; one that is no list of stages is found without it too."""
    problem, plan = made()
    changed = edit_problem(plan, recompute=stages)
    assert codes(changed, problem) == expected
    assert codes(changed, None) == expected - {"other-problem"}


def test_message_of_a_wrong_list() -> None:
    """The fault names the field, the rule and the value."""
    faults = validate(signed(edit_problem(made()[1], recompute=(2, 0))))
    assert [str(fault) for fault in faults] == [
        "error: $.problem.recompute: expected different stages of 0..2 in order, got [2, 0] [recompute]"
    ]


def test_plan_against_the_job_without() -> None:
    """On the problem in which nothing recomputes, times, peaks, digest and list of the plan are all wrong."""
    problem, plan = made()
    stages = [
        replace(stage, recomputes=False, recompute_ns=Ns(0), full_backward_transient_bytes=None)
        for stage in problem.stages
    ]
    for index in (0, 2):
        stages[index] = replace(
            stages[index],
            activation_bytes=Bytes(9),
            full_backward_ns=Ns(stages[index].full_backward_ns - 1_000_000),
        )
    found = codes(plan, replace(problem, stages=tuple(stages)))
    assert found >= {"other-problem", "problem-digest", "wrong-peak"}
    assert found & {"duration", "wrong-time", "wrong-start", "wrong-makespan", "wrong-duration", "times"}


def test_time_of_a_recomputing_backward() -> None:
    """A backward without the time of its recomputation is found."""
    problem, plan = made()
    place, index, step = next(
        (place, index, step)
        for place, program in enumerate(plan.ranks)
        for index, step in enumerate(program.ops)
        if step.op == "B" and step.stage == 0 and step.end_ns is not None
    )
    assert step.end_ns is not None
    assert codes(edit_op(plan, place, index, end_ns=step.end_ns - 1_000_000), problem)


def test_memory_of_a_full_backward() -> None:
    """While B recomputes the whole activation is there, beside what the others keep."""
    costs = recomputing(
        Stage(
            name="s",
            device=0,
            forward_ns=Ns(1),
            input_grad_ns=Ns(1),
            weight_grad_ns=Ns(1),
            full_backward_ns=Ns(2),
            activation_bytes=Bytes(10),
            held_bytes=Bytes(12),
            input_grad_transient_bytes=Bytes(3),
            weight_grad_transient_bytes=Bytes(4),
        ),
        RecomputeSpec(activation_bytes=2, extra_ms=0),
    )
    problem = Problem(microbatches=2, devices=(Device(name="g"),), stages=(costs,))
    peaks = {}
    for text in ("0F0 0F1 0B0 0B1", "0F0 0F1 0D0 0W0 0D1 0W1", "0F0 0B0 0F1 0B1"):
        schedule = Schedule.from_text(text, 2)
        (peaks[text],) = memory_peaks(problem, schedule.orders)
        assert_plan_ok(plan_of(problem, schedule), problem)
    assert list(peaks.values()) == [2 + 10 + 4, 2 + 12 + 4, 10 + 4]


def test_pair_with_a_recomputing_backward() -> None:
    """A fused pair takes its measured time and that of the recomputation, in the simulator and the validator."""
    problem, _ = made()
    first = replace(problem.stages[0], forward_backward_ns=Ns(problem.stages[0].full_backward_ns))
    problem = replace(problem, stages=(first, *problem.stages[1:]))
    assert problem.pair_ns(0, 0) == first.full_backward_ns + 1_000_000
    other = replace(first, recomputes=False, recompute_ns=Ns(0))
    assert replace(problem, stages=(other, *problem.stages[1:])).pair_ns(0, 0) == first.full_backward_ns
    schedule = static_schedule("1f1b", problem)
    n = problem.microbatches
    orders = [list(order) for order in schedule.orders]
    forward, backward = encode_op(OpKind.F, 0, n - 1, n), encode_op(OpKind.B, 0, n - 3, n)
    place = orders[0].index(forward)
    orders[0] = [op for op in orders[0] if op not in (forward, backward)]
    orders[0][min(place, len(orders[0])) : min(place, len(orders[0]))] = [forward, backward]
    paired = Schedule(orders=tuple(map(tuple, orders)), pairs=((forward, backward),))
    paired.verify(problem)
    plan = plan_of(problem, paired)
    assert_plan_ok(plan, problem)
    timeline = simulate(problem, paired)
    at = paired.orders[0].index(forward)
    assert timeline.ends[0][at] - timeline.starts[0][at] == problem.pair_ns(0, 0)


def test_digest_knows_the_choice() -> None:
    """The digest of a problem whose stage recomputes at no cost and keeps everything differs all the same."""
    problem = drawn(3)
    free = replace(problem, stages=tuple(replace(stage, recomputes=False) for stage in problem.stages))
    one = replace(free, stages=(replace(free.stages[0], recomputes=True), *free.stages[1:]))
    assert problem_digest(one) != problem_digest(free)


def test_negative_cost() -> None:
    """Times and sizes of the recomputation are not negative."""
    problem, _ = made()
    for field in ("recompute_ns", "full_backward_transient_bytes"):
        changes: dict[str, Any] = {field: -1}
        broken = replace(problem, stages=(replace(problem.stages[0], **changes), *problem.stages[1:]))
        with pytest.raises(InvariantError, match=rf"stages\[0\]\.{field} is negative"):
            broken.verify()
