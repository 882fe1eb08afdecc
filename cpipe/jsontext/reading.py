"""From bytes to a JSON tree that keeps what `json` loses: duplicate keys and numbers no field can hold.

Syntax faults end the reading and carry line and column; everything else is left to `cpipe.jsontext.scan`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from cpipe.errors import Diagnostic, InputError

__all__ = ["BadNumber", "Format", "JsonObject", "parse_json", "read_bytes", "shown"]

_CHUNK = 2**20
_MAX_DIGITS = 300
_SHOWN = 40
_NUMBERS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|(-?(?:Infinity|NaN|[0-9][0-9.eE+-]*))')
# What the end of the file can leave of a word, a number or an escape sequence.
_CUT_OFF = re.compile(r"|-|\.|[eE][+-]?|t|tr|tru|f|fa|fal|fals|n|nu|nul")
_CUT_ESCAPE = re.compile(r"\\?u?[0-9a-fA-F]{0,4}")
_EXPECTED = {
    "Expecting property name enclosed in double quotes": "a key in double quotes",
    "Expecting value": "a value",
    "Expecting ',' delimiter": "a comma or the end of the list or object",
    "Expecting ':' delimiter": "a colon",
}
_OS_FAULTS = {
    errno.ENOENT: ("file-not-found", "no such file"),
    errno.EISDIR: ("is-a-directory", "expected a file, got a directory"),
    errno.EBADF: ("unreadable", "standard input is closed"),
    errno.EACCES: ("permission-denied", "no permission to read this file"),
}


class Format(NamedTuple):
    """One of the formats that cpipe reads.

    `name` and `version` stand in the file, `noun` is what people call it, `error` is raised for what is wrong with it.
    No file of it is larger than `max_bytes` [bytes]; `newer_hint` says what to do about one of a newer version.
    """

    name: str
    version: int
    noun: str
    error: type[InputError]
    max_bytes: int
    newer_hint: str = "update cpipe"


class JsonObject(dict[str, Any]):
    """A JSON object; `duplicates` are the keys that stood in it more than once."""

    duplicates: tuple[str, ...] = ()


@dataclass(frozen=True)
class BadNumber:
    """A number that JSON text can spell but no field can hold: NaN, infinities, digits beyond a double.

    `line` and `column` are one-based and say where it stands.
    """

    text: str
    line: int
    column: int


def read_bytes(path: str | os.PathLike[str], form: Format) -> bytes:
    """Return the content of `path`, or of standard input for ``-``.

    Raises
    ------
    InputError
        When it cannot be read, or is larger than any file of this format.
    """
    file = os.fspath(path)
    try:
        if file == "-":
            data = _read_at_most(sys.stdin.buffer, form.max_bytes)
        else:
            with Path(file).open("rb") as stream:
                data = _read_at_most(stream, form.max_bytes)
    except OSError as error:
        code, message = _OS_FAULTS.get(error.errno or 0, ("unreadable", error.strerror or "cannot be read"))
        raise _fault(file, form, code, message) from None
    except ValueError:
        raise _fault(file, form, "unreadable", "this is not the name of a file") from None
    if len(data) > form.max_bytes:
        raise _fault(file, form, "file-too-large", f"expected at most {form.max_bytes} bytes, got more")
    return data


def _read_at_most(stream: BinaryIO, limit: int) -> bytes:
    """Return what `stream` holds, but little more than `limit` bytes of it, and of what is no text only the head."""
    data = bytearray()
    while len(data) <= limit and (chunk := stream.read(_CHUNK)):
        data += chunk
        if _is_binary(data):  # a device such as /dev/zero has no end
            break
    return bytes(data)


def _is_binary(data: bytes | bytearray) -> bool:
    return data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in data[:4]


def parse_json(data: bytes, file: str, form: Format) -> Any:
    """Decode UTF-8 JSON; objects become `JsonObject`, numbers out of range `BadNumber`.

    Raises
    ------
    InputError
        With the one syntax fault, its line and column.
    """
    text = _decode(data, file, form)
    if not text or text.isspace():
        raise _fault(file, form, "empty-file", "expected a JSON object, got an empty file")
    reader = _NumberReader(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=reader.integer,
            parse_float=reader.real,
            parse_constant=reader.constant,
        )
    except json.JSONDecodeError as error:
        _raise_syntax_fault(text, error, file, form)
    except RecursionError:
        raise _fault(file, form, "too-deep", "lists and objects are nested too deeply") from None


def shown(value: Any) -> str:
    """Return `value` as a person should see it in one line: JSON text, shortened, nothing unprintable."""
    if isinstance(value, BadNumber):
        return value.text
    if isinstance(value, dict):
        return f"an object of {len(value)} key{'s' * (len(value) != 1)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} value{'s' * (len(value) != 1)}"
    text = json.dumps(value, ensure_ascii=False)
    text = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text[: _SHOWN + 1])
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _fault(file: str, form: Format, code: str, message: str, hint: str | None = None) -> InputError:
    return form.error((Diagnostic(code=code, message=message, file=file, hint=hint),), hint=hint)


def _decode(data: bytes, file: str, form: Format) -> str:
    if _is_binary(data):
        hint = "save the file as UTF-8"
        raise _fault(file, form, "not-utf8", "expected UTF-8, got UTF-16 or UTF-32", hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", errors="replace")
        message = f"expected UTF-8, got the byte 0x{data[error.start]:02x}"
        raise _syntax_fault(before, len(before), "not-utf8", message, file, form, "save the file as UTF-8") from None


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    result = JsonObject(pairs)
    if len(result) < len(pairs):
        keys = Counter(key for key, _ in pairs)
        result.duplicates = tuple(key for key, count in keys.items() if count > 1)
    return result


class _NumberReader:
    """Hooks of `json` for numbers; they are called in document order, so a count finds a number's place."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._count = 0
        self._starts: list[int] = []
        self._breaks: list[int] = []

    def integer(self, text: str) -> int | BadNumber:
        self._count += 1
        return int(text) if len(text) <= _MAX_DIGITS else self._bad(text)

    def real(self, text: str) -> float | BadNumber:
        self._count += 1
        value = float(text)
        return value if abs(value) != float("inf") else self._bad(text)

    def constant(self, text: str) -> BadNumber:
        self._count += 1
        return self._bad(text)

    def _bad(self, text: str) -> BadNumber:
        if not self._starts:
            self._starts = [match.start(1) for match in _NUMBERS.finditer(self._text) if match[1]]
            self._breaks = [match.start() for match in re.finditer("\n", self._text)]
        start = self._starts[self._count - 1]
        line = bisect_left(self._breaks, start)
        column = start - (self._breaks[line - 1] if line else -1)
        return BadNumber(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...", line + 1, column)


def _position(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _syntax_fault(
    text: str, offset: int, code: str, message: str, file: str, form: Format, hint: str | None = None
) -> InputError:
    line, column = _position(text, offset)
    return form.error(
        (Diagnostic(code=code, message=message, file=file, line=line, column=column, hint=hint),), hint=hint
    )


def _raise_syntax_fault(text: str, error: json.JSONDecodeError, file: str, form: Format) -> NoReturn:
    """Say in a user's words what `json` could not read."""
    rest = text[error.pos :].lstrip()
    offset = len(text) - len(rest)
    before = text[:offset].rstrip()
    hint = None
    in_string = error.msg.startswith("Invalid")  # a raw control character, or no valid escape
    if error.msg.startswith("Unterminated string") or (_CUT_ESCAPE if in_string else _CUT_OFF).fullmatch(rest):
        offset = len(text.rstrip())
        code, message, hint = "truncated", "the file ends before the JSON document does", "was it copied whole?"
    elif in_string:
        offset, code = error.pos, "bad-json"
        what = "an escape sequence" if "escape" in error.msg else "a control character"
        message = f"expected text that JSON allows in a string, got {what} that it does not"
    elif rest[0] in "/#":
        code, message, hint = "comment", "JSON has no comments", "delete it; notes can go into `extensions`"
    elif (rest[0] in "}]" and before.endswith(",")) or error.msg.startswith("Illegal trailing comma"):
        offset = before.rindex(",") if before.endswith(",") else error.pos
        code, message, hint = "trailing-comma", "expected no comma after the last value", "delete the comma"
    elif error.msg == "Extra data":
        code, message = "trailing-data", "expected the end of the file after the JSON document"
        hint = f"one file holds one {form.noun}"
    else:
        code, message = "bad-json", f"expected {_EXPECTED.get(error.msg, 'JSON')}, got {shown(rest[0])}"
    raise _syntax_fault(text, offset, code, message, file, form, hint) from None
