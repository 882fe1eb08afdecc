"""Changing what a plan claims: every change signs it again."""

from __future__ import annotations

import msgspec

from cpipe.ir import Plan
from cpipe.plan import plan_digest, safe_transports

__all__ = ["claiming", "with_transports"]


def with_transports(plan: Plan) -> Plan:
    """Return the plan with the transports stated under which it is right."""
    return claiming(plan, transports=safe_transports(plan))


def claiming(plan: Plan, **claims: object) -> Plan:
    """Return the plan with some of its claims changed, signed again."""
    plan = msgspec.structs.replace(plan, claims=msgspec.structs.replace(plan.claims, **claims))
    return msgspec.structs.replace(plan, digest=plan_digest(plan))
