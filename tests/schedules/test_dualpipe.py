"""DualPipe and DualPipeV: literal table, the published bubble with atomic pairs, memory, both halves alike."""

from __future__ import annotations

import pytest
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from oracle.cases import case
from shapes import placed, shape, two_flows, unit_result

from cpipe.ir import OpKind, Problem, Schedule, decode_op
from cpipe.schedules import static_schedule
from cpipe.schedules.dualpipe import dualpipe
from cpipe.sim import memory_peaks, simulate
from cpipe.units import Ns


def test_the_order_is_the_literal_table() -> None:
    """Two ranks and four microbatches run the eight phases; what is joined by + runs as one op."""
    table = (
        "0F0 0F1 0F2 3F0 3D0 3W0 3F1 0F3+3B1 3F2+0B0 3B2 3F3+0B1 3B3 0D2 0W2 0D3 0W3\n"
        "1F0 2F0 1F1 2F1 1F2 2B0 2F2+1B0 1F3+2B1 2F3+1B1 2B2 1B2 2D3 1D3 2W3 1W3"
    )
    assert static_schedule("dualpipe-v", shape("wave", 2, 4, 2)).to_text(4) == table


def test_four_ranks_written_out() -> None:
    """Four ranks and eight microbatches: the streams enter on the first and meet on the last, which pairs at once."""
    first, *_, last = static_schedule("dualpipe-v", shape("wave", 4, 8, 2)).to_text(8).splitlines()
    assert first == (
        "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7D0 7W0 7F1 7D1 7W1 7F2 7D2 7W2 7F3 0F7+7B3 7F4+0B0 7B4 7F5+0B1 7B5 7F6+0B2 "
        "7B6 7F7+0B3 7B7 0D4 0W4 0D5 0W5 0D6 0W6 0D7 0W7"
    )
    assert last == (
        "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 3F4 4B0 4F4+3B0 3F5+4B1 4F5+3B1 3F6+4B2 4F6+3B2 3F7+4B3 4F7+3B3 4B4 3B4 4B5 "
        "3B5 4D6 3D6 4D7 3D7 4W6 3W6 4W7 3W7"
    )


def test_dualpipe_on_four_devices() -> None:
    """The outer devices run rank 0 of the fold, the inner ones rank 1, with the flows exchanged on the far half."""
    orders = static_schedule("dualpipe", two_flows(4, 8)).to_text(4).splitlines()
    assert orders == [
        "0F0 0F1 0F2 7F0 7D0 7W0 7F1 0F3+7B1 7F2+0B0 7B2 7F3+0B1 7B3 0D2 0W2 0D3 0W3",
        "1F0 6F0 1F1 6F1 1F2 6B0 6F2+1B0 1F3+6B1 6F3+1B1 6B2 1B2 6D3 1D3 6W3 1W3",
        "5F0 2F0 5F1 2F1 5F2 2B0 2F2+5B0 5F3+2B1 2F3+5B1 2B2 5B2 2D3 5D3 2W3 5W3",
        "4F0 4F1 4F2 3F0 3D0 3W0 3F1 4F3+3B1 3F2+4B0 3B2 3F3+4B1 3B3 4D2 4W2 4D3 4W3",
    ]


@pytest.mark.parametrize(("ranks", "bubble"), [(2, 2), (4, 6), (8, 14)])
@pytest.mark.parametrize("extra", [0, 3, 8])
def test_the_bubble_is_the_published_one(ranks: int, bubble: int, extra: int) -> None:
    """With atomic pairs and F = D = W the makespan exceeds ``2 n (F + B)`` by ``(r - 1)(FB + B - 3 W)`` for every n."""
    n = 2 * ranks + extra
    problem = shape("wave", ranks, n, 2)
    schedule = static_schedule("dualpipe-v", problem)
    makespan, _ = unit_result(problem, schedule)
    pair, full, weight = 3, 2, 1
    assert makespan - 2 * n * 3 == bubble == (ranks - 1) * (pair + full - 3 * weight)
    assert memory_peaks(problem, schedule.orders) == (2 * ranks + 1,) * ranks


def test_pairs_are_what_makes_the_bubble() -> None:
    """The same orders with the pairs' ops apart leave half the bubble: the pair is one op, not two in a row."""
    problem = shape("wave", 4, 8, 2)
    schedule = static_schedule("dualpipe-v", problem)
    apart = Schedule(orders=schedule.orders)
    assert unit_result(problem, schedule)[0] - 48 == 6
    assert unit_result(problem, apart)[0] - 48 == 3


