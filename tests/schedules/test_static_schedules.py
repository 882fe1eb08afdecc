"""Static schedules: literal tables, closed forms, any p and n."""

from __future__ import annotations

import pytest
from oracle.cases import case

from cpipe.ir import Problem
from cpipe.schedules import SCHEDULES, static_schedule
from cpipe.sim import memory_peaks, simulate

SIZES = [(p, n) for p in range(1, 7) for n in (1, 2, 3, 4, 5, 8, 13)]


def line(p: int, n: int) -> Problem:
    """Return p equal stages in line, F = D = W = 1, everything held until W."""
    return case(n, list(range(p)), held=1)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("gpipe", "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3\n2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3"),
        ("1f1b", "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"),
        (
            "1f1b-split",
            "0F0 0F1 0F2 0D0 0W0 0F3 0D1 0W1 0D2 0W2 0D3 0W3\n"
            "1F0 1F1 1D0 1W0 1F2 1D1 1W1 1F3 1D2 1W2 1D3 1W3\n"
            "2F0 2D0 2W0 2F1 2D1 2W1 2F2 2D2 2W2 2F3 2D3 2W3",
        ),
        (
            "zb-h1",
            "0F0 0F1 0F2 0D0 0W0 0F3 0D1 0W1 0D2 0W2 0D3 0W3\n"
            "1F0 1F1 1D0 1F2 1D1 1W0 1F3 1D2 1W1 1D3 1W2 1W3\n"
            "2F0 2D0 2F1 2D1 2F2 2D2 2W0 2F3 2D3 2W1 2W2 2W3",
        ),
    ],
)
def test_the_order_is_the_literal_table(name: str, table: str) -> None:
    """Three stages and four microbatches run in the published order."""
    assert static_schedule(name, line(3, 4)).to_text(4) == table


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize(("p", "n"), SIZES)
def test_any_size_is_a_schedule_that_finishes(name: str, p: int, n: int) -> None:
    """N < p and n not a multiple of p included: every op once, in order, no deadlock."""
    problem = line(p, n)
    schedule = static_schedule(name, problem)
    schedule.verify(problem)
    simulate(problem, schedule).verify(schedule)


@pytest.mark.parametrize(("p", "n"), SIZES)
def test_closed_forms(p: int, n: int) -> None:
    """GPipe and 1F1B take (n + p - 1)(F + B), ZB-H1 3n + p - 1 for n >= p; peaks are n, min(n, p - s), min(n, p)."""
    problem = line(p, n)
    makespans, peaks = {}, {}
    for name in SCHEDULES:
        schedule = static_schedule(name, problem)
        makespans[name] = simulate(problem, schedule).makespan_ns
        peaks[name] = memory_peaks(problem, schedule.orders)
    assert makespans["gpipe"] == makespans["1f1b"] == (n + p - 1) * 3
    assert peaks["gpipe"] == (n,) * p
    assert peaks["1f1b"] == peaks["1f1b-split"] == tuple(min(n, p - stage) for stage in range(p))
    assert max(peaks["zb-h1"]) <= min(n, p)
    if n >= p:
        assert makespans["zb-h1"] == 3 * n + p - 1


@pytest.mark.parametrize(("p", "n", "makespan"), [(4, 8, 27), (8, 16, 55), (8, 32, 103)])
def test_zb_h1_literature_values(p: int, n: int, makespan: int) -> None:
    """The published unit-time makespans of ZB-H1 are met."""
    problem = line(p, n)
    assert simulate(problem, static_schedule("zb-h1", problem)).makespan_ns == makespan


def test_stages_may_stand_on_devices_in_any_order() -> None:
    """A permuted placement permutes the devices' orders and nothing else."""
    straight, permuted = line(3, 4), case(4, [2, 0, 1], held=1)
    for name in SCHEDULES:
        orders = static_schedule(name, straight).orders
        assert static_schedule(name, permuted).orders == (orders[1], orders[2], orders[0])


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        # two stages on a device
        (case(2, [0, 1, 1]), r"needs one stage on each device, got the placement \[0, 1, 1\]"),
        # a backward that cannot be split
        (case(2, [0, 1], split=False), "needs input_grad_ms and weight_grad_ms, stage 's0' has only full_backward_ms"),
    ],
)
def test_a_schedule_that_does_not_exist_says_why(problem: Problem, message: str) -> None:
    """A precondition belongs to the generator: a clear refusal, never a wrong order."""
    with pytest.raises(ValueError, match=message):
        static_schedule("zb-h1", problem)
