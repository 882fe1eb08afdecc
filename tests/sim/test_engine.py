"""The simulator: start times, messages, pipes, gates, deadlocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle.cases import case
from strategies import problems

from cpipe.ir import Problem, Schedule, encode_op
from cpipe.schedules import SCHEDULES, static_schedule
from cpipe.sim import BlockedOp, DeadlockError, Simulator, simulate
from cpipe.sim.queues import QueuedRun
from cpipe.sim.tables import Tables
from cpipe.solve.serial import serial_schedule


def schedule(problem: Problem, *lines: str) -> Schedule:
    """Return the schedule written as one line per device."""
    return Schedule.from_text("\n".join(lines), problem.microbatches)


def test_a_device_runs_one_op_after_another() -> None:
    """On one device every op starts when the one before ends."""
    problem = case(2, [0], forward=2, input_grad=3, weight_grad=5)
    timeline = simulate(problem, schedule(problem, "0F0 0F1 0D0 0W0 0D1 0W1"))
    assert timeline.starts == ((0, 2, 4, 7, 12, 15),)
    assert timeline.ends == ((2, 4, 7, 12, 15, 20),)
    assert timeline.makespan_ns == 20


def test_a_message_holds_its_pipe_and_then_travels() -> None:
    """It arrives occupancy + latency after it leaves; the next one of the sender leaves when the pipe is free."""
    problem = case(2, [0, 1], latency=10, occupancy=4)
    timeline = simulate(problem, schedule(problem, "0F0 0F1 0D0 0W0 0D1 0W1", "1F0 1F1 1D0 1W0 1D1 1W1"))
    activations = [run for run in timeline.messages if run.kind == "activation"]
    assert [(run.ready_ns, run.start_ns, run.end_ns, run.arrival_ns) for run in activations] == [
        (1, 1, 5, 15),
        (2, 5, 9, 19),
    ]
    assert timeline.starts[1][:2] == (15, 19)


def test_a_hand_over_inside_a_device_is_no_message() -> None:
    """Two adjacent stages on one device exchange nothing over a link and cost nothing."""
    problem = case(1, [0, 0])
    timeline = simulate(problem, schedule(problem, "0F0 1F0 1D0 1W0 0D0 0W0"))
    assert timeline.messages == ()
    assert timeline.makespan_ns == 6


def test_a_shared_pipe_serves_who_is_ready_first() -> None:
    """On a half-duplex link a gradient that is ready before an activation leaves before it."""
    problem = case(2, [0, 1], forward=[1, 1], occupancy=10, half_duplex=True)
    timeline = simulate(problem, schedule(problem, "0F0 0F1 0D0 0W0 0D1 0W1", "1F0 1D0 1W0 1F1 1D1 1W1"))
    windows = sorted((run.start_ns, run.kind, run.microbatch) for run in timeline.messages)
    assert windows == [(1, "activation", 0), (11, "activation", 1), (21, "gradient", 0), (31, "gradient", 1)]


def test_ties_on_a_shared_pipe_go_to_the_lower_device() -> None:
    """Two messages that are ready at the same time leave in device order."""
    problem = case(3, [0, 1], forward=[3, 1], full=[2, 1], occupancy=1, half_duplex=True)
    timeline = simulate(problem, schedule(problem, "0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"))
    runs = {(run.kind, run.microbatch): (run.ready_ns, run.start_ns) for run in timeline.messages}
    assert runs["activation", 1] == (6, 6)
    assert runs["gradient", 0] == (6, 7)


def test_a_gate_holds_a_message_until_its_receive_is_posted() -> None:
    """A message leaves no earlier than the op that stands before its receive ends."""
    problem = case(2, [0, 1])
    orders = schedule(problem, "0F0 0F1 0D0 0W0 0D1 0W1", "1F0 1D0 1W0 1F1 1D1 1W1")
    free = simulate(problem, orders)
    slot = encode_op(0, 1, 1, 2)
    gated = simulate(problem, orders, {slot: encode_op(2, 1, 0, 2)})
    assert [run.start_ns for run in free.messages if run.kind == "activation"] == [1, 2]
    assert [run.start_ns for run in gated.messages if run.kind == "activation"] == [1, 4]


def test_a_receive_window_holds_messages_back() -> None:
    """With a window of one a message leaves when the one before it on its channel was consumed."""
    problem = case(3, [0, 1], forward=[1, 4], window=1)
    orders = static_schedule("gpipe", problem)
    starts = [run.start_ns for run in simulate(problem, orders).messages if run.kind == "activation"]
    assert starts == [1, 5, 9]


def test_a_window_waits_for_all_earlier_messages_of_the_channel() -> None:
    """Messages that are read out of their order still open the window only when all before are read."""
    problem = case(2, [0, 1, 0, 1], window=1)
    orders = schedule(
        problem,
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    )
    runs = [run for run in simulate(problem, orders).messages if run.kind == "activation" and run.source == 0]
    ends = {run.stage * 2 + run.microbatch: run.start_ns for run in runs}
    assert ends[1] >= ends[0] + 1
    assert ends[4] > ends[1]


def test_collectives_run_beside_compute_one_at_a_time() -> None:
    """All-gathers of a device follow one another and release its forwards; reduces follow the last W."""
    problem = case(1, [0, 0], gather=[5, 7], reduce=[2, 3])
    timeline = simulate(problem, schedule(problem, "0F0 1F0 1D0 1W0 0D0 0W0"))
    runs = [(run.kind, run.stage, run.start_ns, run.end_ns) for run in timeline.collectives]
    assert runs == [
        ("ALL_GATHER", 0, 0, 5),
        ("ALL_GATHER", 1, 5, 12),
        ("REDUCE_SCATTER", 1, 15, 18),
        ("REDUCE_SCATTER", 0, 18, 20),
    ]
    assert timeline.starts == ((5, 12, 13, 14, 15, 16),)
    assert timeline.makespan_ns == 20


def test_collectives_contend_with_the_pipe_they_share() -> None:
    """A collective that shares a pipe keeps messages waiting while it runs."""
    problem = case(1, [0, 1], occupancy=2, gather=[4, 0], reduce=[0, 0], contends=True)
    timeline = simulate(problem, schedule(problem, "0F0 0D0 0W0", "1F0 1D0 1W0"))
    assert [(run.start_ns, run.end_ns) for run in timeline.collectives if run.stage == 0] == [(0, 4), (13, 13)]
    assert [run.start_ns for run in timeline.messages] == [5, 9]


@pytest.mark.parametrize(
    ("lines", "blocked"),
    [
        # W before its own D
        (("0F0 0W0 0D0",), [BlockedOp(0, "0W0", "0D0 on its own device")]),
        # B before its own F on the last stage
        (("0B0 0F0",), [BlockedOp(0, "0B0", "0F0 on its own device")]),
        # two stages that wait for each other
        (
            ("0D0 0F0 0W0", "1F0 1D0 1W0"),
            [
                BlockedOp(0, "0D0", "1D0 or 1B0 on device 1"),
                BlockedOp(1, "1F0", "0F0 on device 0"),
            ],
        ),
    ],
)
def test_a_deadlock_names_the_blocked_op_of_every_device(lines: tuple[str, ...], blocked: list[BlockedOp]) -> None:
    """An order that cannot finish gives what each device waits for, never a time."""
    problem = case(1, list(range(len(lines))))
    with pytest.raises(DeadlockError, match="deadlock: device 0 at") as caught:
        simulate(problem, schedule(problem, *lines))
    assert list(caught.value.blocked) == blocked
    assert Simulator(problem).makespan(schedule(problem, *lines).orders) is None


@given(problems(receive_window=True))
def test_the_serial_order_always_finishes(problem: Problem) -> None:
    """One microbatch at a time runs on any problem, under any window, and its timeline is sound."""
    orders = serial_schedule(problem)
    orders.verify(problem)
    timeline = simulate(problem, orders)
    timeline.verify(orders)
    assert Simulator(problem).makespan(orders.orders) == timeline.makespan_ns


@given(problems(data_parallel=False), st.sampled_from(sorted(SCHEDULES)))
def test_both_ways_to_run_agree(problem: Problem, name: str) -> None:
    """The direct run and the queued run give the same times wherever the direct one applies."""
    try:
        orders = static_schedule(name, problem)
    except ValueError:
        orders = serial_schedule(problem)
    tables = Tables(problem)
    if any(tables.contended):
        return
    makespan, ends, arrivals = Simulator(problem).replay(orders.orders)
    queued = QueuedRun(tables, orders.orders, None)
    assert queued.run() == makespan
    assert (queued.end, queued.arrival) == (ends, arrivals)


@given(problems(data_parallel=False), st.integers(2, 1_000_000))
def test_times_scale_with_the_unit(problem: Problem, factor: int) -> None:
    """All durations times k give all times times k, whatever the unit."""
    orders = serial_schedule(problem)

    def scaled(value: object) -> object:
        names = [name for name in value.__struct_fields__ if name.endswith("_ns")]  # type: ignore[attr-defined]
        times = {name: getattr(value, name) for name in names}
        return replace(value, **{name: time and time * factor for name, time in times.items()})  # type: ignore[type-var]

    larger = replace(
        problem,
        stages=tuple(map(scaled, problem.stages)),
        forward_hops=tuple(hop and scaled(hop) for hop in problem.forward_hops),
        backward_hops=tuple(hop and scaled(hop) for hop in problem.backward_hops),
    )
    assert simulate(larger, orders).makespan_ns == factor * simulate(problem, orders).makespan_ns
