"""Tests of the certificate in a plan: how good it is, who proved it, and how it was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import profile_document
from helpers import assert_plan_ok, plan_of, signed
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle.cases import case
from sample_plans import make_problem, one_f_one_b
from sample_profiles import encoded

from cpipe.compiler import SolveOptions, compile_profile, problem_for_plan
from cpipe.errors import PlanError
from cpipe.ir import Bound, MadeBy, Plan
from cpipe.plan import decode_plan, encode_plan, load_plan, lower, validate
from cpipe.plan.lower import certificate
from cpipe.profile import parse_profile
from cpipe.sim import memory_peaks, simulate

OLD = Path(__file__).parents[1] / "data" / "plan_without_certificate.json"
PROBLEM = make_problem(2, 2)


def bounded(value: int, **claims: Any) -> Plan:
    """Return a plan of 16 ms whose bound is `value` [ms], with other claims, signed as if it had been made so."""
    schedule = one_f_one_b(PROBLEM)
    timeline = simulate(PROBLEM, schedule)
    plan = lower(
        PROBLEM,
        schedule,
        timeline,
        bound=Bound(value_ns=value, reason="a reason"),
        resident_peaks=memory_peaks(PROBLEM, schedule.orders),
        made_by=MadeBy(cpipe="0.1.0", method="test", seed=0, limits={}),
    )
    return signed(replace(plan, claims=replace(plan.claims, **claims)))


MAKESPAN = bounded(0).claims.makespan_ns


def faults(plan: Plan) -> list[str]:
    """Return what validation finds, as ``PATH [CODE]``."""
    return [f"{fault.path} [{fault.code}]" for fault in validate(plan, PROBLEM)]


def test_a_solved_plan_certifies_itself() -> None:
    """A plan says how good it is, what its bound rests on, who found the order and what that cost."""
    profile = parse_profile(encoded(profile_document()), "profile.json")
    compiled = compile_profile(profile, SolveOptions(method="greedy", seed=3))
    plan, result = compiled.plan, compiled.result
    assert_plan_ok(plan, compiled.problem)
    assert (plan.claims.status, plan.claims.reason) == (result.status, result.bound.reason)
    assert (plan.made_by.found_by, plan.made_by.seed) == (result.found_by, 3)
    assert plan.made_by.evaluations == result.evaluations > 0
    assert plan.made_by.solver_nodes == result.nodes == 0
    assert encode_plan(compile_profile(profile, SolveOptions(method="greedy", seed=3)).plan) == encode_plan(plan)
    assert validate(plan, problem_for_plan(plan, profile)) == ()


@pytest.mark.parametrize(
    ("reached", "bound", "status", "gap"),
    [
        (10, 10, "optimal", 0),
        (10, 9, "feasible", 100_000),
        (3_000_000_000, 2_999_999_999, "feasible", 1),  # rounded up: what is not proven optimal never reads as 0
        (10, 0, "feasible", 1_000_000),
        (0, 0, "optimal", 0),
    ],
)
def test_certificate(reached: int, bound: int, status: str, gap: int) -> None:
    """The gap is in millionths of the objective, rounded up; only a plan that meets its bound is optimal."""
    assert certificate(reached, Bound(value_ns=bound, reason="why")) == {
        "status": status,
        "gap_ppm": gap,
        "reason": "why",
    }


def test_the_bound_decides_the_status() -> None:
    """A plan that meets its bound is optimal with gap 0; each is valid, and comes back from its text."""
    best, other = bounded(MAKESPAN), bounded(MAKESPAN - 1)
    assert (best.claims.status, best.claims.gap_ppm) == ("optimal", 0)
    assert (other.claims.status, other.claims.gap_ppm) == ("feasible", 1)
    for plan in (best, other):
        assert_plan_ok(plan, PROBLEM)
        assert b'"reason": "a reason"' in encode_plan(plan)


def test_false_optimality_is_refused() -> None:
    """A plan that claims to be optimal without meeting its bound is not valid, with a profile or without."""
    plan = bounded(MAKESPAN - 1, status="optimal", gap_ppm=0)
    assert faults(plan) == ["$.claims.status [wrong-status]", "$.claims.gap_ppm [wrong-gap]"]
    lines = [str(fault) for fault in validate(plan)]
    assert lines == [
        f"error: $.claims.status: the makespan is {MAKESPAN} ns and the lower bound {MAKESPAN - 1} ns: "
        "that is feasible, the plan says optimal [wrong-status]",
        "error: $.claims.gap_ppm: from the lower bound to the makespan it is 1 ppm, the plan says 0 [wrong-gap]",
    ]


def test_false_modesty_is_refused() -> None:
    """A plan that meets its bound may not call itself merely feasible: the two contradict each other."""
    assert faults(bounded(MAKESPAN, status="feasible")) == ["$.claims.status [wrong-status]"]


def test_a_raised_bound_is_refused() -> None:
    """Who raises the bound to look optimal claims more than closed forms prove."""
    plan = bounded(MAKESPAN)
    assert [fault.code for fault in validate(plan, PROBLEM, closed_bound_ns=MAKESPAN - 1)] == ["bound-not-proved"]


def test_a_bound_that_is_wrong_is_one_fault() -> None:
    """Where the bound itself is impossible, status and gap say nothing more."""
    assert faults(bounded(0, lower_bound_ns=-1)) == ["$.claims.lower_bound_ns [bound]"]


@pytest.mark.parametrize("field", ["evaluations", "solver_nodes"])
def test_work_is_counted_from_zero(field: str) -> None:
    """Nobody does less than no work."""
    plan = bounded(0)
    plan = signed(replace(plan, made_by=replace(plan.made_by, **{field: -1})))
    assert faults(plan) == [f"$.made_by.{field} [negative-work]"]


def test_the_span_is_certified_where_it_was_minimised() -> None:
    """Status and gap are of the objective: a plan whose span meets the bound is optimal, whatever its makespan."""
    problem = case(1, [0, 1], latency=5, reduce=[0, 50])
    plan = plan_of(problem, one_f_one_b(problem, split=True))
    span = simulate(problem, one_f_one_b(problem, split=True)).span_ns
    assert span < plan.claims.makespan_ns
    claims = replace(plan.claims, objective="span", span_ns=span, lower_bound_ns=span, status="optimal", gap_ppm=0)
    assert validate(signed(replace(plan, claims=claims)), problem) == ()
    low = replace(claims, lower_bound_ns=0)
    assert [fault.code for fault in validate(signed(replace(plan, claims=low)), problem)] == [
        "wrong-status",
        "wrong-gap",
    ]


def test_older_plans_stay_valid() -> None:
    """A plan made before there was a certificate reads, validates and comes back byte for byte."""
    plan = load_plan(OLD)
    assert (plan.claims.status, plan.claims.gap_ppm, plan.claims.reason) == (None, None, "")
    assert (plan.made_by.found_by, plan.made_by.evaluations, plan.made_by.solver_nodes) == ("", 0, 0)
    assert validate(plan) == ()
    assert encode_plan(plan) == OLD.read_bytes()


def test_without_claims_there_is_no_trace() -> None:
    """A plan that states nothing of the certificate has the text that it had before the fields existed."""
    data = encode_plan(bounded(0, status=None, gap_ppm=None, reason=""))
    assert not any(word in data for word in (b"status", b"gap_ppm", b"reason", b"found_by", b"solver_nodes"))
    assert decode_plan(data, "plan.json").claims.status is None


@pytest.mark.parametrize(
    ("field", "value", "code"), [('"status": "feasible"', '"status": "perfect"', "unknown-value"),
                                 ('"gap_ppm": 1000000', '"gap_ppm": 0.5', "not-an-integer")]
)  # fmt: skip
def test_wrong_fields(field: str, value: str, code: str) -> None:
    """A status that nobody knows and a gap that is no integer are refused when the plan is read."""
    text = encode_plan(bounded(0)).decode()
    assert field in text
    with pytest.raises(PlanError, match=rf"\$\.claims\.\w+: expected .* \[{code}\]"):
        decode_plan(text.replace(field, value).encode(), "plan.json")


@given(st.integers(1, 10**12), st.data())
def test_gap_is_zero_only_when_optimal(reached: int, data: st.DataObject) -> None:
    """Status and gap agree for every objective and bound, and the gap is within [0, 10^6]."""
    bound = data.draw(st.integers(0, reached))
    made = certificate(reached, Bound(value_ns=bound))
    assert (made["gap_ppm"] == 0) == (made["status"] == "optimal") == (bound == reached)
    assert 0 <= made["gap_ppm"] <= 1_000_000
    assert 0 <= made["gap_ppm"] * reached - (reached - bound) * 1_000_000 < reached
