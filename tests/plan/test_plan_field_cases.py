"""Field cases: what broke for users of pipeline runtimes, as plans and the right answers.

Hangs and swaps (A1, A3, A5, A14, A16) are in `test_deadlock`; reductions before their gradients (E3) and receive
buffers in the peak (B10) in `test_validate_claims`.
"""

from __future__ import annotations

import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import edit_op
from sample_plans import make_problem, one_f_one_b

from cpipe.ir import Plan, Schedule
from cpipe.plan import decode_plan, encode_plan, validate


def messages(plan: Plan) -> int:
    """Return the number of messages of a plan."""
    return sum(step.op == "SEND" for program in plan.ranks for step in program.ops)


@pytest.mark.parametrize(("placement", "expected"), [((0, 1, 1, 0), 16), ((0, 1, 0, 1), 24)])
def test_wave_hands_over_locally(placement: tuple[int, ...], expected: int) -> None:
    """A10: stages on one rank hand over without a message: a wave of 4 stages sends 16, a loop 24, none to itself."""
    problem = make_problem(2, 4, placement=placement)
    first = "0F{0} 3F{0} 3B{0} 0B{0}" if placement[3] == 0 else "0F{0} 2F{0} 2B{0} 0B{0}"
    second = "1F{0} 2F{0} 2B{0} 1B{0}" if placement[3] == 0 else "1F{0} 3F{0} 3B{0} 1B{0}"
    text = "\n".join(" ".join(line.format(mb) for mb in range(4)) for line in (first, second))
    plan = plan_of(problem, Schedule.from_text(text, 4))
    assert_plan_ok(plan, problem)
    assert messages(plan) == expected
    assert all(channel.source != channel.target for channel in plan.channels)


def test_one_rank_sends_nothing() -> None:
    """A9: on one rank there is no channel and no message."""
    problem = make_problem(1, 4)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    assert messages(plan) == len(plan.channels) == 0


@pytest.mark.parametrize(("num_ranks", "microbatches"), [(4, 2), (8, 1), (4, 3)])
def test_fewer_microbatches_than_ranks(num_ranks: int, microbatches: int) -> None:
    """A6: fewer microbatches than stages are legal."""
    problem = make_problem(num_ranks, microbatches)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)


def test_first_stage_sends_no_gradient() -> None:
    """C6: D of the first stage takes no time and sends nothing."""
    problem = make_problem(2, 2)
    first = replace(problem.stages[0], input_grad_ns=0, weight_grad_ns=problem.stages[0].full_backward_ns)
    problem = replace(problem, stages=(first, problem.stages[1]))
    plan = plan_of(problem, one_f_one_b(problem, split=True))
    assert_plan_ok(plan, problem)
    assert {channel.carries for channel in plan.channels if channel.source == 0} == {"activation"}


def test_every_rank_makes_the_same_communicators() -> None:
    """D6: the communicators are one sorted list for all ranks, made before the first step."""
    problem = make_problem(3, 2, placement=(2, 0, 1))
    plan = plan_of(problem, Schedule.from_text("1F0 1B0 1F1 1B1\n2F0 2B0 2F1 2B1\n0F0 0B0 0F1 0B1\n", 2))
    assert_plan_ok(plan, problem)
    table = [(channel.source, channel.target) for channel in plan.channels]
    assert table == sorted(table) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    used = {step.channel for program in plan.ranks for step in program.ops if step.channel is not None}
    assert used == set(range(len(table)))


def test_many_microbatches_make_no_large_group() -> None:
    """D7: 512 microbatches make no group of many operations: every message is posted alone, windows stay small."""
    problem = make_problem(2, 512)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    assert plan.groups == ()
    assert max(channel.window for channel in plan.channels) <= 2
    assert messages(plan) == 1024


def test_mixed_backwards_survive_a_round_trip() -> None:
    """A12: ranks with D and W beside ranks with B are written and read, with any white space."""
    problem = make_problem(2, 2)
    plan = plan_of(problem, Schedule.from_text("0F0 0F1 0B0 0D1 0W1\n1F0 1D0 1F1 1B1 1W0\n", 2))
    assert_plan_ok(plan, problem)
    spaced = encode_plan(plan).replace(b",", b"\n\t , ").replace(b":", b" : ").replace(b"sha256 : ", b"sha256:")
    assert encode_plan(decode_plan(spaced, "plan.json")) == encode_plan(plan)


def test_sizes_agree_at_both_ends() -> None:
    """D11: one size a channel, the problem's: a plan for other sizes is refused."""
    problem = make_problem(2, 2)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    hop = problem.forward_hops[0]
    assert hop is not None
    larger = replace(problem, forward_hops=(replace(hop, message_bytes=101),))
    assert "message-bytes" in {fault.code for fault in validate(plan, larger)}


def test_times_are_whole_numbers() -> None:
    """F7, F17: every time of a plan is an integer and none is null or negative."""
    problem = make_problem(2, 2)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    assert b"." not in encode_plan(plan).partition(b'"ranks"')[2]
    assert b"null" not in encode_plan(plan)
    negative = signed(edit_op(plan, 0, 0, start_ns=-1))
    assert "time-range" in {fault.code for fault in validate(negative)}
