"""ZB-V, V-Half and V-Min on a V: literal tables, memory and bubbles of the papers, building blocks."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from helpers import assert_plan_ok, plan_of
from known_cases import UNIT_TIMES
from oracle.cases import case
from shapes import placed, shape, unit_result

from cpipe.ir import Problem
from cpipe.schedules import static_schedule
from cpipe.schedules.building_block import Strides, block_peak, block_schedule, fitting_gaps
from cpipe.sim import Simulator, memory_peaks, simulate

LIMITS = {
    "zb-v": lambda p: 2 * p,
    "v-half": lambda p: 2 * (p // 2 + 1),
    "v-min": lambda p: 2 * ((p + 1) // 3 + 1),
}


@pytest.mark.parametrize(
    ("name", "p", "n", "table"),
    [
        (
            "zb-v",
            2,
            2,
            "0F0 0F1 3F0 3D0 3W0 3F1 3D1 3W1 0D0 0W0 0D1 0W1\n1F0 2F0 1F1 2F1 2D0 2W0 1D0 2D1 1D1 1W0 1W1 2W1",
        ),
        (
            "v-min",
            4,
            3,
            "0F0 0F1 7F0 7D0 7W0 0F2 7F1 7D1 0D0 7W1 0W0 7F2 7D2 0D1 7W2 0W1 0D2 0W2\n"
            "1F0 6F0 1F1 6D0 6W0 6F1 1F2 1D0 6D1 6W1 1W0 6F2 1D1 6D2 6W2 1W1 1D2 1W2\n"
            "2F0 5F0 2F1 5D0 5F1 5W0 2D0 2F2 2W0 5D1 5F2 5W1 2D1 2W1 5D2 5W2 2D2 2W2\n"
            "3F0 4F0 3F1 4F1 4D0 3D0 4W0 3W0 3F2 4F2 4D1 3D1 4W1 3W1 4D2 3D2 4W2 3W2",
        ),
    ],
)
def test_the_order_is_the_literal_table(name: str, p: int, n: int, table: str) -> None:
    """In equal times the order is the one written out here."""
    assert static_schedule(name, shape("wave", p, n, 2)).to_text(n) == table


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(("p", "n"), [*itertools.product((1, 2, 3, 4, 5, 8), (1, 2, 3, 5, 8, 11))])
def test_any_size_fits_its_memory_and_finishes(name: str, p: int, n: int) -> None:
    """Any p and n, odd ones and n < p included: every op once, in order, no deadlock, memory as stated."""
    for problem in (
        shape("wave", p, n, 2),
        shape("wave", p, n, 2, forward=3, input_grad=2, weight_grad=1, latency=2),
        shape("wave", p, n, 2, forward=2, input_grad=3, weight_grad=0),
    ):
        schedule = static_schedule(name, problem)
        schedule.verify(problem)
        simulate(problem, schedule).verify(schedule)
        assert max(memory_peaks(problem, schedule.orders)) <= LIMITS[name](p)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8])
def test_zb_v_has_no_bubble_but_the_fill(p: int) -> None:
    """With F = D = W, n >= 2 p and free links the makespan is the work and ``p - 1`` forwards of a stage."""
    for n in (2 * p, 2 * p + 3, 4 * p):
        problem = shape("wave", p, n, 2)
        assert unit_result(problem, static_schedule("zb-v", problem)) == (6 * n + p - 1, Fraction(p))


@pytest.mark.parametrize(("p", "n"), [(4, 8), (4, 16), (6, 18), (8, 24), (16, 48)])
def test_less_memory_has_its_price(p: int, n: int) -> None:
    """V-Half has at most half of 1F1B's bubble and V-Min two thirds of it, beyond the fill of p - 1 forwards."""
    problem = shape("wave", p, n, 2)
    one_f_one_b = 6 * (p - 1)  # 1F1B's bubble, in forwards of a stage
    work, fill = 6 * n, p - 1
    half, least = (unit_result(problem, static_schedule(name, problem))[0] for name in ("v-half", "v-min"))
    assert half <= work + fill + one_f_one_b / 2
    assert least <= work + fill + one_f_one_b * 2 / 3
    assert half < least


# Makespans per microbatch of ZB-V on eight devices and 16 microbatches, whole-device F = D = W = 1, at two and at four
# datacenters, for the delays of `UNIT_TIMES`: the order is made for free links and then timed with them.
UNIT_TIME_VALUES = {
    2: (3.2188, 3.4688, 6.5312, 5.3750, 8.7188),
    4: (3.2188, 3.6875, 7.1875, 6.2188, 9.8438),
}


