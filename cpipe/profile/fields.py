"""What each field of a profile means, as its schema says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cpipe.profile.json_schema import profile_schema

__all__ = ["FieldHelp", "profile_fields"]

_REFERENCE = "#/$defs/"


class FieldHelp(NamedTuple):
    """One field: its JSON path, whether it is required, and what it means."""

    path: str
    required: bool
    text: str


def profile_fields() -> tuple[FieldHelp, ...]:
    """Return every field of a profile, each object's before those of the objects inside it.

    The texts are the schema's own descriptions: of the field, or of the object that it holds.
    """
    definitions: Mapping[str, dict[str, Any]] = profile_schema()["$defs"]
    return tuple(_fields(definitions, "Profile", "$"))


def _fields(definitions: Mapping[str, dict[str, Any]], owner: str, place: str) -> Iterator[FieldHelp]:
    required = definitions[owner].get("required", ())
    inner = []
    for name, field in definitions[owner]["properties"].items():
        entry = field["items"] if isinstance(field.get("items"), dict) else field
        kind = _reference(entry).removeprefix(_REFERENCE)
        text = field.get("description") or definitions.get(kind, {}).get("description", "").partition("\n")[0]
        yield FieldHelp(f"{place}.{name}", name in required, text)
        if kind:
            inner.append((kind, f"{place}.{name}{'[]' if entry is not field else ''}"))
    for kind, path in inner:
        yield from _fields(definitions, kind, path)


def _reference(node: Mapping[str, Any]) -> str:
    """Return what a schema refers to, whether it stands beside other keywords or behind one of them."""
    parts = (node, *node.get("allOf", ()), *node.get("anyOf", ()))
    return next((part["$ref"] for part in parts if "$ref" in part), "")
