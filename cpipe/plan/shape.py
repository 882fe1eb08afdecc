"""Compare decoded JSON with the declared types and report every mismatch, each with its path.

The decoder of msgspec stops at the first error; this slower walk runs only on files that it refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec.inspect as types

from cpipe.errors import Diagnostic

__all__ = ["Shape", "show"]

_SHOWN = 60


def show(value: object) -> str:
    """Return `value` as JSON, cut short when it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


class Shape:
    """Collects the mismatches of one file.

    Parameters
    ----------
    file
        The file as the user named it.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Diagnostic] = []

    def fault(self, code: str, path: str, message: str) -> None:
        """Record one mismatch."""
        self.found.append(Diagnostic(code=code, message=message, file=self.file, path=path))

    def check(self, value: Any, expected: types.Type, path: str) -> Any:
        """Return `value` with integral floats made integers, after recording how it differs from `expected`."""
        match expected:
            case types.StructType():
                return self._struct(value, expected, path)
            case types.VarTupleType():
                if not isinstance(value, list):
                    return self._wrong("an array", value, path)
                return [self.check(item, expected.item_type, f"{path}[{index}]") for index, item in enumerate(value)]
            case types.UnionType():  # the IR knows only unions with None
                if value is None:
                    return None
                return self.check(value, next(t for t in expected.types if not isinstance(t, types.NoneType)), path)
            case types.LiteralType():
                if not any(value == known and type(value) is type(known) for known in expected.values):
                    known = ("one of " if len(expected.values) > 1 else "") + ", ".join(map(show, expected.values))
                    self.fault("unknown-value", path, f"expected {known}, got {show(value)}")
                return value
            case types.IntType():
                if isinstance(value, float) and value.is_integer():
                    return int(value)
                return value if type(value) is int else self._wrong("an integer", value, path)
            case types.StrType():
                return self._text(value, path) if isinstance(value, str) else self._wrong("a string", value, path)
            case types.DictType():
                return self._free(value, path) if isinstance(value, dict) else self._wrong("an object", value, path)
            case _:
                return self._free(value, path)

    def _struct(self, value: Any, expected: types.StructType, path: str) -> Any:
        if not isinstance(value, dict):
            return self._wrong("an object", value, path)
        fields = {field.encode_name: field for field in expected.fields}
        checked = {}
        for name, item in value.items():
            if name in fields:
                checked[name] = self.check(item, fields[name].type, f"{path}.{name}")
            else:
                self.fault("unknown-field", f"{path}.{name}", f"unknown field, known are {', '.join(fields)}")
        for name, field in fields.items():
            if field.required and name not in value:
                self.fault("missing-field", path, f"field {name} is missing")
        return checked

    def _free(self, value: Any, path: str) -> Any:
        """Check a value of any type: it must only be writable again."""
        if isinstance(value, Mapping):
            for name, item in value.items():
                self._text(name, path)
                self._free(item, f"{path}.{name}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._free(item, f"{path}[{index}]")
        elif isinstance(value, float) and not math.isfinite(value):
            self.fault("not-finite", path, "expected a finite number, this one is too large")
        elif isinstance(value, str):
            self._text(value, path)
        return value

    def _text(self, value: str, path: str) -> str:
        if any("\ud800" <= char <= "\udfff" for char in value):
            self.fault("encoding", path, f"half a surrogate pair in {show(value)}")
        return value

    def _wrong(self, what: str, value: Any, path: str) -> Any:
        self.fault("wrong-type", path, f"expected {what}, got {show(value)}")
        return value
