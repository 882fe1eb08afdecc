"""Proven optima: from the field's cases and from trying everything."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from oracle.cases import case
from oracle.exhaustive import shortest_makespan
from oracle.orders import all_schedules, serial_schedule
from oracle.random_problems import random_problem, random_shared_problem
from stub_workers import run_here

from cpipe.ir import Bound, Problem
from cpipe.sim import Simulator, simulate
from cpipe.sim.memory import fits
from cpipe.solve.milp import MilpOutcome, solve, solve_milp

LOOP, WAVE = (0, 1, 0, 1), (0, 1, 1, 0)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the solver in this process: what it finds is the matter here, not where."""
    monkeypatch.setattr(solve, "run_child", run_here)


def line(num_devices: int) -> tuple[int, ...]:
    """Return the placement of one stage a device."""
    return tuple(range(num_devices))


def search(problem: Problem, lower_bound: int = 0, **options: Any) -> MilpOutcome:
    """Search from the schedule that runs one microbatch after the other."""
    return solve_milp(problem, serial_schedule(problem), lower_bound=Bound(value_ns=lower_bound), **options)


def assert_optimum(problem: Problem, expected: int | None) -> None:
    """Check that the search finds and proves `expected`, in the simulator, or that nothing fits (None)."""
    outcome = search(problem)
    if expected is None:
        assert outcome.schedule is None
        return
    assert outcome.schedule is not None
    outcome.schedule.verify(problem)
    assert fits(problem, outcome.schedule.orders)
    assert simulate(problem, outcome.schedule).makespan_ns == expected
    assert outcome.dual_bound_ns == expected
    assert outcome.warnings == ()


@pytest.mark.parametrize(
    ("num_devices", "microbatches", "expected"),
    [
        (1, 4, 12),
        (2, 1, 5),
        (2, 2, 7),
        (2, 4, 13),
        (3, 1, 7),
        (3, 2, 9),
        (3, 3, 11),
        (3, 4, 14),
        (3, 6, 20),
        (4, 2, 11),
        (4, 3, 13),
        (4, 4, 15),
    ],
)
def test_unit_times(num_devices: int, microbatches: int, expected: int) -> None:
    """With F = D = W = 1 and free links the known optima are found and proven, fewer microbatches than stages too."""
    assert_optimum(case(microbatches, line(num_devices)), expected)


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [([3, 3, 3], 20), ([2, 3, 3], 21), ([1, 3, 3], 37), ([3, 1, 3], 27), ([3, 2, 1], 20), (1, 37), (2, 21), (4, 20)],
)
def test_each_device_has_its_own_memory(capacity: Any, expected: int) -> None:
    """Limits of single devices move the optimum as proven in the field."""
    assert_optimum(case(6, line(3), capacity=capacity), expected)


@pytest.mark.parametrize(("capacity", "held", "expected"), [(6, 0, 20), (6, 2, 20), (4, 0, 21), (4, 1, 25), (4, 2, 25)])
def test_memory_held_for_the_weight_gradient(capacity: int, held: int, expected: int) -> None:
    """What D leaves behind for W counts until W ends."""
    assert_optimum(case(6, line(3), activation=2, held=held, capacity=capacity), expected)


def test_transient_of_the_input_gradient() -> None:
    """A D that needs four times an activation while it runs makes four units infeasible and five feasible."""
    assert_optimum(case(2, line(2), input_grad_transient=4, capacity=4), None)
    assert_optimum(case(2, line(2), input_grad_transient=4, capacity=5), 9)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"forward": [1, 1, 1, 2], "input_grad": [1, 1, 1, 2], "weight_grad": [1, 1, 1, 2]}, 27),
        ({"forward": [8, 8, 8, 10], "input_grad": [8, 8, 8, 10], "weight_grad": [8, 8, 8, 10], "n": 6}, 204),
        ({"forward": [1, 0, 1], "input_grad": [1, 0, 1], "weight_grad": [1, 0, 1]}, 13),  # an empty stage passes on
        ({"input_grad": [0, 1, 1], "weight_grad": [2, 1, 1]}, 14),  # the first stage has no input gradient
        ({"weight_grad": [1, 0, 1]}, 14),  # a frozen stage
        ({"weight_grad": [3, 3, 3], "n": 6, "capacity": 3}, 32),
        ({"forward": [2, 2, 2], "input_grad": 2, "n": 6, "capacity": 3}, 34),
        ({"forward": [1, 1, 1], "input_grad": 2, "n": 6, "capacity": 3}, 28),
        ({"forward": [1, 1, 1], "full": 3, "split": False, "n": 6}, 32),
    ],
)
def test_uneven_stages(times: dict[str, Any], expected: int) -> None:
    """Stages that differ, cost nothing or cannot split keep their proven optima."""
    options = dict(times)
    microbatches = options.pop("n", 4)
    size = max(len(value) for value in [*options.values(), [0, 0, 0]] if isinstance(value, list))
    assert_optimum(case(microbatches, line(size), **options), expected)


