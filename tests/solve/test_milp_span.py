"""The span as the objective: windows are sound, the model proves what trying every order finds."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from oracle.cases import case
from oracle.orders import all_schedules, random_schedule, serial_schedule
from oracle.random_problems import random_problem, random_shared_problem
from stub_workers import run_here

from cpipe.ir import Bound, Problem, Schedule, decode_op
from cpipe.sim import DeadlockError, Simulator, simulate
from cpipe.sim.memory import fits
from cpipe.solve.milp import solve, solve_milp
from cpipe.solve.milp.build import build_network
from cpipe.solve.milp.model import Model
from cpipe.solve.milp.network import split_dominated
from cpipe.solve.milp.orders import start_vector
from cpipe.solve.milp.precedence import Precedence
from cpipe.solve.milp.windows import first_starts, horizon_of, openers


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the solver in this process: what it finds is the matter here, not where."""
    monkeypatch.setattr(solve, "run_child", run_here)


def spans(problem: Problem) -> list[int]:
    """Return the span of every order that fits and finishes [ns]."""
    simulator = Simulator(problem, "span")
    return [
        value
        for schedule in all_schedules(problem)
        if fits(problem, schedule.orders) and (value := simulator.value(schedule.orders)) is not None
    ]


def replays(problem: Problem, draw: Random, count: int = 12) -> Iterator[Schedule]:
    """Yield random orders of a problem that finish."""
    for _ in range(count):
        schedule = split_dominated(problem, random_schedule(problem, draw))
        try:
            simulate(problem, schedule)
        except DeadlockError:
            continue
        yield schedule


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (case(2, (0, 1)), 7),
        (case(4, (0, 1)), 12),
        (case(2, (0, 1), capacity=1), 9),
        (case(2, (0, 1), forward=[1, 2], latency=2), 13),
        (case(2, (0, 1), occupancy=2, gather=1, reduce=2), 14),
        (case(3, (0,)), 9),
        (case(1, (0, 1, 0, 1), latency=1), 15),
    ],
)
def test_known_spans(problem: Problem, expected: int) -> None:
    """Optima found by hand or by trying every order are found and proven."""
    outcome = solve_milp(problem, serial_schedule(problem), lower_bound=Bound(value_ns=0), objective="span")
    assert outcome.schedule is not None
    assert simulate(problem, outcome.schedule).span_ns == expected
    assert outcome.dual_bound_ns == expected
    assert outcome.warnings == ()


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in (1, 2, 3))])
def test_agrees_with_trying_every_order(block: int) -> None:
    """No order at all has a shorter span than the bound; where every start is known the best is found and proven."""
    exact = 0
    for seed in range(5 * block, 5 * block + 5):
        problem = random_shared_problem(seed)
        best = min(spans(problem), default=None)
        outcome = solve_milp(problem, serial_schedule(problem), lower_bound=Bound(value_ns=0), objective="span")
        if best is None:
            assert outcome.schedule is None, problem.name
            continue
        assert outcome.schedule is not None, problem.name
        found = simulate(problem, outcome.schedule).span_ns
        assert outcome.dual_bound_ns <= best <= found, problem.name
        exact += outcome.dual_bound_ns == best == found
    assert exact >= 2


@pytest.mark.parametrize("generate", [random_problem, random_shared_problem])
def test_known_first_starts(generate: object) -> None:
    """A device starts with one of its openers, and when that is said to be known, at that time in every replay."""
    assert callable(generate)
    known = 0
    for seed in range(40):
        problem = generate(seed)
        network = build_network(problem)
        starts = first_starts(network)
        for schedule in replays(problem, Random(seed)):
            timeline = simulate(problem, schedule)
            for device, order in enumerate(schedule.orders):
                kind, stage, microbatch = decode_op(order[0], problem.microbatches)
                assert network.compute[kind.name, stage, microbatch] in openers(network, device), problem.name
                if (start := starts[device]) is not None:
                    known += 1
                    assert timeline.starts[device][0] == start * network.unit_ns, problem.name
    assert known > 100


@pytest.mark.parametrize("generate", [random_problem, random_shared_problem])
def test_windows_hold_in_every_replay(generate: object) -> None:
    """An order within the span keeps the horizon, its tasks' windows, and the model with the span as its value."""
    assert callable(generate)
    for seed in range(25):
        problem = generate(seed)
        network = build_network(problem)
        for schedule in replays(problem, Random(seed), 4):
            if not fits(problem, schedule.orders):
                continue
            timeline = simulate(problem, schedule)
            upper, floors = horizon_of(network, timeline.span_ns // network.unit_ns)
            assert timeline.makespan_ns <= upper * network.unit_ns, problem.name
            model = Model(network, Precedence(network, upper, floors=floors), 0, None, "span")
            values = start_vector(model, schedule, timeline)
            assert model.violation(values) < 1e-9, problem.name
            assert values[model.goal] * network.unit_ns == timeline.span_ns
            values[model.goal] -= 1
            assert model.violation(values) > 1 - 1e-9, problem.name


def test_span_is_not_the_makespan() -> None:
    """The second device need not start with the first: of four microbatches the span can be 12, the makespan 13."""
    problem = case(4, (0, 1))
    start, nothing = serial_schedule(problem), Bound(value_ns=0)
    assert solve_milp(problem, start, lower_bound=nothing, objective="span").dual_bound_ns == 12
    assert solve_milp(problem, start, lower_bound=nothing).dual_bound_ns == 13
