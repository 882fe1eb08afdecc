"""Faults of a JSON tree that no field's type knows of, and the order of its values in the file."""

from __future__ import annotations

import re
from typing import Any

from cpipe.errors import Diagnostic
from cpipe.jsontext.reading import BadNumber, Format, JsonObject, shown

__all__ = ["MAX_DEPTH", "item", "member", "scan"]

MAX_DEPTH = 64
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


def member(path: str, key: str) -> str:
    """Return the JSON path of the value under `key` of the object at `path`."""
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{shown(key)}]"


def item(path: str, index: int) -> str:
    """Return the JSON path of entry `index` of the list at `path`."""
    return f"{path}[{index}]"


def scan(tree: Any, file: str, form: Format) -> tuple[dict[str, int], list[Diagnostic]]:
    """Walk a whole tree, the user's extensions included.

    Returns
    -------
    tuple
        The position of each path in document order, and a fault for every duplicate key, every number
        that is not finite and every text that cannot be written as UTF-8.

    Raises
    ------
    InputError
        When values are nested deeper than `MAX_DEPTH`; nothing below would be safe to walk.
    """
    order: dict[str, int] = {}
    faults: list[Diagnostic] = []
    pending: list[tuple[str, Any, int]] = [("$", tree, 0)]
    while pending:
        path, value, depth = pending.pop()
        order[path] = len(order)
        if depth > MAX_DEPTH:
            raise form.error(
                (Diagnostic(code="too-deep", message=f"nested deeper than {MAX_DEPTH} levels", file=file),)
            )
        if isinstance(value, JsonObject):
            children = [(member(path, key), child, depth + 1) for key, child in value.items()]
            faults += _object_faults(path, value, file)
        elif isinstance(value, list):
            children = [(item(path, index), child, depth + 1) for index, child in enumerate(value)]
        else:
            children = []
            faults += _scalar_faults(path, value, file)
        pending += reversed(children)
    return order, faults


def _object_faults(path: str, value: JsonObject, file: str) -> list[Diagnostic]:
    faults = [
        Diagnostic(
            code="duplicate-key",
            message=f"the key {shown(key)} stands here more than once",
            file=file,
            path=member(path, key),
        )
        for key in value.duplicates
    ]
    return faults + [_unwritable(member(path, key), key, file) for key in value if _SURROGATE.search(key)]


def _scalar_faults(path: str, value: Any, file: str) -> list[Diagnostic]:
    if isinstance(value, str) and _SURROGATE.search(value):
        return [_unwritable(path, value, file)]
    if not isinstance(value, BadNumber):
        return []
    hint = "a bandwidth measured as bytes / 0 gives this" if value.text in ("Infinity", "-Infinity", "NaN") else None
    return [
        Diagnostic(
            code="not-finite",
            message=f"expected a finite number, got {value.text}",
            file=file,
            path=path,
            line=value.line,
            column=value.column,
            hint=hint,
        )
    ]


def _unwritable(path: str, text: str, file: str) -> Diagnostic:
    message = f"expected text that UTF-8 can hold, got a lone surrogate in {shown(text)}"
    return Diagnostic(code="bad-text", message=message, file=file, path=path)
