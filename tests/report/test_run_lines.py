"""The text of `run`: what it says of times that are far from the plan's."""

from __future__ import annotations

import pytest

from cpipe.report.document import RunDeviceReport, RunReport
from cpipe.report.run import run_lines


def report(busy_ms: float, measured_ms: float) -> RunReport:
    """Return the report of a run of ten ops on one device that the plan gives `busy_ms`."""
    device = RunDeviceReport(
        id="g0",
        num_ops=10,
        order_kept=True,
        predicted_busy_ms=busy_ms,
        measured_busy_ms=measured_ms,
        predicted_idle_ms=0.0,
        measured_idle_ms=0.0,
    )
    return RunReport(
        status="done",
        model="m",
        step_ms=(measured_ms,),
        makespan_ms=measured_ms,
        predicted_ms=busy_ms,
        devices=(device,),
    )


@pytest.mark.parametrize(
    ("busy_ms", "measured_ms", "says"),
    [(2.0, 20.0, True), (2.0, 2.5, False), (200.0, 900.0, False), (0.0, 0.0, False)],
)
def test_short_ops_are_named_as_the_reason(busy_ms: float, measured_ms: float, says: bool) -> None:
    """A step that takes much longer than planned says so where its ops are too short to predict, and only there."""
    text = run_lines(report(busy_ms, measured_ms))
    assert ("an op takes 0.200 ms on average; below 1 ms" in text) is says
