"""The model: every constraint family matters, replays satisfy it, reductions are sound, units do not matter."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.cases import case
from oracle.orders import random_schedule, serial_schedule
from oracle.random_problems import random_problem, random_shared_problem

from cpipe.ir import Bound, OpKind, Problem, Schedule, encode_op
from cpipe.sim import DeadlockError, simulate
from cpipe.sim.memory import fits, memory_peaks, memory_rooms
from cpipe.solve.jackson import preemptive_makespan
from cpipe.solve.merging import can_merge
from cpipe.solve.milp import count_binaries, solve_milp
from cpipe.solve.milp.backend import Limits, run_solver
from cpipe.solve.milp.build import build_network
from cpipe.solve.milp.model import FAMILIES, Model
from cpipe.solve.milp.network import split_dominated
from cpipe.solve.milp.onemachine import resource_bound
from cpipe.solve.milp.orders import extract_schedule, start_vector
from cpipe.solve.milp.precedence import ContradictionError, Precedence
from cpipe.solve.milp.worker import _limits, bound_ns

LINE = (0, 1, 2)


def bound_without(problem: Problem, family: str | None) -> int:
    """Return the bound [units] that a model without one family proves, with as little settled beforehand as may be."""
    network = build_network(problem)
    # a loose upper bound and no memory precedences leave everything to the constraints
    precedence = Precedence(network, 2 * network.serial_length(), use_memory=False)
    families = tuple(name for name in FAMILIES if name != family)
    model = Model(network, precedence, 0, families)
    raw = run_solver(model.lp, model.columns, None, Limits(20_000, None, 0.9, 0, 1e-6))
    assert raw.status == "optimal"
    return round(raw.dual_bound + 0.44)


@pytest.mark.parametrize(
    ("family", "problem", "optimum"),
    [
        ("dependencies", case(2, (0, 1), capacity=1), 9),
        ("no-overlap", case(2, (0, 1)), 7),
        ("memory", case(2, (0, 1), capacity=1), 9),
        ("completion", case(2, (0, 1)), 7),
    ],
)
def test_every_family_matters(family: str, problem: Problem, optimum: int) -> None:
    """With all constraint families the optimum is proven; without one of them the bound is lower."""
    assert bound_without(problem, None) == optimum
    assert bound_without(problem, family) < optimum


def broken_by(problem: Problem, schedule: Schedule, family: str, task: tuple[str, int, int], move: int) -> list[float]:
    """Return the violation of a replay with one op moved by `move` [units], without and with one family."""
    timeline = simulate(problem, schedule)
    network = build_network(problem)
    precedence = Precedence(network, network.serial_length())
    result = []
    for families in (tuple(name for name in FAMILIES if name != family), None):
        model = Model(network, precedence, 0, families)
        values = start_vector(model, schedule, timeline)
        assert model.violation(values) == 0
        values[model.start[network.compute[task]]] += move
        result.append(model.violation(values))
    return result


def test_settled_orders_matter() -> None:
    """A pair whose order memory settles is kept apart by a row of its own, in place of a binary."""
    problem = case(3, (0, 1), capacity=1)
    orders = ("0F0 0D0 0W0 0F1 0D1 0F2 0W1 0D2 0W2", "1F0 1D0 1W0 1F1 1D1 1W1 1F2 1D2 1W2")
    schedule = Schedule.from_text("\n".join(orders), 3)
    assert broken_by(problem, schedule, "settled-orders", ("F", 0, 2), -1) == [0, 1]


def test_merged_backwards_matter() -> None:
    """The empty W of a B may not wander off; without its family nothing holds it."""
    problem = case(1, (0, 1), weight_grad=2, full=2)
    schedule = Schedule.from_text("0F0 0B0\n1F0 1B0", 1)
    assert broken_by(problem, schedule, "merged-backwards", ("W", 1, 0), 1) == [0, 1]


@pytest.mark.parametrize("generate", [random_problem, random_shared_problem])
def test_replays_satisfy_the_model(generate: object) -> None:
    """The replay of any order that fits is a solution of the model, whose columns give the same order back."""
    assert callable(generate)
    checked = 0
    for seed in range(40):
        problem, draw = generate(seed), Random(seed)
        for _ in range(3):
            schedule = split_dominated(problem, random_schedule(problem, draw))
            if not fits(problem, schedule.orders):
                continue
            try:
                timeline = simulate(problem, schedule)
            except DeadlockError:
                continue
            network = build_network(problem)
            precedence = Precedence(network, timeline.makespan_ns // network.unit_ns)
            model = Model(network, precedence, resource_bound(precedence))
            values = start_vector(model, schedule, timeline)
            assert model.violation(values) < 1e-9, problem.name
            assert extract_schedule(model, values) == schedule, problem.name
            checked += 1
    assert checked > 60


def test_violation_sees_a_wrong_solution() -> None:
    """A vector that breaks a row or a bound is noticed, by how much."""
    problem = case(2, (0, 1))
    schedule = serial_schedule(problem)
    timeline = simulate(problem, schedule)
    network = build_network(problem)
    model = Model(network, Precedence(network, timeline.makespan_ns), 0)
    values = start_vector(model, schedule, timeline)
    values[model.goal] -= 2
    assert model.violation(values) == pytest.approx(2)


def test_reductions_leave_few_binaries() -> None:
    """Closure, memory and windows settle most pairs of the published small case: 1104 to at most 210."""
    problem = case(8, (0, 1, 2, 3), forward=100, input_grad=110, weight_grad=90, activation=10, held=7, capacity=40)
    naive = 4 * 24 * 23 // 2
    assert naive == 1104
    assert count_binaries(problem, 2870) <= 210
    assert count_binaries(problem, 2760) < count_binaries(problem, 2870) < count_binaries(problem, 5000)


def test_counting_a_large_problem_is_an_estimate() -> None:
    """Beyond 800 ops the pairs of each device are counted, not looked at."""
    problem = case(256, (0, 1, 2, 3))
    assert count_binaries(problem, 10_000) == 4 * (768 * 767 // 2)


def test_memory_settles_orders() -> None:
    """With room for two activations, F of microbatch 2 follows D of 0; held bytes bring in W of 0 as well."""
    network = build_network(case(4, (0, 1), capacity=2))
    precedence = Precedence(network, network.serial_length())
    third = network.compute["F", 0, 2]
    assert precedence.ordered(network.compute["D", 0, 0], third) is True
    assert precedence.ordered(network.compute["D", 0, 1], third) is None
    assert precedence.ordered(network.compute["W", 0, 0], third) is None
    network = build_network(case(4, (0, 1), activation=2, held=2, capacity=4))
    precedence = Precedence(network, network.serial_length())
    assert precedence.ordered(network.compute["W", 0, 0], network.compute["F", 0, 2]) is True


def test_memory_settles_orders_of_several_stages() -> None:
    """On a wave with room for two, the first stage's F of microbatch 1 waits for the last stage's F of 0."""
    network = build_network(case(3, (0, 1, 1, 0), capacity=2))
    precedence = Precedence(network, network.serial_length())
    assert precedence.ordered(network.compute["D", 3, 0], network.compute["F", 3, 1]) is True


def test_what_never_fits_is_a_contradiction() -> None:
    """No room for one activation ends the search before a model is built, with no schedule."""
    problem = case(2, (0, 1), capacity=0)
    network = build_network(problem)
    with pytest.raises(ContradictionError, match="never fits its device"):
        Precedence(network, network.serial_length())
    outcome = solve_milp(problem, serial_schedule(problem), lower_bound=Bound(value_ns=3))
    assert (outcome.schedule, outcome.solver_status, outcome.dual_bound_ns) == (None, "infeasible", 3)


def test_windows_settle_orders() -> None:
    """An upper bound at the optimum leaves no choice where every op is critical."""
    network = build_network(case(1, (0, 1)))
    assert Precedence(network, 5).num_binaries() == 0
    with pytest.raises(ContradictionError, match="must both follow and precede"):
        Precedence(build_network(case(2, (0, 1))), 6)


def test_budget_leaves_out_static_bytes_and_receive_buffers() -> None:
    """What a device has for activations is its capacity less static bytes and the window's buffers."""
    problem = case(4, LINE, capacity=[20, 20, 20], static=[1, 2, 3], window=2, message=3)
    assert memory_rooms(problem) == (20 - 1 - 6, 20 - 2 - 12, 20 - 3 - 6)
    assert memory_rooms(case(4, LINE)) == (None, None, None)


