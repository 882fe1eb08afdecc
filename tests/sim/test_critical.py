"""Tests of cpipe.sim.critical and cpipe.sim.idle: the critical path, and idle time by cause."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle.cases import case
from random_plans import draw_problem, draw_schedule

from cpipe.ir import Problem, Schedule, Timeline
from cpipe.ir.explanation import IdlePart, Segment
from cpipe.sim import DeadlockError, Simulator, critical_path, idle_parts, simulate
from cpipe.sim.memory import memory_rooms
from cpipe.sim.runs import Runs


def runs_of(problem: Problem, text: str) -> tuple[Runs, Timeline]:
    """Replay the orders written as `Schedule.from_text` reads them."""
    schedule = Schedule.from_text(text, problem.microbatches)
    schedule.verify(problem)
    timeline = simulate(problem, schedule)
    return Runs(problem, schedule, timeline), timeline


def told(path: Iterable[Segment]) -> list[str]:
    """Return a path as ``KIND LABEL START-END FOLLOWS``."""
    return [f"{piece.kind} {piece.label} {piece.start_ns}-{piece.end_ns} {piece.follows}" for piece in path]


def causes(parts: Iterable[IdlePart]) -> list[str]:
    """Return idle parts as ``DEVICE CAUSE START-END``."""
    return [f"{part.device} {part.cause} {part.start_ns}-{part.end_ns}" for part in parts]


def test_two_devices_with_a_slow_link() -> None:
    """Worked by hand: p=2, n=2, F=D=W=1, latency 3, occupancy 2.

    0F0 ends at 1 and 0F1 at 2; their activations hold the link until 3 and 5 and arrive at 6 and 8. 1F0 1D0 run from 6
    to 8, 1F1 1D1 from 8 to 10; the gradients hold the link until 10 and 12 and arrive at 13 and 15; device 0
    runs D and W of both without a break from 13 to 17. Its second D could blame the link or the op before: the op wins.
    """
    problem = case(2, [0, 1], latency=3, occupancy=2)
    runs, timeline = runs_of(problem, "0F0 0F1 0D0 0W0 0D1 0W1\n1F0 1D0 1F1 1D1 1W0 1W1")
    assert timeline.makespan_ns == 17
    assert told(critical_path(runs)) == [
        "compute 0F0 0-1 start",
        "bandwidth 0F0 1-3 input",
        "latency 0F0 3-6 input",
        "compute 1F0 6-7 input",
        "compute 1D0 7-8 order",
        "bandwidth 1D0 8-10 input",
        "latency 1D0 10-13 input",
        "compute 0D0 13-14 input",
        "compute 0W0 14-15 order",
        "compute 0D1 15-16 order",
        "compute 0W1 16-17 order",
    ]
    assert causes(idle_parts(runs)) == [
        "0 upstream 2-8",
        "0 link 8-13",
        "1 warm-up 0-6",
        "1 tail 12-17",
    ]


def test_messages_that_queue() -> None:
    """A message that finds its pipe busy waits for the one before it: the path goes on along the pipe."""
    problem = case(3, [0, 1], forward=[1, 1], occupancy=4)
    runs, timeline = runs_of(problem, "0F0 0F1 0F2 0D0 0W0 0D1 0W1 0D2 0W2\n1F0 1F1 1F2 1D0 1W0 1D1 1W1 1D2 1W2")
    assert timeline.makespan_ns == 29
    assert told(critical_path(runs))[:5] == [
        "compute 0F0 0-1 start",
        "bandwidth 0F0 1-5 input",
        "bandwidth 0F1 5-9 queue",
        "bandwidth 0F2 9-13 queue",
        "compute 1F2 13-14 input",
    ]


def test_receive_window_is_a_reason() -> None:
    """With one receive posted at a time a message leaves only after the one before it was read."""
    problem = case(2, [0, 1], latency=5, window=1)
    runs, _ = runs_of(problem, "0F0 0F1 0D0 0W0 0D1 0W1\n1F0 1D0 1W0 1F1 1D1 1W1")
    path = told(critical_path(runs))
    assert path[:4] == [
        "compute 0F0 0-1 start",
        "latency 0F0 1-6 input",
        "compute 1F0 6-7 input",
        "latency 0F1 7-12 window",
    ]


def test_collectives_are_on_the_path() -> None:
    """A gather before the first forward and a reduction behind the last W belong to the path."""
    problem = case(1, [0], gather=4, reduce=7)
    runs, timeline = runs_of(problem, "0F0 0D0 0W0")
    assert timeline.makespan_ns == 14
    assert told(critical_path(runs)) == [
        "collective ALL_GATHER of stage 0 0-4 start",
        "compute 0F0 4-5 gather",
        "compute 0D0 5-6 order",
        "compute 0W0 6-7 order",
        "collective REDUCE_SCATTER of stage 0 7-14 input",
    ]
    assert causes(idle_parts(runs)) == ["0 data-parallel 0-4", "0 data-parallel 7-14"]


def test_memory_is_a_reason() -> None:
    """With room for one activation the second forward waits for the first backward, and memory is why.

    Device 0 could run 0F1 at 1; its room is taken until the gradient of 0 comes back at 3.
    """
    problem = case(2, [0, 1], capacity=[1, 2], activation=1)
    runs, _ = runs_of(problem, "0F0 0D0 0F1 0D1 0W0 0W1\n1F0 1D0 1W0 1F1 1D1 1W1")
    rooms = memory_rooms(problem)
    assert causes(idle_parts(runs, rooms))[:1] == ["0 memory 1-3"]
    assert causes(idle_parts(runs))[:1] == ["0 upstream 1-3"]
    assert "compute 0F1 4-5 memory" in told(critical_path(runs, rooms))
    assert "compute 0F1 4-5 order" in told(critical_path(runs))


def test_a_forward_that_fits_is_not_held_back() -> None:
    """Where a forward would have fitted, the order is the reason, not memory."""
    problem = case(2, [0, 1], capacity=2, activation=1)
    runs, _ = runs_of(problem, "0F0 0D0 0F1 0D1 0W0 0W1\n1F0 1D0 1W0 1F1 1D1 1W1")
    rooms = memory_rooms(problem)
    assert "memory" not in {part.cause for part in idle_parts(runs, rooms)}
    assert "memory" not in {piece.follows for piece in critical_path(runs, rooms)}


def test_nothing_takes_time() -> None:
    """A job without any duration has no path and no idle time."""
    problem = case(2, [0, 1], forward=0, input_grad=0, weight_grad=0)
    runs, _ = runs_of(problem, "0F0 0F1 0D0 0W0 0D1 0W1\n1F0 1D0 1W0 1F1 1D1 1W1")
    assert critical_path(runs) == ()
    assert idle_parts(runs) == ()


def test_times_that_say_nothing() -> None:
    """Where nothing ended just before an op began, the path says so and still fills the time."""
    problem = case(1, [0])
    schedule = Schedule.from_text("0F0 0D0 0W0", 1)
    timeline = Timeline(starts=((2, 5, 6),), ends=((3, 6, 7),), makespan_ns=7)
    runs = Runs(problem, schedule, timeline)
    assert told(critical_path(runs)) == [
        "unknown  0-2 start",
        "compute 0F0 2-3 start",
        "unknown  3-5 order",
        "compute 0D0 5-6 order",
        "compute 0W0 6-7 order",
    ]
    assert causes(idle_parts(runs)) == ["0 warm-up 0-2", "0 other 3-5"]


def replay(seed: int) -> tuple[Problem, Schedule, Timeline] | None:
    """Draw a problem and an order of it and replay it; None when a receive window stops it."""
    draw = Random(seed)
    problem = draw_problem(draw)
    schedule = draw_schedule(draw, problem)
    try:
        return problem, schedule, simulate(problem, schedule)
    except DeadlockError:
        return None


@given(st.integers(0, 10**9))
def test_path_is_the_makespan(seed: int) -> None:
    """The pieces of the path touch, reach from 0 to the makespan, and each begins for a reason that is known."""
    drawn = replay(seed)
    if drawn is None:
        return
    path = critical_path(Runs(*drawn))
    assert sum(piece.length_ns for piece in path) == drawn[2].makespan_ns
    assert all(first.end_ns == second.start_ns for first, second in pairwise(path))
    assert all(piece.length_ns > 0 for piece in path)
    assert "unknown" not in {piece.kind for piece in path}
    if path:
        assert path[0].start_ns == 0


@given(st.integers(0, 10**9), st.booleans())
def test_idle_and_busy_fill_the_makespan(seed: int, limited: bool) -> None:
    """On every device the idle parts are exactly what its ops leave free, each once, and none without a cause."""
    drawn = replay(seed)
    if drawn is None:
        return
    problem, schedule, timeline = drawn
    rooms = [Random(seed + device).randint(0, 4) for device in range(problem.num_devices)] if limited else ()
    parts = idle_parts(Runs(problem, schedule, timeline), rooms)
    for device in range(problem.num_devices):
        spans = [*zip(timeline.starts[device], timeline.ends[device], strict=True)]
        spans += [(part.start_ns, part.end_ns) for part in parts if part.device == device]
        clock = 0
        for start, end in sorted(span for span in spans if span[1] > span[0]):
            assert start == clock
            clock = end
        assert clock == timeline.makespan_ns or not timeline.makespan_ns
    assert "other" not in {part.cause for part in parts}


@given(st.integers(0, 10**9), st.integers(1, 5))
def test_path_is_a_chain(seed: int, more: int) -> None:
    """Where no pipe is contended, making every op on the path longer makes the plan longer by as much at least."""
    drawn = replay(seed)
    if drawn is None or any(Simulator(drawn[0]).tables.contended):
        return
    problem, schedule, _ = drawn
    path = critical_path(Runs(*drawn))
    for stage in range(problem.num_stages):
        count = sum(f"{stage}F" in piece.label for piece in path if piece.kind == "compute")
        stages = list(problem.stages)
        stages[stage] = replace(stages[stage], forward_ns=stages[stage].forward_ns + more)
        slower = simulate(replace(problem, stages=tuple(stages)), schedule)
        assert slower.makespan_ns >= drawn[2].makespan_ns + more * count
