"""JSON Schema of the plan format, generated from the types."""

from __future__ import annotations

from typing import Any

import msgspec

from cpipe.ir import Plan
from cpipe.ir.plan import PLAN_FORMAT, PLAN_VERSION

__all__ = ["plan_schema"]


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a plan file."""
    schema = msgspec.json.schema(Plan)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{PLAN_FORMAT} version {PLAN_VERSION}",
    }
    return head | schema
