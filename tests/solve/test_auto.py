"""One entry for every method: what it tries, when it stops, what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oracle.cases import case
from shapes import shape, two_flows

from cpipe.errors import NoSolutionError, UsageError
from cpipe.ir import Problem, decode_op
from cpipe.profile import load_profile, normalize
from cpipe.schedules import SCHEDULES, applicable
from cpipe.sim import Simulator, simulate
from cpipe.sim.memory import fits
from cpipe.solve import METHODS, SolveLimits, TimeLimit, solve
from cpipe.solve.auto import _AUTO_CPSAT_OPS
from cpipe.solve.bounds import lower_bound, span_bound
from cpipe.solve.methods import STATIC_METHODS
from cpipe.solve.serial import serial_schedule

PROFILES = sorted((Path(__file__).parents[2] / "plans").glob("*/profile.json"))


def line(p: int, n: int, **costs: Any) -> Problem:
    """Return p stages in line, unit times, everything held until W."""
    return case(n, list(range(p)), **{"held": 1, "message": 0} | costs)


def hard() -> Problem:
    """Return a small problem whose closed-form bound is not its optimum: shaving or a solver closes it."""
    return case(3, [0, 1, 1, 0], forward=[1, 2, 1, 2], activation=2, held=1, capacity=8, latency=1, message=0)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_returns_a_verified_result(method: str) -> None:
    """Whatever the method, the order is complete, its times are the simulator's and the bound is below them."""
    shapes = (line(3, 5, capacity=5, latency=1), shape("loop", 2, 5, 2), shape("wave", 2, 5, 2), two_flows(4, 8))
    problem = next((each for each in shapes if method in dict(applicable(each))), shapes[0])
    result = solve(problem, method)
    result.schedule.verify(problem)
    result.verify()
    assert result.timeline == simulate(problem, result.schedule)
    assert result.method == method
    if method in STATIC_METHODS:
        assert result.found_by == method


def test_the_static_methods_are_the_schedules() -> None:
    """Names of static schedules and of methods cannot drift apart."""
    assert set(STATIC_METHODS) == set(SCHEDULES)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", ["greedy", "greedy-crosspipe", "auto"])
def test_never_worse_than_the_best_static_schedule_that_fits(method: str, seed: int) -> None:
    """If the greedy loses against a static schedule, that schedule is emitted and said so."""
    costs = [1 + (seed * 7 + index * 5) % 4 for index in range(4)]
    problem = line(4, 6, forward=costs, weight_grad=costs[::-1], latency=[0, seed, 0], capacity=4)
    result = solve(problem, method)
    best = min(
        simulate(problem, schedule).makespan_ns for _, schedule in applicable(problem) if fits(problem, schedule.orders)
    )
    assert result.makespan_ns <= best


def test_a_greedy_that_loses_says_so() -> None:
    """CrossPipe's greedy loses against ZB-H1 where every link is a little slow and memory is tight."""
    problem = line(4, 8, forward=10, input_grad=10, weight_grad=10, latency=1, capacity=4)
    result = solve(problem, "greedy-crosspipe")
    assert (result.makespan_ns, result.found_by) == (282, "zb-h1")
    assert [str(warning) for warning in result.warnings] == [
        "warning: greedy-crosspipe found nothing better than zb-h1, whose order is used [static-was-better]"
    ]


def test_auto_stops_when_proven() -> None:
    """Where a static schedule meets the bound nothing else is tried."""
    result = solve(line(4, 8, capacity=4))
    assert (result.status, result.found_by, result.bound.proved_by) == ("optimal", "zb-h1", "bound")
    assert result.evaluations <= len(SCHEDULES) + 1


def test_the_milp_proves_what_the_bounds_cannot() -> None:
    """Where the closed forms stop short, HiGHS closes the gap and is named as the prover."""
    result = solve(hard(), "milp")
    assert (result.makespan_ns, result.status, result.bound.proved_by) == (27, "optimal", "highs")


def test_shaving_proves_what_the_bounds_cannot() -> None:
    """Once an order is found, shaving shows that none is shorter: no solver runs."""
    result = solve(hard())
    assert (result.makespan_ns, result.status, result.bound.proved_by, result.nodes) == (27, "optimal", "bound", 0)
    assert result.bound.reason.startswith("no shorter order fits work, memory and messages at ")
    assert lower_bound(hard()).value_ns < 27


def test_shaving_is_for_the_makespan() -> None:
    """A bound on the makespan says nothing of the longest span of a device, so that one stays as it is."""
    result = solve(hard(), "auto", SolveLimits(objective="span", node_limit=0))
    assert result.bound == span_bound(hard())
    assert result.status == "feasible"


def test_shipped_plans_do_not_depend_on_what_is_installed() -> None:
    """Every shipped problem that is not proven at once is beyond the size at which CP-SAT, an extra, takes part."""
    problems = [normalize(load_profile(path)) for path in PROFILES]
    assert len(problems) >= 10
    assert all(3 * problem.num_stages * problem.microbatches > _AUTO_CPSAT_OPS for problem in problems)


def test_max_gap_stops_early() -> None:
    """A gap that is good enough ends the search before the MILP; the gap is reported as it is."""
    result = solve(hard(), "auto", SolveLimits(max_gap=0.3))
    assert result.bound.proved_by == "bound"
    assert 0 < result.gap <= 0.3


def test_the_same_call_gives_the_same_result() -> None:
    """Counted work and a seed: two runs are equal, evaluations included."""
    problem = line(3, 7, forward=[3, 4, 5], latency=2, capacity=4)
    assert solve(problem) == solve(problem)


def test_a_time_limit_is_said_when_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the user's time runs out the best order so far is the answer, with a warning."""
    clock = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    result = solve(hard(), "auto", SolveLimits(time_limit=TimeLimit(0.5)))
    assert result.status == "feasible"
    assert [warning.code for warning in result.warnings] == ["time-limit"]


