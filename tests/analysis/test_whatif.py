"""Tests of cpipe.analysis: what-ifs, changed jobs, and explanations on a profile."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from command_line import profile_document
from helpers import assert_plan_ok, plan_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle.cases import case
from oracle.exhaustive import shortest_makespan
from random_plans import draw_problem, draw_schedule
from sample_plans import one_f_one_b
from sample_profiles import encoded
from strategies import problems

from cpipe.analysis import explain_plan
from cpipe.analysis.change import extended_orders, faster_links, link_groups, more_memory
from cpipe.analysis.explain import _window
from cpipe.compiler import SolveOptions, compile_profile, simulate_plan
from cpipe.ir import Plan, Problem, Schedule
from cpipe.ir.explanation import Explanation, WhatIf
from cpipe.plan import plan_digest
from cpipe.profile import parse_profile
from cpipe.sim import Runs, memory_peaks, simulate
from cpipe.sim.memory import fits
from cpipe.solve import SolveLimits, solve
from cpipe.solve.bounds import lower_bound


def explained(problem: Problem, plan: Plan) -> Explanation:
    """Explain a plan on its problem."""
    return explain_plan(plan, problem, simulate_plan(plan, problem))


def only(explanation: Explanation, change: str, subject: str | None = None) -> WhatIf:
    """Return the one what-if of this change and subject."""
    (found,) = [case for case in explanation.what_ifs if (case.change, case.subject) == (change, subject)]
    return found


def scaled(problem: Problem, times: int) -> Problem:
    """Return the problem with all times longer, so that a tenth of them is a whole number."""
    stages = tuple(
        replace(
            stage, **{name: getattr(stage, name) * times for name in stage.__struct_fields__ if _is_time(stage, name)}
        )
        for stage in problem.stages
    )
    hops: dict[str, Any] = {
        name: tuple(
            hop and replace(hop, latency_ns=hop.latency_ns * times, occupancy_ns=hop.occupancy_ns * times)
            for hop in getattr(problem, name)
        )
        for name in ("forward_hops", "backward_hops")
    }
    return replace(problem, stages=stages, **hops)


def _is_time(stage: object, name: str) -> bool:
    return name.endswith("_ns") and getattr(stage, name) is not None


def test_latency_by_hand() -> None:
    """One microbatch on two devices crosses the link twice: 10 % less latency of 100 saves 20, on any order."""
    problem = case(1, [0, 1], forward=10, input_grad=10, weight_grad=10, latency=100)
    plan = plan_of(problem, Schedule.from_text("0F0 0D0 0W0\n1F0 1D0 1W0", 1))
    assert_plan_ok(plan, problem)
    (name,) = link_groups(problem)
    found = only(explained(problem, plan), "latency", name)
    assert plan.claims.makespan_ns == 250
    assert (found.replay_ns, found.found_ns, found.bound_ns, found.microbatches) == (230, 230, 230, 1)


def test_bandwidth_by_hand() -> None:
    """Likewise 10 % more bandwidth makes occupancies of 110 into 100."""
    problem = case(1, [0, 1], forward=10, input_grad=10, weight_grad=10, occupancy=110)
    plan = plan_of(problem, Schedule.from_text("0F0 0D0 0W0\n1F0 1D0 1W0", 1))
    explanation = explained(problem, plan)
    assert plan.claims.makespan_ns == 270
    (found,) = [what for what in explanation.what_ifs if what.change == "bandwidth"]
    assert (found.replay_ns, found.found_ns) == (250, 250)
    assert not [what for what in explanation.what_ifs if what.change == "latency"]  # there is none to take away


def test_collectives_by_hand() -> None:
    """10 % faster collectives make a gather of 11 and a reduction of 22 three shorter together."""
    problem = case(1, [0], gather=11, reduce=22)
    plan = plan_of(problem, Schedule.from_text("0F0 0D0 0W0", 1))
    assert only(explained(problem, plan), "collectives").found_ns == plan.claims.makespan_ns - 3 == 33


def test_memory_shows_in_what_ifs() -> None:
    """A device with room for a bit less than two activations gets a second one from 10 % more, and its price is told.

    p=2, n=4, latency 4: 1F1B in one activation waits for each round trip; with two it overlaps them.
    """
    problem = case(4, [0, 1], latency=4, capacity=[19, 100], activation=10)
    schedule = solve(problem, "auto", SolveLimits(node_limit=0)).schedule
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    explanation = explained(problem, plan)
    more = only(explanation, "memory", problem.devices[0].name)
    assert more.replay_ns == plan.claims.makespan_ns
    assert more.found_ns is not None
    assert more.found_ns < plan.claims.makespan_ns
    assert "memory" in {part.cause for part in explanation.idle if part.device == 0}
    assert {what.subject for what in explanation.what_ifs if what.change == "memory"} == {problem.devices[0].name}


def test_less_memory_has_a_price() -> None:
    """With a tenth less than the plan uses its order no longer fits, and the best order that does is longer."""
    problem = case(4, [0, 1], latency=4, activation=10)
    schedule = solve(problem, "auto", SolveLimits(node_limit=0)).schedule
    plan = plan_of(problem, schedule)
    (found,) = [what for what in explained(problem, plan).what_ifs if what.change == "less-memory"]
    assert found.subject == problem.devices[0].name
    assert found.replay_ns is None
    assert found.found_ns is not None
    assert found.found_ns > plan.claims.makespan_ns


def test_searching_alone_is_told_apart() -> None:
    """A plan that a search beats without any change says so in the unchanged job; no change gives less than that."""
    problem = scaled(case(6, [0, 1, 2], latency=2), 100)
    plan = plan_of(problem, one_f_one_b(problem))
    explanation = explained(problem, plan)
    nothing = only(explanation, "none")
    assert nothing.replay_ns == plan.claims.makespan_ns
    assert nothing.found_ns is not None
    assert nothing.found_ns < plan.claims.makespan_ns
    for what in explanation.what_ifs:
        if what.change in ("latency", "bandwidth", "memory"):
            assert what.found_ns is not None
            assert what.found_ns <= nothing.found_ns
    assert nothing.evaluations > 0


def test_an_optimal_plan_is_not_searched() -> None:
    """Where the bound is met nothing is searched: the answer is proven."""
    problem = case(4, [0], activation=1)
    plan = plan_of(problem, Schedule.from_text("0F0 0D0 0W0 0F1 0D1 0W1 0F2 0D2 0W2 0F3 0D3 0W3", 4))
    explanation = explained(problem, plan)
    assert explanation.status == "optimal"
    nothing = only(explanation, "none")
    assert (nothing.found_ns, nothing.bound_ns, nothing.evaluations) == (12, 12, 0)


def test_one_more_microbatch() -> None:
    """On one device a microbatch more costs its own work; the plan's order is extended by one period."""
    problem = case(4, [0])
    plan = plan_of(problem, Schedule.from_text("0F0 0D0 0W0 0F1 0D1 0W1 0F2 0D2 0W2 0F3 0D3 0W3", 4))
    found = only(explained(problem, plan), "microbatch")
    assert (found.microbatches, found.replay_ns, found.found_ns, found.bound_ns) == (5, 15, 15, 15)


