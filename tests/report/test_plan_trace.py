"""Tests of cpipe.report.trace: a plan's timeline in the Trace Event Format."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from sample_plans import make_problem, one_f_one_b
from view_cases import NASTY, alone, random_views, small_view, with_names

from cpipe.report.levels import memory_levels
from cpipe.report.trace import encode_trace, plan_trace
from cpipe.report.view import PlanView

Event = dict[str, Any]


def traced(*views: PlanView) -> list[Event]:
    """Return the events of an encoded trace, read back."""
    document = json.loads(encode_trace(views, [f"plan {number}" for number in range(len(views))]))
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = document["traceEvents"]
    return events


def assert_format(events: list[Event]) -> None:
    """Check what the Trace Event Format asks of each phase, and that the slices of a thread follow each other."""
    needed = {"X": {"name", "cat", "ts", "dur"}, "M": {"name", "args"}, "C": {"name", "ts", "args"}}
    needed |= {"s": {"name", "cat", "id", "ts"}, "f": {"name", "cat", "id", "ts", "bp"}}
    threads: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        assert needed[event["ph"]] <= event.keys()
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
    for slices in threads.values():
        for first, second in pairwise(slices):
            assert round(first["ts"] + first["dur"], 3) <= second["ts"]
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(threads) <= named
    assert {pid for pid, _ in threads} <= {event["pid"] for event in events if event["name"] == "process_name"}


def arrows(events: list[Event]) -> dict[int, tuple[Event, Event]]:
    """Return start and finish of each arrow; every one has exactly one of both."""
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert Counter(event["ph"] for event in events)["s"] == len(starts)
    assert starts.keys() == ends.keys()
    return {number: (start, ends[number]) for number, start in starts.items()}


@pytest.mark.parametrize("seed", range(6))
def test_format(seed: int) -> None:
    """Any replayed plan gives events with the fields of their phase, in threads without overlap, all named."""
    for view in random_views(4, seed=100 + seed):
        assert_format(traced(view))


def test_format_without_a_profile() -> None:
    """A plan alone gives the same; messages that nobody knows more of are served one after the other."""
    problem = make_problem(4, 8, latency_ms=3)
    view = alone(problem, one_f_one_b(problem))
    events = traced(view)
    assert_format(events)
    assert sum(event.get("cat") == "communication" for event in events) == len(view.messages)


def test_slices_are_the_ops() -> None:
    """Every op is a slice of its rank's compute thread, from start to end in microseconds."""
    for view in random_views(6, seed=7):
        events = [event for event in traced(view) if event["ph"] == "X" and event["cat"] == "compute"]
        found = [(event["pid"], event["tid"], event["name"], event["ts"], event["dur"]) for event in events]
        assert found == [(op.rank, 0, op.label, op.start / 1000, (op.end - op.start) / 1000) for op in view.ops]


def test_messages_are_slices_of_their_channel() -> None:
    """A message is a slice of the sender's thread of its channel while it holds its link, and says when it arrives."""
    view = small_view(2, 3)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in traced(view) if event["name"] == "thread_name"
    }
    found = [event for event in traced(view) if event.get("cat") == "communication"]
    assert len(found) == len(view.messages) == 6
    assert {names[event["pid"], event["tid"]] for event in found} == {
        "channel 0 activation 0->1",
        "channel 1 gradient 1->0",
    }
    first = found[0]
    assert (first["name"], first["ts"], first["args"]["arrival_us"]) == ("activation of 0F0", 2000.0, 3000.0)


def test_arrows_join_what_makes_and_what_reads() -> None:
    """An arrow starts inside the op that makes the message and ends where the op that reads it starts."""
    for view in random_views(8, seed=9):
        events = traced(view)
        compute = [event for event in events if event["ph"] == "X" and event["tid"] == 0]
        found = arrows(events)
        assert len(found) == len(view.messages)
        for number, message in enumerate(view.messages):
            start, end = found[number]
            made, read = compute[message.producer], compute[message.consumer]
            assert (start["pid"], end["pid"]) == (made["pid"], read["pid"])
            assert made["ts"] <= start["ts"] <= made["ts"] + made["dur"]
            assert end["ts"] == read["ts"]
            assert end["bp"] == "e"
            assert (start["name"], start["cat"]) == (end["name"], end["cat"])


def test_counters_are_the_memory() -> None:
    """The counter of a rank has the points of its memory curve, in order."""
    view = small_view(3, 4)
    for place, level in enumerate(memory_levels(view)):
        found = [event for event in traced(view) if event["ph"] == "C" and event["pid"] == place]
        assert [(event["ts"], event["args"]["bytes"]) for event in found] == [(t / 1000, v) for t, v in level.points]
    problem = make_problem(2, 2)
    counted = [event for event in traced(alone(problem, one_f_one_b(problem))) if event["ph"] == "C"]
    assert {(event["name"], *event["args"]) for event in counted} == {("in flight", "microbatches")}


def test_two_plans_in_one_trace() -> None:
    """Ranks of a second plan are processes of their own, named after their plan, and no arrow is shared."""
    events = traced(small_view(2, 2), small_view(3, 2))
    assert_format(events)
    assert len(arrows(events)) == 4 + 8
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == [f"plan 0: rank {r} g{r}" for r in range(2)] + [f"plan 1: rank {r} g{r}" for r in range(3)]


def test_some_ranks_alone() -> None:
    """Of some ranks, the trace has no process of another, and no arrow to one."""
    events = traced(small_view(4, 3).only_ranks([1, 2]))
    assert_format(events)
    assert {event["pid"] for event in events} == {1, 2}
    assert len(arrows(events)) == 6


def test_names_survive() -> None:
    """Names of devices stand in the trace as they are; one event stands on a line."""
    view = with_names()
    data = encode_trace([view], ["x"])
    events = json.loads(data)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == [f"rank {rank} {name}".rstrip() for rank, name in enumerate(NASTY)]
    assert data.isascii()
    assert len(data.splitlines()) == len(events) + 2


def test_waits_are_told() -> None:
    """A slice says what its op waited for."""
    (found,) = [event for event in plan_trace(small_view(2, 2)) if event["name"] == "1F0" and event["ph"] == "X"]
    assert found["args"] == {"kind": "forward", "stage": 1, "mb": 0, "waits for": "the activation of 0F0 from g0"}
