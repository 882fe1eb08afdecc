"""Changing what a plan claims: every change signs it again."""

from __future__ import annotations

import msgspec

from cpipe.ir import Plan, Problem
from cpipe.plan import plan_digest, problem_digest, safe_transports
from cpipe.plan.copies import has_offloads
from cpipe.profile.offload import bounded
from cpipe.solve.bounds import lower_bound, span_bound

__all__ = ["checkable_bound_ns", "claiming", "with_transports"]


def checkable_bound_ns(plan: Plan, problem: Problem) -> int | None:
    """Return what closed forms prove of the problem [ns]; None when the plan rests on another proof or problem."""
    if plan.claims.proved_by != "bound" or plan.problem.digest != problem_digest(problem):
        return None
    least = bounded(problem, has_offloads(plan))
    return (span_bound if plan.claims.objective == "span" else lower_bound)(least).value_ns


def with_transports(plan: Plan) -> Plan:
    """Return the plan with the transports stated under which it is right."""
    return claiming(plan, transports=safe_transports(plan))


def claiming(plan: Plan, **claims: object) -> Plan:
    """Return the plan with some of its claims changed, signed again."""
    plan = msgspec.structs.replace(plan, claims=msgspec.structs.replace(plan.claims, **claims))
    return msgspec.structs.replace(plan, digest=plan_digest(plan))