@pytest.mark.parametrize("microbatches", [1, 2, 5, 8])
@pytest.mark.parametrize("split", [False, True])
def test_extended_orders_are_orders(microbatches: int, split: bool) -> None:
    """Every extension of 1F1B is a schedule for one microbatch more that finishes; with enough of them there is one."""
    problem = case(microbatches, [0, 1, 2], latency=2, capacity=100, activation=10)
    schedule = one_f_one_b(problem, split=split)
    larger = replace(problem, microbatches=microbatches + 1)
    extended = list(extended_orders(problem, schedule))
    for longer in extended:
        longer.verify(larger)
        assert simulate(larger, longer).makespan_ns >= simulate(problem, schedule).makespan_ns
    best = min((simulate(larger, longer).makespan_ns for longer in extended), default=None)
    if microbatches >= 5:
        assert best == simulate(larger, one_f_one_b(larger, split=split)).makespan_ns
        peaks = memory_peaks(problem, schedule.orders)
        assert any(memory_peaks(larger, longer.orders) == peaks for longer in extended)


def test_links_are_both_directions() -> None:
    """The two directions of a link are one link to the user; half duplex is one pipe anyway."""
    assert (
        list(link_groups(case(1, [0, 1, 2], latency=1)).values()) == [(0, 1), (2, 3)]
        or len(link_groups(case(1, [0, 1, 2], latency=1))) == 2
    )
    half = case(1, [0, 1], latency=1, half_duplex=True)
    line = case(1, [0, 1, 2], latency=1)
    groups = [{line.pipes[pipe] for pipe in pipes} for pipes in link_groups(line).values()]
    both = [(line.forward_hops[boundary], line.backward_hops[boundary]) for boundary in range(2)]
    assert groups == [{line.pipes[hop.pipe] for hop in hops if hop is not None} for hops in both]
    half = case(1, [0, 1], latency=1, half_duplex=True)
    assert list(link_groups(half).values()) == [(0,)]
    named = replace(case(1, [0, 1]), pipes=("a->b", "b->a"))
    assert list(link_groups(named)) == ["a<->b"]
    odd = replace(case(1, [0, 1]), pipes=("a->b", "c->d"))
    assert list(link_groups(odd)) == ["a->b + c->d"]


