"""Tests of cpipe.report.shown: the JSON report of `show`."""

from __future__ import annotations

import json

import jsonschema
import pytest
from sample_plans import MS, make_problem, one_f_one_b
from view_cases import alone, random_views, replayed, small_view

from cpipe.errors import Diagnostic
from cpipe.report.document import encode_report, report_schema
from cpipe.report.shown import LaneReport, ShownPlan, show_report
from cpipe.report.shown_plan import shown
from cpipe.report.time_axis import TimeWindow


def lane(plan: ShownPlan, kind: str, rank: int = 0) -> LaneReport:
    """Return the first lane of a kind on a rank."""
    return next(lane for lane in plan.lanes if lane.kind == kind and lane.rank == rank)


def test_report_meets_its_schema() -> None:
    """The report of one plan and of two, with warnings, meets the generated schema."""
    problem = make_problem(2, 3, latency_ms=1)
    views = [small_view(2, 3), alone(problem, one_f_one_b(problem))]
    warning = Diagnostic(code="plan-digest", message="changed", severity="warning", file="b.json")
    for count in (1, 2):
        report = show_report([shown(view, "b.json") for view in views[:count]], [warning])
        document = json.loads(encode_report(report))
        jsonschema.validate(document, report_schema())
        assert (document["status"], len(document["plans"])) == ("done", count)


def test_lanes_add_up() -> None:
    """Busy times are the sums of the bars, utilisations their share of the makespan, on devices what is no bubble."""
    for view in random_views(15, seed=21):
        plan = shown(view, "x")
        for found in plan.lanes:
            assert found.busy_ms == pytest.approx(sum(bar.end_ms - bar.start_ms for bar in found.bars))
            assert found.busy_ms is not None
            assert found.utilisation == pytest.approx(found.busy_ms / plan.makespan_ms if plan.makespan_ms else 0)
        for found, device in zip([one for one in plan.lanes if one.kind == "compute"], plan.devices, strict=True):
            assert found.busy_ms == device.busy_ms
            assert found.utilisation == pytest.approx(1 - device.bubble if plan.makespan_ms else 0)


def test_every_lane_is_there() -> None:
    """A plan has one compute lane a rank, one lane for its collectives, and one lane a channel, with its bars."""
    for view in random_views(15, seed=22):
        plan = shown(view, "x")
        kinds = [found.kind for found in plan.lanes]
        assert kinds.count("compute") == len(view.ranks)
        assert kinds.count("collectives") == len({run.rank for run in view.collectives})
        assert sorted(found.channel for found in plan.lanes if found.channel is not None) == [
            channel.id for channel in view.channels
        ]
        assert sum(len(found.bars) for found in plan.lanes) == sum(
            map(len, (view.ops, view.messages, view.collectives))
        )


def test_links_have_all_that_goes_over_them() -> None:
    """The busy times of the links are those of their messages and collectives, counted by the timeline."""
    for view in random_views(25, seed=23):
        assert view.timeline is not None
        assert view.problem is not None
        shared = view.problem.collectives.pipes if view.problem.collectives else ()
        held = sum(run.end_ns - run.start_ns for run in view.timeline.messages)
        held += len(shared) * sum(run.end_ns - run.start_ns for run in view.timeline.collectives)
        plan = shown(view, "x")
        assert sum(link.busy_ms for link in plan.links) * MS == pytest.approx(held)
        assert sum(link.num_messages for link in plan.links) == len(view.messages)
        assert all(0 <= link.utilisation <= 1 for link in plan.links)


def test_without_a_profile_nothing_is_made_up() -> None:
    """A plan alone has no link times, no link names, no arrivals and no static bytes."""
    problem = make_problem(2, 3, latency_ms=1)
    plan = shown(alone(problem, one_f_one_b(problem)), "x")
    assert (plan.replayed, plan.links) == (False, ())
    assert {(channel.busy_ms, channel.utilisation, channel.link) for channel in plan.channels} == {(None, None, None)}
    assert {bar.arrival_ms for bar in lane(plan, "channel").bars} == {None}
    assert {device.static_bytes for device in plan.devices} == {None}


def test_bars_by_hand() -> None:
    """Two devices, one microbatch: what starts when, what it waited for, what is critical."""
    plan = shown(small_view(2, 1, split=False), "plan.json")
    forward, backward = lane(plan, "compute").bars
    assert (forward.op, forward.start_ms, forward.end_ms, forward.waits_for) == ("F", 0.0, 2.0, "nothing")
    assert (backward.start_ms, backward.end_ms) == (9.0, 12.0)
    assert backward.waits_for == "the gradient of 1B0 from g1"
    (message,) = lane(plan, "channel").bars
    assert (message.start_ms, message.end_ms, message.arrival_ms) == (2.0, 2.0, 3.0)
    assert plan.critical_ops == ("0F0", "1F0", "1B0", "0B0")
    assert all(bar.critical for found in plan.lanes for bar in found.bars)
    assert (plan.makespan_ms, plan.lower_bound_ms, plan.gap) == (12.0, 0.0, 1.0)
    first = plan.channels[0]
    assert (first.source, first.target, first.carries, first.link, first.idle_ms) == (
        "g0",
        "g1",
        "activation",
        "0-1",
        3,
    )
    assert plan.channels[1].idle_ms == 7.0


def test_window_and_ranks_choose_bars_only() -> None:
    """A part of time and some ranks leave out bars and lanes; all other numbers are of the whole plan."""
    view = small_view(3, 6)
    whole = shown(view, "x")
    part = shown(view.only_ranks([1]), "x", TimeWindow(9 * MS, 16 * MS))
    assert {found.rank for found in part.lanes} == {1}
    assert [device.id for device in part.devices] == ["g1"]
    for found in part.lanes:
        full = next(one for one in whole.lanes if one.name == found.name)
        assert (found.busy_ms, found.utilisation) == (full.busy_ms, full.utilisation)
        assert 0 < len(found.bars) < len(full.bars)
        for bar in found.bars:
            assert bar.end_ms >= 9 or (bar.arrival_ms or 0) >= 9
            assert bar.start_ms <= 16
    assert (part.makespan_ms, part.links, part.channels) == (whole.makespan_ms, whole.links, whole.channels)


def test_bound_of_another_job_is_left_out() -> None:
    """Replayed on another job, a plan's bound says nothing: bound, gap and prover are null."""
    problem = make_problem(2, 2)
    plan = shown(replayed(problem, one_f_one_b(problem), same_job=False), "x")
    assert (plan.lower_bound_ms, plan.gap, plan.proved_by) == (None, None, None)
