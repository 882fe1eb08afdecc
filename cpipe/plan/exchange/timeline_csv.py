"""Plan -> its timeline as a table for a spreadsheet: one row an op, a message or a collective.

Times are whole nanoseconds, those of ops also in ms; what is not known is empty. A message stands with its sender: it
is ready when it is sent, has its pipe from start to end, and arrives. A plan alone knows only when it is ready; all
times are those of a replay where there is one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cpipe.ir import Channel, Instruction, MessageRun, Plan, Problem, RankProgram, Timeline
from cpipe.plan.exchange.programs import with_times
from cpipe.plan.exchange.refusal import COMPUTE_OPS
from cpipe.units import ns_to_ms

__all__ = ["TIMELINE_COLUMNS", "timeline_csv"]

TIMELINE_COLUMNS = (
    "rank",
    "device",
    "op",
    "stage",
    "mb",
    "backward_stage",
    "backward_mb",
    "channel",
    "target",
    "bytes",
    "group",
    "ready_ns",
    "start_ns",
    "end_ns",
    "arrival_ns",
    "start_ms",
    "end_ms",
)
"""Columns of the table; `op` is the plan's, or ``activation`` or ``gradient`` of a message."""

Row = dict[str, str | int | float | None]


class _Replay(NamedTuple):
    """What a replay knows of the messages."""

    problem: Problem
    runs: Mapping[tuple[str, int, int], MessageRun]


def timeline_csv(plan: Plan, replay: tuple[Problem, Timeline] | None = None) -> str:
    """Return the table of a valid plan: a header, then rank by rank the rows in the order of their times.

    Parameters
    ----------
    plan
        A valid plan.
    replay
        A problem and what the plan takes on it; None for the times in the plan.
    """
    known: _Replay | None = None
    if replay is not None:
        problem, timeline = replay
        plan = with_times(plan, timeline)
        known = _Replay(problem, {(run.kind, run.stage, run.microbatch): run for run in timeline.messages})
    text = io.StringIO()
    table = csv.DictWriter(text, TIMELINE_COLUMNS, lineterminator="\n")
    table.writeheader()
    channels = {channel.id: channel for channel in plan.channels}
    for program in sorted(plan.ranks, key=lambda program: program.rank):
        rows = sorted(_rows(program, channels, known), key=_when)
        table.writerows(rows)
    return text.getvalue()


def _when(row: Row) -> float:
    time = row["ready_ns"] if row["start_ns"] is None else row["start_ns"]
    return float(time or 0)


def _rows(program: RankProgram, channels: Mapping[int, Channel], replay: _Replay | None) -> Iterator[Row]:
    """Yield the rows of a rank in the order of its program."""
    ended = 0
    for step in program.ops:
        if step.start_ns is not None:
            yield _row(program, step, op=step.op, group=step.group, start_ns=step.start_ns, end_ns=step.end_ns)
            if step.op in COMPUTE_OPS:
                ended = step.end_ns or 0
        elif step.op == "SEND" and step.channel is not None:
            channel = channels[step.channel]
            yield _row(
                program, step, op=channel.carries, channel=channel.id, target=channel.target, ready_ns=ended
            ) | _window(channel, step, replay)


def _row(program: RankProgram, step: Instruction, **fields: str | int | None) -> Row:
    row: Row = dict.fromkeys(TIMELINE_COLUMNS)
    row |= {"rank": program.rank, "device": program.device, "stage": step.stage, "mb": step.mb}
    row |= {"backward_stage": step.backward_stage, "backward_mb": step.backward_mb, **fields}
    for name in ("start", "end"):
        time = fields.get(f"{name}_ns")
        if isinstance(time, int):
            row[f"{name}_ms"] = ns_to_ms(time)
    return row


def _window(channel: Channel, step: Instruction, replay: _Replay | None) -> Row:
    """Return what a replay knows of a message."""
    if replay is None or step.stage is None or step.mb is None:
        return {}
    run = replay.runs[channel.carries, step.stage, step.mb]
    hops = replay.problem.forward_hops if channel.carries == "activation" else replay.problem.backward_hops
    hop = hops[step.stage - (channel.carries == "gradient")]
    return {
        "bytes": None if hop is None else hop.message_bytes,
        "ready_ns": run.ready_ns,
        "start_ns": run.start_ns,
        "end_ns": run.end_ns,
        "arrival_ns": run.arrival_ns,
        "start_ms": ns_to_ms(run.start_ns),
        "end_ms": ns_to_ms(run.end_ns),
    }
