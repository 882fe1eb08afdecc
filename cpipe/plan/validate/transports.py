"""The transports that a plan claims to be right for, each run as the deadlock check runs the one that was asked for.

A transport whose queues join those of another keeps a stricter order: what finishes under it finishes under the other,
too, and in the same pairs. So the strictest go first, and most plans need one run.
"""

from __future__ import annotations

from collections.abc import Collection

from cpipe.errors import Diagnostic
from cpipe.ir import Plan
from cpipe.plan.validate.deadlock import check_deadlock
from cpipe.plan.validate.layout import Layout, Step, check_layout
from cpipe.plan.validate.report import Report
from cpipe.plan.validate.steps import check_steps
from cpipe.plan.validate.streams import TRANSPORTS, End, check_streams, collect_ends

__all__ = ["check_transports", "safe_transports"]

_LOOSER = {
    "nccl-rank": ("nccl-pair", "nccl-dir2", "gloo", "channels"),
    "nccl-pair": ("gloo", "channels"),
    "nccl-dir2": ("channels",),
    "gloo": ("channels",),
    "channels": (),
}
"""The transports that a plan is right for when it is right for this one; the strictest first."""


def safe_transports(plan: Plan) -> tuple[str, ...]:
    """Return the transports under which `plan` swaps no message and cannot hang, in the order of `TRANSPORTS`.

    Everything else that may be wrong with a plan is the business of `cpipe.plan.validate`.
    """
    layout = check_layout(plan, Report(None))
    programs = check_steps(layout, Report(None))
    wrong = _wrong(layout, programs, collect_ends(layout, programs), TRANSPORTS)
    return tuple(name for name in TRANSPORTS if name not in wrong)


def check_transports(
    layout: Layout, programs: dict[int, list[Step]], ends: list[End], known: str | None, report: Report
) -> None:
    """Check every transport of the plan's claims; `known` was found right already."""
    claimed = layout.plan.claims.transports
    wrong = _wrong(layout, programs, ends, claimed, known)
    for index, name in enumerate(claimed):
        path = f"$.claims.transports[{index}]"
        if name not in TRANSPORTS:
            report.header("wrong-transport", path, f"no transport {name!r}, known are {', '.join(TRANSPORTS)}")
        elif name in wrong:
            fault = wrong[name]
            message = f"the plan claims to be right under {name}, but: {fault.message} [{fault.code}]"
            report.header("wrong-transport", path, message)


def _wrong(
    layout: Layout, programs: dict[int, list[Step]], ends: list[End], wanted: Collection[str], known: str | None = None
) -> dict[str, Diagnostic]:
    """Return the wanted transports under which something is swapped or hangs, each with its first fault."""
    right = set() if known is None else {known, *_LOOSER[known]}
    wrong: dict[str, Diagnostic] = {}
    for name, looser in _LOOSER.items():
        if name not in wanted or name in right:
            continue
        report = Report(None)
        check_streams(ends, name, report)
        if not check_deadlock(layout, programs, ends, name, report) and not len(report):
            report.header("deadlock", "$.ranks", "a message has one end only")
        if len(report):
            wrong[name] = report.diagnostics()[0]
        else:
            right.update((name, *looser))
    return wrong
