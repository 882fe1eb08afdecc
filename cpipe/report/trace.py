"""A plan's expected timeline in the Trace Event Format, which Perfetto and chrome://tracing load.

It looks as the trace of a run does (`cpipe run --trace`): a rank is a process; its threads are compute, one for each
channel that it sends on, and one for collectives. Records are complete events (``ph: X``, `ts` and `dur` in
microseconds), an arrow (``s`` to ``f``) for each message, and a counter (``C``) for memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from cpipe.report.levels import memory_levels
from cpipe.report.palette import KINDS
from cpipe.report.view import PlanView
from cpipe.report.waits import causes, describe

__all__ = ["encode_trace", "plan_trace"]

Event = dict[str, Any]

_COMPUTE_TID = 0
_FIRST_CHANNEL_TID = 1


def encode_trace(views: Sequence[PlanView], titles: Sequence[str]) -> bytes:
    """Return the trace of plans as JSON, one event a line; processes of the second follow those of the first."""
    events: list[Event] = []
    for view, title in zip(views, titles, strict=True):
        first = max((event["pid"] for event in events), default=-1) + 1
        first_id = max((event.get("id", -1) for event in events), default=-1) + 1
        events += plan_trace(view, first_pid=first, first_id=first_id, title=title if len(views) > 1 else "")
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'.encode()


def plan_trace(view: PlanView, *, first_pid: int = 0, first_id: int = 0, title: str = "") -> list[Event]:
    """Return the events of one plan: names first, then each rank's in the order of time, then counters and arrows.

    Parameters
    ----------
    view
        The plan.
    first_pid, first_id
        Process of the first rank, and number of the first arrow.
    title
        Stands before the names of ranks, where several plans share a trace.
    """
    events = list(_names(view, first_pid, title))
    events += _ops(view, first_pid)
    events += _transfers(view, first_pid)
    events += _collectives(view, first_pid)
    events += _memory(view, first_pid)
    return events + list(_arrows(view, first_pid, first_id))


def _names(view: PlanView, first_pid: int, title: str) -> Iterator[Event]:
    for place in view.visible:
        rank = view.ranks[place]
        pid = first_pid + place
        name = f"{title}: " if title else ""
        yield _metadata(pid, 0, "process_name", {"name": f"{name}rank {rank.rank} {rank.device}".rstrip()})
        yield _metadata(pid, 0, "process_sort_index", {"sort_index": pid})
        threads = {_COMPUTE_TID: "compute"}
        for number in view.channels_of(place):
            channel = view.channels[number]
            ends = f"{view.ranks[channel.source].rank}->{view.ranks[channel.target].rank}"
            threads[_FIRST_CHANNEL_TID + number] = f"channel {channel.id} {channel.carries} {ends}"
        if rank.collectives:
            threads[_collective_tid(view)] = "collectives"
        for tid in sorted(threads):
            yield _metadata(pid, tid, "thread_name", {"name": threads[tid]})
            yield _metadata(pid, tid, "thread_sort_index", {"sort_index": tid})


def _collective_tid(view: PlanView) -> int:
    return _FIRST_CHANNEL_TID + len(view.channels)


def _metadata(pid: int, tid: int, kind: str, arguments: Event) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": arguments}


def _slice(pid: int, tid: int, name: str, category: str, times: tuple[int, int], arguments: Event) -> Event:
    start, end = times
    event = {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": category,
        "ts": _us(start),
        "dur": _us(end - start),
    }
    return {**event, "args": arguments}


def _ops(view: PlanView, first_pid: int) -> Iterator[Event]:
    why = causes(view)
    for place in view.visible:
        for i in view.ranks[place].ops:
            op = view.ops[i]
            arguments = {"kind": KINDS[op.kind].name, "stage": op.stage, "mb": op.mb}
            arguments["waits for"] = describe(view, why[i])
            yield _slice(first_pid + place, _COMPUTE_TID, op.label, "compute", (op.start, op.end), arguments)


def _transfers(view: PlanView, first_pid: int) -> Iterator[Event]:
    """Yield when messages hold their link; without a replay, one after the other, from ready until read at the latest.

    Slices of one thread may not overlap in part: what nobody knows better is drawn from when it is at the head.
    """
    for number, channel in enumerate(view.channels):
        if channel.source not in view.visible:
            continue
        free = 0
        for i in channel.messages:
            message = view.messages[i]
            arguments: Event = {"stage": message.stage, "mb": message.mb, "ready_us": _us(message.ready)}
            if message.window is None:
                start = max(free, message.ready)
                times = start, max(start, message.read)
            else:
                times = message.window.start, message.window.end
                arguments["arrival_us"] = _us(message.window.arrival)
            free = times[1]
            name = f"{channel.carries} of {view.ops[message.producer].label}"
            tid = _FIRST_CHANNEL_TID + number
            yield _slice(first_pid + channel.source, tid, name, "communication", times, arguments)


def _collectives(view: PlanView, first_pid: int) -> Iterator[Event]:
    for place in view.visible:
        for run in sorted((view.collectives[i] for i in view.ranks[place].collectives), key=lambda run: run.start):
            arguments = {"kind": KINDS[run.kind].name, "stage": run.stage}
            times = run.start, run.end
            yield _slice(first_pid + place, _collective_tid(view), run.label, "communication", times, arguments)


def _memory(view: PlanView, first_pid: int) -> Iterator[Event]:
    levels = memory_levels(view)
    for place in view.visible:
        level = levels[place]
        name = "memory" if level.unit == "bytes" else "in flight"
        for time, value in level.points:
            pid = first_pid + place
            yield {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": _us(time), "args": {level.unit: value}}


def _arrows(view: PlanView, first_pid: int, first_id: int) -> Iterator[Event]:
    """Yield an arrow for each message, from within the op that makes it to the start of the op that reads it."""
    for i, message in enumerate(view.messages):
        made, read = view.ops[message.producer], view.ops[message.consumer]
        channel = view.channels[message.channel]
        if made.rank not in view.visible or read.rank not in view.visible:
            continue
        shared = {"cat": "message", "name": channel.carries, "id": first_id + i}
        leaves = max(made.start, made.end - 1)  # an arrow belongs to the slice that is open at its time
        yield {"ph": "s", "pid": first_pid + made.rank, "tid": _COMPUTE_TID, "ts": _us(leaves), **shared}
        yield {"ph": "f", "bp": "e", "pid": first_pid + read.rank, "tid": _COMPUTE_TID, "ts": _us(read.start), **shared}


def _us(nanoseconds: int) -> float:
    return round(nanoseconds / 1000, 3)