def test_without_a_solver_the_heuristics_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing solver is a warning in `auto`; `milp` refuses; both say how to get it."""
    reason = "highspy is not installed: pip install 'highspy>=1.16,<2'"
    monkeypatch.setattr("cpipe.solve.milp.solver_problem", lambda: reason)
    monkeypatch.setattr("cpipe.solve.auto._AUTO_CPSAT_OPS", 0)  # leaves CP-SAT out
    monkeypatch.setattr("cpipe.solve.auto._SHAVING_WORK", 0)  # leaves the gap open
    result = solve(hard())
    assert result.makespan_ns == 27
    assert [str(warning) for warning in result.warnings] == [
        f"warning: {reason}; the MILP was skipped [solver-missing]"
    ]
    with pytest.raises(NoSolutionError, match="highspy is not installed"):
        solve(hard(), "milp")


def test_an_unknown_method_is_refused() -> None:
    """The message lists what there is."""
    with pytest.raises(UsageError, match="unknown method 'fastest'; known: auto, cpsat, milp, greedy") as caught:
        solve(line(1, 1), "fastest")
    assert caught.value.diagnostics[0].code == "unknown-method"


@pytest.mark.parametrize(
    ("problem", "method", "code", "message"),
    [
        # more activations than fit
        (line(2, 4, capacity=2), "gpipe", "schedule-does-not-fit", "gpipe does not fit in memory"),
        # two stages on a device that do not follow each other
        (case(2, [0, 1, 0]), "1f1b", "schedule-does-not-apply", "1f1b needs one stage on each device"),
    ],
)
def test_a_static_schedule_that_cannot_be_had(problem: Problem, method: str, code: str, message: str) -> None:
    """The schedule that was asked for is never silently replaced by another."""
    with pytest.raises((UsageError, NoSolutionError), match=message) as caught:
        solve(problem, method)
    assert caught.value.diagnostics[0].code == code


def test_nothing_found_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should every candidate fail to run, the search says so instead of inventing a plan."""
    monkeypatch.setattr(Simulator, "makespan", lambda self, orders, pairs=(): None)
    with pytest.raises(NoSolutionError, match="no order was found within the limits") as caught:
        solve(line(2, 2), "greedy-crosspipe")
    assert caught.value.diagnostics[0].code == "no-order"


def test_progress_is_told_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress names who improved the incumbent, with both numbers."""
    monkeypatch.setattr("cpipe.solve.auto._SHAVING_WORK", 0)  # leaves something to the solvers
    lines: list[str] = []
    solve(hard(), "auto", None, lines.append)
    assert any("bound" in line and "ms" in line for line in lines)
    assert any(line.startswith(("milp", "cpsat")) for line in lines)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (SolveLimits(max_gap=1.0), r"expected a max_gap in \[0, 1\), got 1.0"),
        (SolveLimits(max_gap=-0.1), r"expected a max_gap in \[0, 1\), got -0.1"),
        (SolveLimits(max_gap=float("nan")), r"expected a max_gap in \[0, 1\), got nan"),
        (SolveLimits(seed=-1), r"expected a seed in 0 .. 2\^31 - 1, got -1"),
        (SolveLimits(node_limit=1 << 31), r"expected a node limit in 0 .. 2\^31 - 1, got 2147483648"),
        (SolveLimits(time_limit=TimeLimit(-1)), "expected a time limit >= 0 s, got -1"),
    ],
)
def test_limits_out_of_range_are_refused(limits: SolveLimits, message: str) -> None:
    """A limit that means nothing is a usage error, whoever calls; never an exception of the solver."""
    with pytest.raises(UsageError, match=message) as caught:
        solve(hard(), "auto", limits)
    assert caught.value.diagnostics[0].code == "bad-limit"


def test_a_static_schedule_that_is_proven_is_no_defeat_of_the_greedy() -> None:
    """When a static schedule meets the bound the family does not run, and nothing is said against it."""
    result = solve(line(1, 4, forward=10), "greedy")
    assert (result.status, result.warnings) == ("optimal", ())


def test_a_full_backward_is_tried_for_its_memory() -> None:
    """Where D would hold more than F did and does not fit, B does: the family finds the proven optimum."""
    problem = case(32, [0, 1, 2, 3], forward=20, input_grad=20, weight_grad=20, held=4, capacity=4)
    result = solve(problem, "greedy")
    assert {decode_op(op, 32).kind.name for order in result.schedule.orders for op in order} == {"F", "B"}
    assert result.makespan_ns == 35 * 60


def test_the_milp_refuses_what_is_too_large_at_once() -> None:
    """A problem of thousands of ops is not even taken apart; the heuristics answer, with a warning."""
    problem = line(16, 64, capacity=9, latency=1)
    result = solve(problem, "milp", SolveLimits(max_gap=0.0, time_limit=TimeLimit(3)))
    assert {warning.code for warning in result.warnings} >= {"milp-too-large"} or result.status == "optimal"


def test_windows_are_kept_with_several_stages_per_device() -> None:
    """Under a receive window the greedy still pipelines: far from one microbatch at a time."""
    problem = case(12, [0, 1, 2, 0, 1, 2], forward=[3, 4, 3, 5, 3, 4], window=2, message=1)
    serial = simulate(problem, serial_schedule(problem)).makespan_ns
    assert solve(problem, "greedy").makespan_ns < serial / 2


def test_known_orders_are_candidates() -> None:
    """An order from a like problem is taken if nothing better is found."""
    problem = hard()
    known = solve(problem).schedule
    again = solve(problem, "greedy-crosspipe", starts=(known,))
    assert again.makespan_ns == 27
