"""The model against CrossPipe's Tables 5 and 6, and against exact values in unit times."""

from __future__ import annotations

from functools import cache

import pytest
from bench.tables import COLUMNS, ENTRIES, Entry, main, model_s, order_of, table_problem
from known_cases import UNIT, UNIT_TIMES, UnitTime, unit_problem
from m70 import PAPER_DELAYS, Delays

from cpipe.schedules import static_schedule
from cpipe.sim import Simulator
from cpipe.solve import SolveLimits, solve

LATENCY_ROWS, BANDWIDTH_ROWS = 0.10, 0.15
"""How far the model may be from the fitted one: bandwidth rows are those that hold a link for two forward times."""


@cache
def value(num_sites: int, delays: Delays, title: str) -> float:
    """Return the model's value [s per microbatch] at a place in the tables."""
    (entry,) = (
        each for each in ENTRIES if (each.num_sites, each.delays, each.column.title) == (num_sites, delays, title)
    )
    return model_s(entry)


def place(entry: Entry) -> str:
    """Return the name of a value's test."""
    return f"{entry.num_sites}dc-{'-'.join(entry.delays)}-{entry.column.title.replace(' ', '')}"


@pytest.mark.parametrize("entry", ENTRIES, ids=place)
def test_model_follows_the_tables(entry: Entry) -> None:
    """Static schedules and the greedy take what the fitted model says, within 10 %, or 15 % where links are busy."""
    ours = value(entry.num_sites, entry.delays, entry.column.title)
    tolerance = BANDWIDTH_ROWS if entry.delays.bandwidth == "2" else LATENCY_ROWS
    assert ours == pytest.approx(float(entry.fitted_s), rel=tolerance)


@pytest.mark.parametrize("delays", PAPER_DELAYS, ids="-".join)
@pytest.mark.parametrize("num_sites", [2, 4])
def test_model_keeps_the_order_of_the_tables(num_sites: int, delays: Delays) -> None:
    """ZB-H1 beats 1F1B; under delay the greedy beats ZB-H1; with case 3's memory and microbatches it beats itself."""
    one_f_one_b, zb_h1, greedy, greedy_case_3 = (value(num_sites, delays, column.title) for column in COLUMNS)
    assert zb_h1 < one_f_one_b
    assert greedy_case_3 < greedy
    if delays != ("0", "0"):
        assert greedy < zb_h1


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.column.method == "greedy-crosspipe"], ids=place)
def test_auto_is_never_above_the_greedy(entry: Entry) -> None:
    """The search finds an order that takes no longer than the paper's greedy, wherever the greedy was measured."""
    problem = table_problem(entry)
    greedy = Simulator(problem).makespan(order_of(problem, "greedy-crosspipe").orders)
    assert greedy is not None
    bound = solve(problem, "zb-h1").bound.value_ns
    enough = SolveLimits(max_gap=1 - bound / (greedy + 0.5))  # stops at the first order that is as good
    assert solve(problem, "auto", enough).makespan_ns <= greedy


@pytest.mark.parametrize("row", UNIT_TIMES, ids=lambda row: f"{row.num_sites}dc-{row.latency}-{row.bandwidth}")
def test_unit_times_are_exact(row: UnitTime) -> None:
    """In unit times 1F1B and ZB-H1 take exactly what is known of them, at two and at four datacenters."""
    problem = unit_problem(row)
    simulator = Simulator(problem)
    for method, per_microbatch in (("1f1b", row.one_f_one_b), ("zb-h1", row.zb_h1)):
        makespan = simulator.makespan(static_schedule(method, problem).orders)
        assert makespan == per_microbatch * problem.microbatches * UNIT


def test_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints ten rows of four values, each with the paper's, and closes with its errors."""
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.count("%") == len(COLUMNS)]
    assert len(rows) == 2 * len(PAPER_DELAYS)
    assert [row.split()[2::3] for row in rows] == [
        [f"{float(entry.paper_s):.3f}" for entry in ENTRIES[first : first + len(COLUMNS)]]
        for first in range(0, len(ENTRIES), len(COLUMNS))
    ]
    assert float(lines[-1].split()[4].rstrip("%,")) < 6
