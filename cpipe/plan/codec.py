"""Plans as bytes: canonical text out, any equivalent JSON in."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from cpipe.errors import Diagnostic, PlanError
from cpipe.ir import Plan
from cpipe.ir.plan import PLAN_FORMAT, PLAN_VERSION
from cpipe.plan.shape import Shape, show
from cpipe.plan.text import plan_text

__all__ = ["decode_plan", "encode_plan", "load_plan"]

_NEWER = "update cpipe, or make the plan again with this one"
_NO_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity')
_RANK_PATH = re.compile(r"\$\.ranks\[(\d+)\]\.ops")


def encode_plan(plan: Plan) -> bytes:
    """Return the canonical UTF-8 text of `plan`; the same plan gives the same bytes.

    Raises
    ------
    ValueError
        When `limits` or `extensions` hold a number that is not finite.
    """
    return plan_text(plan, plan.digest).encode()


def load_plan(path: str | Path) -> Plan:
    """Read a plan from a file, or from standard input when `path` is ``-``.

    Raises
    ------
    PlanError
        When it cannot be read or decoded. Whether the plan is *right* is the business of `cpipe.plan.validate`.
    """
    file = str(path)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(path).read_bytes()
    except OSError as error:
        message = f"cannot read: {error.strerror or error}"
        raise PlanError([Diagnostic(code="unreadable", message=message, file=file)]) from error
    return decode_plan(data, file)


def decode_plan(data: bytes, file: str) -> Plan:
    """Decode a plan; white space and key order are free.

    Parameters
    ----------
    data
        JSON in UTF-8.
    file
        Name for the messages.

    Raises
    ------
    PlanError
        With every fault: syntax with line and column, duplicate keys, wrong types with their paths.
    """
    plan = None
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        plan = msgspec.json.decode(data, type=Plan)
        if encode_plan(plan) == data:
            return plan
    # msgspec stops at the first error, and lets the last of two equal keys win: whatever it refused, and all that
    # is not canonical (and so might repeat a key), is read once more
    tree, repeated = _parse(_text_of(data, file), file)
    shape = Shape(file)
    if repeated:
        for path, key in _repeated_keys(tree, "$"):
            shape.fault("duplicate-key", path, f"key {show(key)} is there more than once")
    elif plan is not None:
        return plan
    _check_format(tree, file)
    tree = shape.check(tree, msgspec.inspect.type_info(Plan), "$")
    if shape.found:
        raise PlanError([_name_rank(fault, tree) for fault in shape.found])
    return msgspec.convert(tree, Plan)


class _Repeated(dict[str, Any]):
    """An object that had keys more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs)
        self.keys_repeated = [key for key, count in counts.items() if count > 1]


class _NotFiniteError(ValueError):
    """NaN or an infinity stands where a number is meant."""


def _text_of(data: bytes, file: str) -> str:
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        _refuse("encoding", "the file starts with a byte order mark", file, hint="save it as UTF-8 without one")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        _refuse("encoding", f"not UTF-8: byte {error.start} is {data[error.start]:#04x}", file, hint="save it as UTF-8")
    if not text.strip():
        _refuse("empty-file", "the file is empty", file)
    return text


def _parse(text: str, file: str) -> tuple[Any, bool]:
    """Return the JSON value, and whether any object in it repeats a key."""
    repeated = False

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        repeated = True
        return _Repeated(pairs)

    try:
        return json.loads(text, object_pairs_hook=make_object, parse_constant=_no_number), repeated
    except json.JSONDecodeError as error:
        message = error.msg[0].lower() + error.msg[1:]
        _refuse("syntax", message, file, line=error.lineno, column=error.colno)
    except _NotFiniteError as error:
        at = next(match for match in _NO_NUMBER.finditer(text) if not match.group().startswith('"')).start()
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        _refuse("not-finite", f"{error} is no number in JSON", file, line=line, column=column)
    except RecursionError:
        _refuse("syntax", "nested too deeply", file, line=1, column=1)
    except ValueError as error:  # an integer of thousands of digits
        _refuse("syntax", str(error).partition(":")[0], file, line=1, column=1)


def _no_number(constant: str) -> NoReturn:
    raise _NotFiniteError(constant)


def _repeated_keys(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, _Repeated):
        yield from ((f"{path}.{key}", key) for key in value.keys_repeated)
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _repeated_keys(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated_keys(item, f"{path}[{index}]")


def _check_format(tree: Any, file: str) -> None:
    """Refuse what is no plan, or a plan of another version, before looking at anything else in it."""
    if not isinstance(tree, dict):
        _refuse("wrong-type", f"expected an object, got {show(tree)}", file, path="$")
    if tree.get("format") != PLAN_FORMAT:
        found = show(tree["format"]) if "format" in tree else "nothing"
        _refuse("not-a-plan", f'not a plan: expected "{PLAN_FORMAT}", got {found}', file, path="$.format")
    version = tree.get("version")
    if isinstance(version, int | float) and version > PLAN_VERSION:
        message = f"made by a newer cpipe: plan version {show(version)}, this one reads version {PLAN_VERSION}"
        _refuse("newer-version", message, file, path="$.version", hint=_NEWER)
    if isinstance(version, float) and version == PLAN_VERSION:
        tree["version"] = PLAN_VERSION


def _name_rank(fault: Diagnostic, tree: Any) -> Diagnostic:
    """Say which rank a fault inside a program belongs to."""
    match = _RANK_PATH.match(fault.path or "")
    if match is None:
        return fault
    rank = tree["ranks"][int(match.group(1))].get("rank", "?")
    return msgspec.structs.replace(fault, message=f"rank {rank}: {fault.message}")


def _refuse(code: str, message: str, file: str, *, hint: str | None = None, **place: Any) -> NoReturn:
    raise PlanError([Diagnostic(code=code, message=message, file=file, hint=hint, **place)], hint=hint) from None
