"""What tests of plans share: `assert_plan_ok`, to be called on every plan that a test makes."""

from __future__ import annotations

from msgspec.structs import replace

from cpipe.ir import Bound, MadeBy, Plan, Problem, Schedule
from cpipe.plan import decode_plan, encode_plan, lift, lower, plan_digest, validate
from cpipe.sim import memory_peaks, simulate

__all__ = ["assert_plan_ok", "plan_of", "signed"]


def assert_plan_ok(plan: Plan, problem: Problem) -> None:
    """Encode, decode, validate and replay a plan; nothing may differ and nothing may be found."""
    data = encode_plan(plan)
    again = decode_plan(data, "plan.json")
    assert again == plan
    assert validate(again, problem) == ()
    schedule, gates = lift(again)
    schedule.verify(problem)
    timeline = simulate(problem, schedule, gates)
    assert timeline.makespan_ns == plan.claims.makespan_ns
    assert encode_plan(again) == data


def plan_of(problem: Problem, schedule: Schedule, *, lead: bool = True) -> Plan:
    """Return the plan of a schedule, with its simulated times and a lower bound of 0."""
    return lower(
        problem,
        schedule,
        simulate(problem, schedule),
        bound=Bound(value_ns=0),
        resident_peaks=memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads),
        made_by=MadeBy(cpipe="0.1.0", method="test", seed=0, limits={}),
        lead=lead,
    )


def signed(plan: Plan) -> Plan:
    """Return `plan` with the digest that its content has, as if it had been made that way."""
    return replace(plan, digest=plan_digest(plan))
