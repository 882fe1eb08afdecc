"""Critical-path local search."""

from __future__ import annotations

from hypothesis import assume, given, settings
from oracle.cases import case
from strategies import problems

from cpipe.ir import Problem, Schedule, decode_op
from cpipe.schedules import static_schedule
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve.search import LocalSearch
from cpipe.solve.serial import serial_schedule


def search(
    problem: Problem, start: Schedule, target: int = 0, budget: int = 4000, seed: int = 0
) -> tuple[int, Schedule]:
    """Return what local search makes of `start`."""
    return LocalSearch(problem, Simulator(problem), target_ns=target, budget=budget, seed=seed).improve(start)


def test_it_turns_1f1b_into_the_optimum() -> None:
    """From 1F1B with split backwards it reaches the proven 20 of three stages and six microbatches."""
    problem = case(6, [0, 1, 2], capacity=3)
    makespan, schedule = search(problem, static_schedule("1f1b-split", problem), target=20)
    schedule.verify(problem)
    assert makespan == 20 == Simulator(problem).makespan(schedule.orders)


def test_it_finds_the_cheaper_full_backward() -> None:
    """Where B costs less than D + W and nothing waits for D, B replaces them."""
    problem = case(3, [0], input_grad=3, weight_grad=3, full=4)
    makespan, schedule = search(problem, Schedule.from_text("0F0 0D0 0W0 0F1 0D1 0W1 0F2 0D2 0W2", 3), target=15)
    assert makespan == 15
    assert {decode_op(op, 3).kind.name for op in schedule.orders[0]} == {"F", "B"}


def test_it_splits_a_full_backward_where_that_pays() -> None:
    """Where B costs as much as D + W, or a little less, the gradient leaves earlier after D."""
    problem = case(2, [0, 1], input_grad=4, weight_grad=4, full=7)
    start = static_schedule("1f1b", problem)
    makespan, schedule = search(problem, start)
    assert makespan < (Simulator(problem).makespan(start.orders) or 0)
    assert "1D" in schedule.to_text(2)


@settings(max_examples=40)
@given(problems(receive_window=True))
def test_it_never_makes_things_worse_or_illegal(problem: Problem) -> None:
    """Its result is a complete schedule that fits, and no longer than where it started."""
    start = serial_schedule(problem)
    assume(fits(problem, start.orders))  # a window may ask for more buffers than there is room
    makespan, schedule = search(problem, start, budget=150)
    schedule.verify(problem)
    assert fits(problem, schedule.orders)
    assert Simulator(problem).makespan(schedule.orders) == makespan
    assert makespan <= (Simulator(problem).makespan(start.orders) or 0)


def test_the_seed_decides() -> None:
    """The same seed gives the same order, evaluations are counted."""
    problem = case(6, [0, 1, 2], forward=[3, 5, 4], latency=3, capacity=4)
    start = static_schedule("zb-h1", problem)
    first = LocalSearch(problem, Simulator(problem), target_ns=0, budget=500, seed=3)
    second = LocalSearch(problem, Simulator(problem), target_ns=0, budget=500, seed=3)
    assert first.improve(start) == second.improve(start)
    assert first.evaluations == second.evaluations == 500
