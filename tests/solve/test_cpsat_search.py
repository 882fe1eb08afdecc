"""The CP-SAT search as a black box: never believed, the same every time, and missing without harm."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import call, profile_document, write_json
from known_cases import grid_cases, grid_problem
from oracle.cases import case
from oracle.orders import serial_schedule

from cpipe.errors import NoSolutionError, UsageError
from cpipe.ir import Bound, Problem
from cpipe.sim import simulate
from cpipe.solve import SolveLimits, solve
from cpipe.solve.child import Ended
from cpipe.solve.cpsat import CpsatOutcome, solve_cpsat, solver_problem
from cpipe.solve.cpsat import solve as search_module
from cpipe.solve.cpsat.job import Answer
from cpipe.solve.limits import Stop

TINY = case(1, (0, 1))
SMALL = case(3, (0, 1), weight_grad=2)
HARD = case(6, (0, 1, 1, 0), forward=[3, 2, 4, 2], input_grad=[2, 3, 3, 2], latency=3, capacity=5)


@pytest.fixture
def with_ortools() -> None:
    """Skip what needs the solver where it is not installed."""
    if solver_problem() is not None:
        pytest.skip("OR-Tools is not installed")


def search(problem: Problem, lower_bound: int = 0, **options: Any) -> CpsatOutcome:
    """Search from the schedule that runs one microbatch after the other."""
    options.setdefault("work_limit", 5.0)
    return solve_cpsat(problem, serial_schedule(problem), lower_bound=Bound(value_ns=lower_bound), **options)


def makespan(problem: Problem, outcome: CpsatOutcome) -> int:
    """Return the replayed makespan [ns]."""
    assert outcome.schedule is not None
    return simulate(problem, outcome.schedule).makespan_ns


@pytest.mark.usefixtures("with_ortools")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["wave p4 n8 (25,200) 2x", "wave p4 n8 (25,200) 1x"])
def test_waves_are_proven_with_messages_in_order(name: str) -> None:
    """The optima of a V with a held link, messages first in first out, are found and proven: 4005 and 4125."""
    grid = next(grid for grid in grid_cases() if grid.name == name)
    outcome = search(grid_problem(grid), work_limit=20.0)
    assert (makespan(grid_problem(grid), outcome), outcome.dual_bound_ns) == (grid.best_known, grid.best_known)
    assert outcome.warnings == ()


@pytest.mark.usefixtures("with_ortools")
def test_nothing_is_printed_and_progress_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """The solver's process leaves standard output and error alone; improvements come as lines."""
    lines: list[str] = []
    outcome = search(SMALL, progress=lines.append)
    assert capfd.readouterr() == ("", "")
    assert outcome.solver_status == "optimal"
    assert any("makespan" in line and "bound" in line and "gap" in line for line in lines)


PROGRAM = """
from oracle.cases import case
from oracle.orders import serial_schedule
from cpipe.ir import Bound
from cpipe.solve.cpsat import solve_cpsat
problem = case(6, (0, 1, 1, 0), forward=[3, 2, 4, 2], input_grad=[2, 3, 3, 2], latency=3, capacity=5)
lines = []
outcome = solve_cpsat(
    problem, serial_schedule(problem), lower_bound=Bound(value_ns=0), work_limit=0.05, progress=lines.append
)
print(outcome)
print(lines)
"""


@pytest.mark.usefixtures("with_ortools")
def test_two_runs_with_two_hash_seeds_give_the_same() -> None:
    """Order, bound, counted work and every line of progress are the same in fresh processes with other hash seeds."""
    root = Path(__file__).parents[2]
    texts = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": f"{root}:{root / 'tests'}", "PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert "CpsatOutcome(" in texts.pop()


@pytest.mark.usefixtures("with_ortools")
def test_the_unit_of_time_does_not_matter() -> None:
    """The same problem in nanoseconds and in microseconds gives the same order and a bound a thousand times that."""
    slow = case(3, (0, 1), forward=1000, input_grad=1000, weight_grad=2000)
    plain, scaled = search(SMALL), search(slow)
    assert scaled.schedule == plain.schedule
    assert scaled.dual_bound_ns == 1000 * plain.dual_bound_ns


def test_a_start_that_meets_the_bound_needs_no_solver() -> None:
    """Nothing runs when the start is as good as the bound."""
    problem = case(1, (0,))
    outcome = search(problem, lower_bound=3)
    assert (outcome.solver_status, outcome.dual_bound_ns) == ("not_run", 3)


