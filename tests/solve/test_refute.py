"""Bounds by contradiction: what they reach, and that no optimum and no schedule that is found is below them."""

from __future__ import annotations

import pytest
from known_cases import PEERS, GridCase, grid_cases, grid_problem, peer_problem
from m70 import SHIPPED_DELAYS, Delays, m70_profile, problem_of
from msgspec.structs import replace
from oracle.cases import case
from oracle.exhaustive import OutOfScopeError, shortest_makespan
from oracle.orders import all_schedules
from oracle.random_problems import random_problem, random_shared_problem

from cpipe.ir import Bound, Problem
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve import solve
from cpipe.solve.bounds import lower_bound
from cpipe.solve.refute import MAX_WORK, raised_bound, tightened_bound

NOTHING = Bound(value_ns=0, reason="nothing to do")


def grid_case(placement: str, p: int, n: int, middle: tuple[int, int], memory: int) -> GridCase:
    """Return a case of the grid by what it is."""
    wanted = (placement, p, n, *middle, memory)
    return next(grid for grid in grid_cases() if grid[:6] == wanted)


@pytest.mark.parametrize(
    ("placement", "n", "middle", "memory", "bound"),
    [
        ("ud", 16, (200, 25), 1, 6570),
        ("ud", 16, (25, 200), 1, 6570),
        ("wave", 8, (200, 25), 1, 3700),
        ("wave", 8, (25, 200), 1, 4085),
        ("wave", 8, (25, 200), 2, 4005),
    ],
)
def test_grid_is_raised(placement: str, n: int, middle: tuple[int, int], memory: int, bound: int) -> None:
    """Where memory of one device alone says too little, all of them together say this much on four devices."""
    found = lower_bound(grid_problem(grid_case(placement, 4, n, middle, memory)))
    assert found.value_ns == bound
    assert found.reason.startswith("no shorter order fits work, memory and messages at ")


def test_two_stages_a_device_under_tight_memory() -> None:
    """A V on four devices with latency of two forwards: at least 3161 is known to be true, 3750 is reached."""
    grid = grid_case("wave", 4, 8, (200, 25), 1)
    assert 3161 <= lower_bound(grid_problem(grid)).value_ns <= grid.best_known == 3750


@pytest.mark.parametrize(
    ("placement", "n", "middle", "bound"),
    [("ud", 16, (200, 25), 6600), ("ud", 16, (25, 200), 6600), ("wave", 8, (0, 0), 2565), ("wave", 8, (200, 25), 3750)],
)
def test_shaving_proves_what_a_solver_needs_long_for(
    placement: str, n: int, middle: tuple[int, int], bound: int
) -> None:
    """Given what is reached, shaving closes the gap on four cases of the grid."""
    grid = grid_case(placement, 4, n, middle, 1)
    problem = grid_problem(grid)
    known = lower_bound(problem)
    found = tightened_bound(problem, known, grid.best_known)
    assert known.value_ns < found.value_ns == bound <= grid.best_known


@pytest.mark.parametrize(
    ("delays", "reached", "gap"),
    [
        (SHIPPED_DELAYS[0], 2_225_462_125, 0.03),
        (SHIPPED_DELAYS[1], 2_606_225_000, 0.02),
        (SHIPPED_DELAYS[2], 2_606_525_571, 0.02),
        (SHIPPED_DELAYS[3], 2_908_550_000, 0.015),
    ],
)
def test_m70_is_bounded_within_a_few_percent(delays: Delays, reached: int, gap: float) -> None:
    """On eight unequal stages whose D and W cost more than B, the bound is this close to an order that is reached."""
    value = lower_bound(problem_of(m70_profile(delays))).value_ns
    assert reached * (1 - gap) <= value <= reached


def test_no_bound_is_above_the_optimum() -> None:
    """On random small problems neither bound exceeds the exhaustive optimum, from whatever it starts."""
    checked = tight = 0
    for seed in range(700, 750):
        problem = random_problem(seed)
        try:
            optimum = shortest_makespan(problem)
        except OutOfScopeError:
            continue
        if optimum is None:
            continue
        found = [raised_bound(problem, NOTHING), lower_bound(problem)]
        found.append(tightened_bound(problem, found[1], 2 * optimum, 40_000))
        for bound in found:
            assert bound.value_ns <= optimum, f"{problem.name}: {bound.reason}"
        checked += 1
        tight += found[2].value_ns == optimum
    assert checked > 35
    assert tight > 0.8 * checked


@pytest.mark.slow
def test_no_bound_is_above_the_optimum_with_shared_pipes_and_windows() -> None:
    """The same for half-duplex pipes, receive windows and collectives that hold a pipe, against every order."""
    checked = 0
    for seed in range(20, 32):
        problem = random_shared_problem(seed)
        simulator = Simulator(problem)
        times = [
            makespan
            for schedule in all_schedules(problem)
            if fits(problem, schedule.orders) and (makespan := simulator.makespan(schedule.orders)) is not None
        ]
        if not times:
            continue
        checked += 1
        assert raised_bound(problem, NOTHING).value_ns <= min(times), problem.name
        assert tightened_bound(problem, NOTHING, 2 * min(times), 40_000).value_ns <= min(times), problem.name
    assert checked >= 8


