"""Tests of cpipe.plan.lift: orders and receive gates of a plan."""

from __future__ import annotations

import pytest
from hand_plans import hand_plan, link
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from sample_plans import MS, make_problem, one_f_one_b

from cpipe.ir import Instruction, InvariantError
from cpipe.plan import lift
from cpipe.sim import simulate


def test_lift_is_the_inverse_of_lower() -> None:
    """Lifting a plan gives the orders that it was made from."""
    problem = make_problem(3, 4, latency_ms=1)
    schedule = one_f_one_b(problem, split=True)
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    assert lift(plan)[0] == schedule


def test_gates_are_the_ops_before_the_receives() -> None:
    """A receive waits for the op before it; one at the start of the program has no gate."""
    plan = hand_plan(
        [0, 1],
        2,
        ["F0.0 S0.0@0 F0.1 S0.1@0 R0.0@1 ?0.0@1 B0.0 R0.1@1 ?0.1@1 B0.1",
         "R1.0@0 ?1.0@0 F1.0 R1.1@0 B1.0 S1.0@1 ?1.1@0 F1.1 B1.1 S1.1@1"],
        [link(0, 1, "activation"), link(1, 0, "gradient")],
    )  # fmt: skip
    _, gates = lift(plan)
    f01, b00, f10 = 4, 3, 8
    d00, d01, f11 = 1, 5, 12
    assert gates == {d00: f01, d01: b00, f11: f10}


def test_gates_keep_late_receives_late_on_another_network() -> None:
    """A plan made for a fast network, replayed on a slow one, pays for its late receives."""
    fast, slow = make_problem(2, 3), make_problem(2, 3, latency_ms=4)
    plan = plan_of(fast, one_f_one_b(fast))
    assert_plan_ok(plan, fast)
    schedule, gates = lift(plan)
    second_forward = 2  # of rank 1: its message is ready at 4 ms, its receive posted when F0 and so 8 ms have passed
    assert simulate(slow, schedule, gates).starts[1][second_forward] == 12 * MS
    assert simulate(slow, schedule).starts[1][second_forward] == 11 * MS


def test_ranks_may_stand_in_any_order() -> None:
    """The orders come by rank, wherever a rank stands in the file."""
    plan = hand_plan([1, 0], 1, ["F1.0 B1.0", "F0.0 B0.0"])
    swapped = replace(plan, ranks=plan.ranks[::-1])
    assert lift(swapped) == lift(plan)


def test_lift_refuses_what_is_no_plan() -> None:
    """Missing ranks and ops without a stage are refused with their place."""
    plan = hand_plan([0], 1, ["F0.0"])
    with pytest.raises(InvariantError, match=r"ranks are not 0\.\.1"):
        lift(replace(plan, problem=replace(plan.problem, devices=2)))
    bare = replace(plan.ranks[0], ops=(Instruction(op="F", mb=0),))
    with pytest.raises(InvariantError, match=r"rank 0 ops\[0\]: F without stage or microbatch"):
        lift(replace(plan, ranks=(bare,)))
