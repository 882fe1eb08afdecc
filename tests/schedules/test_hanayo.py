"""Hanayo: waves, against the published makespans."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from helpers import assert_plan_ok, plan_of
from oracle.cases import case
from shapes import placed, shape, unit_result

from cpipe.schedules import static_schedule
from cpipe.sim import simulate


def test_the_order_is_the_literal_table() -> None:
    """Two devices, one wave, two microbatches: the first goes down and back up before anything turns."""
    table = "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1\n1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"
    assert static_schedule("hanayo", shape("wave", 2, 2, 2)).to_text(2) == table


def test_four_devices_written_out() -> None:
    """Four devices, one wave, four microbatches: outer devices turn one by one, inner ones as gradients come."""
    table = (
        "0F0 0F1 0F2 0F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 0B0 0B1 0B2 0B3\n"
        "1F0 1F1 1F2 1F3 6F0 6F1 6B0 6F2 6B1 6F3 6B2 6B3 1B0 1B1 1B2 1B3\n"
        "2F0 2F1 2F2 5F0 2F3 5F1 5F2 5F3 5B0 5B1 2B0 5B2 2B1 5B3 2B2 2B3\n"
        "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4B0 3B0 4B1 3B1 4B2 3B2 4B3 3B3"
    )
    assert static_schedule("hanayo", shape("wave", 4, 4, 2)).to_text(4) == table


@pytest.mark.parametrize(
    ("p", "waves", "most"),
    [(8, 1, 38), (8, 2, 31.5), (8, 4, 27.75), (4, 1, 18), (4, 2, 15.25), (4, 4, 13.63)],
)
def test_more_waves_take_less(p: int, waves: int, most: float) -> None:
    """With p = n and a device's F = 1, B = 2 the makespan is at most what is published, within 1F1B's memory."""
    problem = shape("wave", p, p, 2 * waves)
    makespan, peak = unit_result(problem, static_schedule("hanayo", problem))
    assert Fraction(makespan, 2 * waves) <= most
    assert peak <= p


@pytest.mark.parametrize(("p", "n"), [(4, 8), (4, 16), (8, 16), (8, 24)])
def test_one_wave_beats_1f1b_at_its_memory(p: int, n: int) -> None:
    """Beyond n = p, too, a wave takes less than 1F1B's ``3 (n + p - 1)`` and holds no more."""
    problem = shape("wave", p, n, 2)
    makespan, peak = unit_result(problem, static_schedule("hanayo", problem))
    assert Fraction(makespan, 2) < 3 * (n + p - 1)
    assert peak <= p


@pytest.mark.parametrize(("p", "waves", "n"), [*itertools.product((1, 2, 3, 5), (1, 2), (1, 2, 3, 4, 7, 11))])
def test_any_size_is_a_schedule_that_finishes(p: int, waves: int, n: int) -> None:
    """Any p, n and number of waves: every op once, in order, no deadlock, no more than p activations a stage."""
    problem = shape("wave", p, n, 2 * waves)
    schedule = static_schedule("hanayo", problem)
    schedule.verify(problem)
    simulate(problem, schedule).verify(schedule)
    assert unit_result(problem, schedule)[1] <= p


def test_slow_links_turn_the_ranking_round() -> None:
    """More waves cross the links more often: behind four times a forward they lose what they win on free links."""
    times = {}
    for waves in (1, 2, 4):
        chunks = 2 * waves
        unit = 24 // chunks
        problem = shape("wave", 4, 4, chunks, forward=unit, input_grad=unit, weight_grad=unit, latency=96)
        times[waves] = unit_result(problem, static_schedule("hanayo", problem))[0]
    assert times[1] < times[2] < times[4]


def test_full_backwards_alone_are_enough() -> None:
    """Stages that cannot be split run too, of unequal cost and over slow links."""
    problem = case(5, placed("wave", 3, 2), forward=[1, 2, 3, 1, 2, 3], full=[2, 5, 4, 3, 1, 2], split=False, latency=2)
    schedule = static_schedule("hanayo", problem)
    schedule.verify(problem)
    assert_plan_ok(plan_of(problem, schedule), problem)


@pytest.mark.parametrize("placement", [[0, 1], [0, 1, 0, 1], [0, 1, 2, 2, 1, 0, 0, 1, 2]])
def test_another_placement_is_refused(placement: list[int]) -> None:
    """The refusal says that it takes an even number of stages on each device, and which option places them so."""
    placed = (
        r"placed in waves \(--placement wave\), got the placement" if placement == [0, 1, 0, 1] else r"got [29] stages"
    )
    message = f"needs an even number of stages on each device, {placed}"
    with pytest.raises(ValueError, match=message):
        static_schedule("hanayo", case(4, placement))
