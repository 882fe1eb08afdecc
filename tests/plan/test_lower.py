"""Tests of cpipe.plan.lower: the program of every rank, and that replaying it changes nothing."""

from __future__ import annotations

from random import Random

import pytest
from helpers import assert_plan_ok, plan_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from random_plans import draw_problem, draw_schedule
from sample_plans import MS, make_problem, one_f_one_b
from strategies import problems

from cpipe.ir import Collectives, Plan, Problem, Schedule
from cpipe.plan import lift, validate
from cpipe.sim import DeadlockError, simulate


def words(plan: Plan, rank: int) -> str:
    """Return a program in short: ``F0.1`` is F of stage 0 for microbatch 1, ``RECV0.1`` and so on."""
    steps = []
    for step in plan.ranks[rank].ops:
        place = "" if step.stage is None else f"{step.stage}" + ("" if step.mb is None else f".{step.mb}")
        steps.append(f"{step.op}{place}")
    return " ".join(steps)


def windows(plan: Plan) -> list[int]:
    """Return the window of every channel."""
    return [channel.window for channel in plan.channels]


def test_program_of_two_ranks() -> None:
    """WAIT stands directly before the op that reads, SEND directly after the op that makes, STEP at the end."""
    problem = make_problem(2, 2, latency_ms=1)
    plan = plan_of(problem, one_f_one_b(problem, split=True))
    assert_plan_ok(plan, problem)
    assert words(plan, 0) == ("F0.0 SEND0.0 F0.1 SEND0.1 RECV0.0 WAIT0.0 D0.0 W0.0 RECV0.1 WAIT0.1 D0.1 W0.1 STEP")
    assert words(plan, 1) == ("RECV1.0 RECV1.1 WAIT1.0 F1.0 D1.0 SEND1.0 W1.0 WAIT1.1 F1.1 D1.1 SEND1.1 W1.1 STEP")


def test_channels_are_one_per_pair_and_kind() -> None:
    """Every (source, target, kind) in use is one channel; ids count up in that order."""
    problem = make_problem(2, 2, placement=(0, 1, 0, 1))
    plan = plan_of(problem, draw_schedule(Random(0), problem))
    assert_plan_ok(plan, problem)
    ends = [(channel.source, channel.target, channel.carries) for channel in plan.channels]
    assert ends == [(0, 1, "activation"), (0, 1, "gradient"), (1, 0, "activation"), (1, 0, "gradient")]
    assert [channel.id for channel in plan.channels] == [0, 1, 2, 3]


def test_message_bytes_are_those_of_the_largest_message() -> None:
    """A channel that carries messages of several sizes states the largest."""
    problem = make_problem(2, 1, placement=(0, 1, 0, 1))
    hops = [replace(hop, message_bytes=size) for hop, size in zip(problem.forward_hops, (5, 6, 7), strict=True) if hop]
    problem = replace(problem, forward_hops=tuple(hops))
    plan = plan_of(problem, draw_schedule(Random(0), problem))
    assert_plan_ok(plan, problem)
    assert [channel.message_bytes for channel in plan.channels] == [7, 100, 6, 100]


def test_stages_of_one_rank_exchange_no_message() -> None:
    """A hop inside a device gives no channel and no SEND."""
    problem = make_problem(1, 2, placement=(0, 0, 0))
    plan = plan_of(problem, draw_schedule(Random(1), problem))
    assert_plan_ok(plan, problem)
    assert plan.channels == ()
    assert {step.op for step in plan.ranks[0].ops} <= {"F", "D", "W", "B", "STEP"}


def test_rank_without_stages_only_steps() -> None:
    """A device that holds no stage has a program of STEP alone, and no group."""
    problem = replace(make_problem(3, 1, placement=(0, 2)), collectives=Collectives(mode="ddp", replicas=2))
    plan = plan_of(problem, Schedule(orders=((0, 3), (), (4, 7))))
    assert_plan_ok(plan, problem)
    assert words(plan, 1) == "STEP"
    assert [group.stages for group in plan.groups] == [(0,), (1,)]


