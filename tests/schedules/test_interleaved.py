"""Interleaved schedules on a loop: literal tables, group sizes, closed forms, any number of microbatches."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from helpers import assert_plan_ok, plan_of
from known_cases import UNIT_TIMES
from oracle.cases import case
from shapes import placed, shape, unit_result

from cpipe.schedules import static_schedule
from cpipe.schedules.interleaved import group_sizes
from cpipe.sim import memory_peaks, simulate

# Makespans per microbatch of interleaved 1F1B, two stages a device, on eight devices with 16 microbatches and a whole
# device's F = D = W = 1, at two and at four datacenters, for the delays of `UNIT_TIMES`, on the link back round too.
UNIT_TIME_VALUES = {
    2: (3.65625, 3.84375, 6.84375, 5.25, 8.15625),
    4: (3.65625, 4.09375, 7.34375, 6.875, 10.21875),
}


@pytest.mark.parametrize(
    ("name", "n", "table"),
    [
        (
            "interleaved-1f1b",
            4,
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
        ),
        ("looped-bfs", 2, "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1"),
        (
            "interleaved-zb",
            2,
            "0F0 0F1 2F0 2F1 2D0 2W0 2D1 2W1 0D0 0W0 0D1 0W1\n1F0 1F1 3F0 3D0 3F1 3D1 3W0 1D0 3W1 1D1 1W0 1W1",
        ),
    ],
)
def test_the_order_is_the_literal_table(name: str, n: int, table: str) -> None:
    """Two devices with two stages each run in the published order."""
    assert static_schedule(name, shape("loop", 2, n, 2)).to_text(n) == table


def test_four_devices_written_out() -> None:
    """Four devices, two stages each, four microbatches: depth first turns on the last device, breadth first nowhere."""
    depth = (
        "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 4B0 4B1 4B2 4B3 0B0 0B1 0B2 0B3\n"
        "1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 5B0 5B1 5B2 5B3 1B0 1B1 1B2 1B3\n"
        "2F0 2F1 2F2 2F3 6F0 6F1 6F2 6B0 6F3 6B1 6B2 6B3 2B0 2B1 2B2 2B3\n"
        "3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3B0 3B1 3B2 3B3"
    )
    breadth = "\n".join(
        " ".join(
            f"{stage}{kind}{mb}" for stage, kind in ((k, "F"), (k + 4, "F"), (k + 4, "B"), (k, "B")) for mb in range(4)
        )
        for k in range(4)
    )
    assert static_schedule("interleaved-1f1b", shape("loop", 4, 4, 2)).to_text(4) == depth
    assert static_schedule("looped-bfs", shape("loop", 4, 4, 2)).to_text(4) == breadth


def test_four_devices_in_depth_first_order() -> None:
    """Four devices: the first starts with ``2 (p - 1) + p`` forwards, four of its first stage, four of its second."""
    first, *_, last = static_schedule("interleaved-1f1b", shape("loop", 4, 8, 2)).to_text(8).splitlines()
    assert first.startswith("0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 ")
    assert last.startswith("3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 ")


@pytest.mark.parametrize(
    ("p", "n", "asked", "sizes"),
    [
        (4, 8, None, (4, 4)),
        (4, 8, 8, (8,)),
        (4, 10, None, (5, 5)),  # a group of two would wait for itself
        (4, 11, 6, (6, 5)),
        (4, 11, 4, (6, 5)),
        (4, 15, 8, (8, 7)),
        (4, 3, None, (3,)),
        (1, 3, None, (1, 1, 1)),
        (2, 5, 5, (5,)),
    ],
)
def test_groups_are_even_and_never_smaller_than_the_loop(
    p: int, n: int, asked: int | None, sizes: tuple[int, ...]
) -> None:
    """N is a wish: the groups hold all microbatches, differ by one at most, and none is shorter than the loop."""
    assert group_sizes(p, n, asked) == sizes


@pytest.mark.parametrize(
    ("p", "n", "asked", "message"),
    [
        (4, 8, 3, "needs a group size from 4 to 8 for 8 microbatches on 4 devices, got 3"),
        (4, 8, 9, "needs a group size from 4 to 8 for 8 microbatches on 4 devices, got 9"),
        (4, 3, 2, "needs a group size of 3 for 3 microbatches on 4 devices, got 2"),
    ],
)
def test_a_group_size_out_of_range_says_what_is_allowed(p: int, n: int, asked: int, message: str) -> None:
    """The refusal names the smallest and the largest size for these microbatches and devices."""
    with pytest.raises(ValueError, match=message):
        static_schedule("interleaved-1f1b", shape("loop", p, n, 2), group_size=asked)


def test_a_group_size_is_for_schedules_in_groups() -> None:
    """A schedule that has no groups refuses the option rather than ignore it."""
    with pytest.raises(ValueError, match="has no groups: a group size is for interleaved-1f1b"):
        static_schedule("1f1b", shape("line", 2, 4), group_size=2)


@pytest.mark.parametrize(("p", "chunks"), [*itertools.product((1, 2, 3, 4, 5, 8), (2, 3))])
def test_any_number_of_microbatches_and_any_group_size_finishes(p: int, chunks: int) -> None:
    """No n and no N in its range deadlocks or holds more than ``2 (p - 1) + (V - 1) N + 1`` activations."""
    for n in (1, 2, 3, p, p + 1, 2 * p - 1, 2 * p, 3 * p + 2):
        problem = shape("loop", p, n, chunks)
        for size in sorted({min(p, n), (min(p, n) + n) // 2, n}):
            schedule = static_schedule("interleaved-1f1b", problem, group_size=size)
            schedule.verify(problem)
            simulate(problem, schedule).verify(schedule)
            most = 2 * (p - 1) + (chunks - 1) * max(group_sizes(p, n, size)) + 1
            assert max(memory_peaks(problem, schedule.orders)) <= most


@pytest.mark.parametrize(
    ("p", "n", "chunks", "size", "bubble", "peak"),
    [
        (8, 16, 2, 8, Fraction(7, 32), Fraction(23, 2)),
        (8, 16, 2, 16, Fraction(7, 32), Fraction(31, 2)),
        (8, 32, 4, 8, Fraction(7, 128), Fraction(39, 4)),
        (8, 32, 4, 32, Fraction(7, 128), Fraction(111, 4)),
    ],
)
def test_the_bubble_does_not_depend_on_the_group_size(
    p: int, n: int, chunks: int, size: int, bubble: Fraction, peak: Fraction
) -> None:
    """The bubble is ``(p - 1) / (V n)`` of the work for every N; memory grows with N."""
    problem = shape("loop", p, n, chunks)
    makespan, found = unit_result(problem, static_schedule("interleaved-1f1b", problem, group_size=size))
    work = 3 * n * chunks
    assert Fraction(makespan - work, work) == bubble == Fraction(p - 1, chunks * n)
    assert found == peak


@pytest.mark.parametrize("num_sites", [2, 4])
def test_delays_between_datacenters(num_sites: int) -> None:
    """Behind links of latency and bandwidth between sites the makespan is the known one; the wrap-around is delayed."""
    placement, per_site = placed("loop", 8, 2), 8 // num_sites
    crossings = [a // per_site != b // per_site for a, b in itertools.pairwise(placement)]
    rows = [row for row in UNIT_TIMES if row.num_sites == num_sites]
    for row, expected in zip(rows, UNIT_TIME_VALUES[num_sites], strict=True):
        problem = case(
            16,
            placement,
            forward=2000,
            input_grad=2000,
            weight_grad=2000,
            latency=[int(row.latency * 4000) * crossing for crossing in crossings],
            occupancy=[int(row.bandwidth * 4000) * crossing for crossing in crossings],
            held=1,
        )
        schedule = static_schedule("interleaved-1f1b", problem)
        assert simulate(problem, schedule).makespan_ns == expected * 4000 * 16
        assert_plan_ok(plan_of(problem, schedule), problem)


@pytest.mark.parametrize(("p", "n", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 12, 3), (8, 16, 2)])
def test_looped_bfs_has_the_same_bubble_and_holds_everything(p: int, n: int, chunks: int) -> None:
    """Breadth first takes as long as depth first on free links, with all n activations on every device."""
    problem = shape("loop", p, n, chunks)
    depth, breadth = (static_schedule(name, problem) for name in ("interleaved-1f1b", "looped-bfs"))
    assert unit_result(problem, breadth) == (unit_result(problem, depth)[0], Fraction(n))


@pytest.mark.parametrize(("p", "n"), [(1, 3), (2, 1), (3, 2), (4, 3), (4, 8), (4, 10), (5, 7), (8, 16)])
def test_interleaved_zb_keeps_to_its_memory(p: int, n: int) -> None:
    """No device holds more than ``p + (V - 1) N`` activations, and nothing takes longer than interleaved 1F1B."""
    problem = shape("loop", p, n, 2, latency=1)
    schedule = static_schedule("interleaved-zb", problem)
    schedule.verify(problem)
    assert max(memory_peaks(problem, schedule.orders)) <= p + group_sizes(p, n)[0]
    assert_plan_ok(plan_of(problem, schedule), problem)
    free = shape("loop", p, n, 2)
    split, whole = (static_schedule(name, free) for name in ("interleaved-zb", "interleaved-1f1b"))
    assert unit_result(free, split)[0] <= unit_result(free, whole)[0]


@pytest.mark.parametrize("name", ["interleaved-1f1b", "interleaved-zb", "looped-bfs"])
@pytest.mark.parametrize(
    ("shape_name", "p", "chunks", "message"),
    [
        ("line", 2, 1, "needs two or more stages on each device, got 2 stages on 2 devices"),
        ("wave", 2, 2, r"the same number on each \(--placement loop\), got the placement \[0, 1, 1, 0\]"),
    ],
)
def test_another_placement_is_refused(name: str, shape_name: str, p: int, chunks: int, message: str) -> None:
    """The refusal says which placement the schedule needs."""
    with pytest.raises(ValueError, match=message):
        static_schedule(name, shape(shape_name, p, 4, chunks))
