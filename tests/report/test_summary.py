"""Tests of cpipe.report.summary: what people read."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from sample_plans import MS, make_problem, one_f_one_b, sample_plan

from cpipe.ir import Bound, Schedule, SolveResult
from cpipe.report.figures import DeviceFigures, plan_figures, replay_figures
from cpipe.report.summary import device_table, load_line, plan_line, simulate_lines, solve_lines
from cpipe.sim import memory_peaks, simulate


def device(name: str = "g0", **known: object) -> DeviceFigures:
    """Return figures with round numbers, some replaced."""
    plain = DeviceFigures(
        name=name, stages=(0,), busy_ns=8 * MS, makespan_ns=10 * MS, in_flight=2, peak_bytes=3 * 10**9
    )
    return msgspec.structs.replace(plain, **known)


def test_solve_summary(golden: Callable[[str], None]) -> None:
    """A summary is a verdict, the devices, the bottleneck and why nothing is faster."""
    problem = make_problem(3, 6, capacity_bytes=9000)
    schedule = one_f_one_b(problem)
    result = SolveResult(
        schedule=schedule,
        timeline=simulate(problem, schedule),
        bound=Bound(value_ns=38 * MS, reason="load of device 0"),
        method="auto",
        found_by="1f1b",
    )
    golden(solve_lines(result, plan_figures(sample_plan(problem, schedule), problem)) + "\n")


def test_simulate_summary(golden: Callable[[str], None]) -> None:
    """A replay is compared with the plan's own claim, in time and in percent."""
    problem, slow = make_problem(2, 4), make_problem(2, 4, latency_ms=3)
    plan, schedule = sample_plan(problem, one_f_one_b(problem)), one_f_one_b(slow)
    timeline = simulate(slow, schedule)
    figures = replay_figures(plan, slow, schedule, timeline, memory_peaks(slow, schedule.orders))
    golden(simulate_lines(plan, timeline, figures) + "\n")


def test_no_difference() -> None:
    """On its own profile a plan costs what it claims, and no percentage is shown."""
    problem = make_problem(2, 4)
    schedule = one_f_one_b(problem)
    plan = sample_plan(problem, schedule)
    first = simulate_lines(plan, simulate(problem, schedule), plan_figures(plan)).splitlines()[0]
    assert first == "makespan 25.000 ms, the plan claims 25.000 ms, difference 0.000 ms"


def test_plan_line() -> None:
    """A plan is told in one line, whatever characters its name has."""
    problem = msgspec.structs.replace(make_problem(2, 4), name="a\nb [red]")
    line = plan_line(sample_plan(problem, one_f_one_b(problem)))
    assert line == (
        "a\\nb [red]: 2 devices, 2 stages, 4 microbatches; makespan 25.000 ms, lower bound 25.000 ms, "
        "gap 0.00 %, made by 1f1b, bound proved by a closed form"
    )


def test_unknown_columns_are_left_out() -> None:
    """Columns that nothing is known about are not shown; a device without a limit says so."""
    plain = device_table([device()])
    assert "static" not in plain
    assert "capacity" not in plain
    limited = device_table([device(capacity_bytes=96 * 10**9), device("g1")])
    assert [line.split()[-1] for line in limited.splitlines()[1:]] == ["96.00", "none"]


def test_stage_runs_are_joined() -> None:
    """Runs of stages are joined, so that a device with many stages has a short cell."""
    rows = device_table([device(stages=(0, 1, 2, 7)), device(stages=(3, 5)), device(stages=())]).splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["0-2,7", "3,5", "8.000"]


def test_one_unit_for_all_bytes() -> None:
    """All byte columns share the unit of the largest number, so that they can be compared."""
    table = device_table([device(peak_bytes=500 * 10**6, static_bytes=10**6, capacity_bytes=2 * 10**9)])
    assert table.splitlines()[0].endswith("peak GB  static GB  capacity GB")
    assert table.splitlines()[1].split()[-3:] == ["0.50", "0.00", "2.00"]


def test_load_line() -> None:
    """The bottleneck is the busiest device; balance is mean over maximum."""
    line = load_line([device(busy_ns=6 * MS), device("[b]", busy_ns=8 * MS)])
    assert line == ("bottleneck: device [b], busy 80.00 % of the makespan; load balance 87.50 % (mean / maximum)")


def test_idle_plan() -> None:
    """A plan without any work has no bubble to divide by."""
    problem = make_problem(1, 1)
    plan = sample_plan(problem, Schedule.from_text("0F0 0B0", 1))
    empty = msgspec.structs.replace(
        plan,
        ranks=(msgspec.structs.replace(plan.ranks[0], ops=()),),
        claims=msgspec.structs.replace(plan.claims, makespan_ns=0, lower_bound_ns=0),
    )
    assert "gap 0.00 %" in plan_line(empty)
    assert "load balance 100.00 %" in load_line(plan_figures(empty))


def test_plan_without_ranks() -> None:
    """A plan that can be read but has no ranks is told, not a crash."""
    assert (device_table([]), load_line([])) == ("no devices", "bottleneck: none")
