"""The JSON report of `cpipe explain`: why a plan takes as long as it does, complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from cpipe.errors import Diagnostic
from cpipe.ir import Objective, Plan
from cpipe.ir.base import Frozen
from cpipe.ir.explanation import Change, Explanation, Follows, IdleCause, Segment, SegmentKind
from cpipe.report.document import DiagnosticReport, diagnostic_reports
from cpipe.report.figures import DeviceFigures
from cpipe.units import ns_to_ms

__all__ = [
    "ExplainDeviceReport",
    "ExplainReport",
    "IdleReport",
    "SegmentReport",
    "Share",
    "ShareReport",
    "WhatIfReport",
    "explain_report",
    "load_balance",
    "path_shares",
]


class IdleReport(Frozen, frozen=True, kw_only=True):
    """How long a device is idle for one cause [ms]; `carries` and `link` are of the messages awaited.

    `cause` is ``warm-up``, ``upstream`` (the message is not made yet), ``link`` (it is under way), ``memory`` (a
    forward that could run does not fit), ``data-parallel``, ``copy`` (to or from host memory), ``tail`` or ``other``.
    """

    cause: IdleCause
    ms: float
    carries: Literal["activation", "gradient"] | None
    link: str | None


class ExplainDeviceReport(Frozen, frozen=True, kw_only=True):
    """One device: `busy_ms` and the idle times fill the makespan.

    `in_flight` is the most microbatches whose forward has started and whose backward has not ended; `static_bytes` and
    `capacity_bytes` are null without a profile, or without a limit.
    """

    id: str
    busy_ms: float
    bubble: float
    in_flight: int
    peak_bytes: int
    static_bytes: int | None
    capacity_bytes: int | None
    idle: tuple[IdleReport, ...]


class ShareReport(Frozen, frozen=True, kw_only=True):
    """How much of the critical path is of one kind, on one device or link [ms], and as a share of the makespan."""

    kind: SegmentKind
    device: str | None
    link: str | None
    ms: float
    share: float


class SegmentReport(Frozen, frozen=True, kw_only=True):
    """One piece of the critical path [ms]; see `cpipe.ir.explanation`.

    `label` is the op, the op that made the message, or the collective. `device` is where it is; of a message, the
    sender.
    """

    kind: SegmentKind
    follows: Follows
    start_ms: float
    end_ms: float
    label: str
    device: str | None
    carries: Literal["activation", "gradient"] | None
    link: str | None


class WhatIfReport(Frozen, frozen=True, kw_only=True):
    """What one change of the job would give [ms].

    Attributes
    ----------
    change
        ``none``: nothing, but a short search, as all the others get one; ``latency``: 10 % less; ``bandwidth``,
        ``memory``: 10 % more; ``collectives``: 10 % faster; ``less-memory``: 10 % less than the plan uses;
        ``microbatch``: one more.
    subject
        Name of the link or device; null for all of them.
    microbatches
        Of the changed job.
    replay_ms
        Makespan of the plan's own order; null where it does not fit. With one more microbatch, a period of it is run
        twice.
    found_ms
        Best makespan known, a short search included; null when there is none.
    lower_bound_ms
        No order is shorter.
    evaluations
        Orders timed by the search.
    """

    change: Change
    subject: str | None
    microbatches: int
    replay_ms: float | None
    found_ms: float | None
    lower_bound_ms: float
    evaluations: int


class ExplainReport(Frozen, frozen=True, kw_only=True):
    """Why a plan takes as long as it does.

    Attributes
    ----------
    status
        ``done``; ``invalid``: the plan cannot run; ``error``: it could not be read or tried.
    profile_checked
        Whether a profile gave costs; without one, links, memory and what-ifs are not told.
    plan_status
        ``optimal``: the objective meets the bound; ``feasible``: a better order may exist.
    objective, makespan_ms, claimed_ms
        What was minimised; makespan of the replay, and the plan's own [ms].
    lower_bound_ms, gap, proved_by, reason
        No order is better [ms]; what lies between; what proved it, and in words.
    method, found_by, seed, evaluations, solver_nodes
        How the order was found; `found_by` is null in plans that do not say.
    bottleneck, load_balance
        The device with most work; mean by maximum of the devices' work.
    shares
        What the critical path is made of, largest first.
    path
        The critical path: each piece begins where the one before it ends, from 0 to the makespan.
    devices
        In rank order.
    what_ifs
        The unchanged job first.
    diagnostics
        Errors and warnings.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["explain"] = "explain"
    status: Literal["done", "invalid", "error"]
    profile_checked: bool | None = None
    plan_status: Literal["optimal", "feasible"] | None = None
    objective: Objective | None = None
    makespan_ms: float | None = None
    claimed_ms: float | None = None
    lower_bound_ms: float | None = None
    gap: float | None = None
    proved_by: str | None = None
    reason: str | None = None
    method: str | None = None
    found_by: str | None = None
    seed: int | None = None
    evaluations: int | None = None
    solver_nodes: int | None = None
    bottleneck: str | None = None
    load_balance: float | None = None
    shares: tuple[ShareReport, ...] = ()
    path: tuple[SegmentReport, ...] = ()
    devices: tuple[ExplainDeviceReport, ...] = ()
    what_ifs: tuple[WhatIfReport, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


class Share(NamedTuple):
    """How much of a critical path [ns] is of one kind on one device (-1: none) or pipe."""

    kind: SegmentKind
    device: int
    pipe: int | None
    length: int


def path_shares(path: Iterable[Segment]) -> list[Share]:
    """Return what a critical path is made of, largest first; a message counts for its link, not for a device."""
    sums: dict[tuple[SegmentKind, int, int | None], int] = {}
    for piece in path:
        key = piece.kind, -1 if piece.pipe is not None else piece.device, piece.pipe
        sums[key] = sums.get(key, 0) + piece.length_ns
    return sorted((Share(*key, length) for key, length in sums.items()), key=lambda share: -share.length)


def load_balance(figures: Sequence[DeviceFigures]) -> float:
    """Return mean / maximum of the devices' busy times, 1 when nobody has anything to do."""
    busiest = max((device.busy_ns for device in figures), default=0)
    return sum(device.busy_ns for device in figures) / (len(figures) * busiest) if busiest else 1.0


def explain_report(
    plan: Plan,
    explanation: Explanation | None,
    figures: Sequence[DeviceFigures] = (),
    diagnostics: Sequence[Diagnostic] = (),
    *,
    profile_checked: bool,
) -> ExplainReport:
    """Return the report of an explanation; it is None when the plan cannot run.

    `figures` are those of its replay, in rank order.
    """
    found = diagnostic_reports(diagnostics)
    if explanation is None:
        return ExplainReport(status="invalid", profile_checked=profile_checked, diagnostics=found)
    made_by, bound = plan.made_by, explanation.bound
    names = [device.name for device in figures]
    return ExplainReport(
        status="done",
        profile_checked=profile_checked,
        plan_status=explanation.status,
        objective=explanation.objective,
        makespan_ms=ns_to_ms(explanation.makespan_ns),
        claimed_ms=ns_to_ms(plan.claims.makespan_ns),
        lower_bound_ms=ns_to_ms(bound.value_ns),
        gap=explanation.gap,
        proved_by=bound.proved_by,
        reason=bound.reason or None,
        method=made_by.method,
        found_by=made_by.found_by or None,
        seed=made_by.seed,
        evaluations=made_by.evaluations,
        solver_nodes=made_by.solver_nodes,
        bottleneck=max(figures, key=lambda device: device.busy_ns).name if figures else None,
        load_balance=load_balance(figures),
        shares=_shares(explanation, names),
        path=_path(explanation, names),
        devices=tuple(_device(explanation, figures, index) for index in range(len(figures))),
        what_ifs=_what_ifs(explanation),
        diagnostics=found,
    )


def _shares(explanation: Explanation, names: Sequence[str]) -> tuple[ShareReport, ...]:
    return tuple(
        ShareReport(
            kind=share.kind,
            device=names[share.device] if share.device >= 0 else None,
            link=None if share.pipe is None else explanation.pipes[share.pipe],
            ms=ns_to_ms(share.length),
            share=share.length / explanation.makespan_ns,
        )
        for share in path_shares(explanation.path)
    )


def _path(explanation: Explanation, names: Sequence[str]) -> tuple[SegmentReport, ...]:
    return tuple(
        SegmentReport(
            kind=piece.kind,
            follows=piece.follows,
            start_ms=ns_to_ms(piece.start_ns),
            end_ms=ns_to_ms(piece.end_ns),
            label=piece.label,
            device=names[piece.device] if piece.device >= 0 else None,
            carries=piece.carries,
            link=None if piece.pipe is None else explanation.pipes[piece.pipe],
        )
        for piece in explanation.path
    )


def _device(explanation: Explanation, figures: Sequence[DeviceFigures], index: int) -> ExplainDeviceReport:
    sums: dict[tuple[IdleCause, Literal["activation", "gradient"] | None, int | None], int] = {}
    for part in explanation.idle:
        if part.device == index:
            key = part.cause, part.carries, part.pipe
            sums[key] = sums.get(key, 0) + part.length_ns
    device = figures[index]
    return ExplainDeviceReport(
        id=device.name,
        busy_ms=ns_to_ms(device.busy_ns),
        bubble=device.bubble,
        in_flight=device.in_flight,
        peak_bytes=device.peak_bytes,
        static_bytes=device.static_bytes,
        capacity_bytes=device.capacity_bytes,
        idle=tuple(
            IdleReport(
                cause=cause,
                ms=ns_to_ms(length),
                carries=carries,
                link=None if pipe is None else explanation.pipes[pipe],
            )
            for (cause, carries, pipe), length in sums.items()
        ),
    )


def _what_ifs(explanation: Explanation) -> tuple[WhatIfReport, ...]:
    return tuple(
        WhatIfReport(
            change=case.change,
            subject=case.subject,
            microbatches=case.microbatches,
            replay_ms=None if case.replay_ns is None else ns_to_ms(case.replay_ns),
            found_ms=None if case.found_ns is None else ns_to_ms(case.found_ns),
            lower_bound_ms=ns_to_ms(case.bound_ns),
            evaluations=case.evaluations,
        )
        for case in explanation.what_ifs
    )
