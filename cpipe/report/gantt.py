"""A Gantt chart in text: one lane per rank, time from left to right, scaled to a width.

While ops are wide enough each shows its letter and microbatch, filled up with its own line style, so that the chart
can be read without colour. When a rank has more ops than columns, a column shows the letter of the op kind that
takes most of it (or that it is mostly idle).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from cpipe.ir import Plan
from cpipe.report.lanes import Bar, Lane, plan_lanes
from cpipe.report.palette import KINDS
from cpipe.report.tables import format_ms
from cpipe.report.terminal import display_width, printable
from cpipe.report.time_axis import TimeWindow, tick_step

__all__ = ["GANTT_CHARACTERS", "render_gantt"]

_MIN_COLUMNS = 20
_TICK_COLUMNS = 10
_FILL = {kind: row.stroke for kind, row in KINDS.items()}
_ASCII_FILL = {kind: row.ascii_stroke for kind, row in KINDS.items()}
_IDLE, _ASCII_IDLE = "·", "."
_TICK, _ASCII_TICK = "┬", "+"
GANTT_CHARACTERS = "".join(_FILL.values()) + _IDLE + _TICK
"""What the chart draws with when `ascii_only` is off."""
_DIM = "2"


class _Cell(NamedTuple):
    """One column of one lane: what is drawn, and the op kind it belongs to (empty when idle)."""

    char: str
    kind: str


def render_gantt(
    plan: Plan, *, width: int, ascii_only: bool = False, colour: bool = False, window: TimeWindow | None = None
) -> str:
    """Return the chart of the times a plan states, without a trailing newline.

    Parameters
    ----------
    plan
        Any plan that can be read.
    width
        Columns of the whole chart; at least 20 are used for time, whatever `width`.
    ascii_only
        Draw with ASCII alone.
    colour
        Add colour (SGR escapes).
    window
        Draw this part of time alone.
    """
    lanes = plan_lanes(plan)
    horizon = max([plan.claims.makespan_ns, *(bar.end for lane in lanes for bar in lane.bars)])
    if horizon <= 0 or not any(lane.bars for lane in lanes):
        return "nothing in this plan takes time"
    first, last = window.within(horizon) if window else (0, horizon)
    lanes, horizon = tuple(_cut(lane, first, last) for lane in lanes), last - first
    names = [printable(lane.name) for lane in lanes]
    margin = max(map(display_width, names)) + 1
    columns = max(_MIN_COLUMNS, width - margin)
    dense = any(len(lane.bars) > columns for lane in lanes)
    lines = [" " * margin + line for line in _axis(first, horizon, columns, ascii_only)]
    for name, lane in zip(names, lanes, strict=True):
        cells = _dense_cells(lane, horizon, columns) if dense else _bar_cells(lane, horizon, columns, ascii_only)
        idle = _ASCII_IDLE if ascii_only else _IDLE
        cells = [cell if cell.kind else _Cell(idle, "") for cell in cells]
        lines.append(name + " " * (margin - display_width(name)) + _paint(cells, colour))
    return "\n".join([*lines, "", *_legend(lanes, horizon, columns, dense, ascii_only, colour)])


def _cut(lane: Lane, first: int, last: int) -> Lane:
    """Return the part of a lane from `first` to `last` [ns], with times from `first` on."""
    bars = [bar for bar in lane.bars if bar.start < last and bar.end > first]
    return Lane(
        lane.name,
        tuple(bar._replace(start=max(0, bar.start - first), end=min(last, bar.end) - first) for bar in bars),
    )


def _column(time: int, horizon: int, columns: int) -> int:
    """Return the column edge nearest to `time` [ns]."""
    return (2 * time * columns + horizon) // (2 * horizon)


def _bar_cells(lane: Lane, horizon: int, columns: int, ascii_only: bool) -> list[_Cell]:
    fill = _ASCII_FILL if ascii_only else _FILL
    cells = [_Cell("", "")] * columns
    for bar in lane.bars:
        first, last = _column(bar.start, horizon, columns), _column(bar.end, horizon, columns)
        label = _label(bar, last - first)
        text = label + fill[bar.kind] * (last - first - len(label))
        cells[first:last] = [_Cell(char, bar.kind) for char in text]
    return cells


def _label(bar: Bar, room: int) -> str:
    """Return the longest label that fits; one that begins with a digit needs a column to set it off."""
    for label in bar.labels:
        if len(label) + label[0].isdigit() <= room:
            return label
    return ""


def _dense_cells(lane: Lane, horizon: int, columns: int) -> list[_Cell]:
    # In units of 1 / columns ns, so that column edges are whole numbers.
    shares: list[dict[str, int]] = [{} for _ in range(columns)]
    for bar in lane.bars:
        start, end = bar.start * columns, bar.end * columns
        for column in range(start // horizon, min(columns, -(-end // horizon))):
            covered = min(end, (column + 1) * horizon) - max(start, column * horizon)
            shares[column][bar.kind] = shares[column].get(bar.kind, 0) + covered
    cells = []
    for share in shares:
        if 2 * sum(share.values()) < horizon:
            cells.append(_Cell("", ""))
        else:
            kind = max(share, key=lambda kind: (share[kind], kind))
            cells.append(_Cell(KINDS[kind].mark, kind))
    return cells


def _axis(first: int, horizon: int, columns: int, ascii_only: bool) -> tuple[str, str]:
    """Return the line of times [ms] and the line of ticks below it, for `horizon` [ns] from `first` on."""
    step, decimals = tick_step(horizon * _TICK_COLUMNS // columns)
    line, tick = ("-", _ASCII_TICK) if ascii_only else ("─", _TICK)
    ticks = [line] * columns
    times = ""
    for time in range(-(-first // step) * step, first + horizon + 1, step):
        column = _column(time - first, horizon, columns)
        label = f"{time / 1e6:.{decimals}f}"
        if column < columns:
            ticks[column] = tick
        if len(times) <= column and column + len(label) + 3 <= columns:  # room for the unit
            times += " " * (column - len(times)) + label + " "
    return times.rstrip() + " ms", "".join(ticks)


def _paint(cells: Sequence[_Cell], colour: bool) -> str:
    if not colour:
        return "".join(cell.char for cell in cells)
    parts = []
    for kind, run in groupby(cells, key=lambda cell: cell.kind):
        text = "".join(cell.char for cell in run)
        parts.append(f"\x1b[{KINDS[kind].sgr if kind else _DIM}m{text}\x1b[0m")
    return "".join(parts)


def _legend(
    lanes: Sequence[Lane], horizon: int, columns: int, dense: bool, ascii_only: bool, colour: bool
) -> list[str]:
    used = {bar.kind for lane in lanes for bar in lane.bars}
    fill = _ASCII_FILL if ascii_only else _FILL
    entries = [
        _paint([_Cell(char, kind) for char in (row.mark if dense else kind + fill[kind])], colour) + f" {row.name}"
        for kind, row in KINDS.items()
        if kind in used
    ]
    entries.append(f"{_ASCII_IDLE if ascii_only else _IDLE} idle")
    scale = f"1 column = {format_ms(horizon // columns)} ms"
    if dense:
        return [", ".join(entries), f"{scale}; a column shows the kind that takes most of it"]
    notes = ["an op shows its kind and, where there is room, its microbatch"]
    if any(len(bar.labels) == 3 for lane in lanes for bar in lane.bars):
        notes.append("2F0 is stage 2, forward, microbatch 0")
    if used & set("GRA"):
        notes.append("of a collective the stage")
    return [", ".join(entries), f"{scale}; {'; '.join(notes)}"]