def test_large_problems_are_not_built() -> None:
    """Beyond four thousand ops the start comes back as it was."""
    problem = case(700, (0, 1))
    outcome = search(problem)
    assert outcome.solver_status == "too_large"
    assert makespan(problem, outcome) == simulate(problem, serial_schedule(problem)).makespan_ns


def ends_with(monkeypatch: pytest.MonkeyPatch, ended: Ended[Answer]) -> None:
    """Let the solver's process end in a given way."""
    monkeypatch.setattr(search_module, "run_child", lambda *rest, **options: ended)


def answers(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Let the solver's process answer something."""
    ends_with(monkeypatch, Ended("answered", Answer(**fields)))


def test_a_bound_above_a_known_order_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that claims a bound above a replayed makespan is told off, and its bound dropped."""
    answers(monkeypatch, status="optimal", dual_bound_ns=10**6)
    outcome = search(SMALL, lower_bound=4)
    assert [warning.code for warning in outcome.warnings] == ["bound-refuted"]
    assert outcome.dual_bound_ns == 4


@pytest.mark.parametrize(
    "orders",
    [
        (),
        ((0, 4, 8), (1,)),
        ((99999,), (12,)),
        ((-1,), (12,)),
        tuple(tuple(reversed(order)) for order in serial_schedule(SMALL).orders),
    ],
)
def test_orders_that_cannot_be_are_not_believed(
    monkeypatch: pytest.MonkeyPatch, orders: tuple[tuple[int, ...], ...]
) -> None:
    """Orders that are incomplete, unknown or backwards are refused, and the start is what is left."""
    answers(monkeypatch, status="optimal", orders=orders)
    outcome = search(SMALL)
    assert [warning.code for warning in outcome.warnings] == ["solution-refuted"]
    assert makespan(SMALL, outcome) == simulate(SMALL, serial_schedule(SMALL)).makespan_ns


def test_orders_that_do_not_fit_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that takes more memory than there is is refused, however short."""
    problem = case(3, (0, 1), capacity=1)
    roomy = solve(case(3, (0, 1), capacity=3), "greedy").schedule
    answers(monkeypatch, status="optimal", orders=roomy.orders)
    outcome = search(problem)
    assert [warning.code for warning in outcome.warnings] == ["solution-refuted"]


def test_a_refused_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that the solver calls invalid is a warning, not an answer."""
    answers(monkeypatch, status="model_invalid")
    assert [warning.code for warning in search(SMALL).warnings] == ["solver-failed"]


@pytest.mark.parametrize(
    ("how", "code"),
    [("killed", "solver-died"), ("not_answering", "solver-not-answering"), ("rubbish", "solver-failed")],
)
def test_a_process_that_ends_without_an_answer(monkeypatch: pytest.MonkeyPatch, how: Any, code: str) -> None:
    """A solver that dies, hangs or answers rubbish costs a warning; the start and the given bound stay."""
    ends_with(monkeypatch, Ended(how, detail="so it was"))
    outcome = search(SMALL, lower_bound=5)
    assert [warning.code for warning in outcome.warnings] == [code]
    assert (outcome.dual_bound_ns, outcome.solver_status) == (5, how)
    assert makespan(SMALL, outcome) == simulate(SMALL, serial_schedule(SMALL)).makespan_ns


@pytest.mark.usefixtures("with_ortools")
def test_a_wish_to_stop_returns_the_incumbent() -> None:
    """A search that is asked to stop at once returns the start, or better, without a warning."""
    stop = Stop()
    stop.request()
    outcome = search(HARD, stop=stop, work_limit=10_000.0)
    assert outcome.warnings == ()
    assert makespan(HARD, outcome) <= simulate(HARD, serial_schedule(HARD)).makespan_ns


@pytest.mark.usefixtures("with_ortools")
def test_a_time_limit_ends_the_search() -> None:
    """A user's time limit ends a search that has any amount of work left."""
    outcome = search(HARD, time_limit=0.3, work_limit=float("inf"))
    assert outcome.solver_status in ("optimal", "feasible", "unknown")
    assert makespan(HARD, outcome) >= outcome.dual_bound_ns


@pytest.mark.usefixtures("with_ortools")
def test_a_gap_that_is_accepted_ends_the_search() -> None:
    """With an accepted gap of half the makespan the bound that is claimed still holds."""
    exact = search(SMALL)
    rough = search(SMALL, max_gap=0.5)
    assert rough.dual_bound_ns <= exact.dual_bound_ns <= makespan(SMALL, rough)


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make OR-Tools look as if it were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)


