"""Critical-path local search."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from known_cases import PEERS, peer_problem, sized_problem
from oracle.cases import case
from strategies import problems

from cpipe.ir import Objective, Problem, Schedule, decode_op
from cpipe.schedules import static_schedule
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve.multistart import MultiStart
from cpipe.solve.search import LocalSearch
from cpipe.solve.serial import serial_schedule


def search(
    problem: Problem, start: Schedule, target: int = 0, budget: int = 400_000, seed: int = 0, heat: int = 50
) -> tuple[int, Schedule]:
    """Return what local search makes of `start`."""
    found = LocalSearch(problem, Simulator(problem), target_ns=target, budget=budget, seed=seed, heat=heat)
    return found.improve(start)


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


@pytest.mark.parametrize("objective", ["makespan", "span"])
@settings(max_examples=30)
@given(problem=problems(receive_window=True))
def test_it_never_makes_things_worse_or_illegal(problem: Problem, objective: Objective) -> None:
    """Its result is a complete schedule that fits, its objective the simulator's and no longer than at the start."""
    start = serial_schedule(problem)
    assume(fits(problem, start.orders))  # a window may ask for more buffers than there is room
    simulator = Simulator(problem, objective)
    value, schedule = LocalSearch(problem, simulator, target_ns=0, budget=20_000, seed=0).improve(start)
    schedule.verify(problem)
    assert fits(problem, schedule.orders)
    assert simulator.value(schedule.orders) == value
    assert value <= (simulator.value(start.orders) or 0)


@pytest.mark.parametrize("problem", [sized_problem("wave", 4, 6, 25, 200, 1), case(6, [0, 1, 2], window=1, latency=2)])
def test_it_improves_where_messages_queue(problem: Problem) -> None:
    """Slow links and receive windows hold messages back; it still finds shorter orders than one at a time."""
    start = serial_schedule(problem)
    makespan, schedule = search(problem, start)
    assert makespan < 0.8 * (Simulator(problem).makespan(start.orders) or 0)
    assert makespan == Simulator(problem).makespan(schedule.orders)


def test_the_seed_decides() -> None:
    """The same seed gives the same order, replays and work are counted."""
    problem = case(6, [0, 1, 2], forward=[3, 5, 4], latency=3, capacity=4)
    start = static_schedule("zb-h1", problem)
    first = LocalSearch(problem, Simulator(problem), target_ns=0, budget=50_000, seed=3)
    second = LocalSearch(problem, Simulator(problem), target_ns=0, budget=50_000, seed=3)
    assert first.improve(start) == second.improve(start)
    assert first.evaluations == second.evaluations > 0
    assert first.work == second.work
    assert 50_000 <= first.work < 51_000


def test_most_moves_are_told_without_a_replay() -> None:
    """Heads and tails sort out most moves: less work than whole replays would cost, yet it comes within 3 %."""
    problem = sized_problem("ud", 8, 16, 200, 25, 1)
    found = LocalSearch(problem, Simulator(problem), target_ns=6540, budget=1_500_000, seed=1, heat=30)
    makespan, _ = found.improve(static_schedule("zb-h1", problem))
    assert makespan <= 6540 * 1.03
    assert found.evaluations * 3 * 8 * 16 > 0.5 * found.work  # replays that start where the change is
    assert found.work < 1_500_000 + 10_000


def test_rounds_start_from_different_orders() -> None:
    """Rounds are fed from the pool, each improves on its start, and their replays are counted."""
    problem = peer_problem(PEERS[3], 1)
    simulator = Simulator(problem)
    pool = MultiStart(problem, simulator, 0, lambda: False)
    values = []
    for name in ("1f1b-split", "zb-h1"):
        orders = static_schedule(name, problem).orders
        values.append(simulator.makespan(orders) or 0)
        pool.add(orders, values[-1])
    best = min(values)
    for found in pool.rounds(35_000):
        best = min(best, simulator.makespan(found.orders) or best)
        if best == 35_000:
            break
    assert best == 35_000
    assert pool.evaluations > 0
