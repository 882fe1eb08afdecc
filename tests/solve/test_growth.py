"""Orders made longer, and the windows of a sweep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_cases import sized_problem
from msgspec.structs import replace

from cpipe.ir import OpKind, Problem, Schedule
from cpipe.ir.ops import KINDS
from cpipe.schedules import applicable
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve import growth
from cpipe.solve.family import tune_and_apply
from cpipe.solve.growth import grown, lengthened
from cpipe.solve.replay import Replays
from cpipe.solve.search import LocalSearch


def greedy(problem: Problem) -> Schedule:
    """Return a good greedy order of `problem`."""
    best = tune_and_apply(problem, Simulator(problem), 0, 20_000, 0, lambda: False).best
    assert best is not None
    return best.schedule


@given(moment=st.integers(0, 100), added=st.integers(1, 9), period=st.integers(1, 5), wave=st.booleans())
def test_a_lengthened_order_is_whole_and_finishes(moment: int, added: int, period: int, wave: bool) -> None:
    """Cut anywhere in time, with any period, a longer order has every op once and does not deadlock."""
    problem = sized_problem("wave" if wave else "ud", 4, 8, 25, 200, 2)
    longer = replace(problem, microbatches=8 + added)
    for _, schedule in applicable(problem):
        timed = Replays(Simulator(problem)).start(schedule.orders)
        assert timed is not None
        places = [sum(100 * timed.end[op] <= moment * timed.value for op in order) for order in schedule.orders]
        orders = lengthened(schedule.orders, places, 8, added, period)
        if orders is not None:
            Schedule(orders=orders).verify(longer)
            assert Simulator(longer).value(orders) is not None


def test_the_first_microbatches_repeat() -> None:
    """One device that does F and B in turn does so for as many more."""
    orders = ((0, 3, 4, 7),)  # F0 B0 F1 B1
    assert lengthened(orders, [0], 2, 2, 1) == ((0, 3, 4, 7, 8, 11, 12, 15),)
    assert lengthened(orders, [4], 2, 1, 1) is None


def test_an_op_is_not_done_both_whole_and_in_parts() -> None:
    """Where B of one microbatch and W of another stand in one stretch, there may be no longer order."""
    f, d, w, b = OpKind.F, OpKind.D, OpKind.W, OpKind.B
    order = (f, KINDS + f, d, 2 * KINDS + f, w, KINDS + b, 2 * KINDS + d, 2 * KINDS + w)
    assert lengthened((order,), [3], 3, 1, 1) is None


@pytest.mark.slow
def test_many_microbatches_are_close_to_their_bound() -> None:
    """An order of 4 devices and 32 microbatches that was made longer fits, and is no worse than a greedy one."""
    problem = sized_problem("ud", 4, 32, 200, 25, 1)
    search = tune_and_apply(problem, Simulator(problem), 0, 100_000, 0, lambda: False)
    counts: list[int] = []
    longer = grown(problem, [candidate.knobs for candidate in search.ranking], 0, 0, lambda: False, counts.append)
    assert longer is not None
    assert len(counts) > 2
    assert min(counts) > 0
    assert search.best is not None
    longer.verify(problem)
    assert fits(problem, longer.orders)
    value = Simulator(problem).value(longer.orders)
    assert value is not None
    assert value <= search.best.makespan


def test_few_microbatches_are_not_made_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched for where there is little to repeat, where no pass is known, and when time is up."""
    problem = sized_problem("ud", 4, 20, 200, 25, 1)
    knobs = [
        candidate.knobs for candidate in tune_and_apply(problem, Simulator(problem), 0, 5_000, 0, lambda: False).ranking
    ]
    assert grown(problem, knobs, 0, 0, lambda: False) is None
    many = replace(problem, microbatches=32)
    assert grown(many, [], 0, 0, lambda: False) is None
    monkeypatch.setattr(growth, "_FIRST_WORK", 0)
    assert grown(many, knobs, 0, 0, lambda: True) is None


@pytest.mark.parametrize("placement", ["ud", "wave"])
@pytest.mark.parametrize("delays", [(0, 0), (200, 25), (25, 200)], ids=str)
def test_a_replay_up_to_a_frontier_tells_the_whole_makespan(placement: str, delays: tuple[int, int]) -> None:
    """Cut anywhere, with the start replayed and the rest measured, the makespan is that of a whole replay."""
    problem = sized_problem(placement, 4, 12, *delays, 1)
    simulator = Simulator(problem)
    orders = greedy(problem).orders
    replays = Replays(simulator)
    whole = replays.start(orders)
    assert whole is not None
    replays.measure(orders, whole)
    for tenth in range(1, 10):
        frontier = replays.cut(orders, whole, 0, whole.value * tenth // 10)
        cut = Replays(simulator)
        cut.frontier = frontier
        timed = cut.start([order[:stop] for order, stop in zip(orders, frontier.stop, strict=True)])
        assert timed is not None
        assert timed.value == whole.value


@pytest.mark.parametrize("placement", ["ud", "wave"])
@pytest.mark.parametrize("heat", [0, 25])
def test_a_sweep_returns_what_it_found(placement: str, heat: int) -> None:
    """The order of a sweep is legal, fits, has the makespan that it tells, and is found again."""
    problem = sized_problem(placement, 4, 32, 25, 200, 1)
    simulator = Simulator(problem)
    start = greedy(problem)
    found = [
        LocalSearch(problem, simulator, target_ns=0, budget=60_000, seed=3, heat=heat, sweeps=4).improve(start)
        for _ in range(2)
    ]
    value, schedule = found[0]
    schedule.verify(problem)
    assert fits(problem, schedule.orders)
    assert simulator.value(schedule.orders) == value
    before = simulator.value(start.orders)
    assert before is not None
    assert value <= before
    assert found[0] == found[1]
