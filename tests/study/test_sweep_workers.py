"""Tests of cpipe.study.sweep.workers, solve_point and run: processes, what kills them, and what a point gives."""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator, Sequence
from itertools import islice

import pytest
from helpers import assert_plan_ok
from sweep_cases import DEADLY, dies, ends_with_7, in_processes, known, small_sweep, tasks_of, two_sites, waits

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.profile import encode_profile
from cpipe.report.figures import plan_figures
from cpipe.study.sweep import Entry, Point, Settings, point_outcome, point_profile, run_sweep
from cpipe.study.sweep import solve_point as module
from cpipe.study.sweep.solve_point import Outcome
from cpipe.study.sweep.workers import Solve, Task, solve_in_processes


def outcomes(jobs: int, *microbatches: int, solve: Solve = known) -> dict[int, Outcome]:
    """Return outcomes by the microbatches of their points, each place given once."""
    found = list(solve_in_processes(tasks_of(*microbatches), b"", Settings(), jobs, solve))
    assert sorted(place for place, _ in found) == list(range(len(microbatches)))
    return {microbatches[place]: outcome for place, outcome in found}


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_every_task_is_done_once(jobs: int) -> None:
    """However many processes there are, each task is done by one of them."""
    found = outcomes(jobs, 5, 1, 9)
    assert {number: outcome.makespan_ms for number, outcome in found.items()} == {5: 5.0, 1: 1.0, 9: 9.0}


def test_no_task_needs_no_process() -> None:
    """Without tasks nothing is started."""
    assert outcomes(2) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solve", "reason"),
    [
        (dies, "the process that solved it was ended by SIGKILL"),
        (ends_with_7, "the process that solved it ended with exit code 7"),
    ],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_death_costs_one_point(solve: Solve, reason: str, jobs: int) -> None:
    """A process that dies loses the point it was at; another one does the rest."""
    found = outcomes(jobs, 1, DEADLY, 5, 6, solve=solve)
    assert found.pop(DEADLY) == Outcome(status="failed", reason=reason)
    assert {number: outcome.makespan_ms for number, outcome in found.items()} == {1: 1.0, 5: 5.0, 6: 6.0}


@pytest.mark.slow
def test_every_process_may_die() -> None:
    """Deaths at the last points, of all processes, end the sweep with those points failed."""
    tasks = tasks_of(DEADLY, DEADLY, DEADLY)
    found = list(solve_in_processes(tasks, b"", Settings(), 2, dies))
    assert [outcome.status for _, outcome in found] == ["failed"] * 3


@pytest.mark.slow
def test_closing_ends_the_processes() -> None:
    """Whoever stops early leaves no process behind, whatever it is doing."""
    before = set(multiprocessing.active_children())
    found = solve_in_processes(tasks_of(1, DEADLY, 5), b"", Settings(), 2, waits)
    assert [outcome.makespan_ms for _, outcome in islice(found, 2)] == [1.0, 5.0]
    assert set(multiprocessing.active_children()) > before
    found.close()
    assert set(multiprocessing.active_children()) <= before


def test_outcome_is_that_of_the_plan() -> None:
    """A point gives the figures of the plan that solving its profile gives."""
    point = Point(microbatches=6, method="1f1b", latency=2.0)
    settings = Settings(links=(0,), latency_unit="tf")
    outcome = point_outcome(encode_profile(two_sites()), point, settings)
    compiled = compile_profile(point_profile(two_sites(), point, settings), SolveOptions(method="1f1b"))
    assert_plan_ok(compiled.plan, compiled.problem)
    figures = plan_figures(compiled.plan, compiled.problem)
    claims = compiled.plan.claims
    assert outcome == Outcome(
        status="feasible",
        makespan_ms=claims.makespan_ns / 1e6,
        lower_bound_ms=claims.lower_bound_ns / 1e6,
        gap=(claims.makespan_ns - claims.lower_bound_ns) / claims.makespan_ns,
        bubble=pytest.approx(sum(device.bubble for device in figures) / 2),  # type: ignore[arg-type]
        peak_bytes=claims.peak_bytes,
        found_by="1f1b",
        proved_by="bound",
    )


@pytest.mark.parametrize(
    ("point", "status", "reason"),
    [
        (Point(microbatches=4, memory_factor=0.1), "infeasible", "[memory-too-small]"),
        (Point(microbatches=4, method="zb-v"), "error", "[schedule-does-not-apply]"),
        (Point(microbatches=4, method="gpipe", memory_factor=0.36), "no_solution", "[schedule-does-not-fit]"),
        (Point(microbatches=10**6), "error", "[too-large]"),
        (Point(microbatches=4, method="zb-h1", placement="wave", chunks=2), "error", "[schedule-does-not-apply]"),
    ],
)
def test_points_without_a_plan(point: Point, status: str, reason: str) -> None:
    """What cannot be solved says why in one line, with the rule."""
    outcome = point_outcome(encode_profile(two_sites()), point, Settings(links=(0,)))
    assert (outcome.status, outcome.makespan_ms) == (status, None)
    assert outcome.reason is not None
    assert outcome.reason.endswith(reason)
    assert "\n" not in outcome.reason


def test_a_bug_costs_one_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw is told as what it is."""

    def break_down(*arguments: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(module, "compile_profile", break_down)
    outcome = point_outcome(encode_profile(two_sites()), Point(microbatches=4), Settings())
    assert outcome == Outcome(status="failed", reason="internal error: ZeroDivisionError: division by zero")


def test_known_points_are_not_solved() -> None:
    """Only what is not there yet is handed out; when all is there, nothing is started at all."""
    sweep = small_sweep(methods=(Entry(method="1f1b"),))
    solved = list(run_sweep(sweep, in_processes(1)))
    assert [point.key for point in solved] == list(sweep.keys)
    asked: list[int] = []

    def counting(tasks: Sequence[Task], data: bytes, settings: Settings) -> Generator[tuple[int, Outcome], None, None]:
        asked.extend(task.place for task in tasks)
        return solve_in_processes(tasks, data, settings, 1, known)

    again = list(run_sweep(sweep, counting, solved[:1] + solved[2:]))
    assert asked == [1]
    assert [point.key for point in again] == [sweep.keys[1]]
    assert list(run_sweep(sweep, counting, solved)) == []
    assert asked == [1]
