"""Times and tails of the orders that a local search walks through."""

from __future__ import annotations

from hypothesis import given, settings
from known_cases import PEERS, peer_problem, sized_problem
from oracle.cases import case
from strategies import problems

from cpipe.ir import Problem
from cpipe.schedules import static_schedule
from cpipe.sim import Simulator
from cpipe.solve.replay import NO_WAY, QUEUED_COST, Replays, Timed
from cpipe.solve.serial import serial_schedule


def measured(problem: Problem, orders: list[list[int]]) -> tuple[Timed, Simulator]:
    """Return an order's times with its tails."""
    simulator = Simulator(problem)
    replays = Replays(simulator)
    timed = replays.start(orders)
    assert timed is not None
    replays.measure(orders, timed)
    return timed, simulator


@settings(max_examples=60)
@given(problems(memory=False))
def test_no_way_is_longer_than_the_run(problem: Problem) -> None:
    """The value is the simulator's; from an op's start, its tail never leads past the end of a direct run."""
    orders = [list(order) for order in serial_schedule(problem).orders]
    timed, simulator = measured(problem, orders)
    assert timed.value == simulator.value(orders)
    tables = simulator.tables
    if not simulator.is_direct:
        return
    sums = [timed.end[op] - tables.duration[op] + timed.tail[tables.slot[op]] for order in orders for op in order]
    assert max(sums, default=0) == timed.value
    onward = [timed.end[op] + timed.onward[op] for order in orders for op in order if timed.onward[op] != NO_WAY]
    assert max(onward, default=0) <= timed.value


def test_a_tail_counts_the_messages_ahead_on_the_link() -> None:
    """An op whose message holds the link for those behind it is critical, though its own reader can wait."""
    problem = case(3, [0, 1], occupancy=10)
    orders = [list(order) for order in static_schedule("gpipe", problem).orders]
    timed, _ = measured(problem, orders)
    first, second = orders[0][:2]
    assert timed.end[first] + timed.onward[first] == timed.value
    assert timed.end[second] + timed.onward[second] < timed.value  # it waits for the first one's message


def test_a_change_is_timed_as_a_start() -> None:
    """Times after a change equal those of the changed order from the start, in direct and in queued problems."""
    for problem in (sized_problem("wave", 4, 4, 25, 200, 2), case(4, [0, 1, 2], window=1, latency=3)):
        orders = [list(order) for order in serial_schedule(problem).orders]
        replays = Replays(Simulator(problem))
        before = replays.start(orders)
        assert before is not None
        order = orders[0]
        order.insert(1, order.pop(next(index for index, op in enumerate(order) if index and op % 4 == 0)))
        changed, fresh = replays.change(orders, before, 0, 1), replays.start(orders)
        assert changed is not None
        assert fresh is not None
        assert (changed.value, changed.arrival) == (fresh.value, fresh.arrival)


def test_queued_replays_count_for_more() -> None:
    """Work is counted in ops: a replay through queues costs several times a direct one."""
    direct, queued = peer_problem(PEERS[0], 1), case(8, [0, 1, 2, 3], window=2)
    visits = []
    for problem in (direct, queued):
        replays = Replays(Simulator(problem))
        assert replays.start(static_schedule("zb-h1", problem).orders) is not None
        visits.append(replays.visits)
    assert visits == [96, 96 * QUEUED_COST]


def test_reductions_are_tails_too() -> None:
    """What follows the last W of a stage is its reduction, whether or not the device has more to do."""
    problem = case(2, [0, 1], reduce=[50, 1])
    orders = [list(order) for order in static_schedule("zb-h1", problem).orders]
    timed, simulator = measured(problem, orders)
    last = orders[0][-1]
    assert timed.end[last] + timed.onward[last] == timed.value == simulator.makespan(orders)
