"""Replaying an order again after a change gives what a replay from the start gives."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_cases import PEERS, peer_problem, sized_problem
from oracle.cases import case
from oracle.orders import random_schedule
from strategies import problems

from cpipe.ir import Problem
from cpipe.ir.ops import KINDS
from cpipe.schedules import static_schedule
from cpipe.sim import Simulator
from cpipe.sim.rerun import Rerun


def shifted(order: list[int], index: int, place: int) -> list[int] | None:
    """Return `order` with one op moved; None when a W would come before its D."""
    changed = order.copy()
    changed.insert(place, changed.pop(index))
    position = {op: at for at, op in enumerate(changed)}
    return None if any(position[op - 1] > at for op, at in position.items() if op % KINDS == 2) else changed


def check_walk(problem: Problem, orders: list[list[int]], draw: Random, steps: int) -> int:
    """Take random moves, most of them kept; compare every run with the simulator's. Return how many deadlocked."""
    simulator = Simulator(problem)
    rerun = Rerun(simulator)
    run = rerun.run(orders)
    assert run is not None
    blocked = 0
    for _ in range(steps):
        device = draw.choice([device for device, order in enumerate(orders) if order])
        index, place = (draw.randrange(len(orders[device])) for _ in range(2))
        changed = shifted(orders[device], index, place)
        if changed is None:
            continue
        kept, orders[device] = orders[device], changed
        again = rerun.again(orders, run, device, min(index, place))
        makespan, ends, arrivals = simulator.replay(orders)
        if again is None:
            assert makespan is None
            blocked += 1
            orders[device] = kept
            continue
        assert again.end == ends
        fed = [op for op in simulator.tables.target if op >= 0]
        assert [again.arrival[slot] for slot in fed] == [arrivals[slot] for slot in fed]
        check_stretches(orders, again.stretches)
        if draw.random() < 0.7:
            run = again
        else:
            orders[device] = kept
    return blocked


def check_stretches(orders: list[list[int]], stretches: Sequence[tuple[int, int, int]]) -> None:
    """Check that the stretches of each device cover its order, one after the other."""
    done = [0] * len(orders)
    for device, begin, stop in stretches:
        assert begin == done[device] < stop
        done[device] = stop
    assert done == [len(order) for order in orders]


@settings(max_examples=60)
@given(problems(memory=False, data_parallel=False), st.randoms(use_true_random=False))
def test_a_changed_order_replays_as_if_from_the_start(problem: Problem, draw: Random) -> None:
    """Ends and arrivals after every move of a random walk are those of a whole replay, and so are deadlocks."""
    if Simulator(problem).is_direct:
        check_walk(problem, [list(order) for order in random_schedule(problem, draw).orders], draw, 12)


def test_links_that_messages_hold_are_taken_up_where_they_were() -> None:
    """In a V over a slow link, whose messages queue behind one another, nothing of the queue is lost."""
    problem = sized_problem("wave", 4, 6, 25, 200, 2)
    orders = [list(order) for order in random_schedule(problem, Random(1)).orders]
    check_walk(problem, orders, Random(2), 300)


def test_an_order_that_cannot_finish_is_none() -> None:
    """A walk over many moves meets deadlocks, and each is told from a run."""
    problem = case(3, [0, 1, 0, 1])
    orders = [list(order) for order in random_schedule(problem, Random(3)).orders]
    assert check_walk(problem, orders, Random(4), 300) > 10


def test_what_is_before_the_change_is_not_done_again() -> None:
    """A change near the end costs less than one near the start, and both less than two whole runs."""
    problem = peer_problem(PEERS[2], 1)
    orders = [list(order) for order in static_schedule("zb-h1", problem).orders]
    rerun = Rerun(Simulator(problem))
    run = rerun.run(orders)
    assert run is not None
    whole = rerun.visits
    assert whole == sum(map(len, orders))
    costs = []
    for place in (0, len(orders[0]) - 2):
        before = rerun.visits
        rerun.again(orders, run, 0, place)
        costs.append(rerun.visits - before)
    assert costs[0] == whole
    assert costs[1] <= 2 * len(orders)


def test_queued_problems_are_not_for_it() -> None:
    """Windows, shared pipes and collectives need the general engine: to ask is a mistake of ours."""
    with pytest.raises(AssertionError, match="need the general engine"):
        Rerun(Simulator(case(2, [0, 1], window=1)))
