"""JSON Schema of the profile, made from its types; for editors and other languages.

It states what a single field and a single object must look like. Rules that join objects (unique ids, known
devices, linked sites) are the loader's alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cpipe.profile.schema import PROFILE_FORMAT, PROFILE_VERSION, Profile

__all__ = ["profile_schema"]

_ONE_BANDWIDTH = {"not": {"required": ["bandwidth_gbit_s", "beta_ns_per_byte"]}}
_ONE_WAY = {"required": ["from", "to"]}
_RULES: dict[str, dict[str, Any]] = {
    "StageSpec": {
        "anyOf": [{"required": ["input_grad_ms", "weight_grad_ms"]}, {"required": ["full_backward_ms"]}],
        "dependentRequired": {"input_grad_ms": ["weight_grad_ms"], "weight_grad_ms": ["input_grad_ms"]},
    },
    "LinkSpec": {
        **_ONE_BANDWIDTH,
        "oneOf": [
            {"required": ["between"], "not": {"anyOf": [{"required": ["from"]}, {"required": ["to"]}]}},
            {**_ONE_WAY, "not": {"required": ["between"]}, "properties": {"duplex": {"const": "full"}}},
        ],
    },
    "DataParallelSpec": _ONE_BANDWIDTH,
}


def profile_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a profile, with units, bounds and required keys."""
    (main,), components = msgspec.json.schema_components([Profile], ref_template="#/$defs/{name}")
    definitions = {name: _without_null(schema) | _RULES.get(name, {}) for name, schema in components.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{PROFILE_FORMAT} version {PROFILE_VERSION}",
        **main,
        "$defs": definitions,
    }


def _without_null(node: Any) -> Any:
    """Undo ``X or null``: None stands for an absent field in Python, and null is not accepted in a file."""
    if isinstance(node, list):
        return [_without_null(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    result = {key: _without_null(value) for key, value in node.items() if not (key == "default" and value is None)}
    choices = result.get("anyOf", [])
    if {"type": "null"} in choices:
        (only,) = (choice for choice in choices if choice != {"type": "null"})
        del result["anyOf"]
        result |= only
    return result
