"""A results file: CSV or JSON, written whole each time, and read again to go on from it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from cpipe.errors import UsageError
from cpipe.report.document import encode_report
from cpipe.report.sweep import SweepPoint, SweepReport

__all__ = ["Format", "decode_points", "encode_results", "format_of"]

Format = Literal["csv", "json"]


class _Column(NamedTuple):
    """How a field of a point is written in CSV and read again."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _number(value: float) -> str:
    """Return the shortest text that reads back as the same number."""
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


_TEXT = _Column(str, str)
_REAL = _Column(_number, float)
_WHOLE = _Column(str, int)
_SIZES = _Column(lambda sizes: " ".join(map(str, sizes)), lambda text: tuple(map(int, text.split())))
_COLUMNS = {
    "key": _TEXT,
    "microbatches": _WHOLE,
    "memory_factor": _REAL,
    "method": _TEXT,
    "placement": _TEXT,
    "chunks": _WHOLE,
    "latency": _REAL,
    "bandwidth": _REAL,
    "status": _TEXT,
    "makespan_ms": _REAL,
    "lower_bound_ms": _REAL,
    "gap": _REAL,
    "bubble": _REAL,
    "peak_bytes": _SIZES,
    "found_by": _TEXT,
    "proved_by": _TEXT,
    "reason": _TEXT,
}


def format_of(path: str, option: str = "--output") -> Format:
    """Return the format that the name of a file asks for.

    Raises
    ------
    UsageError
        When it ends in neither ``.csv`` nor ``.json``.
    """
    suffix = path.rpartition(".")[2].lower()
    if suffix == "csv":
        return "csv"
    if suffix == "json":
        return "json"
    raise UsageError(f"{option}: expected a file that ends in .csv or .json, got {path!r}", code="sweep-format")


def encode_results(report: SweepReport, form: Format) -> bytes:
    """Return the results as a file: JSON is the report, CSV one row a point, its columns named with their units."""
    if form == "json":
        return encode_report(report)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_header(report))
    for point in report.points:
        values = (getattr(point, name) for name in _COLUMNS)
        fields = zip(_COLUMNS.values(), values, strict=True)
        writer.writerow(["" if value is None else column.write(value) for column, value in fields])
    return text.getvalue().encode()


def _header(report: SweepReport) -> list[str]:
    units = {"latency": report.latency_unit, "bandwidth": report.bandwidth_unit}
    return [f"{name}_{units[name]}" if units.get(name) else name for name in _COLUMNS]


def decode_points(data: bytes, form: Format, report: SweepReport, keys: Iterable[str], file: str) -> list[SweepPoint]:
    """Return the points that a results file already has, those that failed left out: they are tried again.

    Parameters
    ----------
    data
        Content of the file; an empty one has no points.
    form
        Its format.
    report
        Of the sweep that wants to go on from it, without points.
    keys
        Of all points of that sweep.
    file
        Its name, for what is said about it.

    Raises
    ------
    UsageError
        When it is no results file, or has points that are not of this sweep: it must not be overwritten then.
    """
    if not data.strip():
        return []
    try:
        points = _json_points(data) if form == "json" else _csv_points(data, _header(report))
    except (ValueError, TypeError, csv.Error) as error:
        raise _refusal(file, f"is not the {form.upper()} file of a sweep like this one") from error
    known = set(keys)
    strange = sum(point.key not in known for point in points)
    if strange:
        message = f"has {strange} of {len(points)} points that are not of this sweep"
        raise _refusal(file, f"{message}: another profile, version, value or option")
    return [point for point in points if point.status != "failed"]


def _refusal(file: str, message: str) -> UsageError:
    hint = "name another file, or remove this one; nothing was changed"
    return UsageError(f"--output: {file!r} {message}", code="sweep-other-file", hint=hint)


def _json_points(data: bytes) -> Sequence[SweepPoint]:
    return msgspec.json.decode(data, type=SweepReport).points


def _csv_points(data: bytes, header: Sequence[str]) -> Sequence[SweepPoint]:
    rows = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    if rows[0] != list(header):
        raise ValueError("another header")
    return [_row_point(row) for row in rows[1:]]


def _row_point(row: Sequence[str]) -> SweepPoint:
    fields = zip(_COLUMNS.items(), row, strict=True)
    found = {name: column.read(text) for (name, column), text in fields if text}
    absent = dict.fromkeys(("chunks", "latency", "bandwidth"))
    return msgspec.convert({**absent, **found}, SweepPoint)
