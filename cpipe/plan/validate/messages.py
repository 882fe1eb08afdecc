"""Messages: sent once after their producer, received and waited for once before their consumer."""

from __future__ import annotations

from cpipe.plan.validate.compute import Computed
from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.report import Report

__all__ = ["check_messages"]

_Key = tuple[str, int, int]  # phase of the producer or consumer (F or D), its stage, microbatch
_NAMES = {"SEND": "send", "RECV": "receive", "WAIT": "wait"}


def check_messages(layout: Layout, programs: dict[int, list[Step]], computed: Computed, report: Report) -> None:
    """Check SEND, RECV and WAIT of every rank against the ops that make and read the messages."""
    ops_of: dict[int, list[tuple[_Key, Step]]] = {rank: [] for rank in programs}
    for key, op in computed.items():
        if op.op != "W":
            ops_of[layout.placement[op.stage]].append((key, op))
    for rank, steps in programs.items():
        place = layout.programs[rank][0]
        found = _collect(layout, rank, place, steps, report)
        for (name, key), step in found.items():
            if key not in computed:
                message = f"rank {rank}: {step}: the op of this message is not in the program"
                report.step(f"stray-{_NAMES[name]}", place, step.at, message)
        for key, op in ops_of[rank]:
            _check_sent(layout, rank, place, op, found.get(("SEND", key)), report)
            _check_received(layout, rank, place, op, found.get(("RECV", key)), found.get(("WAIT", key)), report)


def _collect(layout: Layout, rank: int, place: int, steps: list[Step], report: Report) -> dict[tuple[str, _Key], Step]:
    """Return the first SEND, RECV and WAIT of every message; report the others."""
    found: dict[tuple[str, _Key], Step] = {}
    for step in steps:
        if step.channel < 0:
            continue
        phase = "F" if layout.channels[step.channel].carries == "activation" else "D"
        first = found.setdefault((step.op, (phase, step.stage, step.mb)), step)
        if first is not step:
            message = f"rank {rank}: {step} on channel {step.channel} is at ops[{first.at}] already"
            report.step(f"duplicate-{_NAMES[step.op]}", place, step.at, message)
    return found


def _check_sent(layout: Layout, rank: int, place: int, op: Step, send: Step | None, report: Report) -> None:
    """What another rank needs is sent, after it is made."""
    target = layout.target_of(op.op, op.stage)
    if target < 0 or target == rank:
        return
    if send is None:
        message = f"rank {rank}: {op} is needed on rank {target} and never sent"
        report.step("missing-send", place, op.at, message)
    elif send.at < op.at:
        message = f"rank {rank}: {send} comes before {op.op} makes it, at ops[{op.at}]"
        report.step("early-send", place, send.at, message)


def _check_received(
    layout: Layout, rank: int, place: int, op: Step, receive: Step | None, wait: Step | None, report: Report
) -> None:
    """What another rank makes is received, then waited for, then read."""
    source = layout.source_of(op.op, op.stage)
    if source < 0 or source == rank:
        return
    if receive is None:
        message = f"rank {rank}: {op} reads a message from rank {source} that is never received"
        report.step("missing-receive", place, op.at, message)
    if wait is None:
        message = f"rank {rank}: {op} reads a message from rank {source} without a WAIT for it"
        report.step("missing-wait", place, op.at, message)
        return
    if wait.at > op.at:
        message = f"rank {rank}: {wait} comes after {op.op} has read the message, at ops[{op.at}]"
        report.step("late-wait", place, wait.at, message)
    if receive is not None and receive.at > wait.at:
        message = f"rank {rank}: {receive} comes after its WAIT, at ops[{wait.at}]"
        report.step("late-receive", place, receive.at, message)
