"""All static schedules at once: each on a placement that suits it, valid plans, what applies and what does not."""

from __future__ import annotations

import itertools

import pytest
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from oracle.cases import case
from shapes import placed, shape, two_flows

from cpipe.ir import Device, Problem
from cpipe.schedules import SCHEDULES, applicable, static_schedule
from cpipe.sim import simulate

LINE = {"gpipe", "1f1b", "1f1b-split", "zb-h1", "zb-h2"}
LOOP = {"interleaved-1f1b", "interleaved-zb", "looped-bfs"}
V = {"zb-v", "v-half", "v-min", "hanayo", "dualpipe-v"}
FLOWS = {"chimera", "dualpipe"}


def names(problem: Problem) -> set[str]:
    """Return the schedules that exist for a problem."""
    return {name for name, _ in applicable(problem)}


def test_every_schedule_has_its_placement() -> None:
    """A line, a loop, a V and two flows have each schedule between them, and none of another shape."""
    assert set(SCHEDULES) == LINE | LOOP | V | FLOWS
    assert names(shape("line", 4, 8)) == LINE
    assert names(shape("loop", 4, 8, 2)) == LOOP
    assert names(shape("wave", 4, 8, 2)) == V
    assert names(two_flows(4, 8)) == FLOWS


def test_few_microbatches_leave_dualpipe_out() -> None:
    """What needs more microbatches than there are is not tried; all others are."""
    assert names(shape("wave", 4, 3, 2)) == V - {"dualpipe-v"}
    assert names(shape("loop", 4, 3, 2)) == LOOP


def test_one_device_suits_almost_all() -> None:
    """A single device is a line, a loop and, with two stages, a V."""
    assert names(shape("line", 1, 4)) == LINE | LOOP
    assert names(shape("wave", 1, 4, 2)) == LINE | LOOP | V


def test_stages_that_cannot_be_split_have_schedules_too() -> None:
    """Without D and W apart the schedules with full backwards remain."""
    assert names(case(8, placed("line", 4, 1), split=False)) == {"gpipe", "1f1b"}
    assert names(case(8, placed("loop", 4, 2), split=False)) == {"interleaved-1f1b", "looped-bfs"}
    assert names(case(8, placed("wave", 4, 2), split=False)) == {"hanayo"}


def test_a_placement_of_no_shape_has_none() -> None:
    """Where stages stand anywhere no static schedule exists; the refusals are quick and no error."""
    assert names(case(4, [0, 1, 0, 2, 1])) == set()


def test_large_problems_leave_the_dear_ones_out() -> None:
    """A search does not pay for Hanayo's list schedule on thousands of microbatches; asked by name it is made."""
    problem = shape("wave", 2, 1700, 2)
    assert names(problem) == V - {"hanayo"}
    static_schedule("hanayo", problem).verify(problem)


def test_devices_without_stages_stay_idle() -> None:
    """A device that holds no stage has an empty order, also after the last that does."""
    problem = shape("line", 2, 3)
    wider = replace(problem, devices=(*problem.devices, Device(name="spare")))
    for name in LINE:
        schedule = static_schedule(name, wider)
        assert schedule.orders[2] == ()
        schedule.verify(wider)


CASES = [
    (name, kind, p, n)
    for kind, group in (("line", LINE), ("loop", LOOP), ("wave", V))
    for name, p, n in itertools.product(sorted(group), (2, 3, 5), (2, 5))
    if name != "dualpipe-v" or n >= 2 * p
]


@pytest.mark.parametrize(("name", "kind", "p", "n"), CASES)
def test_plans_of_unequal_stages_behind_slow_links(name: str, kind: str, p: int, n: int) -> None:
    """Every schedule makes a valid plan where stages differ and messages take time, for n < p, too."""
    chunks = 1 if kind == "line" else 2
    placement = placed(kind, p, chunks)
    count = len(placement)
    problem = case(
        n,
        placement,
        forward=[3 + stage % 3 for stage in range(count)],
        input_grad=[2 + stage % 4 for stage in range(count)],
        weight_grad=[stage % 3 for stage in range(count)],
        latency=[(stage % 2) * 4 for stage in range(count - 1)],
        occupancy=1,
        activation=4,
        held=3,
        message=1,
    )
    schedule = static_schedule(name, problem)
    schedule.verify(problem)
    simulate(problem, schedule).verify(schedule)
    assert_plan_ok(plan_of(problem, schedule), problem)


@pytest.mark.parametrize(("n", "makespan", "whole"), [(3, 19, 21), (4, 25, 27), (5, 31, 33)])
def test_two_devices_in_a_loop(n: int, makespan: int, whole: int) -> None:
    """Odd numbers of microbatches on two devices with two stages each: split backwards reach the optimum."""
    problem = shape("loop", 2, n, 2)
    split = simulate(problem, static_schedule("interleaved-zb", problem)).makespan_ns
    fused = simulate(problem, static_schedule("interleaved-1f1b", problem)).makespan_ns
    assert split == makespan
    assert fused == whole


def test_a_v_hands_over_inside_its_last_device() -> None:
    """Stages on [0, 1, 1, 0] send 16 messages for four microbatches, none to their own device; a loop sends 24."""
    messages = {}
    for kind in ("wave", "loop"):
        problem = shape(kind, 2, 4, 2)
        for name, schedule in applicable(problem):
            runs = simulate(problem, schedule).messages
            assert all(run.source != run.target for run in runs), name
            messages[kind] = len(runs)
    assert messages == {"wave": 16, "loop": 24}
    problem = shape("wave", 2, 4, 2)
    assert min(simulate(problem, schedule).makespan_ns for _, schedule in applicable(problem)) == 25