def test_a_pair_that_overlaps_pays() -> None:
    """When a forward beside a backward takes less than one after the other, the makespan falls by what they save."""
    problem = shape("wave", 2, 8, 2, forward=2, input_grad=2, weight_grad=2)
    faster = replace(problem, stages=tuple(replace(stage, forward_backward_ns=Ns(5)) for stage in problem.stages))
    schedule = static_schedule("dualpipe-v", problem)
    assert static_schedule("dualpipe-v", faster) == schedule
    saved = unit_result(problem, schedule)[0] - unit_result(faster, schedule)[0]
    assert 0 < saved <= len(schedule.pairs)
    assert saved >= sum(decode_op(first, 8).stage in (0, 3) for first, _ in schedule.pairs) // 2


@pytest.mark.parametrize(("ranks", "n"), [(1, 2), (1, 5), (2, 4), (2, 7), (3, 6), (4, 11), (5, 10), (8, 17)])
def test_any_number_of_microbatches_from_twice_the_ranks(ranks: int, n: int) -> None:
    """Odd numbers of ranks and of microbatches included: every op once, in order, pairs in place, no deadlock."""
    problem = shape("wave", ranks, n, 2)
    schedule = static_schedule("dualpipe-v", problem)
    schedule.verify(problem)
    simulate(problem, schedule).verify(schedule)


@pytest.mark.parametrize(("p", "n"), [(2, 4), (4, 8), (4, 10), (6, 14), (8, 16)])
def test_dualpipe_is_dualpipe_v_on_both_halves(p: int, n: int) -> None:
    """Two flows of n / 2 microbatches take as long as DualPipeV with n / 2 on half the ranks, at p + 1 activations."""
    flows = two_flows(p, n)
    fold = shape("wave", p // 2, n // 2, 2)
    schedule = static_schedule("dualpipe", flows)
    schedule.verify(flows)
    simulate(flows, schedule).verify(schedule)
    assert unit_result(flows, schedule)[0] == unit_result(fold, static_schedule("dualpipe-v", fold))[0]
    assert max(memory_peaks(flows, schedule.orders)) == p + 1


def test_plans_are_valid() -> None:
    """Unequal stages, slow links and pairs that take their own time make a valid plan."""
    problem = case(
        7,
        placed("wave", 3, 2),
        forward=[3, 2, 4, 1, 2, 5],
        input_grad=[3, 1, 4, 2, 2, 6],
        weight_grad=[2, 2, 1, 1, 3, 4],
        latency=[1, 4, 0, 4, 1],
        occupancy=[2, 3, 0, 3, 2],
        activation=10,
        held=7,
        message=1,
    )
    problem = replace(
        problem,
        stages=tuple(replace(stage, forward_backward_ns=Ns(index + 4)) for index, stage in enumerate(problem.stages)),
    )
    schedule = static_schedule("dualpipe-v", problem)
    schedule.verify(problem)
    assert_plan_ok(plan_of(problem, schedule), problem)


def test_plans_of_two_flows_are_valid() -> None:
    """DualPipe's plan passes every check, the all-reduce between the copies included."""
    problem = two_flows(4, 8)
    assert_plan_ok(plan_of(problem, static_schedule("dualpipe", problem)), problem)


def test_split_and_full_backwards_of_a_stage_stand_side_by_side() -> None:
    """A stage runs B in pairs and D with W at the ends, each microbatch one or the other."""
    orders = static_schedule("dualpipe-v", shape("wave", 4, 12, 2)).decoded(12)
    for stage in range(8):
        kinds: dict[int, set[OpKind]] = {}
        for op in orders[min(stage, 7 - stage)]:
            if op.stage == stage and op.kind is not OpKind.F:
                kinds.setdefault(op.microbatch, set()).add(op.kind)
        assert set(map(frozenset, kinds.values())) <= {frozenset({OpKind.B}), frozenset({OpKind.D, OpKind.W})}


@pytest.mark.parametrize(
    ("name", "problem", "message"),
    [
        ("dualpipe-v", shape("wave", 4, 7, 2), "needs at least 8 microbatches, got 7"),
        ("dualpipe-v", shape("line", 2, 8), r"needs two stages on each device, got 2 stages on 2 devices"),
        ("dualpipe-v", case(8, placed("wave", 2, 2), split=False), "needs input_grad_ms and weight_grad_ms"),
        ("dualpipe", two_flows(4, 6), "needs at least 4 microbatches in each flow, got 3"),
        ("dualpipe", shape("line", 2, 8), "needs two flows in opposite directions, got 1"),
        ("1f1b", two_flows(2, 8), "needs one flow of microbatches, got 2"),
    ],
)
def test_what_it_cannot_do_it_says(name: str, problem: Problem, message: str) -> None:
    """Too few microbatches, another placement, one flow or two: refused, with the numbers that disagree."""
    with pytest.raises(ValueError, match=message):
        static_schedule(name, problem)


def test_an_odd_number_of_devices_is_refused() -> None:
    """Two flows meet between two devices; in the middle of an odd number both copies of a stage would stand on one."""
    with pytest.raises(ValueError, match="needs an even number of devices, got 3"):
        dualpipe(6, 6, (0, 1, 2, 2, 1, 0))