def test_receives_go_out_one_latency_early() -> None:
    """With `lead` the receiver's ready note, which takes one latency too, is there when the message leaves."""
    problem = make_problem(2, 6, latency_ms=2)
    schedule = one_f_one_b(problem)
    early, late = plan_of(problem, schedule), plan_of(problem, schedule, lead=False)
    for plan, lead in ((early, 2 * MS), (late, 0)):
        assert_plan_ok(plan, problem)
        _, gates = lift(plan)
        timeline = simulate(problem, schedule)
        end = {op: at for order, ends in zip(schedule.orders, timeline.ends, strict=True)
               for op, at in zip(order, ends, strict=True)}  # fmt: skip
        for run in timeline.messages:
            forward = run.kind == "activation"
            slot = ((run.stage + (1 if forward else -1)) * 6 + run.microbatch) * 4 + (0 if forward else 1)
            assert end.get(gates.get(slot, -1), 0) <= max(0, run.start_ns - lead)
    assert (windows(early), windows(late)) == ([2, 2], [2, 1])


def test_windows_are_counted_over_the_program() -> None:
    """The window is the most receives posted and not yet read; its bytes are part of the receiver's peak."""
    problem = make_problem(2, 4, latency_ms=1)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    assert windows(plan) == [2, 1]
    assert plan.claims.peak_bytes == (5000 + 2 * 1000 + 100, 5000 + 1000 + 2 * 100)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_receive_window_is_kept(window: int) -> None:
    """A cap on posted receives is kept by every channel, and the plan still takes the simulated time."""
    problem = replace(make_problem(3, 6, latency_ms=2), receive_window=window)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    assert max(windows(plan)) <= window
    assert plan.problem.digest == plan_of(make_problem(3, 6, latency_ms=2), one_f_one_b(problem)).problem.digest


def test_zero1_collectives_surround_the_program() -> None:
    """All-gathers open the program in the order of first use; reductions follow the last W or B; their WAITs end it."""
    base = make_problem(1, 2, placement=(0, 0))
    problem = replace(base, collectives=Collectives(mode="zero1", replicas=2))
    plan = plan_of(problem, Schedule.from_text("0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1\n", 2))
    assert_plan_ok(plan, problem)
    assert words(plan, 0) == (
        "ALL_GATHER0 ALL_GATHER1 WAIT0 F0.0 WAIT1 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 REDUCE_SCATTER1 B0.1 REDUCE_SCATTER0 "
        "WAIT1 WAIT0 STEP"
    )
    assert plan.groups[0].stages == (0, 1)


def test_ddp_reduces_only() -> None:
    """Under DDP a stage has one all-reduce, after its message has been sent."""
    problem = replace(make_problem(2, 1), collectives=Collectives(mode="ddp", replicas=2))
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    assert words(plan, 1) == "RECV1.0 WAIT1.0 F1.0 B1.0 SEND1.0 ALL_REDUCE1 WAIT1 STEP"


def replays(problem: Problem, schedule: Schedule) -> bool:
    """Check the plans of a schedule, and that the lifted programs give the whole timeline again."""
    try:
        timeline = simulate(problem, schedule)
    except DeadlockError:  # a receive window can make an order impossible
        return False
    for lead in (True, False):
        plan = plan_of(problem, schedule, lead=lead)
        assert_plan_ok(plan, problem)
        assert validate(plan) == ()
        lifted, gates = lift(plan)
        assert lifted == schedule
        assert simulate(problem, lifted, gates) == timeline
    return True


@pytest.mark.parametrize("seed", range(150))
def test_random_plans_replay(seed: int) -> None:
    """Where the receives are posted never changes a time: shared pipes, zero durations, collectives, windows."""
    draw = Random(seed)
    problem = draw_problem(draw)
    schedule = draw_schedule(draw, problem)
    schedule.verify(problem)
    assert replays(problem, schedule) or problem.receive_window is not None


@settings(max_examples=40, deadline=None)
@given(problems(receive_window=True), st.integers(0, 1_000_000))
def test_profiles_lower_and_replay(problem: Problem, seed: int) -> None:
    """The plans of problems that come from profiles replay to the same times."""
    free = [replace(device, capacity_bytes=None) for device in problem.devices]
    stages = [replace(stage, can_split=True) for stage in problem.stages]
    problem = replace(problem, devices=tuple(free), stages=tuple(stages))
    assert replays(problem, draw_schedule(Random(seed), problem)) or problem.receive_window is not None
