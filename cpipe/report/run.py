"""The text that people read after `run`: predicted against measured."""

from __future__ import annotations

from cpipe.report.document import RunReport
from cpipe.report.tables import render_table

__all__ = ["run_lines"]

_FAR, _SHORT_MS = 1.5, 1
"""From which measured / predicted on, and below which mean op [ms], a run says why it is that far off."""


def run_lines(report: RunReport) -> str:
    """Return the summary of a run: verdict, ranks, channels.

    `report` is of a plan that ran; every time is of its fastest step.
    """
    parts = (
        _gradient_line(report),
        _time_line(report),
        "",
        _devices(report),
        "",
        _channels(report),
        *_short_ops(report),
    )
    return "\n".join(parts).rstrip()


def _gradient_line(report: RunReport) -> str:
    ranks = f"{report.model} on {len(report.devices)} ranks, {len(report.step_ms)} steps"
    if not report.gradients_checked:
        return f"{report.status}: {ranks}; gradients not checked"
    shown = "infinite" if report.max_abs_difference is None else f"{report.max_abs_difference:g}"
    verdict = "differ from" if report.status == "mismatch" else "are"
    return f"{report.status}: {ranks}; gradients {verdict} those of a single process, largest difference {shown}"


def _time_line(report: RunReport) -> str:
    measured, predicted = report.makespan_ms or 0.0, report.predicted_ms or 0.0
    ratio = f", measured / predicted {measured / predicted:.3f}" if predicted else ""
    return f"fastest step {measured:.3f} ms, the plan predicts {predicted:.3f} ms{ratio}"


def _short_ops(report: RunReport) -> list[str]:
    """Return why the times are far from the plan's, where ops are too short to predict."""
    measured, predicted = report.makespan_ms or 0.0, report.predicted_ms or 0.0
    num_ops = sum(device.num_ops for device in report.devices)
    mean = sum(device.predicted_busy_ms for device in report.devices) / max(1, num_ops)
    if measured <= _FAR * predicted or mean >= _SHORT_MS:
        return []
    return ["", f"an op takes {mean:.3f} ms on average; below {_SHORT_MS} ms the host's own work counts for more"]


def _devices(report: RunReport) -> str:
    headers = ("device", "ops", "order", "busy predicted ms", "measured", "idle predicted ms", "measured")
    rows = [
        (
            device.id,
            str(device.num_ops),
            "kept" if device.order_kept else "NOT KEPT",
            f"{device.predicted_busy_ms:.3f}",
            f"{device.measured_busy_ms:.3f}",
            f"{device.predicted_idle_ms:.3f}",
            f"{device.measured_idle_ms:.3f}",
        )
        for device in report.devices
    ]
    return render_table(headers, rows, ("<", ">", "<", ">", ">", ">", ">"))


def _channels(report: RunReport) -> str:
    if not report.channels:
        return ""
    headers = ("channel", "carries", "messages", "waits predicted ms", "measured")
    names = [device.id for device in report.devices]
    rows = [
        (
            f"{names[channel.source]} -> {names[channel.target]}",
            channel.carries,
            str(channel.num_messages),
            f"{channel.predicted_wait_ms:.3f}",
            f"{channel.measured_wait_ms:.3f}",
        )
        for channel in report.channels
    ]
    return render_table(headers, rows, ("<", "<", ">", ">", ">"))
