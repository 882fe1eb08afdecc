"""Tests of cpipe.plan.schema: the published JSON Schema of plans."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hand_plans import hand_plan
from helpers import assert_plan_ok, plan_of
from sample_plans import make_problem, one_f_one_b

from cpipe.plan import encode_plan, plan_schema

SCHEMA_FILE = Path(__file__).parents[2] / "schemas" / "plan.v1.schema.json"


def test_plan_schema_is_fresh() -> None:
    """The published schema is the one that the types give; `cpipe schema plan` prints it."""
    assert SCHEMA_FILE.read_bytes() == msgspec.json.format(msgspec.json.encode(plan_schema()), indent=2) + b"\n"


def test_plan_schema_accepts_plans() -> None:
    """The published schema is valid and accepts what is written."""
    problem = make_problem(2, 3)
    plan = plan_of(problem, one_f_one_b(problem, split=True))
    assert_plan_ok(plan, problem)
    schema = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(encode_plan(plan)), schema)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "2 is not one of"),
        ({"format": "cpipe.profile"}, "'cpipe.profile' is not one of"),
        ({"more": 1}, "'more' was unexpected"),
        ({"digest": 5}, "5 is not of type 'string'"),
    ],
)
def test_plan_schema_refuses_other_files(change: dict[str, object], message: str) -> None:
    """The published schema refuses other formats and versions, unknown fields and wrong types."""
    tree = json.loads(encode_plan(hand_plan([0], 1, ["F0.0 B0.0"])))
    with pytest.raises(jsonschema.ValidationError, match=message):
        jsonschema.validate(tree | change, plan_schema())
