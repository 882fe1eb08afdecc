"""Changing what a plan claims: every change signs it again."""

from __future__ import annotations

import msgspec

from cpipe.ir import Bound, Objective, Plan, Problem
from cpipe.plan import plan_digest, problem_digest, safe_transports
from cpipe.plan.copies import has_offloads
from cpipe.profile.offload import bounded
from cpipe.sim import Simulator
from cpipe.solve.bounds import lower_bound, span_bound

__all__ = ["bound_of_delayed", "checkable_bound_ns", "claiming", "with_transports"]


def checkable_bound_ns(plan: Plan, problem: Problem) -> int | None:
    """Return what closed forms prove of the problem [ns]; None when the plan rests on another proof or problem."""
    if plan.claims.proved_by != "bound" or plan.problem.digest != problem_digest(problem):
        return None
    least = bounded(problem, has_offloads(plan))
    return (span_bound if plan.claims.objective == "span" else lower_bound)(least).value_ns


def bound_of_delayed(problem: Problem, bound: Bound, objective: Objective) -> Bound:
    """Return `bound` if it also holds where ops start later than they could; else the closed one of `problem`.

    On a pipe of several senders, or where spans count, an op that waits for a copy may make the whole better. What a
    solver proves of orders whose ops never wait so does not hold then.
    """
    lateness_helps = objective == "span" or not Simulator(problem).is_direct
    if lateness_helps and bound.proved_by != "bound":
        return Bound(value_ns=(span_bound if objective == "span" else lower_bound)(problem).value_ns)
    return bound


def with_transports(plan: Plan) -> Plan:
    """Return the plan with the transports stated under which it is right."""
    return claiming(plan, transports=safe_transports(plan))


def claiming(plan: Plan, **claims: object) -> Plan:
    """Return the plan with some of its claims changed, signed again."""
    plan = msgspec.structs.replace(plan, claims=msgspec.structs.replace(plan.claims, **claims))
    return msgspec.structs.replace(plan, digest=plan_digest(plan))
