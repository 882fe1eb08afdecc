"""The solver as a black box: nothing printed, limits kept, statuses told as they are, the same answer every time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from oracle.cases import case
from oracle.orders import serial_schedule

from cpipe.errors import NoSolutionError
from cpipe.ir import Bound, Problem, Schedule
from cpipe.sim import simulate
from cpipe.solve.limits import Stop
from cpipe.solve.milp import MilpOutcome, backend, solve_milp, solver_problem
from cpipe.solve.milp.backend import Limits

LIMITS = Limits(nodes=10, time_limit=None, absolute_gap=0.9, seed=0, tolerance=1e-6)
HARD = case(6, (0, 1, 2, 3), forward=8, input_grad=8, weight_grad=[8, 7, 8, 9], capacity=4)


def search(problem: Problem, **options: Any) -> MilpOutcome:
    """Search from the serial schedule, without a bound to stop at."""
    return solve_milp(problem, serial_schedule(problem), lower_bound=Bound(value_ns=0), **options)


def makespan(problem: Problem, schedule: Schedule | None) -> int:
    """Return the replayed makespan [ns]."""
    assert schedule is not None
    return simulate(problem, schedule).makespan_ns


def test_nothing_reaches_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither banner nor log of the solver appears on file descriptor 1, nor on 2."""
    search(case(2, (0, 1)))
    assert capfd.readouterr() == ("", "")


def test_the_banner_of_a_fresh_process_is_swallowed() -> None:
    """The banner that the first solver object of a process prints stays out of standard output, also in a pipe."""
    program = (
        "from oracle.cases import case; from oracle.orders import serial_schedule\n"
        "from cpipe.ir import Bound; from cpipe.solve.milp import solve_milp\n"
        "problem = case(3, (0, 1))\n"
        "print('before')\n"
        "outcome = solve_milp(problem, serial_schedule(problem), lower_bound=Bound(value_ns=0))\n"
        "print(outcome.schedule.to_text(3))\n"
    )
    texts = {run_python(program, seed) for seed in ("1", "2")}
    assert len(texts) == 1
    first, *orders = texts.pop().splitlines()
    assert first == "before"
    assert Schedule.from_text("\n".join(orders), 3) == search(case(3, (0, 1))).schedule


def run_python(program: str, hash_seed: str) -> str:
    """Return what a program prints, run in a fresh interpreter with its own hash seed."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{root}:{root / 'tests'}", "PYTHONHASHSEED": hash_seed, "PATH": ""},
    )
    return done.stdout


def test_two_runs_give_the_same_order() -> None:
    """Same problem, same start, same seed: same order, bound and node count."""
    assert search(HARD, node_limit=60) == search(HARD, node_limit=60)


def test_the_unit_of_time_does_not_matter() -> None:
    """The same problem in nanoseconds and in microseconds gives the same order, and a bound a thousand times that."""
    plain = search(case(3, (0, 1), weight_grad=2, latency=1))
    scaled = search(case(3, (0, 1), forward=1000, input_grad=1000, weight_grad=2000, latency=1000))
    assert scaled.schedule == plain.schedule
    assert scaled.dual_bound_ns == 1000 * plain.dual_bound_ns


def test_times_without_common_divisor_keep_a_valid_bound() -> None:
    """Durations measured to the nanosecond are solved to one part in a million, from below."""
    problem = case(
        3,
        (0, 1),
        forward=[38_712_345, 38_712_346],
        input_grad=[41_200_001, 40_000_003],
        weight_grad=[19_300_007, 23_000_000],
        capacity=2,
    )
    outcome = search(problem)
    found = makespan(problem, outcome.schedule)
    assert outcome.solver_status == "optimal"
    assert found * (1 - 1e-6) <= outcome.dual_bound_ns <= found


def test_node_limit_keeps_the_start() -> None:
    """A search that may not branch gives the start back when it finds nothing better, under an honest status."""
    outcome = search(HARD, node_limit=0)
    start = makespan(HARD, serial_schedule(HARD))
    assert outcome.solver_status == "node_limit"
    assert outcome.dual_bound_ns <= makespan(HARD, outcome.schedule) <= start
    assert outcome.dual_bound_ns < start


def test_time_limit_is_not_called_optimal() -> None:
    """A search that runs out of time says so, with an incumbent and a bound below it."""
    problem = case(12, (0, 1, 2, 3), forward=8, input_grad=9, weight_grad=[7, 8, 6, 9], capacity=5)
    outcome = search(problem, time_limit=0.2)
    assert outcome.solver_status == "time_limit"
    assert outcome.dual_bound_ns < makespan(problem, outcome.schedule)


def test_start_that_meets_the_bound_needs_no_solver() -> None:
    """Nothing is run when the start is already as short as the bound."""
    problem = case(1, (0, 1))
    outcome = solve_milp(problem, serial_schedule(problem), lower_bound=Bound(value_ns=5))
    assert (outcome.solver_status, outcome.dual_bound_ns, outcome.nodes) == ("not_run", 5, 0)


def test_too_large_a_model_is_not_built() -> None:
    """Above the limit on binaries the start comes back with a warning that has both numbers."""
    lines: list[str] = []
    outcome = search(HARD, max_binaries=10, progress=lines.append)
    assert outcome.schedule == serial_schedule(HARD)
    assert outcome.solver_status == "too_large"
    assert [warning.code for warning in outcome.warnings] == ["milp-too-large"]
    assert lines == [f"milp: {outcome.binaries} binaries are too many (at most 10)"]


def test_progress_announces_the_size() -> None:
    """The first line of progress, before the model is built, says how large it will be."""
    lines: list[str] = []
    outcome = search(case(3, (0, 1)), progress=lines.append)
    assert lines[0] == f"milp: {outcome.binaries} binaries for 18 open pairs of 18 tasks"


def test_a_start_that_does_not_fit_is_no_bound() -> None:
    """A start that breaks memory is not used as an incumbent: the search finds one that fits."""
    problem = case(2, (0, 1), capacity=1)
    greedy = Schedule.from_text("0F0 0F1 0D0 0W0 0D1 0W1\n1F0 1D0 1W0 1F1 1D1 1W1", 2)
    outcome = solve_milp(problem, greedy, lower_bound=Bound(value_ns=0))
    assert not outcome.warm_start_accepted
    assert makespan(problem, outcome.schedule) == outcome.dual_bound_ns > makespan(problem, greedy)


def test_missing_solver_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without highspy the error names it and the pip command, under its own code."""
    monkeypatch.setitem(sys.modules, "highspy", None)
    reason = solver_problem()
    assert reason is not None
    with pytest.raises(NoSolutionError, match=r"highspy is not installed: pip install .*\[solver-missing\]"):
        search(case(1, (0,)))


