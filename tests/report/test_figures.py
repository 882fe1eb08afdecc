"""Tests of cpipe.report.figures: busy time, bubble, memory and microbatches in flight."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sample_plans import MS, make_problem, one_f_one_b, sample_plan

from cpipe.ir import Schedule
from cpipe.report.figures import plan_figures, replay_figures
from cpipe.sim import memory_peaks, simulate


def test_one_f_one_b_in_flight() -> None:
    """1F1B on p devices holds p, p-1, .., 1 microbatches; that is why its first device is the fullest."""
    problem = make_problem(4, 8)
    figures = plan_figures(sample_plan(problem, one_f_one_b(problem)))
    assert [device.in_flight for device in figures] == [4, 3, 2, 1]
    assert [device.peak_bytes for device in figures] == [5000 + 1000 * held for held in (4, 3, 2, 1)]


def test_gpipe_in_flight() -> None:
    """GPipe holds every microbatch on every device."""
    problem = make_problem(2, 3)
    gpipe = Schedule.from_text("0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2", 3)
    assert [device.in_flight for device in plan_figures(sample_plan(problem, gpipe))] == [3, 3]


def test_split_backward_in_flight() -> None:
    """A microbatch is in flight from its F to its D; the W that is left is no microbatch on its way."""
    problem = make_problem(1, 3)
    for text, expected in (
        ("0F0 0D0 0W0 0F1 0F2 0D1 0W1 0D2 0W2", 2),
        ("0F0 0D0 0F1 0D1 0F2 0D2 0W0 0W1 0W2", 1),
    ):
        assert plan_figures(sample_plan(problem, Schedule.from_text(text, 3)))[0].in_flight == expected


def test_figures_go_by_rank() -> None:
    """A plan whose programs stand in another order, or of ranks that do not exist, has each rank's own figures."""
    problem = make_problem(2, 4, capacity_bytes=50_000)
    plan = sample_plan(problem, one_f_one_b(problem))
    stray = replace(plan.ranks[0], rank=7, device="g7")
    turned = replace(plan, ranks=(plan.ranks[1], plan.ranks[0], stray))
    own = plan_figures(plan, problem)
    assert plan_figures(turned, problem)[:2] == (own[1], own[0])
    lost = plan_figures(turned, problem)[2]
    assert (lost.name, lost.stages, lost.peak_bytes, lost.capacity_bytes) == ("g7", (), 0, None)


def test_bubble_of_one_f_one_b() -> None:
    """With free links 1F1B has the bubble (p - 1) / (n + p - 1) on every device."""
    problem = make_problem(3, 6)
    figures = plan_figures(sample_plan(problem, one_f_one_b(problem)))
    assert [device.busy_ns for device in figures] == [6 * 5 * MS] * 3
    assert [device.bubble for device in figures] == pytest.approx([2 / 8] * 3)


def test_profile_adds_static_bytes_and_capacity() -> None:
    """Without a problem static bytes and capacity are unknown; with one they are its own."""
    problem = make_problem(2, 2, placement=(0, 1, 1), capacity_bytes=50_000)
    order = Schedule.from_text("0F0 0F1 0B0 0B1\n1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1", 2)
    plan = sample_plan(problem, order)
    assert [(d.static_bytes, d.capacity_bytes) for d in plan_figures(plan)] == [(None, None)] * 2
    known = plan_figures(plan, problem)
    assert [(d.stages, d.static_bytes, d.capacity_bytes) for d in known] == [
        ((0,), 5000, 50_000),
        ((1, 2), 10_000, 50_000),
    ]


def test_replay_takes_times_from_the_new_network() -> None:
    """A replay counts times on the problem it is given, and adds the plan's receive buffers to the peaks."""
    problem = make_problem(2, 4)
    plan = sample_plan(problem, one_f_one_b(problem))
    slow = make_problem(2, 4, latency_ms=3)
    schedule = one_f_one_b(slow)
    timeline = simulate(slow, schedule)
    figures = replay_figures(plan, slow, schedule, timeline, memory_peaks(slow, schedule.orders))
    assert {device.makespan_ns for device in figures} == {timeline.makespan_ns}
    assert timeline.makespan_ns > plan.claims.makespan_ns
    # Device 1 has the activation channel: window 2 times 100 bytes.
    assert [device.peak_bytes for device in figures] == [5000 + 2 * 1000, 5000 + 1000 + 200]