def leave_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the closed-form bounds prove nothing, so that a search has something left to do."""
    monkeypatch.setattr("cpipe.solve.auto.lower_bound", lambda problem: Bound(value_ns=0))


def test_a_missing_solver_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OR-Tools the method refuses, and says what to install."""
    without(monkeypatch)
    leave_a_gap(monkeypatch)
    assert solver_problem() == "OR-Tools is not installed: pip install 'cpipe[cpsat]'"
    with pytest.raises(NoSolutionError, match=r"OR-Tools is not installed: pip install .*\[solver-missing\]"):
        solve(TINY, "cpsat")


@pytest.mark.parametrize("version", ["9.14.1", "9.16.0", "10.0", "8.0"])
def test_versions_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """A version that the model was not written for is treated like none."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert solver_problem() == (
        f"OR-Tools {version} does not fit, 9.15 or later but below 9.16 is needed: pip install 'cpipe[cpsat]'"
    )
    monkeypatch.setattr(metadata, "version", lambda name: "9.15.6755")
    assert solver_problem() is None


def test_a_broken_solver_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OR-Tools that cannot be imported is refused when asked for, and a warning in `auto`."""
    monkeypatch.setattr("cpipe.solve.auto._SHAVING_WORK", 0)  # leaves the gap open
    leave_a_gap(monkeypatch)
    monkeypatch.setattr("cpipe.solve.cpsat.solver_problem", lambda: None)
    answers(monkeypatch, status="broken", detail="OR-Tools cannot be imported (no library)")
    with pytest.raises(NoSolutionError, match=r"cannot be imported \(no library\) \[solver-missing\]"):
        solve(TINY, "cpsat")
    told = [warning for warning in solve(TINY).warnings if warning.code == "solver-missing"]
    assert [warning.message for warning in told] == [
        "the gap that is left may close with CP-SAT; OR-Tools cannot be imported (no library)"
    ]


def test_a_solver_that_would_help_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OR-Tools `auto` says once how to get it, where a gap is left on a small problem, and only there."""
    monkeypatch.setattr("cpipe.solve.auto._SHAVING_WORK", 0)  # leaves the gap open
    without(monkeypatch)
    assert solve(TINY).warnings == ()  # proven without it
    leave_a_gap(monkeypatch)
    told = [warning for warning in solve(TINY).warnings if "cpipe[cpsat]" in warning.message]
    assert [warning.code for warning in told] == ["solver-missing"]
    monkeypatch.setattr("cpipe.solve.auto._AUTO_CPSAT_OPS", 5)
    assert [warning for warning in solve(TINY).warnings if "cpipe[cpsat]" in warning.message] == []


def test_the_command_line_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--method cpsat` without OR-Tools ends with exit code 5 and the code of the rule."""
    without(monkeypatch)
    leave_a_gap(monkeypatch)
    profile = write_json(tmp_path / "profile.json", profile_document(2, 1))
    outcome = call(capsys, "solve", profile, "--method", "cpsat", "--json", "-o", tmp_path / "plan.json")
    codes = [fault["code"] for fault in outcome.document["diagnostics"]]
    assert (outcome.code, codes) == (5, ["solver-missing"])
    assert "pip install 'cpipe[cpsat]'" in outcome.out


@pytest.mark.usefixtures("with_ortools")
def test_the_method_proves_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for, CP-SAT's order and bound are in the result, with who proved it."""
    leave_a_gap(monkeypatch)
    result = solve(TINY, "cpsat", SolveLimits(seed=3))
    assert (result.status, result.bound.proved_by) == ("optimal", "cpsat")
    assert "CP-SAT" in result.bound.reason


def test_problems_without_a_model_are_refused() -> None:
    """Fused pairs that save time are not in the model, and the method says so."""
    stages = tuple(msgspec.structs.replace(stage, forward_backward_ns=2) for stage in SMALL.stages)
    problem = msgspec.structs.replace(SMALL, stages=stages)
    with pytest.raises(UsageError, match=r"CP-SAT has no model of fused pairs.*\[no-exact-model\]"):
        solve(problem, "cpsat")
    assert search(problem).solver_status == "does_not_apply"
