"""Tests of cpipe.report.gantt and lanes: the chart in text."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest
from sample_plans import MS, make_problem, one_f_one_b, sample_plan

from cpipe.ir import Instruction, Plan, Schedule
from cpipe.report.gantt import GANTT_CHARACTERS, render_gantt
from cpipe.report.terminal import display_width
from cpipe.report.time_axis import TimeWindow


def lanes(chart: str) -> list[str]:
    """Return the lanes of a chart, without axis and legend."""
    return chart.split("\n\n")[0].splitlines()[2:]


def with_collectives(plan: Plan) -> Plan:
    """Return the plan with an all-gather in the first and a reduce-scatter in the last 4 ms of rank 0."""
    end = plan.claims.makespan_ns
    gather = Instruction(op="ALL_GATHER", stage=0, group=0, start_ns=0, end_ns=4 * MS)
    reduce = Instruction(op="REDUCE_SCATTER", stage=0, group=0, start_ns=end - 4 * MS, end_ns=end)
    first = plan.ranks[0]
    ranks = (msgspec.structs.replace(first, ops=(gather, *first.ops, reduce)), *plan.ranks[1:])
    return msgspec.structs.replace(plan, ranks=ranks)


@pytest.mark.parametrize("width", [1, 80, 300])
def test_impossible_times_are_drawn(width: int) -> None:
    """Times that no valid plan has (negative, huge, ending before they start) still give lanes of equal width."""
    problem = make_problem(2, 4)
    plan = sample_plan(problem, one_f_one_b(problem))
    changes: list[dict[str, int]] = [
        {"start_ns": -(2**62)}, {"end_ns": -5}, {"start_ns": 2**62}, {"end_ns": 2**62}, {"end_ns": 0}
    ]  # fmt: skip
    for change in changes:
        ops = list(plan.ranks[0].ops)
        ops[1] = msgspec.structs.replace(ops[1], **change)
        rank = msgspec.structs.replace(plan.ranks[0], ops=tuple(ops))
        odd = msgspec.structs.replace(plan, ranks=(rank, plan.ranks[1]))
        lanes = [line for line in render_gantt(odd, width=width).splitlines() if line.startswith("g")]
        assert len(lanes) == 2
        assert {len(lane) for lane in lanes} == {max(width, 23)}


def test_one_f_one_b_chart(golden: Callable[[str], None]) -> None:
    """Each op shows its letter and microbatch, filled up with the line style of its kind."""
    problem = make_problem(4, 6, latency_ms=1)
    golden(render_gantt(sample_plan(problem, one_f_one_b(problem, split=True)), width=120) + "\n")


def test_ascii_chart(golden: Callable[[str], None]) -> None:
    """With `ascii_only` the same chart has no other characters."""
    problem = make_problem(4, 6, latency_ms=1)
    chart = render_gantt(sample_plan(problem, one_f_one_b(problem, split=True)), width=120, ascii_only=True)
    assert chart.isascii()
    golden(chart + "\n")


def test_several_stages_on_a_device(golden: Callable[[str], None]) -> None:
    """Where a device has several stages the stage stands first, as in `2F0`."""
    problem = make_problem(2, 3, placement=(0, 1, 0, 1))
    order = "0F0 0F1 2F0 0F2 2F1 2B0 2F2 2B1 0B0 2B2 0B1 0B2\n1F0 1F1 3F0 3B0 3F1 1F2 3B1 1B0 3F2 3B2 1B1 1B2"
    golden(render_gantt(sample_plan(problem, Schedule.from_text(order, 3)), width=100) + "\n")


def test_density_view(golden: Callable[[str], None]) -> None:
    """With more ops than columns, a column shows the kind that takes most of it."""
    problem = make_problem(8, 64)
    golden(render_gantt(sample_plan(problem, one_f_one_b(problem)), width=90) + "\n")


def test_collectives_have_a_lane(golden: Callable[[str], None]) -> None:
    """Data-parallel collectives run beside compute, on a lane of their own."""
    problem = make_problem(2, 3)
    golden(render_gantt(with_collectives(sample_plan(problem, one_f_one_b(problem))), width=80) + "\n")


@pytest.mark.parametrize("width", [40, 77, 200])
@pytest.mark.parametrize(("num_devices", "microbatches"), [(2, 4), (4, 64), (64, 8)])
def test_chart_fits_its_width(width: int, num_devices: int, microbatches: int) -> None:
    """There is one lane per device, every lane has exactly the width asked, and no line is longer."""
    problem = make_problem(num_devices, microbatches)
    chart = render_gantt(sample_plan(problem, one_f_one_b(problem)), width=width)
    assert [len(lane) for lane in lanes(chart)] == [width] * num_devices
    assert max(len(line) for line in chart.split("\n\n")[0].splitlines()) <= width


def test_narrow_chart_keeps_twenty_columns() -> None:
    """However narrow, twenty columns are left for time."""
    problem = make_problem(2, 4)
    chart = render_gantt(sample_plan(problem, one_f_one_b(problem)), width=5)
    assert [len(lane) for lane in lanes(chart)] == [23, 23]


def test_bars_stand_where_their_times_are() -> None:
    """One column a millisecond: every op starts and ends in the column of its time, gaps are idle."""
    problem = make_problem(2, 2)
    plan = sample_plan(problem, one_f_one_b(problem))
    assert plan.claims.makespan_ns == 15 * MS
    chart = render_gantt(plan, width=3 + 30, ascii_only=True)  # two columns a millisecond
    assert lanes(chart) == ["g0 F0--F1--......B0####....B1####", "g1 ....F0--B0####F1--B1####......"]


def test_window_is_the_same_chart_enlarged() -> None:
    """A window draws its part of time at the full width, and its axis says which part."""
    problem = make_problem(2, 2)
    plan = sample_plan(problem, one_f_one_b(problem))
    chart = render_gantt(plan, width=3 + 30, ascii_only=True, window=TimeWindow(2 * MS, 8 * MS))  # five a millisecond
    assert lanes(chart) == ["g0 F1--------...............B0###", "g1 F0--------B0#############F1---"]
    assert chart.splitlines()[0].split() == ["2", "4", "6", "ms"]
    assert "1 column = 0.200 ms" in chart


@pytest.mark.parametrize(("first", "last"), [(0, 1), (14 * MS, None), (15 * MS, 99 * MS), (None, 10**15), (3, 4)])
def test_any_window_fits_the_width(first: int | None, last: int | None) -> None:
    """Whatever part of time is asked for, even one in which nothing happens, lanes have the width of the chart."""
    problem = make_problem(2, 2)
    plan = sample_plan(problem, one_f_one_b(problem))
    chart = render_gantt(plan, width=50, window=TimeWindow(first, last))
    assert [len(lane) for lane in lanes(chart)] == [50, 50]


def test_bars_of_one_lane_never_overlap() -> None:
    """At any width the letters of a lane come in the order of its ops, each at most once."""
    problem = make_problem(3, 5, latency_ms=2)
    plan = sample_plan(problem, one_f_one_b(problem, split=True))
    for width in range(25, 140):
        for lane, program in zip(lanes(render_gantt(plan, width=width)), plan.ranks, strict=True):
            shown = re.findall(r"[FDW]", lane[3:])
            expected = iter([op.op for op in program.ops])
            assert all(kind in expected for kind in shown), width


def test_colour_changes_nothing_else() -> None:
    """Without its escapes a coloured chart is the plain one."""
    problem = make_problem(3, 4)
    plan = sample_plan(problem, one_f_one_b(problem))
    coloured = render_gantt(plan, width=100, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_gantt(plan, width=100)


def test_names_are_printed_as_they_are() -> None:
    """Names of devices are no markup, cannot colour the chart, and wide ones keep lanes aligned."""
    problem = make_problem(3, 2, names=("[red]a[/red]", "b\x1b[31m", "ノード"))
    chart = render_gantt(sample_plan(problem, one_f_one_b(problem)), width=60)
    first, second, third = lanes(chart)
    assert first.startswith("[red]a[/red] F0")
    assert second.startswith("b\\x1b[31m ")
    assert [display_width(lane) for lane in (first, second, third)] == [60, 60, 60]


@pytest.mark.parametrize("microseconds", [1, 999, 12_345, 10_000_000])
def test_axis_counts_in_milliseconds(microseconds: int) -> None:
    """Tick labels are the times of their columns, whatever the scale."""
    plan = sample_plan(problem := make_problem(1, 1), one_f_one_b(problem))
    makespan = microseconds * 1000
    op = Instruction(op="F", stage=0, mb=0, start_ns=0, end_ns=makespan)
    ranks = (msgspec.structs.replace(plan.ranks[0], ops=(op,)),)
    claims = msgspec.structs.replace(plan.claims, makespan_ns=makespan)
    chart = render_gantt(msgspec.structs.replace(plan, ranks=ranks, claims=claims), width=103)
    times, ticks = chart.splitlines()[:2]
    labels = [(match.start() - 3, float(match.group())) for match in re.finditer(r"[\d.]+", times)]
    assert len(labels) >= 4
    for column, label in labels:
        assert ticks[3 + column] == "┬"
        assert label * 1e6 / makespan * 100 == pytest.approx(column, abs=0.51)


def test_plan_without_times() -> None:
    """A plan in which nothing takes time is said to be one."""
    problem = make_problem(2, 2)
    plan = sample_plan(problem, one_f_one_b(problem))
    idle = tuple(msgspec.structs.replace(rank, ops=(Instruction(op="STEP"),)) for rank in plan.ranks)
    assert render_gantt(msgspec.structs.replace(plan, ranks=idle), width=80) == "nothing in this plan takes time"


def test_ops_without_times_are_left_out() -> None:
    """A plan that is readable but lacks a time can still be drawn."""
    problem = make_problem(1, 2)
    plan = sample_plan(problem, one_f_one_b(problem))
    ops = (msgspec.structs.replace(plan.ranks[0].ops[0], start_ns=None), *plan.ranks[0].ops[1:])
    broken = msgspec.structs.replace(plan, ranks=(msgspec.structs.replace(plan.ranks[0], ops=ops),))
    (lane,) = lanes(render_gantt(broken, width=80))
    assert "F0" not in lane
    assert "F1" in lane


def test_characters_are_complete() -> None:
    """What the chart draws with is what the encoding of the output is asked for."""
    problem = make_problem(2, 4)
    for split in (False, True):
        plan = with_collectives(sample_plan(problem, one_f_one_b(problem, split=split)))
        assert {char for char in render_gantt(plan, width=90) if not char.isascii()} <= set(GANTT_CHARACTERS)
