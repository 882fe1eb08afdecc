"""Channels against what the programs do with them: used, windows as declared, messages as large as the problem's."""

from __future__ import annotations

from collections import Counter

from cpipe.ir import Problem
from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.report import Report

__all__ = ["check_windows"]


def check_windows(
    layout: Layout, programs: dict[int, list[Step]], problem: Problem | None, report: Report
) -> dict[int, int]:
    """Check the declared windows and sizes; return the window of each channel, counted over its receiver's program."""
    windows = Counter[int]()
    for steps in programs.values():
        windows |= _count(layout, steps)
    sizes = _sizes(problem) if problem is not None else None
    for index, channel in layout.channels.items():
        path = f"$.channels[{index}]"
        counted = windows[index]
        if counted == 0:
            report.header("unused-channel", path, f"channel {index} has no receive")
        if channel.window != counted:
            message = f"channel {index}: {counted} receives are open at once, the plan says {channel.window}"
            report.header("window", f"{path}.window", message)
        if problem is not None and problem.receive_window is not None and counted > problem.receive_window:
            message = f"channel {index}: {counted} receives are open at once, allowed are {problem.receive_window}"
            report.header("window-cap", f"{path}.window", message)
        if channel.message_bytes < 0:
            report.header("message-bytes", f"{path}.message_bytes", f"channel {index}: size {channel.message_bytes}")
        size = sizes.get((channel.source, channel.target, channel.carries)) if sizes is not None else None
        if size is not None and channel.message_bytes != size:
            message = f"channel {index}: messages of {channel.message_bytes} bytes, the problem has {size}"
            report.header("message-bytes", f"{path}.message_bytes", message)
    if problem is None:
        _check_buffers(layout, windows, report)
    return windows


def _check_buffers(layout: Layout, windows: dict[int, int], report: Report) -> None:
    """Check the claimed peaks against the posted receives alone: all that is known of memory without a problem."""
    buffers = Counter[int]()
    for index, channel in layout.channels.items():
        buffers[channel.target] += windows[index] * channel.message_bytes
    for rank, peak in enumerate(layout.plan.claims.peak_bytes):
        if peak < buffers[rank]:
            message = f"rank {rank}: posted receives alone take {buffers[rank]} bytes, the plan says a peak of {peak}"
            report.header("wrong-peak", f"$.claims.peak_bytes[{rank}]", message)


def _count(layout: Layout, steps: list[Step]) -> Counter[int]:
    """Return the most receives of each channel that are posted and not yet read at once."""
    windows = Counter[int]()
    posted = Counter[int]()
    reads: dict[tuple[str, int, int], int] = {}
    for step in steps:
        if step.op == "RECV":
            posted[step.channel] += 1
            windows[step.channel] = max(windows[step.channel], posted[step.channel])
            reads[layout.channels[step.channel].carries, step.stage, step.mb] = step.channel
        elif step.op in ("F", "D", "B"):
            channel = reads.pop((layout.carries(step.op), step.stage, step.mb), None)
            if channel is not None:
                posted[channel] -= 1
    return windows


def _sizes(problem: Problem) -> dict[tuple[int, int, str], int]:
    """Return the largest message [bytes] of each (source, target, kind)."""
    sizes: dict[tuple[int, int, str], int] = {}
    for carries, hops in (("activation", problem.forward_hops), ("gradient", problem.backward_hops)):
        for hop in hops:
            if hop is not None:
                key = (hop.source, hop.target, carries)
                sizes[key] = max(sizes.get(key, 0), hop.message_bytes)
    return sizes
