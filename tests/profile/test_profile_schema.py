"""The JSON schema of a profile: fresh, documented, and of one mind with the loader."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from sample_profiles import BASE, WRONG_FIELDS, WRONG_RULES, WRONG_SHAPES, Edits, edited
from strategies import profiles

from cpipe.profile import profile_schema

SCHEMAS = Path(__file__).parents[2] / "schemas"
VALIDATOR = jsonschema.Draft202012Validator(profile_schema())


def fields() -> list[tuple[str, str, dict[str, Any]]]:
    """Return (object, key, schema) of every field of the format."""
    definitions = profile_schema()["$defs"]
    return [(name, key, field) for name, node in definitions.items() for key, field in node["properties"].items()]


def test_schema_is_fresh() -> None:
    """The schema in the repository is the one that the types make."""
    made = msgspec.json.format(msgspec.json.encode(profile_schema()), indent=2) + b"\n"
    assert (SCHEMAS / "profile.v1.schema.json").read_bytes() == made


def test_schema_is_a_schema() -> None:
    """The schema itself is valid JSON Schema, draft 2020-12."""
    jsonschema.Draft202012Validator.check_schema(profile_schema())


@pytest.mark.parametrize(("edits", "_lines"), [*WRONG_FIELDS, *WRONG_SHAPES])
def test_schema_refuses_what_the_loader_refuses(edits: Edits, _lines: list[str]) -> None:
    """Whatever is wrong inside one object, the schema refuses too."""
    assert not VALIDATOR.is_valid(edited(edits))


@pytest.mark.parametrize(("edits", "_lines"), WRONG_RULES)
def test_schema_leaves_rules_between_objects_to_the_loader(edits: Edits, _lines: list[str]) -> None:
    """A schema cannot compare objects with each other, and does not pretend to."""
    VALIDATOR.validate(edited(edits))


@pytest.mark.parametrize(
    "edits",
    [
        {},
        {"$.microbatches": 4.0, "$.devices[0].memory_bytes": 80e9},  # integral floats
        {"$.extensions": {"any": [None, {}]}},
        {"$.links[0]": {"from": "dc-a", "to": "dc-b"}, "$.links[1]": {"from": "dc-b", "to": "dc-a", "duplex": "full"}},
    ],
)
def test_schema_accepts_what_the_loader_accepts(edits: Edits) -> None:
    """Valid profiles are valid under the schema."""
    VALIDATOR.validate(edited(edits))


@settings(deadline=None, max_examples=50)
@given(profiles())
def test_schema_accepts_every_valid_profile(document: dict[str, Any]) -> None:
    """No valid profile breaks the schema."""
    VALIDATOR.validate(document)


@pytest.mark.parametrize(("owner", "key", "field"), fields())
def test_every_number_has_a_unit_and_bounds(owner: str, key: str, field: dict[str, Any]) -> None:
    """A number's description ends with its unit in brackets, and it has a lower and an upper bound."""
    if field.get("type") in ("number", "integer"):
        assert re.search(r"\[[^\]]+\]\.$", field["description"]), f"{owner}.{key}"
        assert {"minimum", "exclusiveMinimum"} & field.keys(), f"{owner}.{key}"
        assert "maximum" in field, f"{owner}.{key}"
    assert "null" not in json.dumps(field), f"{owner}.{key}"


def test_required_keys_are_those_of_the_format() -> None:
    """The schema requires what cannot be defaulted, and nothing else."""
    required = {name: node.get("required", []) for name, node in profile_schema()["$defs"].items()}
    assert required == {
        "Profile": ["format", "version", "microbatches", "devices", "stages"],
        "DeviceSpec": ["id"],
        "StageSpec": ["id", "device", "forward_ms"],
        "OffloadSpec": ["bytes"],
        "RecomputeSpec": ["activation_bytes", "extra_ms"],
        "LinkSpec": [],
        "DataParallelSpec": ["mode", "replicas"],
    }


def test_format_history_lists_every_field() -> None:
    """The page on formats has a row for every field of the profile, with its unit where it is a number."""
    text = (SCHEMAS / "README.md").read_text(encoding="utf-8")
    for owner, key, field in fields():
        row = re.search(rf"^\| `{key}` \|.*\|$", text, flags=re.MULTILINE)
        assert row, f"{owner}.{key}"
        if unit := re.search(r"\[([^\] =]+)[^\]]*\]\.$", field.get("description", "")):
            assert unit[1] in row[0], f"{owner}.{key}"


def test_base_profile_is_the_one_the_tables_edit() -> None:
    """The profile whose edits must fail is itself valid, or the tables would prove nothing."""
    VALIDATOR.validate(BASE)
