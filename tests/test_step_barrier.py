"""What all devices do together at the end of a step: from `step_ms` to the makespan, the plan and its explanation."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest
from helpers import assert_plan_ok, plan_of, signed
from hypothesis import given, settings
from msgspec.structs import replace
from oracle.cases import case
from plan_edits import edit_op
from random_plans import draw_problem, draw_schedule
from strategies import problems

from cpipe.analysis import explain_plan, explain_stated
from cpipe.compiler import SolveOptions, compile_profile
from cpipe.errors import ProfileError
from cpipe.ir import Instruction, Plan, Problem, Timeline
from cpipe.ir.base import InvariantError
from cpipe.plan import problem_digest, validate
from cpipe.profile import Profile, encode_profile, normalize, parse_profile
from cpipe.sim import DeadlockError, Simulator, simulate
from cpipe.sim.critical import critical_path
from cpipe.sim.idle import idle_parts
from cpipe.sim.runs import Runs
from cpipe.solve import SolveLimits, lower_bound, solve
from cpipe.units import Ns

MS = 1_000_000


def line(p: int, n: int, step: int, **costs: Any) -> Problem:
    """Return p stages of unit times in line with a step behind them, room for p activations."""
    return replace(case(n, list(range(p)), message=0, **({"capacity": p} | costs)), step_ns=Ns(step))


def profile_of(**changes: Any) -> Profile:
    """Return two stages of 1 ms an op on two devices."""
    stage = {"forward_ms": 1, "input_grad_ms": 1, "weight_grad_ms": 1}
    document = {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": 2,
        "devices": [{"id": "g0"}, {"id": "g1"}],
        "stages": [{"id": f"s{index}", "device": f"g{index}", **stage} for index in range(2)],
    } | changes
    return parse_profile(json.dumps(document).encode(), "p.json")


def step_of(plan: Plan, rank: int) -> Instruction:
    """Return the last instruction of a rank."""
    return plan.ranks[rank].ops[-1]


def messages(plan: Plan, problem: Problem | None = None) -> list[str]:
    """Return what the validator says of a plan."""
    return [fault.message for fault in validate(signed(plan), problem)]


@pytest.mark.parametrize(
    ("reduce", "step", "optimum"), [([0, 0, 0], 0, 14), ([0, 0, 0], 2, 16), ([2, 2, 2], 2, 18), ([0, 0, 4], 3, 21)]
)
def test_it_comes_behind_the_last_device(reduce: list[int], step: int, optimum: int) -> None:
    """The makespan is the end of the last device and of its data-parallel work, and then the step."""
    problem = line(3, 4, step, reduce=reduce)
    for method in ("auto", "greedy", "milp", "cpsat"):
        result = solve(problem, method, SolveLimits(node_limit=50))
        assert (result.makespan_ns, result.status) == (optimum, "optimal"), method
        assert result.timeline.work_ends_ns == optimum - step
        assert_plan_ok(plan_of(problem, result.schedule), problem)


@settings(max_examples=30)
@given(problems(step=True, memory=False, max_stages=4, max_microbatches=3))
def test_any_job_pays_it_once(problem: Problem) -> None:
    """Whatever the job: the plan of a greedy order is valid, and no bound is above its makespan."""
    result = solve(problem, "greedy-crosspipe")
    assert result.makespan_ns == result.timeline.work_ends_ns + problem.step_ns
    assert lower_bound(problem).value_ns <= result.makespan_ns
    assert_plan_ok(plan_of(problem, result.schedule), problem)


@pytest.mark.parametrize("seed", range(8))
def test_every_order_pays_it_alike(seed: int) -> None:
    """A step moves every makespan and every bound by its length, and nothing else."""
    draw = Random(seed)
    bare = draw_problem(draw, windows=False)
    schedule, problem = draw_schedule(draw, bare), replace(bare, step_ns=Ns(7))
    before, after = simulate(bare, schedule), simulate(problem, schedule)
    assert after == replace(before, makespan_ns=before.makespan_ns + 7, step_ns=7)
    assert after.span_ns == before.span_ns
    assert Simulator(problem).makespan(schedule.orders) == after.makespan_ns
    assert lower_bound(problem).value_ns == lower_bound(bare).value_ns + 7
    assert_plan_ok(plan_of(problem, schedule), problem)


def test_a_search_finds_the_same_order() -> None:
    """Searches leave the step out: same order, work and proof, the makespan and the bound longer by it."""
    bare = line(3, 4, 0, reduce=[0, 2, 0], latency=1)
    said: list[str] = []
    without, result = solve(bare), solve(replace(bare, step_ns=Ns(5 * MS)), progress=said.append)
    assert result.schedule == without.schedule
    assert result.evaluations == without.evaluations
    assert result.makespan_ns == without.makespan_ns + 5 * MS
    assert result.bound == replace(without.bound, value_ns=without.bound.value_ns + 5 * MS)
    assert any(re.search(r": 5\.000 ms, bound 5\.000 ms", said_line) for said_line in said)


def test_a_gap_is_one_of_the_whole_step() -> None:
    """An order within the accepted share of the whole makespan ends the search, though it is not so of the work."""
    problem = line(4, 8, 0, latency=3)
    first = solve(problem, "1f1b")
    loose = solve(replace(problem, step_ns=Ns(100_000)), "greedy", SolveLimits(max_gap=0.01))
    assert first.gap > 0.01
    assert loose.gap <= 0.01
    assert loose.evaluations < solve(problem, "greedy", SolveLimits(max_gap=0.01)).evaluations


def test_a_span_does_not_contain_it() -> None:
    """With the span as objective the step changes neither the value nor the bound."""
    problem = line(3, 4, 9)
    limits = SolveLimits(objective="span", node_limit=0)
    result, bare = solve(problem, limits=limits), solve(replace(problem, step_ns=Ns(0)), limits=limits)
    assert (result.objective_ns, result.bound) == (bare.objective_ns, bare.bound)
    assert result.makespan_ns == bare.makespan_ns + 9
    compiled = compile_profile(profile_of(step_ms=3), SolveOptions(objective="span", method="greedy"))
    assert compiled.plan.claims.span_ns == compiled.plan.claims.makespan_ns - 3 * MS
    assert_plan_ok(compiled.plan, compiled.problem)


def test_profile_to_plan() -> None:
    """`step_ms` counts; in the plan STEP has its times on every rank, and none where a step takes no time."""
    compiled = compile_profile(profile_of(step_ms=2.5))
    assert compiled.problem.step_ns == 2_500_000
    end = compiled.plan.claims.makespan_ns
    for rank in (0, 1):
        step = step_of(compiled.plan, rank)
        assert step == Instruction(op="STEP", start_ns=end - 2_500_000, end_ns=end)
    assert_plan_ok(compiled.plan, compiled.problem)
    bare = compile_profile(profile_of())
    assert step_of(bare.plan, 0) == Instruction(op="STEP")
    assert bare.plan.claims.makespan_ns == end - 2_500_000


def test_a_profile_without_it_stays_as_it_was() -> None:
    """No step is the default: it is not written, and the digest of the problem is that of one without the field."""
    bare = profile_of()
    assert b"step_ms" not in encode_profile(bare)
    assert b'"step_ms": 1.5' in encode_profile(profile_of(step_ms=1.5))
    problem = normalize(bare)
    assert problem_digest(problem) == problem_digest(normalize(profile_of(step_ms=0)))
    assert problem_digest(problem) != problem_digest(replace(problem, step_ns=Ns(1)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, r"\$\.step_ms: expected a number >= 0, got -1 \[negative-duration\]"),
        ([1, 2], r"\$\.step_ms: expected 1 number for this field, got a list of 2 \[list-for-number\]"),
        (1e13, r"\$\.step_ms: expected a number <= 1000000000000, got 10000000000000.0 \[too-large\]"),
    ],
)
def test_wrong_values(value: Any, message: str) -> None:
    """A step takes a finite time that is not negative, one for all devices."""
    with pytest.raises(ProfileError, match=message):
        profile_of(step_ms=value)


def test_it_counts_in_the_longest_iteration() -> None:
    """All durations one after the other, the step too, fit the integers that are used."""
    longest = {"forward_ms": 1e12, "full_backward_ms": 1e12}
    stages = [{"id": f"s{index}", "device": "g0", **longest} for index in range(2)]
    profile_of(stages=stages, microbatches=1, step_ms=6e11)
    with pytest.raises(ProfileError, match=r"one iteration could take 5e\+12 ms"):
        profile_of(stages=stages, microbatches=1, step_ms=1e12)


def test_the_validator_replays_it() -> None:
    """Against the problem, a STEP that begins before all are done, ends late or has no times is told."""
    problem = line(2, 2, 3)
    plan = plan_of(problem, solve(problem).schedule)
    assert_plan_ok(plan, problem)
    end = plan.claims.makespan_ns
    last = len(plan.ranks[0].ops) - 1
    early = edit_op(plan, 0, last, start_ns=end - 4, end_ns=end)
    assert messages(early, problem) == [
        f"rank 0: STEP runs from {end - 3} to {end} ns, the plan says {end - 4} to {end} ns"
    ]
    silent = edit_op(plan, 0, last, start_ns=None, end_ns=None)
    assert messages(silent, problem) == [f"rank 0: STEP runs from {end - 3} to {end} ns, the plan says -1 to -1 ns"]
    short = replace(plan, claims=replace(plan.claims, makespan_ns=end - 3))
    assert messages(short, problem) == [f"the last op ends at {end} ns, the plan says {end - 3} ns"]


def test_a_step_of_no_length_has_no_times() -> None:
    """Where the profile has no step, a STEP that states times is told, with the profile and without."""
    problem = line(2, 2, 0)
    plan = plan_of(problem, solve(problem).schedule)
    assert_plan_ok(plan, problem)
    end = plan.claims.makespan_ns
    wrong = edit_op(plan, 1, len(plan.ranks[1].ops) - 1, start_ns=end - 1, end_ns=end)
    assert messages(wrong, problem) == [f"rank 1: STEP states {end - 1} to {end} ns, the problem has no such step"]
    assert messages(wrong) == [
        f"rank 0: STEP states no times, expected {end} to {end} ns as on all ranks",
        f"rank 1: STEP states {end - 1} to {end} ns, expected {end} to {end} ns as on all ranks",
    ]


def test_the_validator_knows_it_without_a_problem() -> None:
    """A plan alone must have its STEPs at one time, behind everything, and end with them."""
    problem = line(2, 2, 3)
    plan = plan_of(problem, solve(problem).schedule)
    assert validate(plan) == ()
    end = plan.claims.makespan_ns
    last = len(plan.ranks[0].ops) - 1
    early = edit_op(plan, 0, last, start_ns=end - 4)
    expected = f"expected {end - 3} to {end} ns as on all ranks"
    assert messages(early) == [f"rank 0: STEP states {end - 4} to {end} ns, {expected}"]
    assert [fault.code for fault in validate(signed(early))] == ["step-time"]
    silent = edit_op(plan, 0, last, start_ns=None, end_ns=None)
    assert messages(silent) == [f"rank 0: STEP states no times, {expected}"]
    backwards = edit_op(plan, 0, last, start_ns=end, end_ns=end - 1)
    assert f"rank 0: STEP runs from {end} to {end - 1} ns" in messages(backwards)
    half = edit_op(plan, 0, last, end_ns=None)
    assert "rank 0: STEP has start_ns, expected no field or start_ns, end_ns" in messages(half)


def test_a_plan_of_another_step_is_refused() -> None:
    """A profile whose step takes longer is another problem, with another makespan."""
    problem = line(2, 2, 3)
    plan = plan_of(problem, solve(problem).schedule)
    codes = {fault.code for fault in validate(plan, replace(problem, step_ns=Ns(4)))}
    assert codes == {"problem-digest", "wrong-time", "wrong-makespan"}
    assert "wrong-makespan" in {fault.code for fault in validate(plan, replace(problem, step_ns=Ns(0)))}


def test_a_timeline_checks_its_own_end() -> None:
    """A makespan is the last completion and the step; anything else breaks the invariant."""
    problem = line(2, 1, 3)
    schedule = solve(problem).schedule
    timeline: Timeline = simulate(problem, schedule)
    timeline.verify(schedule)
    assert (timeline.work_ends_ns, timeline.makespan_ns) == (5, 8)
    with pytest.raises(InvariantError, match="makespan is 8 ns but the last op ends at 5 ns"):
        replace(timeline, step_ns=0).verify(schedule)
    with pytest.raises(InvariantError, match="step_ns is negative"):
        replace(problem, step_ns=Ns(-1)).verify()


def test_a_deadlock_stays_one() -> None:
    """An order that cannot finish has no makespan, with a step or without."""
    problem = line(2, 1, 3)
    schedule = solve(problem).schedule
    stuck = replace(schedule, orders=(schedule.orders[0][::-1], schedule.orders[1]))
    assert Simulator(problem).makespan(stuck.orders) is None
    with pytest.raises(DeadlockError, match="device 0 at 0W0 waits for 0D0 on its own device"):
        simulate(problem, stuck)


@pytest.mark.parametrize("seed", range(6))
def test_path_and_idle_times_reach_its_end(seed: int) -> None:
    """The critical path ends with the step, every device is idle meanwhile, and all adds up to the makespan."""
    draw = Random(seed)
    problem = replace(draw_problem(draw, windows=False), step_ns=Ns(4))
    schedule = draw_schedule(draw, problem)
    timeline = simulate(problem, schedule)
    runs = Runs(problem, schedule, timeline)
    path = critical_path(runs)
    assert sum(piece.length_ns for piece in path) == timeline.makespan_ns
    assert (path[-1].kind, path[-1].label, path[-1].end_ns) == ("step", "STEP", timeline.makespan_ns)
    parts = idle_parts(runs)
    for device, (starts, ends) in enumerate(zip(timeline.starts, timeline.ends, strict=True)):
        own = [part for part in parts if part.device == device]
        assert [part.length_ns for part in own if part.cause == "step"] == [4]
        busy = sum(end - start for start, end in zip(starts, ends, strict=True))
        assert busy + sum(part.length_ns for part in own) == timeline.makespan_ns


def test_explanations_name_it() -> None:
    """With a profile and without, the step is a share of its own; what a change would give includes it."""
    compiled = compile_profile(profile_of(step_ms=4))
    plan, problem = compiled.plan, compiled.problem
    timeline = simulate(problem, compiled.result.schedule)
    full, alone = explain_plan(plan, problem, timeline), explain_stated(plan)
    for explanation in (full, alone):
        assert [piece.length_ns for piece in explanation.path if piece.kind == "step"] == [4 * MS]
        assert explanation.makespan_ns == plan.claims.makespan_ns
        assert explanation.bound.value_ns == plan.claims.lower_bound_ns
    same = full.what_ifs[0]
    assert (same.replay_ns, same.found_ns, same.bound_ns) == (plan.claims.makespan_ns,) * 3
    more = next(one for one in full.what_ifs if one.change == "microbatch")
    assert more.found_ns is not None
    assert more.found_ns == plan.claims.makespan_ns + 3 * MS
