"""The exhaustive search itself: known values, and agreement with trying whole orders in the simulator."""

from __future__ import annotations

from random import Random

import pytest
from oracle.cases import case
from oracle.exhaustive import OutOfScopeError, shortest_makespan
from oracle.orders import all_schedules, random_schedule, serial_schedule
from oracle.random_problems import random_problem, random_shared_problem

from cpipe.ir import Problem
from cpipe.sim import Simulator, simulate
from cpipe.sim.memory import fits


@pytest.mark.parametrize(
    ("placement", "microbatches", "expected"),
    [((0,), 4, 12), ((0, 1), 1, 5), ((0, 1), 4, 13), ((0, 1, 2), 3, 11), ((0, 1, 2, 3), 2, 11)],
)
def test_known_optima(placement: tuple[int, ...], microbatches: int, expected: int) -> None:
    """It finds the optima that are known for F = D = W = 1."""
    assert shortest_makespan(case(microbatches, placement)) == expected


def test_memory_can_forbid_every_order() -> None:
    """Without room for one activation there is no order."""
    assert shortest_makespan(case(2, (0, 1), capacity=[0, 4])) is None


def test_agrees_with_whole_orders_in_the_simulator() -> None:
    """Two ways to try everything agree: growing partial schedules, and replaying every whole order."""
    compared = 0
    for seed in range(50):
        problem = random_problem(seed)
        if len(set(problem.placement)) < problem.num_stages or problem.num_stages * problem.microbatches > 6:
            continue
        simulator = Simulator(problem)
        times = [
            makespan
            for schedule in all_schedules(problem)
            if fits(problem, schedule.orders) and (makespan := simulator.makespan(schedule.orders)) is not None
        ]
        assert shortest_makespan(problem) == min(times, default=None), problem.name
        compared += 1
    assert compared >= 15


def test_no_random_order_beats_it() -> None:
    """On several stages a device, too, no order that fits is shorter."""
    for seed in range(30):
        problem = random_problem(seed)
        best = shortest_makespan(problem)
        for round_number in range(10):
            schedule = random_schedule(problem, Random(round_number))
            schedule.verify(problem)
            if fits(problem, schedule.orders):
                assert best is not None
                assert simulate(problem, schedule).makespan_ns >= best


def test_serial_schedule_is_complete() -> None:
    """The serial schedule runs every op once, whatever the placement."""
    for seed in range(20):
        problem = random_problem(seed)
        serial_schedule(problem).verify(problem)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (case(2, (0, 1), occupancy=1, half_duplex=True), "several devices send on one pipe"),
        (case(2, (0, 1), window=1), "a receive window"),
        (case(2, (0, 1), reduce=1, contends=True), "collectives that occupy pipes"),
    ],
)
def test_says_what_it_does_not_cover(problem: Problem, reason: str) -> None:
    """A problem outside its scope is refused, not solved wrongly."""
    with pytest.raises(OutOfScopeError, match=reason):
        shortest_makespan(problem)


def test_random_problems_cover_every_feature() -> None:
    """The random problems contain what the tests that use them are meant to check."""
    drawn = [random_problem(seed) for seed in range(60)]
    shared = [random_shared_problem(seed) for seed in range(30)]
    assert any(problem.collectives for problem in drawn)
    assert any(not stage.can_split for problem in drawn for stage in problem.stages)
    assert any(len(set(problem.placement)) < problem.num_stages for problem in drawn)
    assert sum(shortest_makespan(problem) is None for problem in drawn) in range(2, 30)
    assert any(problem.receive_window for problem in shared)
    assert any(problem.collectives and problem.collectives.pipes for problem in shared)
