"""A JSON tree against msgspec types: every fault of a single field, none twice.

The value built is of the type even where fields are wrong: a neutral value stands in for each of them (0, the empty
string, no entries), so that rules that join fields can still look at the rest.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec import inspect as mi

from cpipe.errors import Diagnostic
from cpipe.jsontext.reading import BadNumber, JsonObject, shown
from cpipe.jsontext.scan import item, member

__all__ = ["Builder"]

_MAX_GUESSES = 10
"""So many unknown keys get a guess at what was meant: a guess takes long, and nobody reads thousands."""


class Builder:
    """Builds values of msgspec types out of a JSON tree and collects the faults on the way.

    Parameters
    ----------
    file
        Name to show in diagnostics.
    homes
        Where the fields of each type stand, for a key in the wrong place.
    reasons
        Values of no Literal, and keys of no object, that people try all the same: each with why it is refused.
    nulls
        Accept null where a field may be absent.
    """

    def __init__(
        self,
        file: str,
        *,
        homes: Sequence[tuple[type[Struct], str]] = (),
        reasons: Mapping[str, str] | None = None,
        nulls: bool = False,
    ) -> None:
        self.file = file
        self.faults: list[Diagnostic] = []
        self._homes = homes
        self._reasons = reasons or {}
        self._nulls = nulls
        self._guesses = _MAX_GUESSES

    def build(self, kind: mi.Type, value: Any, path: str) -> Any:
        """Return `value` as `kind` wants it, or the neutral value of `kind` after noting the fault."""
        if value is None and self._nulls and isinstance(kind, mi.UnionType):
            return None
        kind = _plain(kind)
        if isinstance(value, BadNumber):  # the scan of the tree reports it
            return _neutral(kind)
        match kind:
            case mi.StructType():
                return self._struct(kind, value, path)
            case mi.VarTupleType() | mi.TupleType():
                return self._list(kind, value, path)
            case mi.IntType() | mi.FloatType():
                return self._number(kind, value, path)
            case mi.StrType():
                return self._text(kind, value, path)
            case mi.LiteralType():
                return self._literal(kind, value, path)
            case mi.DictType():
                return value if isinstance(value, dict) else self._wrong_type(kind, "an object", value, path)
            case _:
                raise AssertionError(f"no field has the type {kind}")

    def _struct(self, kind: mi.StructType, value: Any, path: str) -> Any:
        if not isinstance(value, JsonObject):
            return self._wrong_type(kind, "an object", value, path)
        fields = {field.encode_name: field for field in kind.fields}
        built = {field.name: _neutral(field.type) for field in kind.fields if field.required}
        for key, child in value.items():
            if field := fields.get(key):
                built[field.name] = self.build(field.type, child, member(path, key))
            else:
                reason = self._reasons.get(key, "")
                message = f"unknown key {shown(key)}{reason and ': '}{reason}"
                self._note("unknown-key", message, member(path, key), None if reason else self._spelling(key, kind))
        for field in kind.fields:
            if field.required and field.encode_name not in value:
                self._note("missing-key", f"the required key {shown(field.encode_name)} is missing", path)
        return kind.cls(**built)

    def _list(self, kind: mi.VarTupleType | mi.TupleType, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            return self._wrong_type(kind, "a list", value, path)
        if isinstance(kind, mi.TupleType):
            if len(value) != len(kind.item_types):
                message = f"expected a list of {len(kind.item_types)} values, got {len(value)}"
                self._note("wrong-length", message, path)
                return _neutral(kind)
            types = kind.item_types
        else:
            if len(value) < (kind.min_length or 0):
                self._note("empty-list", f"expected at least {kind.min_length} entry, got an empty list", path)
            types = (kind.item_type,) * len(value)
        return tuple(
            self.build(entry_type, entry, item(path, index))
            for index, (entry_type, entry) in enumerate(zip(types, value, strict=True))
        )

    def _number(self, kind: mi.IntType | mi.FloatType, value: Any, path: str) -> Any:
        expected = _expected(kind)
        if isinstance(value, list):
            # A list must never be spread over stages, nor its first entry taken.
            message = f"expected 1 number for this field, got a list of {len(value)}"
            return self._bad("list-for-number", message, path, kind)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return self._wrong_type(kind, expected, value, path)
        if isinstance(kind, mi.IntType) and value != int(value):
            return self._bad("not-an-integer", f"expected {expected}, got {shown(value)}", path, kind)
        if (kind.ge is not None and value < kind.ge) or (kind.gt is not None and value <= kind.gt):
            bound = f" >= {kind.ge}" if kind.ge is not None and kind.ge < 0 else ""
            message = f"expected {expected}{bound}, got {shown(value)}"
            return self._bad(_low_code(path, value, kind), message, path, kind)
        if kind.le is not None and value > kind.le:
            message = f"expected {expected.partition(' >')[0]} <= {kind.le}, got {shown(value)}"
            return self._bad("too-large", message, path, kind)
        return int(value) if isinstance(kind, mi.IntType) else float(value) + 0.0  # -0.0 becomes 0.0

    def _text(self, kind: mi.StrType, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            return self._wrong_type(kind, "a string", value, path)
        if kind.min_length and not value:
            return self._bad("empty-text", "expected a non-empty string, got an empty one", path, kind)
        if kind.max_length is not None and len(value) > kind.max_length:
            message = f"expected at most {kind.max_length} characters, got {len(value)}"
            return self._bad("long-text", message, path, kind)
        if kind.pattern and not re.fullmatch(kind.pattern, value):
            message = f"expected a string without control characters, got {shown(value)}"
            return self._bad("control-character", message, path, kind)
        return value

    def _literal(self, kind: mi.LiteralType, value: Any, path: str) -> Any:
        for allowed in kind.values:
            if value == allowed and not isinstance(value, bool):
                return allowed
        reason = self._reasons.get(value, "") if isinstance(value, str) else ""
        words = ", ".join(map(shown, kind.values))
        expected = f"one of {words}" if len(kind.values) > 1 else words
        message = f"expected {expected}, got {shown(value)}{reason and ': '}{reason}"
        return self._bad("unsupported-mode" if reason else "unknown-value", message, path, kind)

    def _wrong_type(self, kind: mi.Type, expected: str, value: Any, path: str) -> Any:
        return self._bad("wrong-type", f"expected {expected}, got {shown(value)}", path, kind)

    def _bad(self, code: str, message: str, path: str, kind: mi.Type) -> Any:
        self._note(code, message, path)
        return _neutral(kind)

    def _spelling(self, key: str, kind: mi.StructType) -> str | None:
        for cls, home in self._homes:
            if cls is not kind.cls and key in cls.__struct_encode_fields__:
                return f"{shown(key)} belongs {home}"
        if not self._guesses:
            return None
        self._guesses -= 1
        close = difflib.get_close_matches(key, kind.cls.__struct_encode_fields__, n=1)
        return f"did you mean {shown(close[0])}?" if close else None

    def _note(self, code: str, message: str, path: str, hint: str | None = None) -> None:
        self.faults.append(Diagnostic(code=code, message=message, file=self.file, path=path, hint=hint))


def _plain(kind: mi.Type) -> mi.Type:
    """Strip descriptions and the None that stands for an absent field: an explicit null is no value."""
    while isinstance(kind, (mi.Metadata, mi.UnionType)):
        kind = kind.type if isinstance(kind, mi.Metadata) else kind.types[0]
    return kind


def _neutral(kind: mi.Type) -> Any:
    kind = _plain(kind)
    match kind:
        case mi.IntType() | mi.FloatType():
            return max(kind.ge or 0, kind.gt or 0)
        case mi.StrType():
            return ""
        case mi.LiteralType():
            return kind.values[0]
        case mi.TupleType():
            return tuple(_neutral(entry) for entry in kind.item_types)
        case mi.StructType():
            required = {field.name: _neutral(field.type) for field in kind.fields if field.default is NODEFAULT}
            return kind.cls(**required)
        case mi.DictType():
            return {}
        case _:
            return ()


def _expected(kind: mi.IntType | mi.FloatType) -> str:
    noun = "an integer" if isinstance(kind, mi.IntType) else "a number"
    if kind.gt is not None:
        return f"{noun} > {kind.gt}"
    return f"{noun} >= {kind.ge}" if kind.ge is not None and kind.ge >= 0 else noun


def _low_code(path: str, value: float, kind: mi.IntType | mi.FloatType) -> str:
    if kind.ge != 0 or value >= 0:
        return "too-small"
    return "negative-duration" if path.endswith("_ms") else "negative-size" if path.endswith("_bytes") else "too-small"