def test_old_solver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is too old is named together with the one that is needed."""
    monkeypatch.setattr(backend, "_NEEDED", {"pulp": (99, 0)})
    assert "is too old, 99.0 or later is needed: pip install" in (solver_problem() or "")


def test_unknown_options_are_refused() -> None:
    """An option that the solver does not know is an error, not silence."""
    highspy = pytest.importorskip("highspy")
    with pytest.raises(RuntimeError, match="HiGHS refuses option mip_max_nodes = -5"):
        backend._set_options(highspy.Highs(), LIMITS._replace(nodes=-5))


def test_one_thread_and_a_fixed_seed() -> None:
    """HiGHS runs on one thread with the seed given, within the nodes, time and gap given."""
    highspy = pytest.importorskip("highspy")
    model = highspy.Highs()
    backend._set_options(model, LIMITS._replace(time_limit=2.5, seed=7))
    values = {name: model.getOptionValue(name)[1] for name in ("threads", "random_seed", "mip_max_nodes", "time_limit")}
    assert values == {"threads": 1, "random_seed": 7, "mip_max_nodes": 10, "time_limit": 2.5}


@pytest.mark.parametrize(("deadline", "stopped", "asks"), [(-1, False, True), (60, True, True), (60, False, False)])
def test_the_solver_asks_whether_to_go_on(deadline: float, stopped: bool, asks: bool) -> None:
    """The answer is no once the deadline has passed or the caller wants to stop."""
    session = backend._Session((), LIMITS._replace(time_limit=deadline), None, lambda: stopped)
    event = SimpleNamespace(data_in=SimpleNamespace(user_interrupt=False))
    session.interrupt(event)
    assert event.data_in.user_interrupt is asks


def test_a_stopped_search_says_so() -> None:
    """A search that is stopped from the start gives its start back under the status of an interrupt."""
    stop = Stop()
    stop.request()
    outcome = search(HARD, stop=stop)
    assert outcome.solver_status == "interrupt"
    assert makespan(HARD, outcome.schedule) <= makespan(HARD, serial_schedule(HARD))
    assert outcome.dual_bound_ns < makespan(HARD, outcome.schedule)
    assert outcome.warnings == ()


def test_progress_says_how_far_it_is() -> None:
    """Improvements come as one line each, with objective, bound, gap and nodes; each is better than the one before."""
    lines: list[str] = []
    search(HARD, node_limit=60, progress=lines.append)
    found = [
        re.fullmatch(r"milp: makespan (\S+) ms(, bound \S+ ms, gap \S+%)?, \d+ nodes(, start accepted)?", line)
        for line in lines[1:]
    ]
    assert all(found), lines
    assert lines[1].endswith(", start accepted")
    values = [float(match[1]) for match in found if match]
    assert len(values) > 1
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("kOptimal", "optimal"), ("kTimeLimit", "time_limit"), ("kSolutionLimit", "node_limit"), ("kNotset", "notset")],
)
def test_status_names(name: str, expected: str) -> None:
    """The solver's statuses come out in snake case; its solution limit is the node limit here."""
    assert backend._status_name(name) == expected