@pytest.mark.parametrize(
    ("placement", "kind"),
    [
        ((0, 1, 2, 3), "held"),
        ((0, 1, 2, 3), "window"),
        ((0, 1, 1, 0), "merged"),
        ((0, 1, 1, 0), "collectives"),
        ((0, 1, 0, 1), "unsplit"),
        ((0, 1, 0, 1), "window"),
        ((2, 0, 0, 1), "merged"),
    ],
)
def test_no_schedule_that_is_found_is_below(placement: tuple[int, ...], kind: str) -> None:
    """On medium problems of every placement the bound is at most what the greedy methods reach."""
    size = len(placement)
    problem = case(
        4,
        placement,
        forward=[5 + index % 3 for index in range(size)],
        input_grad=[6 + index % 2 for index in range(size)],
        weight_grad=4,
        full=[8 + index % 2 for index in range(size)] if kind == "merged" else None,
        split=kind != "unsplit",
        latency=9,
        occupancy=2,
        half_duplex=kind == "window",
        capacity=[3 * placement.count(device) + 2 for device in range(max(placement) + 1)],
        activation=1,
        held=2 if kind == "held" else 1,
        window=2 if kind == "window" else None,
        reduce=3 if kind == "collectives" else None,
        gather=7 if kind == "collectives" else None,
        contends=kind == "collectives",
    )
    bound = lower_bound(problem)
    result = solve(problem, "greedy")
    assert bound.value_ns <= result.makespan_ns
    assert tightened_bound(problem, bound, result.makespan_ns, 60_000).value_ns <= result.makespan_ns


def scaled(problem: Problem, factor: int) -> Problem:
    """Return the problem with all times multiplied."""
    times = ("forward_ns", "input_grad_ns", "weight_grad_ns", "full_backward_ns", "all_gather_ns", "reduce_ns")
    stages = tuple(
        replace(stage, **{name: getattr(stage, name) * factor for name in times}) for stage in problem.stages
    )
    hops = [
        tuple(
            None
            if hop is None
            else replace(hop, latency_ns=hop.latency_ns * factor, occupancy_ns=hop.occupancy_ns * factor)
            for hop in row
        )
        for row in (problem.forward_hops, problem.backward_hops)
    ]
    return replace(problem, stages=stages, forward_hops=hops[0], backward_hops=hops[1])


def test_bounds_scale_with_time() -> None:
    """Seven times as slow, seven times the bound: nothing depends on the unit."""
    problems = [random_problem(seed) for seed in range(900, 912)]
    problems += [grid_problem(grid_case("wave", 4, 8, (200, 25), 1)), peer_problem(PEERS[0], 1)]
    for problem in problems:
        assert lower_bound(scaled(problem, 7)).value_ns == 7 * lower_bound(problem).value_ns, problem.name


@pytest.mark.parametrize(("placement", "n"), [((0, 1, 2), 6), ((0, 1, 1, 0), 5), ((0, 1, 0, 1), 5)])
def test_less_memory_and_windows_never_lower_a_bound(placement: tuple[int, ...], n: int) -> None:
    """Constraints only ever raise it: byte by byte of memory, and receive window by window."""
    values = []
    for capacity in range(9, 60, 3):
        problem = case(
            n, placement, forward=3, input_grad=4, weight_grad=3, latency=8, activation=4, held=3, capacity=capacity
        )
        values.append(lower_bound(problem).value_ns)
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    open_ended = case(n, placement, forward=3, input_grad=4, latency=8, occupancy=1)
    windows = [lower_bound(replace(open_ended, receive_window=window)).value_ns for window in (1, 2, 3, None)]
    assert windows == sorted(windows, reverse=True)


def test_windows_of_one_raise_the_bound() -> None:
    """With one receive posted, a message waits until the one before was read: a latency and a forward each time."""
    problem = case(6, [0, 1], forward=2, latency=20, window=1)
    assert lower_bound(problem).value_ns >= lower_bound(replace(problem, receive_window=None)).value_ns + 4 * 20


def test_nothing_is_changed_without_need() -> None:
    """A bound that is met, a problem that is too large and one that never fits keep what is known."""
    problem = case(4, [0, 1])
    met = Bound(value_ns=shortest_makespan(problem) or 0, reason="known")
    assert raised_bound(problem, met) is met
    assert tightened_bound(problem, met, met.value_ns) is met
    large = case(MAX_WORK // 90 + 1, [0])
    assert raised_bound(large, NOTHING) is NOTHING
    assert tightened_bound(large, NOTHING, 10**9, 100) is NOTHING
    hopeless = case(4, [0, 1], capacity=[0, 9])
    assert raised_bound(hopeless, NOTHING) is NOTHING


def test_more_work_never_lowers_the_bound() -> None:
    """Stopping early gives less, never something else."""
    problem = grid_problem(grid_case("wave", 4, 8, (25, 200), 1))
    values = [raised_bound(problem, NOTHING, work).value_ns for work in (1_000, 15_000, 40_000, 150_000)]
    assert values == sorted(values) and values[0] < values[-1]