def unit_v(num_sites: int, latency: float, bandwidth: float) -> Problem:
    """Return eight devices in sites of equal size, a whole device's F = D = W = 4000 ns."""
    placement = placed("wave", 8, 2)
    per_site = 8 // num_sites
    crossings = [a // per_site != b // per_site for a, b in itertools.pairwise(placement)]
    return case(
        16,
        placement,
        forward=2000,
        input_grad=2000,
        weight_grad=2000,
        latency=[round(latency * 4000) * crossing for crossing in crossings],
        occupancy=[round(bandwidth * 4000) * crossing for crossing in crossings],
        held=1,
    )


@pytest.mark.parametrize("num_sites", [2, 4])
def test_zb_v_in_unit_times(num_sites: int) -> None:
    """The order made for free links takes what is known of ZB-V under delay; made for the delays it takes no longer."""
    static = static_schedule("zb-v", unit_v(num_sites, 0, 0))
    rows = [row for row in UNIT_TIMES if row.num_sites == num_sites]
    for row, expected in zip(rows, UNIT_TIME_VALUES[num_sites], strict=True):
        problem = unit_v(num_sites, float(row.latency), float(row.bandwidth))
        makespan = Simulator(problem).makespan(static.orders)
        assert makespan is not None
        assert makespan / 4000 / 16 == pytest.approx(expected, abs=1e-4)
        aware = Simulator(problem).makespan(static_schedule("zb-v", problem).orders)
        assert aware is not None
        assert aware <= makespan


@pytest.mark.parametrize("name", LIMITS)
def test_stages_of_different_costs_and_slow_links(name: str) -> None:
    """A plan made of each order is valid where stages differ and messages hold their links."""
    problem = case(
        6,
        placed("wave", 3, 2),
        forward=[3, 2, 4, 1, 2, 5],
        input_grad=[3, 1, 4, 2, 2, 6],
        weight_grad=[2, 2, 0, 1, 3, 4],
        latency=[1, 4, 0, 4, 1],
        occupancy=[2, 3, 0, 3, 2],
        activation=10,
        held=7,
        message=1,
    )
    schedule = static_schedule(name, problem)
    schedule.verify(problem)
    assert_plan_ok(plan_of(problem, schedule), problem)


def test_the_devices_may_stand_in_any_order() -> None:
    """A V over devices 2, 0, 1 is the V over 0, 1, 2 with its orders moved."""
    straight, moved = case(4, [0, 1, 2, 2, 1, 0], held=1), case(4, [2, 0, 1, 1, 0, 2], held=1)
    for name in LIMITS:
        orders = static_schedule(name, straight).orders
        assert static_schedule(name, moved).orders == (orders[1], orders[2], orders[0])


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("placement", [[0, 1], [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0, 0, 1, 1, 0]])
def test_another_placement_is_refused(name: str, placement: list[int]) -> None:
    """The refusal says that it takes two stages on each device in a V, and which option places them so, if one does."""
    placed = r"placed in a V \(--placement wave\), got the placement \[0, "
    message = rf"needs two stages on each device, ({placed}|got [28] stages)"
    with pytest.raises(ValueError, match=message):
        static_schedule(name, case(4, placement))


@pytest.mark.parametrize(
    ("p", "least", "half", "whole"),
    [(1, 2, 2, 2), (2, 4, 4, 4), (3, 4, 4, 6), (4, 4, 6, 8), (5, 6, 6, 10), (8, 8, 10, 16), (16, 12, 18, 32)],
)
def test_blocks_hold_what_their_strides_say(p: int, least: int, half: int, whole: int) -> None:
    """Strides of 4, 6 and 12 units in all hold a third, a half and the whole of 1F1B's activations, and a little."""
    for strides, limit in (
        (Strides(1, 1, 1, 1), least),
        (Strides(1, 2, 1, 2), half),
        (Strides(1, 5, 1, 5), whole),
    ):
        gaps = fitting_gaps(p, strides, limit)
        assert gaps is not None
        assert fitting_gaps(p, strides, limit - 1) is None
        problem = shape("wave", p, 4 * p + 4, 2)
        schedule = block_schedule(problem.placement, 4 * p + 4, strides, gaps)
        schedule.verify(problem)
        assert max(memory_peaks(problem, schedule.orders)) == block_peak(p, strides, gaps) == limit


def test_blocks_that_collide_do_not_exist() -> None:
    """Two ops at the same time modulo six cannot be repeated: F up the V meets F down after six units."""
    assert block_peak(2, Strides(1, 1, 1, 1), (4, 1, 1)) is None
