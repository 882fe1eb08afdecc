"""Tests of cpipe.solve.quick: a short search that gives a valid order, and never beats what is proven."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.cases import case
from strategies import problems

from cpipe.ir import Problem
from cpipe.schedules import static_schedule
from cpipe.sim import simulate
from cpipe.sim.memory import fits
from cpipe.solve import SolveLimits, lower_bound, solve
from cpipe.solve.quick import quick_order


@settings(max_examples=40)
@given(problems(max_microbatches=4, receive_window=True), st.sampled_from(["makespan", "span"]))
def test_order_is_valid(problem: Problem, objective: str) -> None:
    """What is found fits and takes as long as is said; something is always found where one microbatch fits."""
    found = quick_order(problem, "auto", "span" if objective == "span" else "makespan")
    assert found is not None
    value, schedule = found
    schedule.verify(problem)
    assert fits(problem, schedule.orders, schedule.pairs)
    timeline = simulate(problem, schedule)
    assert value == (timeline.span_ns if objective == "span" else timeline.makespan_ns)
    if objective == "makespan":
        assert value >= lower_bound(problem).value_ns


def test_schedule_of_the_field_is_itself() -> None:
    """A static schedule is looked at as it is; None where it does not exist, does not fit."""
    problem = case(6, (0, 1, 2), latency=1)
    found = quick_order(problem, "gpipe", "makespan")
    schedule = static_schedule("gpipe", problem)
    assert found == (simulate(problem, schedule).makespan_ns, schedule)
    assert quick_order(case(6, (0, 1, 2), capacity=3), "gpipe", "makespan") is None
    assert quick_order(problem, "zb-v", "makespan") is None


def test_known_orders_count() -> None:
    """An order that is handed over is never beaten by a worse one."""
    problem = case(6, (0, 1, 2, 3), latency=3, capacity=4, held=1)
    known = solve(problem, "auto", SolveLimits(node_limit=0))
    found = quick_order(problem, "auto", "makespan", starts=(known.schedule,))
    assert found is not None
    assert found[0] <= known.makespan_ns


@pytest.mark.parametrize("method", ["auto", "1f1b"])
def test_nothing_fits(method: str) -> None:
    """Where not one microbatch fits there is no order."""
    assert quick_order(case(2, (0, 0), capacity=1), method, "makespan") is None


def test_expired() -> None:
    """A search that may not go on still gives the orders that cost nothing to find."""
    problem = case(6, (0, 1, 2), latency=1)
    found = quick_order(problem, "auto", "makespan", expired=lambda: True)
    assert found is not None
    assert found == quick_order(problem, "auto", "makespan", expired=lambda: True)
