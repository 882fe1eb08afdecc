"""Tests of cpipe.plan.lift.late_sends: messages that are not sent as soon as they are made."""

from __future__ import annotations

from random import Random

import pytest
from hand_plans import hand_plan, link
from helpers import assert_plan_ok, plan_of, signed
from plan_edits import insert_op, remove_op
from random_plans import draw_problem, draw_schedule

from cpipe.compiler import simulate_plan
from cpipe.ir import Plan
from cpipe.plan import late_sends, validate
from cpipe.plan.exchange import with_times


def delayed(plan: Plan, draw: Random) -> Plan:
    """Return the plan with one SEND moved behind ops that follow it, never behind another message or a collective."""
    places = [
        (place, index)
        for place, program in enumerate(plan.ranks)
        for index, step in enumerate(program.ops)
        if step.op == "SEND"
    ]
    if not places:
        return plan
    place, index = draw.choice(places)
    ops = plan.ranks[place].ops
    last = index
    while ops[last + 1].op in ("F", "D", "W", "B") and last < index + 3:
        last += 1
    return insert_op(remove_op(plan, place, index), place, last, ops[index])


def test_late_sends_are_gated_by_the_op_before_them() -> None:
    """Only a SEND behind another op than its own is late; it waits for the last op before it."""
    plan = hand_plan(
        [0, 1],
        2,
        [
            "F0.0 F0.1 S0.0@0 S0.1@0 R0.0@1 R0.1@1 ?0.0@1 B0.0 ?0.1@1 B0.1",
            "R1.0@0 R1.1@0 ?1.0@0 F1.0 ?1.1@0 F1.1 B1.0 S1.0@1 D1.1 W1.1 S1.1@1",
        ],
        [link(0, 1, "activation", 2), link(1, 0, "gradient", 2)],
    )
    f01, f10, d01, w11 = 4, 8, 5, 14
    assert late_sends(plan) == {f10: f01, d01: w11}


@pytest.mark.parametrize("seed", range(60))
def test_late_sends_are_timed_as_the_validator_replays_them(seed: int) -> None:
    """The simulator and the validator's replay agree on plans whose messages are sent late."""
    draw = Random(seed)
    problem = draw_problem(draw, windows=False)
    plan = plan_of(problem, draw_schedule(draw, problem))
    assert_plan_ok(plan, problem)
    for _ in range(4):
        plan = delayed(plan, draw)
    if {fault.code for fault in validate(plan)} & {"deadlock", "swapped"}:
        return  # a message that waits too long
    timed = signed(with_times(plan, simulate_plan(plan, problem)))
    assert {fault.code for fault in validate(timed, problem)} <= {"window", "wrong-peak"}


def test_some_plan_has_late_sends() -> None:
    """The plans of the test above do have late messages."""
    draw = Random(0)
    found = 0
    for _ in range(20):
        problem = draw_problem(draw, windows=False)
        found += bool(late_sends(delayed(plan_of(problem, draw_schedule(draw, problem)), draw)))
    assert found >= 3
