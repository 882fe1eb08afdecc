"""The text of `cpipe compare`: a table by makespan, what does not fit and why, and what less memory costs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Literal

from cpipe.ir.comparison import Comparison, Reached, Row
from cpipe.report.tables import byte_unit, format_bytes, format_ms, format_percent, render_table
from cpipe.report.terminal import printable

__all__ = ["comparison_csv", "comparison_lines", "row_name"]

Columns = list[tuple[str, Literal["<", ">"], list[str]]]

_CSV = (
    "row",
    "method",
    "placement",
    "outcome",
    "on_front",
    "memory_share",
    "makespan_ms",
    "bubble",
    "peak_bytes",
    "lower_bound_ms",
    "gap",
    "proved_by",
    "own_makespan_ms",
    "own_peak_bytes",
    "search_at_own_peak_ms",
    "short_bytes",
    "reason",
)


def row_name(row: Row) -> str:
    """Return method and placement of a row, and of one with less memory how much it has."""
    parts = [row.method]
    if row.placement not in ("", "profile"):
        parts.append(row.placement)
    if row.memory_share is not None:
        parts[-1] += ","
        parts.append(f"{row.memory_share:.0%} memory")
    return " ".join(parts)


def comparison_lines(found: Comparison) -> str:
    """Return the page; rows are numbered from 1, in the order of the report."""
    fitting = [row for row in found.rows if row.outcome == "fits"]
    tight = [row for row in found.rows if row.outcome == "does-not-fit"]
    absent = [row for row in found.rows if row.outcome == "does-not-apply"]
    parts = [_head(found)]
    parts.append(_fit_table(found, fitting) if fitting else "nothing fits")
    if fitting:
        parts.append("*: no other row is as fast with as little memory\n" + "\n".join(_prices(fitting)))
    if tight:
        parts.append("does not fit:\n" + _tight_table(tight, len(fitting)))
    if absent:
        rows = [(printable(row.method), row.reason) for row in absent]
        parts.append("does not apply:\n" + render_table(("method", "why"), rows, ("<", "<")))
    return "\n\n".join(part.rstrip("\n") for part in parts)


def comparison_csv(found: Comparison) -> bytes:
    """Return one line per row; what is not known is empty. Times are [ms], sizes [bytes]."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for number, row in enumerate(found.rows, start=1):
        writer.writerow(["" if cell is None else cell for cell in _cells(number, row, found)])
    return text.getvalue().encode(errors="backslashreplace")


def _cells(number: int, row: Row, found: Comparison) -> Iterator[object]:
    reached, own = row.reached, row.own
    yield from (number, row.method, row.placement, row.outcome)
    yield str(found.front[number - 1]).lower() if row.outcome == "fits" else None
    yield row.memory_share
    if reached is None:
        yield from (None,) * 6
    else:
        yield from (reached.makespan_ns / 1e6, reached.bubble, reached.peak_bytes)
        yield from (reached.bound_ns / 1e6, reached.gap, reached.proved_by)
    yield from (None, None) if own is None else (own.makespan_ns / 1e6, own.peak_bytes)
    yield None if row.searched is None else row.searched.makespan_ns / 1e6
    yield max((entry.short_bytes for entry in row.shortfalls), default=None)
    yield row.reason


def _head(found: Comparison) -> str:
    limits = sorted({cap for cap in found.capacities if cap is not None})
    unit = byte_unit(max(limits, default=0))
    if not limits:
        memory = "no limit of memory"
    elif len(limits) == 1 and None not in found.capacities:
        memory = f"{format_bytes(limits[0], unit)} {unit[1]} on each device"
    else:
        most = "no limit" if None in found.capacities else f"{format_bytes(limits[-1], unit)} {unit[1]}"
        memory = f"from {format_bytes(limits[0], unit)} {unit[1]} to {most} on a device"
    name = f"{printable(found.name)}: " if found.name else ""
    return f"{name}{len(found.devices)} devices, {found.num_stages} stages, {found.microbatches} microbatches; {memory}"


def _fit_table(found: Comparison, rows: Sequence[Row]) -> str:
    reached = [row.reached for row in rows if row.reached is not None]
    fastest = max(1, min(entry.makespan_ns for entry in reached))
    columns: Columns = [
        ("", "<", ["*" if front else "" for front in found.front]),
        ("row", ">", [str(number) for number in range(1, len(rows) + 1)]),
        ("method", "<", [row.method for row in rows]),
        ("placement", "<", [row.placement for row in rows]),
        *_figures(reached),
        ("x fastest", ">", [f"{entry.makespan_ns / fastest:.3f}" for entry in reached]),
        ("lower bound ms", ">", [format_ms(entry.bound_ns) for entry in reached]),
        ("gap", ">", [format_percent(entry.gap) for entry in reached]),
    ]
    if any(row.memory_share is not None for row in rows):
        shares = ["" if row.memory_share is None else f"{row.memory_share:.0%}" for row in rows]
        columns.insert(4, ("memory", ">", shares))
    return _table(columns, rows)


def _tight_table(rows: Sequence[Row], before: int) -> str:
    columns: Columns = [
        ("row", ">", [str(before + number) for number in range(1, len(rows) + 1)]),
        ("method", "<", [row.method for row in rows]),
        ("placement", "<", [row.placement for row in rows]),
    ]
    own = [row.own for row in rows]
    unit = byte_unit(max((entry.peak_bytes for entry in own if entry is not None), default=0))
    times = ["" if entry is None else format_ms(entry.makespan_ns) for entry in own]
    columns.append(("without limits ms", ">", times))
    columns.append(
        (f"peak {unit[1]}", ">", ["" if entry is None else format_bytes(entry.peak_bytes, unit) for entry in own])
    )
    return _table(columns, rows, [("why", "<", [row.reason for row in rows])])


def _figures(reached: Sequence[Reached]) -> Columns:
    unit = byte_unit(max(entry.peak_bytes for entry in reached))
    return [
        ("makespan ms", ">", [format_ms(entry.makespan_ns) for entry in reached]),
        ("bubble", ">", [format_percent(entry.bubble) for entry in reached]),
        (f"peak {unit[1]}", ">", [format_bytes(entry.peak_bytes, unit) for entry in reached]),
    ]


def _table(columns: Columns, rows: Sequence[Row], last: Columns | None = None) -> str:
    """Return a table with what a search reaches at each row's own peak, where one was made."""
    if any(row.searched is not None for row in rows):
        cells = ["" if row.searched is None else format_ms(row.searched.makespan_ns) for row in rows]
        columns = [*columns, ("search at that peak ms", ">", cells)]
    headers, align, cells_of = zip(*columns, *(last or []), strict=True)
    return render_table(headers, list(zip(*cells_of, strict=True)), align)


def _prices(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what less memory than the fastest row's costs, from the rows that were made for it."""
    fastest = rows[0].reached
    for number, row in enumerate(rows, start=1):
        if row.memory_share is None or row.reached is None or fastest is None:
            continue
        if row.reached.peak_bytes >= fastest.peak_bytes:  # row 1 itself, or one as large: no price to tell
            continue
        time = row.reached.makespan_ns / max(1, fastest.makespan_ns)
        memory = row.reached.peak_bytes / max(1, fastest.peak_bytes)
        yield f"less memory: row {number} takes {time:.3f} x the time of row 1 at {format_percent(memory)} of its peak"