@pytest.mark.parametrize(
    ("capacity", "latency", "expected"),
    [(4, 0, 54), (4, 4, 62), (4, 10, 86), (6, 10, 78)]
    + [
        pytest.param(capacity, latency, expected, marks=pytest.mark.slow)
        for capacity, latency, expected in ((4, 2, 58), (6, 0, 54), (6, 4, 58), (8, 0, 54), (8, 2, 56), (8, 10, 66))
    ],
)
def test_latency_of_the_middle_link(capacity: int, latency: int, expected: int) -> None:
    """More memory hides more of a slow hop in the middle: four devices, eight microbatches."""
    problem = case(8, line(4), forward=2, input_grad=2, weight_grad=2, latency=[0, latency, 0], capacity=capacity)
    assert_optimum(problem, expected)


@pytest.mark.parametrize(("latency", "capacity", "expected"), [(8, 2, 43), (8, 4, 27), (4, 2, 27), (4, 4, 19)])
def test_latency_between_two(latency: int, capacity: int, expected: int) -> None:
    """Two devices and a long link, with and without memory to hide it."""
    assert_optimum(case(4, line(2), latency=latency, capacity=capacity), expected)


@pytest.mark.parametrize(("occupancy", "full", "half"), [(1, 14, 14), (2, 15, 19), (3, 20, 27)])
def test_duplex(occupancy: int, full: int, half: int) -> None:
    """Messages hold their pipe; a half-duplex link is one pipe for both directions."""
    assert_optimum(case(4, line(2), occupancy=occupancy, capacity=4), full)
    assert_optimum(case(4, line(2), occupancy=occupancy, capacity=4, half_duplex=True), half)


@pytest.mark.parametrize(
    ("placement", "latency", "expected"),
    [(WAVE, 1, 26), (WAVE, 4, 33), (LOOP, 4, 39), pytest.param(LOOP, 0, 25, marks=pytest.mark.slow)],
)
def test_two_stages_a_device(placement: tuple[int, ...], latency: int, expected: int) -> None:
    """A wave hands over on the device at its turn, so it wins over a loop on a slow link."""
    assert_optimum(case(4, placement, latency=latency), expected)


def test_odd_numbers_of_microbatches() -> None:
    """Several stages a device ask for no divisibility."""
    assert_optimum(case(3, LOOP, capacity=8), 19)
    assert_optimum(case(3, LOOP, capacity=8, split=False, full=2), 21)


@pytest.mark.parametrize(
    ("placement", "capacity", "expected"), [(LOOP, 3, 26), (LOOP, 1, None), (WAVE, 2, 27), (WAVE, 1, None)]
)
def test_memory_of_two_stages_a_device(placement: tuple[int, ...], capacity: int, expected: int | None) -> None:
    """Stages of a device share its memory; one activation for each must fit."""
    assert_optimum(case(4, placement, capacity=capacity), expected)


@pytest.mark.parametrize(
    ("reduce", "expected"), [(0, 14), (2, 16), (6, 20), ([0, 2, 0], 15), ([4, 0, 0], 18), ([0, 0, 4], 18)]
)
def test_reduces_after_the_last_weight_gradient(reduce: Any, expected: int) -> None:
    """A stage's gradients are reduced after its last W, and the makespan includes it."""
    assert_optimum(case(4, line(3), reduce=reduce, capacity=3), expected)


