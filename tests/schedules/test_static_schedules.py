"""Static schedules of a pipeline in line: literal tables, closed forms, any p and n, runs of stages on a device."""

from __future__ import annotations

import pytest
from helpers import assert_plan_ok, plan_of
from oracle.cases import case

from cpipe.ir import Problem
from cpipe.schedules import static_schedule
from cpipe.sim import memory_peaks, simulate

LINE = ("gpipe", "1f1b", "1f1b-split", "zb-h1", "zb-h2")
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
        (
            "zb-h2",
            "0F0 0F1 0F2 0F3 0D0 0W0 0D1 0W1 0D2 0W2 0D3 0W3\n"
            "1F0 1F1 1F2 1D0 1F3 1D1 1W0 1D2 1W1 1D3 1W2 1W3\n"
            "2F0 2D0 2F1 2D1 2F2 2D2 2F3 2D3 2W0 2W1 2W2 2W3",
        ),
    ],
)
def test_the_order_is_the_literal_table(name: str, table: str) -> None:
    """Three stages and four microbatches run in the published order."""
    assert static_schedule(name, line(3, 4)).to_text(4) == table


@pytest.mark.parametrize("name", LINE)
@pytest.mark.parametrize(("p", "n"), SIZES)
def test_any_size_is_a_schedule_that_finishes(name: str, p: int, n: int) -> None:
    """N < p and n not a multiple of p included: every op once, in order, no deadlock."""
    problem = line(p, n)
    schedule = static_schedule(name, problem)
    schedule.verify(problem)
    simulate(problem, schedule).verify(schedule)


@pytest.mark.parametrize(("p", "n"), SIZES)
def test_closed_forms(p: int, n: int) -> None:
    """GPipe and 1F1B take (n + p - 1)(F + B), ZB-H1 and H2 3n + p - 1 for n >= p; peaks n, min(n, p - s), p and 2p."""
    problem = line(p, n)
    makespans, peaks = {}, {}
    for name in LINE:
        schedule = static_schedule(name, problem)
        makespans[name] = simulate(problem, schedule).makespan_ns
        peaks[name] = memory_peaks(problem, schedule.orders)
    assert makespans["gpipe"] == makespans["1f1b"] == (n + p - 1) * 3
    assert peaks["gpipe"] == (n,) * p
    assert peaks["1f1b"] == peaks["1f1b-split"] == tuple(min(n, p - stage) for stage in range(p))
    assert max(peaks["zb-h1"]) <= min(n, p)
    assert max(peaks["zb-h2"]) <= min(n, 2 * p)
    if n >= p:
        assert makespans["zb-h1"] == makespans["zb-h2"] == 3 * n + p - 1


@pytest.mark.parametrize(("p", "n"), [(2, 3), (3, 8), (4, 8), (5, 9), (8, 16)])
def test_zb_h2_has_no_bubble_after_the_fill(p: int, n: int) -> None:
    """From n = 2 p - 1 on no device waits between its first op and its last."""
    problem = line(p, n)
    timeline = simulate(problem, static_schedule("zb-h2", problem))
    assert [ends[-1] - starts[0] for starts, ends in zip(timeline.starts, timeline.ends, strict=True)] == [3 * n] * p


def test_zb_h2_looks_at_the_times() -> None:
    """Behind a slow link the first devices take more forwards before they turn, as far as 2 p activations go."""
    problem = case(8, range(4), held=1, latency=[0, 2, 0])
    schedule = static_schedule("zb-h2", problem)
    assert simulate(problem, schedule).makespan_ns == 29  # the optimum; the order in equal times takes longer
    assert simulate(problem, static_schedule("zb-h2", line(4, 8))).makespan_ns > 29
    assert max(memory_peaks(problem, schedule.orders)) <= 8


@pytest.mark.parametrize(("p", "n", "makespan"), [(4, 8, 27), (8, 16, 55), (8, 32, 103)])
def test_zb_h1_literature_values(p: int, n: int, makespan: int) -> None:
    """The published unit-time makespans of ZB-H1 are met."""
    problem = line(p, n)
    assert simulate(problem, static_schedule("zb-h1", problem)).makespan_ns == makespan


def test_stages_may_stand_on_devices_in_any_order() -> None:
    """A permuted placement permutes the devices' orders and nothing else."""
    straight, permuted = line(3, 4), case(4, [2, 0, 1], held=1)
    for name in LINE:
        orders = [
            [(kind, stage, mb) for kind, stage, mb in order] for order in static_schedule(name, straight).decoded(4)
        ]
        moved = [
            [(kind, stage, mb) for kind, stage, mb in order] for order in static_schedule(name, permuted).decoded(4)
        ]
        assert moved == [orders[1], orders[2], orders[0]]


@pytest.mark.parametrize("name", LINE)
def test_adjacent_stages_on_a_device_act_as_one(name: str) -> None:
    """Stages [0, 0, 1, 1, 1] take as long as two stages of their sums, forwards in flow order, backwards against it."""
    runs = case(4, [0, 0, 1, 1, 1], held=1, latency=[0, 3, 0, 0])
    merged = case(
        4, [0, 1], forward=[2, 3], input_grad=[2, 3], weight_grad=[2, 3], activation=[2, 3], held=[2, 3], latency=3
    )
    schedule = static_schedule(name, runs)
    schedule.verify(runs)
    assert_plan_ok(plan_of(runs, schedule), runs)
    # the gradient leaves before the weight gradients of the same run, the earlier the more stages there are
    assert simulate(runs, schedule).makespan_ns <= simulate(merged, static_schedule(name, merged)).makespan_ns
    if name in ("gpipe", "1f1b"):
        assert memory_peaks(runs, schedule.orders) == memory_peaks(merged, static_schedule(name, merged).orders)
        assert schedule.to_text(4).startswith("0F0 1F0 0F1 1F1 ")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        # two stages on a device, another in between
        (
            case(2, [0, 1, 0]),
            r"needs one stage on each device, or one run of adjacent stages \(--placement ud\), "
            r"got the placement \[0, 1, 0\]",
        ),
        # a backward that cannot be split
        (case(2, [0, 1], split=False), "needs input_grad_ms and weight_grad_ms, stage 's0' has only full_backward_ms"),
    ],
)
def test_a_schedule_that_does_not_exist_says_why(problem: Problem, message: str) -> None:
    """A precondition belongs to the generator: a clear refusal, never a wrong order."""
    with pytest.raises(ValueError, match=message):
        static_schedule("zb-h1", problem)