def test_merging_is_offered_only_where_it_can_win() -> None:
    """B must be cheaper than D + W, or the device limited and D hold more than F."""
    cheap = case(1, (0,), full=1)
    assert can_merge(cheap, cheap.stages[0])
    plain = case(1, (0,), held=2)
    assert not can_merge(plain, plain.stages[0])
    limited = case(1, (0,), held=2, capacity=9)
    assert can_merge(limited, limited.stages[0])
    whole = case(1, (0,), full=1, split=False)
    assert not can_merge(whole, whole.stages[0])


def test_splitting_a_dominated_backward() -> None:
    """B of a stage that gains nothing by it becomes D and W; W keep microbatch order."""
    problem = case(2, (0,))
    ids = [encode_op(kind, 0, microbatch, 2) for kind, microbatch in
           ((OpKind.F, 0), (OpKind.F, 1), (OpKind.D, 0), (OpKind.B, 1), (OpKind.W, 0))]  # fmt: skip
    split = split_dominated(problem, Schedule(orders=(tuple(ids),)))
    assert split.to_text(2) == "0F0 0F1 0D0 0D1 0W0 0W1"
    assert memory_peaks(problem, split.orders) == (2,)


def test_units_are_the_common_divisor() -> None:
    """Times in nanoseconds and in milliseconds give the same network."""
    coarse, fine = (
        build_network(case(2, LINE, latency=3)),
        build_network(case(2, LINE, forward=10**6, input_grad=10**6, weight_grad=10**6, latency=3 * 10**6)),
    )
    assert (coarse.unit_ns, fine.unit_ns) == (1, 10**6)
    assert coarse.tasks == fine.tasks
    assert coarse.edges == fine.edges


