"""The objective `span`: the longest time from a device's first start to its last end, from search to plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import call, profile_document, write_json
from helpers import assert_plan_ok, signed
from hypothesis import given, settings
from known_cases import PEERS, PeerProfile, peer_problem
from msgspec.structs import replace
from oracle.cases import case
from strategies import problems

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.errors import UsageError
from cpipe.ir import CollectiveRun, Problem, Schedule, Timeline
from cpipe.plan import load_plan, validate
from cpipe.profile import load_profile, normalize
from cpipe.sim import Simulator, simulate
from cpipe.solve import SolveLimits, solve
from cpipe.solve.bounds import lower_bound, span_bound
from cpipe.solve.replay import Replays
from cpipe.solve.serial import serial_schedule


def longest_span(timeline: Timeline) -> int:
    """Return the span by the definition."""
    times: dict[int, list[int]] = {}
    for device, (starts, ends) in enumerate(zip(timeline.starts, timeline.ends, strict=True)):
        times[device] = [*starts, *ends]
    for run in timeline.collectives:
        times[run.device] += [run.start_ns, run.end_ns]
    return max((max(found) - min(found) for found in times.values() if found), default=0)


def test_span_is_of_one_device() -> None:
    """A device that starts late and ends early has a short span; collectives count."""
    timeline = Timeline(starts=((0, 4), (2,), ()), ends=((1, 6), (5,), ()), makespan_ns=6)
    assert timeline.span_ns == 6
    reduce = CollectiveRun(kind="ALL_REDUCE", stage=1, device=1, start_ns=5, end_ns=9)
    gather = CollectiveRun(kind="ALL_GATHER", stage=1, device=2, start_ns=1, end_ns=2)
    assert replace(timeline, collectives=(reduce, gather), makespan_ns=9).span_ns == 7
    assert Timeline(starts=((), ()), ends=((), ()), makespan_ns=0).span_ns == 0


@settings(max_examples=40)
@given(problems())
def test_simulator_bound_and_search_agree_on_the_span(problem: Problem) -> None:
    """The span of a run is the timeline's, within the makespan; no bound is above it; the search's times are those."""
    schedule = serial_schedule(problem)
    timeline = simulate(problem, schedule)
    simulator = Simulator(problem, "span")
    assert simulator.value(schedule.orders) == timeline.span_ns == longest_span(timeline) <= timeline.makespan_ns
    assert span_bound(problem).value_ns <= timeline.span_ns
    assert span_bound(problem).value_ns <= lower_bound(problem).value_ns
    timed = Replays(simulator).start(schedule.orders)
    assert timed is not None
    assert timed.value == timeline.span_ns


def test_a_deadlock_has_no_span() -> None:
    """Orders that cannot finish have no objective, whichever it is."""
    orders = [list(Schedule.from_text(text, 2).orders[0]) for text in ("0F0 0D0 0W0 0F1 0D1 0W1",)]
    problem = case(2, [0, 1])
    other = list(Schedule.from_text("\n1F1 1D1 1W1 1F0 1D0 1W0", 2).orders[1])
    assert Simulator(problem, "span").value([orders[0], other]) is None


PEER_SPANS = {("P1", 2): 24_000, ("P4", 2): 27_000}
"""Proven: the work of a device, and the round trip over the cut with all that memory lets run meanwhile."""


@pytest.mark.parametrize("peer", [PEERS[0], PEERS[3]], ids=lambda peer: peer.name)
def test_span_beats_the_makespan_where_it_can(peer: PeerProfile) -> None:
    """With memory for 2 p activations the best span is below the best makespan, and the result is about the span."""
    result = solve(peer_problem(peer, 2), "auto", SolveLimits(objective="span", node_limit=0))
    assert result.objective == "span"
    assert result.objective_ns == result.timeline.span_ns == PEER_SPANS[peer.name, 2] < peer.best[1]
    assert result.gap == (result.objective_ns - result.bound.value_ns) / result.objective_ns


def test_max_gap_is_of_the_span() -> None:
    """A span within the share of its own bound ends the search."""
    problem = peer_problem(PEERS[0], 1)
    result = solve(problem, "auto", SolveLimits(objective="span", max_gap=0.3))
    whole = solve(problem, "auto", SolveLimits(objective="span", node_limit=0))
    assert 0 < result.gap <= 0.3
    assert result.evaluations < whole.evaluations


def test_an_unknown_objective_is_refused() -> None:
    """The limits name the two that there are."""
    with pytest.raises(UsageError, match="expected the objective makespan or span, got 'idle'") as caught:
        solve(case(1, [0]), "auto", SolveLimits(objective="idle"))  # type: ignore[arg-type]
    assert caught.value.diagnostics[0].code == "bad-limit"


def test_the_command_line_minimises_the_span(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--objective span` reports and claims a span, and the plan holds; other plans say nothing of it."""
    profile = write_json(tmp_path / "profile.json", profile_document())
    target = tmp_path / "plan.json"
    outcome = call(capsys, "solve", profile, "-o", target, "--objective", "span", "--json")
    assert outcome.code == 0
    plan = load_plan(target)
    document = outcome.document
    assert (document["objective"], plan.claims.objective) == ("span", "span")
    assert plan.claims.span_ns is not None
    assert document["span_ms"] == plan.claims.span_ns / 1e6 <= document["makespan_ms"]
    assert document["gap"] == (plan.claims.span_ns - plan.claims.lower_bound_ns) / plan.claims.span_ns
    assert plan.made_by.limits["objective"] == "span"
    assert_plan_ok(plan, normalize(load_profile(profile), placement=plan.problem.placement))
    checked = call(capsys, "validate", target, "--profile", profile)
    assert checked.code == 0
    assert f"span {plan.claims.span_ns / 1e6:.3f} ms" in checked.out + checked.err
    usual = compile_profile(load_profile(profile), SolveOptions(method="1f1b")).plan
    assert (usual.claims.objective, usual.claims.span_ns) == ("makespan", None)


def test_an_objective_is_checked_before_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line offers what there is."""
    profile = write_json(tmp_path / "profile.json", profile_document())
    outcome = call(capsys, "solve", profile, "--objective", "spam")
    assert outcome.code == 2
    assert "--objective: expected one of makespan, span, got 'spam'" in outcome.err
    assert "did you mean 'span'?" in outcome.err


def test_the_validator_recomputes_a_span(tmp_path: Path) -> None:
    """A claimed span that no replay gives, or none where it was the objective, is a fault."""
    loaded = load_profile(write_json(tmp_path / "profile.json", profile_document()))
    compiled = compile_profile(loaded, SolveOptions(method="zb-h1", objective="span"))
    plan, problem = compiled.plan, compiled.problem
    assert_plan_ok(plan, problem)
    span = plan.claims.span_ns
    assert span is not None
    wrong = signed(replace(plan, claims=replace(plan.claims, span_ns=span + 1)))
    missing = signed(replace(plan, claims=replace(plan.claims, span_ns=None)))
    above = signed(replace(plan, claims=replace(plan.claims, lower_bound_ns=span + 1)))
    for known in (problem, None):
        message = f"the longest span of a rank is {span} ns, the plan says {span + 1} ns"
        assert [str(fault) for fault in validate(wrong, known)] == [f"error: $.claims.span_ns: {message} [wrong-span]"]
        assert [fault.code for fault in validate(missing, known)] == ["no-span"]
        assert f"lower bound {span + 1} ns is not between 0 and the span {span} ns" in str(validate(above, known)[0])
