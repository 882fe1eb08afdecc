"""Memory as a prefix sum over the order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from oracle.cases import case

from cpipe.ir import Schedule
from cpipe.schedules import static_schedule
from cpipe.sim import MemoryStep, memory_peaks, memory_steps
from cpipe.sim.memory import fits, receive_reserve
from cpipe.units import Bytes


def test_one_f_one_b_holds_its_depth() -> None:
    """1F1B's in-flight activations are [4, 3, 2, 1] on four stages, GPipe's are all eight."""
    problem = case(8, [0, 1, 2, 3], weight_grad=0, full=2)
    assert memory_peaks(problem, static_schedule("1f1b", problem).orders) == (4, 3, 2, 1)
    assert memory_peaks(problem, static_schedule("gpipe", problem).orders) == (8, 8, 8, 8)


@pytest.mark.parametrize(("held", "peak"), [(0, 10), (4, 14), (10, 20), (13, 26)])
def test_what_w_needs_stays_until_w(held: int, peak: int) -> None:
    """After D only `held` remains, more than the activation if D keeps more; W frees it at its end."""
    problem = case(2, [0], activation=10, held=held)
    orders = Schedule.from_text("0F0 0D0 0F1 0D1 0W0 0W1", 2).orders
    assert memory_peaks(problem, orders) == (peak,)


def test_static_and_transient_bytes_count() -> None:
    """Static bytes of all stages of a device are always there, transients while their op runs."""
    problem = case(1, [0, 0], activation=1, static=[100, 20])
    first = replace(
        problem.stages[0],
        forward_transient_bytes=Bytes(7),
        input_grad_transient_bytes=Bytes(50),
        weight_grad_transient_bytes=Bytes(60),
    )
    problem = replace(problem, stages=(first, problem.stages[1]))
    assert memory_steps(problem)[:4] == (MemoryStep(8, 1), MemoryStep(50, -1), MemoryStep(60, 0), MemoryStep(60, -1))
    assert memory_peaks(problem, Schedule.from_text("0F0 1F0 1B0 0D0 0W0", 1).orders) == (180,)


def test_the_window_sets_receive_buffers_aside() -> None:
    """Each incoming channel costs window x message bytes on its receiver, and no more than n messages."""
    problem = case(3, [0, 1, 2], message=10, window=2)
    assert receive_reserve(problem) == (20, 40, 20)
    assert receive_reserve(replace(problem, receive_window=9)) == (30, 60, 30)
    assert receive_reserve(replace(problem, receive_window=None)) == (10, 20, 10)


def test_a_channel_reserves_its_largest_message() -> None:
    """Two stages that send over one channel share its buffers: the largest message counts, not the last."""
    problem = case(1, [0, 1, 0, 1], message=1)
    hops = list(problem.forward_hops)
    assert hops[0] is not None
    hops[0] = replace(hops[0], message_bytes=Bytes(50))
    assert receive_reserve(replace(problem, forward_hops=tuple(hops)))[1] == 51


def test_fits_counts_the_reserve() -> None:
    """An order fits only with the receive buffers of its window."""
    problem = case(2, [0, 1], message=1, window=1, capacity=[2, 2])
    orders = Schedule.from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1", 2).orders
    assert memory_peaks(problem, orders) == (2, 1)
    assert not fits(problem, orders)
    assert fits(case(2, [0, 1], message=1, window=1, capacity=[3, 2]), orders)