def test_one_machine_bound() -> None:
    """Jackson's preemptive schedule interrupts a job for one with a longer tail."""
    assert preemptive_makespan([]) == 0
    assert preemptive_makespan([(0, 4, 0), (1, 1, 9)]) == 11
    assert preemptive_makespan([(5, 2, 1), (0, 1, 0)]) == 8


def test_resource_bound_never_exceeds_a_replay() -> None:
    """The bound from heads and tails holds for the schedule that set the windows."""
    for seed in range(30):
        problem = random_problem(seed)
        schedule = split_dominated(problem, serial_schedule(problem))
        if not fits(problem, schedule.orders):
            continue
        makespan = simulate(problem, schedule).makespan_ns
        network = build_network(problem)
        assert resource_bound(Precedence(network, makespan // network.unit_ns)) * network.unit_ns <= makespan


def scaled_model(scale: float, unit: int, upper: int = 1000) -> Any:
    """Return what the reading of bounds needs of a model."""
    return SimpleNamespace(
        scale=scale, network=SimpleNamespace(unit_ns=unit), precedence=SimpleNamespace(upper_bound=upper)
    )


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.floats(-0.9, 0.04))
def test_bounds_are_rounded_up_to_a_whole_unit(optimum: int, unit: int, slip: float) -> None:
    """Less than a unit below the optimum, or a little above by bad arithmetic, the bound is the optimum itself."""
    assert bound_ns(optimum + slip, scaled_model(1.0, unit)) == optimum * unit


@given(st.integers(1, 10**9), st.floats(1.0, 1000.0), st.floats(0, 2000))
def test_bounds_of_long_horizons_stay_below(optimum: int, scale: float, below: float) -> None:
    """Where a unit of model time is many units of time the bound is rounded up to units, and never exceeds."""
    bound = bound_ns((optimum - below) / scale, scaled_model(scale, 1))
    assert optimum - below - 0.05 * scale - 1e-3 <= bound <= optimum or bound == 0


def test_no_bound_is_zero() -> None:
    """A solver without a bound, and one below zero, prove nothing."""
    for dual in (-math.inf, math.inf, math.nan, -3.7):
        assert bound_ns(dual, scaled_model(1.0, 7)) == 0


@given(st.integers(1, 10**6))
def test_the_search_stops_where_the_bound_is_tight(optimum: int) -> None:
    """The gap at which the solver may stop still proves the incumbent."""
    model = scaled_model(1.0, 3, upper=2 * optimum)
    gap = _limits(model, SimpleNamespace(node_limit=1, seed=0), None).absolute_gap  # type: ignore[arg-type]
    assert gap > 0.9
    assert bound_ns(optimum - gap + 1e-6, model) == 3 * optimum
