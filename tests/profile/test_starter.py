"""Tests of cpipe.profile.starter and fields: a profile that is right as it is, and what its fields mean."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cpipe.profile import encode_profile, normalize, parse_profile, profile_schema, profile_warnings
from cpipe.profile.fields import profile_fields
from cpipe.profile.importers import parse_devices
from cpipe.profile.starter import starter_profile


@pytest.mark.parametrize(
    ("devices", "placement"),
    [
        ("1", (0,)),
        ("4", (0, 1, 2, 3)),
        ("a:1,b:1", (0, 1, 0, 1)),
        ("a:2,b:1,c:1", (0, 1, 2, 2, 3)),
        ("64", tuple(range(64))),
    ],
)
def test_starters_are_right(devices: str, placement: tuple[int, ...]) -> None:
    """Whatever the devices, a starter is a valid profile without a warning, and one microbatch of it fits."""
    data = encode_profile(starter_profile(parse_devices(devices), placement, 8))
    profile = parse_profile(data, "starter.json")
    assert profile_warnings(profile) == ()
    problem = normalize(profile)
    assert problem.placement == placement
    assert profile.stages[0].input_grad_ms == 0.0


def test_every_pair_of_sites_is_linked() -> None:
    """A starter of three sites has three links, so that its stages may stand anywhere."""
    profile = starter_profile(parse_devices("a:1,b:1,c:1"), (0, 1, 2), 1)
    assert [link.between for link in profile.links] == [("a", "b"), ("a", "c"), ("b", "c")]


def test_fields_are_those_of_the_schema() -> None:
    """Every field of the schema is explained once, by its own words, and required where the schema requires it."""
    fields = profile_fields()
    paths = [field.path for field in fields]
    assert len(set(paths)) == len(paths)
    assert all(field.text for field in fields)
    definitions = profile_schema()["$defs"]
    assert len(paths) == sum(len(node["properties"]) for node in definitions.values())
    by_path = {field.path: field for field in fields}
    stage = definitions["StageSpec"]["properties"]
    assert by_path["$.stages[].forward_ms"].text == stage["forward_ms"]["description"]
    assert by_path["$.stages[].forward_ms"].required
    assert not by_path["$.links"].required
    assert by_path["$.data_parallel.mode"].required


def test_a_starter_uses_known_fields() -> None:
    """Every key of a starter is one of the fields that are explained."""

    def keys(node: Any, path: str) -> list[str]:
        if isinstance(node, list):
            return [key for entry in node for key in keys(entry, f"{path}[]")] if isinstance(node[0], dict) else []
        if not isinstance(node, dict):
            return []
        return [found for key, value in node.items() for found in (f"{path}.{key}", *keys(value, f"{path}.{key}"))]

    document = json.loads(encode_profile(starter_profile(parse_devices("a:1,b:1"), (0, 1), 2)))
    assert set(keys(document, "$")) <= {field.path for field in profile_fields()}


def test_texts_are_one_line() -> None:
    """An explanation is one line of plain words."""
    assert [field.path for field in profile_fields() if re.search(r"[\n\r]|``", field.text)] == []
