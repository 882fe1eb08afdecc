"""The validator: reports every fault of a plan, sharing no code with what makes plans.

It reads the plan's own words and executes them on its own machine, so a mistake in the simulator, in a search or in
the lowering cannot hide itself. Checks, in the order of what they build on: header, instructions one by one, compute
ops, messages, their order at both ends, deadlock, collectives, copies, windows, memory, times, claimed transports.
"""

from __future__ import annotations

from cpipe.errors import Diagnostic, UsageError
from cpipe.ir import Plan, Problem
from cpipe.plan.validate.collectives import check_collectives
from cpipe.plan.validate.compute import check_compute
from cpipe.plan.validate.copies import check_copies
from cpipe.plan.validate.deadlock import check_deadlock
from cpipe.plan.validate.identity import check_bound, check_identity, same_shape
from cpipe.plan.validate.layout import check_layout
from cpipe.plan.validate.memory import check_memory
from cpipe.plan.validate.messages import check_messages
from cpipe.plan.validate.report import Report
from cpipe.plan.validate.steps import check_steps
from cpipe.plan.validate.streams import TRANSPORTS, check_streams, collect_ends
from cpipe.plan.validate.times import check_replay, check_stated_times
from cpipe.plan.validate.transports import check_transports, safe_transports
from cpipe.plan.validate.windows import check_windows

__all__ = ["TRANSPORTS", "safe_transports", "validate"]


def validate(
    plan: Plan,
    problem: Problem | None = None,
    *,
    file: str | None = None,
    transport: str = "channels",
    closed_bound_ns: int | None = None,
) -> tuple[Diagnostic, ...]:
    """Check a plan.

    Parameters
    ----------
    plan
        Any plan that could be decoded.
    problem
        What it should solve. Without it, memory, message sizes and the network's times cannot be checked.
    file
        Name for the messages.
    transport
        Under which queue model it must not hang: one of `TRANSPORTS`.
    closed_bound_ns
        The lower bound of the problem [ns] that closed forms prove, to hold a claim of one against.

    Returns
    -------
    tuple of Diagnostic
        Every fault with the path of the instruction, in file order; empty when the plan is right. A plan that
        cannot finish is never given a makespan, so its times are not compared.

    Raises
    ------
    UsageError
        When there is no such transport.
    """
    if transport not in TRANSPORTS:
        raise UsageError(f"unknown transport {transport!r}, known are {', '.join(TRANSPORTS)}", code="transport")
    report = Report(file)
    check_identity(plan, problem, report)
    check_bound(plan, closed_bound_ns, report)
    if problem is not None and not same_shape(plan, problem):
        problem = None
    before = len(report)
    layout = check_layout(plan, report)
    sane_header = len(report) == before
    programs = check_steps(layout, report)
    computed = check_compute(layout, programs, problem, report)
    sane_ops = len(report) == before
    check_messages(layout, programs, computed, report)
    ends = collect_ends(layout, programs)
    check_streams(ends, transport, report)
    finishes = check_deadlock(layout, programs, ends, transport, report)
    check_collectives(layout, programs, problem, report)
    check_copies(layout, programs, problem, report)
    sane = finishes and len(report) == before
    windows = check_windows(layout, programs, problem, report)
    if problem is not None and sane_header and sane_ops:
        check_memory(layout, programs, windows, problem, report)
    if problem is not None and sane:
        check_replay(layout, programs, problem, report)
    elif finishes:
        check_stated_times(layout, programs, computed, sane, report)
    check_transports(layout, programs, ends, transport if sane else None, report)
    return report.diagnostics()