def test_a_plan_for_another_problem_has_no_proof() -> None:
    """On another profile the plan's own bound says nothing; closed forms of that problem do."""
    problem = case(2, [0, 1], latency=3)
    plan = plan_of(problem, one_f_one_b(problem))
    proven = replace(
        plan.claims,
        lower_bound_ns=plan.claims.makespan_ns,
        proved_by="highs",
        reason="MILP",
        status="optimal",
        gap_ppm=0,
    )
    plan = replace(plan, claims=proven)
    plan = replace(plan, digest=plan_digest(plan))
    same = explained(problem, plan)
    assert (same.status, same.bound.proved_by, same.bound.reason) == ("optimal", "highs", "MILP")
    other = case(2, [0, 1], latency=9)
    there = explained(other, plan)
    assert (there.bound.proved_by, there.bound.value_ns) == ("bound", lower_bound(other).value_ns)


def test_receive_window_of_searches() -> None:
    """Other orders keep the plan's receives only where these cost memory that is limited, or the user capped them."""
    free = case(4, [0, 1], latency=3, message=5)
    tight = case(4, [0, 1], latency=3, message=5, capacity=100)
    plan = plan_of(free, one_f_one_b(free))
    widest = max(channel.window for channel in plan.channels)
    assert _window(plan, free) is None
    assert _window(plan, tight) == widest
    asked = replace(plan, made_by=replace(plan.made_by, limits={"receive_window": 1}))
    assert _window(asked, free) == 1


def test_in_flight_trade_off_of_a_slow_hop() -> None:
    """1F1B pays a slow hop for every microbatch: the page of such a plan blames latency, and offers a better order.

    p=4, n=8, F=2, B=4 (D=W=2), latency 10 on the middle hop: 1F1B takes 66 + 8 x 10.
    """
    problem = case(8, range(4), forward=2, input_grad=2, weight_grad=2, latency=[0, 10, 0])
    plan = plan_of(problem, one_f_one_b(problem))
    explanation = explained(problem, plan)
    assert explanation.makespan_ns == 146
    latency = sum(piece.length_ns for piece in explanation.path if piece.kind == "latency")
    assert latency == 80
    nothing = only(explanation, "none")
    assert nothing.found_ns is not None
    assert nothing.found_ns <= 78


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(problems(max_devices=3, max_stages=3, max_microbatches=3, receive_window=False))
def test_loosening_never_hurts(problem: Problem) -> None:
    """Less latency, more bandwidth and more memory never give a longer makespan than the plan has, nor beat a bound."""
    result = solve(problem, "greedy", SolveLimits(node_limit=0))
    plan = plan_of(problem, result.schedule)
    explanation = explained(problem, plan)
    path = sum(piece.length_ns for piece in explanation.path)
    assert path == explanation.makespan_ns == plan.claims.makespan_ns
    nothing = only(explanation, "none")
    for what in explanation.what_ifs:
        if what.change in ("microbatch", "less-memory"):
            continue
        assert what.found_ns is not None
        assert nothing.found_ns is not None
        assert what.bound_ns <= what.found_ns <= nothing.found_ns <= explanation.makespan_ns


def test_changes_are_what_they_say() -> None:
    """A changed job differs from the old one in exactly what it says, rounded down to whole units."""
    problem = case(1, [0, 1], latency=15, occupancy=15, capacity=25)
    less = faster_links(problem, {0}, latency=True)
    assert [hop.latency_ns for hop in (less.forward_hops[0], less.backward_hops[0]) if hop is not None] == [13, 15]
    assert {hop.occupancy_ns for hop in (*less.forward_hops, *less.backward_hops) if hop is not None} == {15}
    more = faster_links(problem, {0, 1}, latency=False)
    assert {hop.occupancy_ns for hop in (*more.forward_hops, *more.backward_hops) if hop is not None} == {13}
    assert [device.capacity_bytes for device in more_memory(problem, [1]).devices] == [25, 27]
    free = replace(problem, devices=tuple(replace(device, capacity_bytes=None) for device in problem.devices))
    assert more_memory(free, [0]) == free
    assert fits(more_memory(problem, [0, 1]), ((), ()))


