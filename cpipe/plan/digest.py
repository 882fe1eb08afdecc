"""Digests: which problem a plan solves, and whether anybody touched the plan."""

from __future__ import annotations

import hashlib
import json

import msgspec

from cpipe.ir import Plan, Problem
from cpipe.plan.text import plan_text

__all__ = ["plan_digest", "problem_digest"]


def problem_digest(problem: Problem) -> str:
    """Return ``sha256:...`` of everything the profile says about `problem`.

    `receive_window` is left out: it is a choice of the search. Fields at their default are left out too, so that a
    new optional field does not change the digest of a problem that does not use it.
    """
    content = _canonical(msgspec.structs.replace(problem, receive_window=None))
    return _sha256(json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def plan_digest(plan: Plan) -> str:
    """Return ``sha256:...`` of the canonical text of `plan` with an empty digest field."""
    return _sha256(plan_text(plan, ""))


def _canonical(value: object) -> object:
    """Return `value` as plain JSON values: structs as objects without the fields that stand at their default."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        return {
            field.name: _canonical(item) for field in fields if (item := getattr(value, field.name)) != field.default
        }
    if isinstance(value, tuple):
        return [_canonical(item) for item in value]
    return value


def _sha256(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