def test_collectives_on_the_pipeline_link() -> None:
    """A reduce on the link of the messages delays them: the bound holds, the simulator's makespan is above it."""
    problem = case(4, line(2), occupancy=2, capacity=4, half_duplex=True, reduce=[0, 4], contends=True)
    outcome = search(problem)
    assert outcome.schedule is not None
    assert 19 < outcome.dual_bound_ns <= 21 <= simulate(problem, outcome.schedule).makespan_ns


@pytest.mark.slow
@pytest.mark.parametrize(("latency", "occupancy", "expected"), [(0, 0, 2760), (200, 25, 3660), (25, 200, 3660)])
def test_the_published_small_case(latency: int, occupancy: int, expected: int) -> None:
    """Four devices, eight microbatches, memory for four: 2760 without delay, 3660 with a slow middle link."""
    problem = case(
        8,
        line(4),
        forward=100,
        input_grad=110,
        weight_grad=90,
        activation=10,
        held=7,
        capacity=40,
        latency=[0, latency, 0],
        occupancy=[0, occupancy, 0],
    )
    assert_optimum(problem, expected)


def test_a_cheaper_full_backward_is_chosen() -> None:
    """B is used where it costs less than D and W, and only there."""
    assert_optimum(case(3, line(2), weight_grad=2, full=2), shortest_makespan(case(3, line(2), weight_grad=2, full=2)))
    outcome = search(case(2, (0,), weight_grad=2, full=2))
    assert outcome.schedule is not None
    assert outcome.schedule.to_text(2).count("B") == 2
    outcome = search(case(2, (0,), weight_grad=2, full=3))
    assert outcome.schedule is not None
    assert outcome.schedule.to_text(2).count("B") == 0


def test_merging_saves_memory() -> None:
    """Where D holds more than F did, B may be the only backward that fits."""
    assert_optimum(case(2, line(2), held=3, capacity=2), 9)
    roomy = search(case(2, line(2), held=3, capacity=9))
    assert roomy.schedule is not None
    assert simulate(case(2, line(2), held=3, capacity=9), roomy.schedule).makespan_ns == 7


@pytest.mark.parametrize(
    "block", [pytest.param(block, marks=pytest.mark.slow if block in (2, 6, 9) else ()) for block in range(10)]
)
def test_agrees_with_trying_everything(block: int) -> None:
    """On a hundred random small problems the search proves what the exhaustive search finds."""
    for seed in range(10 * block, 10 * block + 10):
        problem = random_problem(seed)
        expected = shortest_makespan(problem)
        outcome = search(problem)
        if expected is None:
            assert outcome.schedule is None, problem.name
            continue
        assert outcome.schedule is not None, problem.name
        found = simulate(problem, outcome.schedule).makespan_ns
        assert (found, outcome.dual_bound_ns) == (expected, expected), problem.name


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_bounds_hold_where_the_model_is_a_relaxation(block: int) -> None:
    """With shared pipes and receive windows no order at all is shorter than the bound, and most are met."""
    met = 0
    seeds = range(10 * block, 10 * block + 10)
    for seed in seeds:
        problem = random_shared_problem(seed)
        simulator = Simulator(problem)
        times = [
            makespan
            for schedule in all_schedules(problem)
            if fits(problem, schedule.orders) and (makespan := simulator.makespan(schedule.orders)) is not None
        ]
        outcome = search(problem)
        if not times:
            assert outcome.schedule is None, problem.name
            continue
        assert outcome.schedule is not None, problem.name
        assert outcome.dual_bound_ns <= min(times), problem.name
        met += outcome.dual_bound_ns == min(times) == simulate(problem, outcome.schedule).makespan_ns
    assert met >= len(seeds) // 2


@pytest.mark.parametrize(("window", "message"), list(product((1, 2), (0, 1))))
def test_receive_windows(window: int, message: int) -> None:
    """A receive window delays messages and its buffers take memory: the optimum over all orders is met."""
    problem = case(3, line(2), forward=[1, 3], occupancy=1, latency=2, window=window, message=message, capacity=4)
    simulator = Simulator(problem)
    times = [
        makespan
        for schedule in all_schedules(problem)
        if fits(problem, schedule.orders) and (makespan := simulator.makespan(schedule.orders)) is not None
    ]
    assert_optimum(problem, min(times))
