"""Tests of cpipe.runtime.compare: the plan's predictions against records."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

from helpers import plan_of
from sample_plans import make_problem, one_f_one_b

from cpipe.ir import Plan
from cpipe.runtime.compare import compare_channels, compare_devices, step_seconds
from cpipe.runtime.records import OpRecord


def latency_plan() -> Plan:
    """Return 1F1B of two ranks and two microbatches, 1 ms of latency: F 2 ms, B 3 ms."""
    problem = make_problem(2, 2, latency_ms=1)
    return plan_of(problem, one_f_one_b(problem))


def records_of(plan: Plan, slowness: float) -> dict[int, list[OpRecord]]:
    """Return records of a run in which every op starts and ends `slowness` times as late as planned."""
    records: dict[int, list[OpRecord]] = {}
    for program in plan.ranks:
        rank = records.setdefault(program.rank, [])
        now = 0.0
        for index, op in enumerate(program.ops):
            start = end = now
            if op.start_ns is not None:
                start, end = op.start_ns * slowness / 1e9, (op.end_ns or 0) * slowness / 1e9
            elif op.op == "WAIT":
                end = (program.ops[index + 1].start_ns or 0) * slowness / 1e9
            now = end
            rank.append(OpRecord(op.op, op.stage, op.mb, op.channel, start, end, end - start))
    return records


def test_a_run_as_planned() -> None:
    """Records at the plan's own times give the plan's own numbers, waits included."""
    plan = latency_plan()
    records = records_of(plan, 1.0)
    assert step_seconds(records) == pytest.approx(plan.claims.makespan_ns / 1e9)
    devices, channels = compare_devices(plan, records), compare_channels(plan, records)
    for device in devices:
        assert device.order_kept
        assert device.measured_busy_ms == pytest.approx(device.predicted_busy_ms) == pytest.approx(10.0)
        assert device.measured_idle_ms == pytest.approx(device.predicted_idle_ms)
    for channel in channels:
        assert channel.num_messages == 2
        assert channel.measured_wait_ms == pytest.approx(channel.predicted_wait_ms)
    # by hand: rank 1 waits for its first activation; rank 0 for the first gradient and, 3 ms later, for the second
    assert [channel.predicted_wait_ms for channel in channels] == [3.0, 5.0 + 2.0]


def test_the_scale_multiplies_predictions() -> None:
    """The plan's times are scaled, the measured ones are not."""
    plan = latency_plan()
    records = records_of(plan, 3.0)
    for device in compare_devices(plan, records, 3.0):
        assert device.measured_busy_ms == pytest.approx(device.predicted_busy_ms) == pytest.approx(30.0)
    assert compare_channels(plan, records, 3.0)[0].predicted_wait_ms == pytest.approx(9.0)


def test_another_order_is_noticed() -> None:
    """Ops in another order, or missing, are not the plan's."""
    plan = latency_plan()
    records = records_of(plan, 1.0)
    first, second = (index for index, item in enumerate(records[0]) if item.op == "F")
    swapped = list(records[0])
    swapped[first], swapped[second] = swapped[second], swapped[first]
    assert [item.order_kept for item in compare_devices(plan, {**records, 0: swapped})] == [False, True]
    short = [item for item in records[1] if item.op != "B"]
    assert [item.order_kept for item in compare_devices(plan, {**records, 1: short})] == [True, False]


def test_posted_communication_does_not_make_a_step_longer() -> None:
    """The makespan ends with compute or a collective, not with a wait or what is still posted."""
    records = {0: [OpRecord("F", 0, 0, None, 0.0, 1.0), OpRecord("SEND", 0, 0, 0, 1.0, 9.0)]}
    assert step_seconds(records) == 1.0
    records[0].append(OpRecord("ALL_REDUCE", 0, None, None, 1.0, 3.0))
    records[0].append(OpRecord("WAIT", 0, None, None, 1.0, 4.0))
    assert step_seconds(records) == 3.0
