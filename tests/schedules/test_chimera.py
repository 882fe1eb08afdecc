"""Chimera: two pipelines in opposite directions, against the published makespans."""

from __future__ import annotations

import pytest
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from shapes import shape, two_flows, unit_result

from cpipe.schedules import static_schedule
from cpipe.schedules.chimera import chimera
from cpipe.sim import memory_peaks, simulate


def test_the_order_is_the_literal_table() -> None:
    """Two devices, a microbatch in each flow: each device turns its far stage round before it ends its near one."""
    problem = two_flows(2, 2)
    assert static_schedule("chimera", problem).to_text(1) == "0F0 3F0 3B0 0B0\n2F0 1F0 1B0 2B0"


def test_the_order_of_four_devices() -> None:
    """Four devices, two microbatches in each flow, written out: the devices of either half mirror each other."""
    rows = static_schedule("chimera", two_flows(4, 4)).to_text(2).splitlines()
    assert rows[0] == "0F0 0F1 7F0 7B0 7F1 7B1 0B0 0B1"
    assert rows[3] == "4F0 4F1 3F0 3B0 3F1 3B1 4B0 4B1"
    assert rows[1] == "1F0 6F0 1F1 6F1 6B0 1B0 6B1 1B1"
    assert rows[2] == "5F0 2F0 5F1 2F1 2B0 5B0 2B1 5B1"


@pytest.mark.parametrize(
    ("p", "n", "weight_grad", "makespan"),
    [(4, 4, 0, 10), (8, 8, 0, 22), (4, 4, 1, 16), (8, 8, 1, 36), (2, 2, 0, 4), (6, 6, 0, 16)],
)
def test_published_makespans(p: int, n: int, weight_grad: int, makespan: int) -> None:
    """With n = p even, F = B = 1 takes ``2 n + p - 2``, B = 2 F 16 and 36 on 4 and 8 devices; 1F1B takes 21 and 45."""
    problem = two_flows(p, n, weight_grad=weight_grad)
    schedule = static_schedule("chimera", problem)
    assert unit_result(problem, schedule)[0] == makespan
    assert makespan < (n + p - 1) * (2 + weight_grad)
    peaks = memory_peaks(problem, schedule.orders)
    assert p // 2 + 1 == min(peaks)
    assert max(peaks) <= p


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize("n", [2, 4, 6, 10, 24])
def test_any_size_is_a_schedule_that_finishes(p: int, n: int) -> None:
    """Any even number of devices, any of microbatches a flow: every op once, in order, no more than p activations."""
    problem = two_flows(p, n)
    schedule = static_schedule("chimera", problem)
    schedule.verify(problem)
    simulate(problem, schedule).verify(schedule)
    assert max(memory_peaks(problem, schedule.orders)) <= p


def test_plans_are_valid() -> None:
    """A plan of two flows with unequal stages passes every check, the all-reduce between the copies included."""
    problem = two_flows(4, 6)
    costs = (3, 1, 2, 4)
    stages = tuple(
        replace(stage, forward_ns=costs[index % 4], full_backward_ns=2 * costs[index % 4], reduce_ns=3)
        for index, stage in enumerate(problem.stages)
    )
    problem = replace(problem, stages=stages)
    schedule = static_schedule("chimera", problem)
    schedule.verify(problem)
    assert_plan_ok(plan_of(problem, schedule), problem)


def test_one_flow_is_refused() -> None:
    """An ordinary pipeline has one flow, and the refusal says that two are needed."""
    with pytest.raises(ValueError, match="needs two flows in opposite directions, got 1"):
        static_schedule("chimera", shape("line", 4, 4))


def test_flows_in_the_same_direction_are_refused() -> None:
    """The second flow has to run through the devices in reverse."""
    message = r"the second flow in reverse order, got the placements \[0, 1\] and \[0, 1\]"
    with pytest.raises(ValueError, match=message):
        chimera(4, 2, (0, 1, 0, 1))
