"""Tests of cpipe.runtime.trace: the Trace Event Format that Perfetto reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

from helpers import plan_of
from sample_plans import make_problem, one_f_one_b

from cpipe.ir import Plan
from cpipe.runtime.records import OpRecord
from cpipe.runtime.trace import chrome_trace

PHASES = {"M", "X", "s", "f"}


def two_rank_plan() -> Plan:
    """Return 1F1B of two ranks and two microbatches."""
    problem = make_problem(2, 2, latency_ms=1)
    return plan_of(problem, one_f_one_b(problem))


def planned_records(plan: Plan) -> dict[int, list[OpRecord]]:
    """Return records as if the plan had run to the nanosecond: posted ops take no time, waits fill the gaps."""
    records: dict[int, list[OpRecord]] = {}
    for program in plan.ranks:
        rank = records.setdefault(program.rank, [])
        now = 0.0
        for index, op in enumerate(program.ops):
            start, end = now, now
            if op.start_ns is not None and op.end_ns is not None:
                start, end = op.start_ns / 1e9, op.end_ns / 1e9
            elif op.op == "WAIT":
                end = (program.ops[index + 1].start_ns or 0) / 1e9
            rank.append(OpRecord(op.op, op.stage, op.mb, op.channel, start, end, end - start))
            now = end
    return records


def events_of(records: Mapping[int, Sequence[OpRecord]], plan: Plan | None = None) -> list[dict[str, Any]]:
    """Return the events of a trace, by way of the JSON text that is written."""
    document = json.loads(json.dumps(chrome_trace(records, plan), allow_nan=False))
    assert document["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def test_every_event_has_the_fields_of_its_phase() -> None:
    """Each event says phase, process, thread and name; slices a start and a length in microseconds, arrows an id."""
    plan = two_rank_plan()
    events = events_of(planned_records(plan), plan)
    for event in events:
        assert event["ph"] in PHASES
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["name"]
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
        elif event["ph"] in "sf":
            assert (event["cat"], isinstance(event["id"], int), event["ts"] >= 0) == ("message", True, True)
    assert {event["ph"] for event in events} == PHASES


def test_a_record_is_a_slice() -> None:
    """Every record is one complete event, in microseconds, on the process of its rank."""
    plan = two_rank_plan()
    records = planned_records(plan)
    slices = [event for event in events_of(records, plan) if event["ph"] == "X"]
    assert len(slices) == sum(map(len, records.values()))
    compute = {
        (event["pid"], event["name"]): (event["ts"], event["dur"]) for event in slices if event["cat"] == "compute"
    }
    expected = {
        (program.rank, f"{op.stage}{op.op}{op.mb}"): (op.start_ns / 1e3, (op.end_ns or 0) / 1e3 - op.start_ns / 1e3)
        for program in plan.ranks
        for op in program.ops
        if op.start_ns is not None
    }
    assert compute == expected


def test_lanes() -> None:
    """Compute and waits share a thread; every channel has its own at both of its ends, with its name."""
    plan = two_rank_plan()
    events = events_of(planned_records(plan), plan)
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {
        (rank, tid): name
        for rank in (0, 1)
        for tid, name in enumerate(("compute", "channel 0 activation 0->1", "channel 1 gradient 1->0"))
    }
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {0: "rank 0 g0", 1: "rank 1 g1"}
    for event in events:
        if event["ph"] == "X":
            posted = event["name"].lstrip("01").startswith(("SEND", "RECV"))
            assert (event["tid"] > 0) == posted, event


def test_slices_of_a_thread_do_not_overlap() -> None:
    """What is posted at once on a channel is drawn one after the other, as it is served; compute as it ran."""
    overlapping = [
        OpRecord("RECV", 1, 0, 0, 0.0, 4.0),
        OpRecord("RECV", 1, 1, 0, 0.0, 6.0),
        OpRecord("RECV", 1, 2, 0, 5.0, 5.5),
        OpRecord("F", 1, 0, None, 4.0, 5.0),
    ]
    events = [event for event in events_of({1: overlapping}) if event["ph"] == "X"]
    spans = [(event["tid"], event["ts"], event["ts"] + event["dur"]) for event in events]
    assert spans == [(1, 0, 4e6), (1, 4e6, 6e6), (0, 4e6, 5e6), (1, 6e6, 6e6)]
    assert events[1]["args"]["posted_us"] == 0


def test_arrows_join_sender_and_reader() -> None:
    """Each message is one arrow from its SEND to where the op that reads it starts; both ends carry its number."""
    plan = two_rank_plan()
    events = events_of(planned_records(plan), plan)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    messages = sum(op.op == "SEND" for program in plan.ranks for op in program.ops)
    assert sorted(starts) == sorted(ends) == list(range(messages))
    reads = {(event["pid"], event["ts"]) for event in events if event["ph"] == "X" and event["cat"] == "compute"}
    sends = {(event["pid"], event["tid"], event["ts"]) for event in events if "SEND" in event["name"]}
    for number, start in starts.items():
        assert (start["pid"], start["tid"], start["ts"]) in sends
        assert (ends[number]["pid"], ends[number]["ts"]) in reads
        assert start["pid"] != ends[number]["pid"]
        assert start["ts"] < ends[number]["ts"]


def test_messages_are_matched_in_the_order_of_the_channel() -> None:
    """The k-th SEND belongs to the RECV posted k-th, in whatever order the receiver waits and tells."""
    sender = [OpRecord("SEND", 0, mb, 0, float(mb), mb + 0.5) for mb in range(2)]
    receiver = [
        OpRecord("RECV", 1, 1, 0, 0.25, 2.0),
        OpRecord("WAIT", 1, 1, 0, 2.0, 3.0),
        OpRecord("RECV", 1, 0, 0, 0.0, 1.0),
        OpRecord("WAIT", 1, 0, 0, 3.0, 4.0),
    ]
    arrows = [event for event in events_of({0: sender, 1: receiver}) if event["ph"] in "sf"]
    assert [(event["ph"], event["id"], event["ts"]) for event in arrows] == [
        ("s", 0, 0),
        ("f", 0, 4e6),
        ("s", 1, 1e6),
        ("f", 1, 3e6),
    ]


def test_collectives_have_a_thread() -> None:
    """Collectives are drawn on a thread of their own, behind those of the channels."""
    records = [OpRecord("ALL_GATHER", 0, None, None, 0.0, 1.0), OpRecord("SEND", 0, 0, 3, 1.0, 2.0)]
    events = events_of({0: records})
    names = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert names == {"compute": 0, "channel 3": 4, "collectives": 5}
    assert [event["tid"] for event in events if event["ph"] == "X"] == [5, 4]
