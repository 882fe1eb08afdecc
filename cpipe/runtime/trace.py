"""The measured timeline in the Trace Event Format, which Perfetto and chrome://tracing load.

A rank is a process; its threads are compute, one for each of its channels, and one for collectives. Every record is a
complete event (``ph: X``, `ts` and `dur` in microseconds). What is posted at once on a channel is served one after the
other, and is drawn so: from when it is at the head. An arrow (``s`` to ``f``) leads from a SEND to the op that reads
the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cpipe.ir import Plan
from cpipe.runtime.records import OpRecord

__all__ = ["chrome_trace"]

Event = dict[str, Any]

_COMPUTE = frozenset((*"FDWB", "FB"))
_COMPUTE_TID = 0
_FIRST_CHANNEL_TID = 1
_COLLECTIVES = frozenset(("ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE"))


def chrome_trace(records: Mapping[int, Sequence[OpRecord]], plan: Plan | None = None) -> dict[str, Any]:
    """Return a document that `json.dumps` writes and Perfetto loads.

    Parameters
    ----------
    records
        Of each rank; times [s] from an origin that all ranks share.
    plan
        Names devices and channels; without it they are numbered.

    Returns
    -------
    dict
        With ``traceEvents``: the names first, then each rank's events in the order of time, then the arrows.
    """
    # a receive may be recorded only when it is waited for
    records = {rank: sorted(records[rank], key=lambda record: record.start_s) for rank in sorted(records)}
    channels = sorted({record.channel for rank in records.values() for record in rank if record.channel is not None})
    lanes = {channel: _FIRST_CHANNEL_TID + channel for channel in channels}
    collective_tid = _FIRST_CHANNEL_TID + max(channels, default=-1) + 1
    events: list[Event] = []
    for rank in records:
        events += _names(rank, records[rank], lanes, collective_tid, plan)
    slices = {rank: list(_slices(rank, records[rank], lanes, collective_tid)) for rank in records}
    for rank in records:
        events += slices[rank]
    events += _arrows(records, slices)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _names(
    rank: int, records: Sequence[OpRecord], lanes: Mapping[int, int], collective_tid: int, plan: Plan | None
) -> Iterator[Event]:
    """Yield the metadata of one rank: its name, its place, and those of its threads."""
    device = next((program.device for program in plan.ranks if program.rank == rank), "") if plan else ""
    yield _metadata(rank, _COMPUTE_TID, "process_name", {"name": f"rank {rank} {device}".rstrip()})
    yield _metadata(rank, _COMPUTE_TID, "process_sort_index", {"sort_index": rank})
    threads = {_COMPUTE_TID: "compute"}
    named = (
        {channel.id: f" {channel.carries} {channel.source}->{channel.target}" for channel in plan.channels}
        if plan
        else {}
    )
    for record in records:
        if record.channel is not None:
            threads[lanes[record.channel]] = f"channel {record.channel}{named.get(record.channel, '')}"
        elif record.op in _COLLECTIVES:
            threads[collective_tid] = "collectives"
    for tid in sorted(threads):
        yield _metadata(rank, tid, "thread_name", {"name": threads[tid]})
        yield _metadata(rank, tid, "thread_sort_index", {"sort_index": tid})


def _metadata(rank: int, tid: int, kind: str, arguments: Event) -> Event:
    return {"ph": "M", "pid": rank, "tid": tid, "name": kind, "args": arguments}


def _slices(rank: int, records: Sequence[OpRecord], lanes: Mapping[int, int], collective_tid: int) -> Iterator[Event]:
    """Yield the complete events of one rank, in the order in which its ops began or were posted."""
    served: dict[int, float] = {}
    for record in records:
        tid = _tid(record, lanes, collective_tid)
        start, end = _us(record.start_s), _us(record.end_s)
        if tid != _COMPUTE_TID:  # posted: it is served when what was posted before it is
            start = max(start, served.get(tid, start))
            end = served[tid] = max(start, end)
        yield _slice(rank, record, tid, start, max(0.0, round(end - start, 3)))


def _slice(rank: int, record: OpRecord, tid: int, start: float, duration: float) -> Event:
    label = record.op if record.stage is None else f"{record.stage}{record.op}{'' if record.mb is None else record.mb}"
    arguments = {"stage": record.stage, "mb": record.mb, "channel": record.channel, "posted_us": _us(record.start_s)}
    return {
        "ph": "X",
        "pid": rank,
        "tid": tid,
        "name": label,
        "cat": "compute" if record.op in _COMPUTE else "wait" if record.op == "WAIT" else "communication",
        "ts": start,
        "dur": duration,
        "args": {name: value for name, value in arguments.items() if value is not None},
    }


def _arrows(records: Mapping[int, Sequence[OpRecord]], slices: Mapping[int, Sequence[Event]]) -> Iterator[Event]:
    """Yield an arrow for each message: from the k-th SEND of a channel to the WAIT of its k-th RECV."""
    sends: dict[int, list[Event]] = {}
    receives: dict[int, list[tuple[int, OpRecord]]] = {}
    waits: dict[tuple[int, int | None, int | None], Event] = {}
    for rank in records:
        for record, event in zip(records[rank], slices[rank], strict=True):
            if record.channel is None:
                continue
            if record.op == "SEND":
                sends.setdefault(record.channel, []).append(event)
            elif record.op == "RECV":
                receives.setdefault(record.channel, []).append((rank, record))
            elif record.op == "WAIT":
                waits[record.channel, record.stage, record.mb] = event
    number = 0
    for channel in sorted(sends):
        for send, (target, receive) in zip(sends[channel], receives.get(channel, ()), strict=False):
            wait = waits.get((channel, receive.stage, receive.mb))
            if wait is None:
                continue
            shared = {"cat": "message", "name": f"channel {channel}", "id": number}
            yield {"ph": "s", "pid": send["pid"], "tid": send["tid"], "ts": send["ts"], **shared}
            # without bp, the arrow ends at the next slice on the thread: the op that reads the message
            end = round(wait["ts"] + wait["dur"], 3)
            yield {"ph": "f", "pid": target, "tid": _COMPUTE_TID, "ts": end, **shared}
            number += 1


def _tid(record: OpRecord, lanes: Mapping[int, int], collective_tid: int) -> int:
    if record.op in ("SEND", "RECV") and record.channel is not None:
        return lanes[record.channel]
    return collective_tid if record.op in _COLLECTIVES else _COMPUTE_TID


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
