"""The list-scheduler family and CrossPipe's greedy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from oracle.cases import case
from strategies import problems

from cpipe.ir import Problem, decode_op
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.sim.tables import Tables
from cpipe.solve.bounds import lower_bound
from cpipe.solve.crosspipe import crosspipe_greedy
from cpipe.solve.family import FamilySearch, structured_knobs, tune_and_apply
from cpipe.solve.greedy import NO_LIMIT, Knobs, ListScheduler


def line(p: int, n: int, **costs: object) -> Problem:
    """Return p equal stages in line, everything held until W."""
    return case(n, list(range(p)), held=1, message=0, **costs)  # type: ignore[arg-type]


def knobs(problem: Problem, **changes: Any) -> Knobs:
    """Return eager knobs: W only in waits, no in-flight limit, D and W apart where possible."""
    size = problem.num_devices
    full = tuple(not stage.can_split for stage in problem.stages)
    return Knobs((NO_LIMIT,) * size, (NO_LIMIT,) * size, 0, full)._replace(**changes)


def test_weight_lag_says_when_w_goes_first() -> None:
    """With lag 0 every W follows its D at once; without limit W waits while there is other work."""
    problem = line(1, 3)
    scheduler = ListScheduler(problem, Tables(problem))
    eager = scheduler.run(knobs(problem, weight_lag=(0,), in_flight=(1,)))
    lazy = scheduler.run(knobs(problem, in_flight=(1,)))
    assert eager is not None
    assert lazy is not None
    assert eager.to_text(3) == "0F0 0D0 0W0 0F1 0D1 0W1 0F2 0D2 0W2"
    assert lazy.to_text(3) == "0F0 0D0 0F1 0D1 0F2 0D2 0W0 0W1 0W2"


def test_in_flight_limits_the_warm_up() -> None:
    """No more forwards are in flight than the knob says, whatever memory allows."""
    problem = line(3, 6)
    schedule = ListScheduler(problem, Tables(problem)).run(knobs(problem, in_flight=(2, 1, 1)))
    assert schedule is not None
    for device, limit in enumerate((2, 1, 1)):
        level, peak = 0, 0
        for op in schedule.orders[device]:
            kind = decode_op(op, 6).kind.name
            level += {"F": 1, "D": -1, "W": 0, "B": -1}[kind]
            peak = max(peak, level)
        assert peak == limit


def test_full_backward_is_a_choice_per_stage() -> None:
    """A stage whose knob says so runs B, the others D and W."""
    problem = line(2, 2)
    schedule = ListScheduler(problem, Tables(problem)).run(knobs(problem, full_backward=(True, False)))
    assert schedule is not None
    kinds = [{decode_op(op, 2).kind.name for op in order} for order in schedule.orders]
    assert kinds == [{"F", "B"}, {"F", "D", "W"}]


@given(problems())
def test_every_pass_is_a_schedule_that_fits(problem: Problem) -> None:
    """Whatever the knobs, a pass that finishes is complete, within memory and free of deadlock."""
    scheduler, simulator = ListScheduler(problem, Tables(problem)), Simulator(problem)
    for number, vector in enumerate(structured_knobs(problem)):
        if number == 12:
            break
        schedule = scheduler.run(vector)
        if schedule is None:
            continue
        schedule.verify(problem)
        assert fits(problem, schedule.orders)
        assert simulator.makespan(schedule.orders) is not None


@given(problems())
def test_crosspipe_greedy_is_a_schedule(problem: Problem) -> None:
    """Algorithm 1 on any problem: complete, in order, free of deadlock; memory is checked by who uses it."""
    simulator = Simulator(problem)
    for parts in (1, 4):
        schedule = crosspipe_greedy(problem, simulator.tables, parts)
        if schedule is not None:
            schedule.verify(problem)
            assert simulator.makespan(schedule.orders) is not None


def test_crosspipe_greedy_alternates() -> None:
    """After a whole F a D goes first, after a D an F; W fills what is left."""
    problem = line(2, 4, capacity=2)
    schedule = crosspipe_greedy(problem, Tables(problem), parts=1)
    assert schedule is not None
    assert schedule.to_text(4) == (
        "0F0 0F1 0D0 0W0 0F2 0D1 0W1 0F3 0D2 0W2 0D3 0W3\n1F0 1D0 1F1 1D1 1W0 1F2 1D2 1W1 1F3 1D3 1W2 1W3"
    )


@pytest.mark.parametrize(
    ("p", "n", "middle", "memory", "optimum"),
    [
        (4, 8, (200, 25), 1, 3660),
        (4, 8, (25, 200), 2, 2935),
        (8, 16, (0, 0), 1, 5640),
        (8, 16, (25, 200), 1, 6540),
        (8, 16, (200, 25), 2, 5725),
        (16, 64, (0, 0), 1, 21000),
        (16, 64, (200, 25), 2, 20925),
    ],
)
def test_the_family_meets_proven_optima(p: int, n: int, middle: tuple[int, int], memory: int, optimum: int) -> None:
    """The study's instances with known optima are solved by counted greedy passes alone."""
    latency, occupancy = [0] * (p - 1), [0] * (p - 1)
    latency[p // 2 - 1], occupancy[p // 2 - 1] = middle
    problem = case(
        n,
        list(range(p)),
        forward=100,
        input_grad=110,
        weight_grad=90,
        activation=10,
        held=7,
        message=0,
        capacity=10 * p * memory,
        latency=latency,
        occupancy=occupancy,
    )
    search = tune_and_apply(problem, Simulator(problem), optimum, 600_000, 0, lambda: False)
    assert search.best is not None
    assert search.best.makespan == optimum


def test_work_is_counted_and_reproducible() -> None:
    """The same budget and seed give the same order; the budget is never exceeded."""
    problem = line(4, 9, forward=[3, 4, 5, 3], weight_grad=[2, 1, 1, 2], capacity=4, latency=2)
    runs = [tune_and_apply(problem, Simulator(problem), 0, 40_000, 7, lambda: False) for _ in range(2)]
    assert runs[0].best == runs[1].best
    assert runs[0].evaluations == runs[1].evaluations <= 40_000 // (3 * 4 * 9)


def test_an_expired_search_stops_at_once() -> None:
    """The user's time limit ends the search before the next evaluation."""
    problem = line(2, 3)
    search = FamilySearch(problem, Simulator(problem), 0, 100, expired=lambda: True)
    search.structured(structured_knobs(problem))
    assert search.evaluations == 0
    assert search.best is None


def test_large_problems_are_tuned_small() -> None:
    """Few evaluations of a large problem still meet its bound, since the knobs were tuned at fewer microbatches."""
    problem = line(4, 200, forward=10, input_grad=11, weight_grad=9, capacity=8, latency=1)
    search = tune_and_apply(problem, Simulator(problem), 0, 12_000, 0, lambda: False)
    assert search.best is not None
    schedule = ListScheduler(problem, Tables(problem)).run(search.best.knobs)
    assert schedule == search.best.schedule
    assert search.best.makespan == lower_bound(problem).value_ns