def test_several_flows_and_pairs_are_explained() -> None:
    """A fused pair is one piece of the path and one stretch of work, labelled by both of its ops."""
    problem = case(3, [0], full=2)
    schedule = Schedule.from_text("0F0 0F1+0B0 0F2+0B1 0B2", 3)
    timeline = simulate(problem, schedule)
    runs = Runs(problem, schedule, timeline)
    assert [runs.label(unit) for unit in range(len(runs.units))] == ["0F0", "0F1+0B0", "0F2+0B1", "0B2"]
    plan = plan_of(problem, schedule)
    explanation = explained(problem, plan)
    assert [piece.label for piece in explanation.path] == ["0F0", "0F1+0B0", "0F2+0B1", "0B2"]
    assert explanation.idle == ()


def test_several_flows_are_not_searched() -> None:
    """Of a job of two flows the plan's own order is told on faster links; no other order is looked for."""
    profile = parse_profile(encoded(profile_document(2, 4, data_parallel={"mode": "ddp", "replicas": 2})), "p.json")
    compiled = compile_profile(profile, SolveOptions(method="chimera"))
    assert_plan_ok(compiled.plan, compiled.problem)
    assert len(compiled.problem.flows) == 2
    explanation = explained(compiled.problem, compiled.plan)
    assert sum(piece.length_ns for piece in explanation.path) == compiled.plan.claims.makespan_ns
    assert {what.change for what in explanation.what_ifs} >= {"none", "latency"}
    assert not {what.change for what in explanation.what_ifs} & {"microbatch", "less-memory"}
    assert {what.evaluations for what in explanation.what_ifs} == {0}


def test_old_proofs_are_not_forgotten() -> None:
    """A solver's bound that a plan states without a reason still beats closed forms that are weaker."""
    problem = case(2, [0, 1], latency=3)
    plan = plan_of(problem, one_f_one_b(problem))
    makespan = plan.claims.makespan_ns
    assert lower_bound(problem).value_ns < makespan
    claims = replace(plan.claims, lower_bound_ns=makespan, proved_by="highs", status=None, gap_ppm=None)
    plan = replace(plan, claims=claims)
    assert explained(problem, replace(plan, digest=plan_digest(plan))).status == "optimal"


def test_a_plan_that_does_not_fit_is_not_optimal() -> None:
    """A plan that takes more memory than there is may beat every bound; that makes it nothing better than feasible."""
    roomy = case(4, [0, 1], latency=9, activation=10)
    plan = plan_of(roomy, solve(roomy, "auto", SolveLimits(node_limit=0)).schedule)
    tight = case(4, [0, 1], latency=9, activation=10, capacity=10)
    assert lower_bound(tight).value_ns > plan.claims.makespan_ns
    explanation = explained(tight, plan)
    assert (explanation.status, explanation.bound.value_ns) == ("feasible", 0)
    assert "takes more than the job has" in explanation.bound.reason


@pytest.mark.parametrize(
    ("changed", "change"),
    [
        (lambda problem: problem, "none"),
        (lambda problem: faster_links(problem, (0, 1), latency=True), "latency"),
        (lambda problem: faster_links(problem, (0, 1), latency=False), "bandwidth"),
        (lambda problem: more_memory(problem, (0,)), "memory"),
        (lambda problem: replace(problem, microbatches=4), "microbatch"),
    ],
)
def test_answers_are_those_of_an_exhaustive_search(changed: Callable[[Problem], Problem], change: str) -> None:
    """Of a small job the best order of every changed one is found, and its bound is no higher than that optimum."""
    problem = case(
        3,
        [0, 1],
        forward=20,
        input_grad=30,
        weight_grad=10,
        latency=40,
        occupancy=22,
        capacity=[19, 40],
        activation=10,
        held=10,
    )
    plan = plan_of(problem, solve(problem, "greedy", SolveLimits(node_limit=0)).schedule)
    (found,) = [what for what in explained(problem, plan).what_ifs if what.change == change]
    best = shortest_makespan(changed(problem))
    assert best is not None
    assert found.found_ns == best
    assert found.bound_ns <= best


@given(st.integers(0, 10**6))
@settings(max_examples=40)
def test_extended_orders_of_any_schedule(seed: int) -> None:
    """Whatever the order, what is yielded for one microbatch more is a schedule with that many ops, each once."""
    draw = Random(seed)
    problem = draw_problem(draw)
    schedule = draw_schedule(draw, problem)
    larger = replace(problem, microbatches=problem.microbatches + 1)
    seen = set()
    for longer in extended_orders(problem, schedule):
        longer.verify(larger)
        assert longer not in seen
        seen.add(longer)
        assert all(len(new) >= len(old) for new, old in zip(longer.orders, schedule.orders, strict=True))
