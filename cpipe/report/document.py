"""The JSON reports of ``--json`` (format `cpipe.report`, version 1): one document per command, also on failure.

Every field but `_LEFT_OUT` is always there; what is not known is null. Times are [ms], sizes [bytes].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from cpipe.errors import Diagnostic
from cpipe.ir import Objective, Plan, SolveResult, Timeline
from cpipe.ir.base import Frozen
from cpipe.report.figures import DeviceFigures
from cpipe.units import ns_to_ms

if TYPE_CHECKING:
    from cpipe.report.check import CheckReport
    from cpipe.report.compared import CompareReport
    from cpipe.report.crossed import CrossoverReport
    from cpipe.report.diff import DiffReport
    from cpipe.report.explained import ExplainReport
    from cpipe.report.exported import ExportReport
    from cpipe.report.health import DoctorReport
    from cpipe.report.imported import ImportReport
    from cpipe.report.shown import ShowReport
    from cpipe.report.sweep import SweepReport

__all__ = [
    "DeviceReport",
    "DiagnosticReport",
    "ErrorReport",
    "Report",
    "RunChannelReport",
    "RunDeviceReport",
    "RunReport",
    "SimulateReport",
    "SolveReport",
    "ValidateReport",
    "device_report",
    "diagnostic_reports",
    "encode_report",
    "failure_report",
    "report_schema",
    "run_report",
    "simulate_report",
    "solve_report",
    "validate_report",
]


class DeviceReport(Frozen, frozen=True, kw_only=True):
    """One device over one iteration.

    Attributes
    ----------
    id
        The user's id.
    busy_ms
        Time spent computing [ms].
    bubble
        Idle share of the makespan, in [0, 1].
    peak_bytes
        Peak memory, posted receive buffers included [bytes].
    static_bytes
        Of it, always resident [bytes].
    capacity_bytes
        Limit [bytes], or null.
    """

    id: str
    busy_ms: float
    bubble: float
    peak_bytes: int
    static_bytes: int | None
    capacity_bytes: int | None


class DiagnosticReport(Frozen, frozen=True, kw_only=True):
    """One error or warning: the fields of `cpipe.errors.Diagnostic`, all of them always there."""

    severity: Literal["error", "warning"]
    code: str
    message: str
    file: str | None = None
    path: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None


class SolveReport(Frozen, frozen=True, kw_only=True):
    """What `cpipe solve` found.

    Attributes
    ----------
    status
        ``optimal``: the makespan meets the bound; ``feasible``: it may not be the best; ``infeasible``: it is
        proven that no schedule exists; ``no_solution``: nothing acceptable within the limits; ``error``: the
        search never ran.
    method
        What was asked for.
    found_by
        The generator or solver whose order it is.
    objective
        What was minimised: ``makespan`` or ``span``.
    makespan_ms, span_ms
        Of the plan: its last completion, and the longest time from a device's first start to its last end [ms].
    lower_bound_ms
        What no plan can beat [ms], of the objective.
    gap
        (objective - lower bound) / objective, in [0, 1].
    proved_by
        What proved the bound.
    placement
        Device index of each stage.
    recompute, offloads
        Stages that recompute, number of activations in host memory meanwhile; absent when there are none.
    devices
        In rank order.
    diagnostics
        Errors and warnings.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["solve"] = "solve"
    status: Literal["optimal", "feasible", "infeasible", "no_solution", "error"]
    method: str | None = None
    found_by: str | None = None
    objective: Objective | None = None
    makespan_ms: float | None = None
    span_ms: float | None = None
    lower_bound_ms: float | None = None
    gap: float | None = None
    proved_by: str | None = None
    placement: tuple[int, ...] | None = None
    recompute: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    offloads: int | msgspec.UnsetType = msgspec.UNSET
    devices: tuple[DeviceReport, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


class ValidateReport(Frozen, frozen=True, kw_only=True):
    """What `cpipe validate` found: ``valid``, ``invalid``, or ``error`` when the plan could not be read.

    `transport` is the queue model that was checked; `profile_checked` says whether costs and memory were checked
    against a profile; `bound_checked`, whether the lower bound was proved anew, which only closed forms allow.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["validate"] = "validate"
    status: Literal["valid", "invalid", "error"]
    transport: str | None = None
    profile_checked: bool | None = None
    bound_checked: bool | None = None
    diagnostics: tuple[DiagnosticReport, ...] = ()


class SimulateReport(Frozen, frozen=True, kw_only=True):
    """What a plan costs on a profile.

    Attributes
    ----------
    status
        ``done``; ``invalid``: the plan cannot run or never finishes; ``error``: it could not be tried.
    makespan_ms
        Of the plan on this profile [ms].
    claimed_ms
        What the plan itself claims [ms].
    difference_ms
        makespan_ms - claimed_ms [ms].
    devices
        In rank order.
    diagnostics
        Errors and warnings.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["simulate"] = "simulate"
    status: Literal["done", "invalid", "error"]
    makespan_ms: float | None = None
    claimed_ms: float | None = None
    difference_ms: float | None = None
    devices: tuple[DeviceReport, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


class RunDeviceReport(Frozen, frozen=True, kw_only=True):
    """One rank over the fastest step: what the plan predicts, and what was measured.

    `busy` is time in compute ops, `idle` the rest until its last op ended [ms]. `order_kept` says whether the ops that
    ran are the plan's, in its order.
    """

    id: str
    num_ops: int
    order_kept: bool
    predicted_busy_ms: float
    measured_busy_ms: float
    predicted_idle_ms: float
    measured_idle_ms: float


class RunChannelReport(Frozen, frozen=True, kw_only=True):
    """One channel over the fastest step: how long compute on the receiving rank stood still for it, in sum [ms]."""

    id: int
    source: int
    target: int
    carries: Literal["activation", "gradient"]
    num_messages: int
    predicted_wait_ms: float
    measured_wait_ms: float


class RunReport(Frozen, frozen=True, kw_only=True):
    """How a plan ran.

    Attributes
    ----------
    status
        ``done``; ``mismatch``: the gradients are not those of a single process; ``invalid``: the plan was not run,
        as it is not valid; ``error``: the run failed or was ended.
    model
        What ran.
    step_ms
        Makespan of every step [ms]; the first of several warms up.
    makespan_ms, predicted_ms
        Of the fastest step, and the plan's claim times the time scale [ms].
    gradients_checked, max_abs_difference
        Whether gradients were compared, and their largest difference; null when it is infinite or nothing was compared.
    devices, channels
        In rank order, and by id.
    diagnostics
        Errors and warnings.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["run"] = "run"
    status: Literal["done", "mismatch", "invalid", "error"]
    model: str | None = None
    step_ms: tuple[float, ...] = ()
    makespan_ms: float | None = None
    predicted_ms: float | None = None
    gradients_checked: bool | None = None
    max_abs_difference: float | None = None
    devices: tuple[RunDeviceReport, ...] = ()
    channels: tuple[RunChannelReport, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


class ErrorReport(Frozen, frozen=True, kw_only=True):
    """A call that no other report fits: a command that does not exist, or has no report of its own."""

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: str | None = None
    status: Literal["error"] = "error"
    diagnostics: tuple[DiagnosticReport, ...] = ()


Report: TypeAlias = (
    "SolveReport | ValidateReport | SimulateReport | ShowReport | ExplainReport | DiffReport | CheckReport | RunReport "
    "| CompareReport | CrossoverReport | ExportReport | ImportReport | DoctorReport | SweepReport | ErrorReport"
)


_REPORTS = {
    "solve": (__name__, "SolveReport"),
    "validate": (__name__, "ValidateReport"),
    "simulate": (__name__, "SimulateReport"),
    "show": ("cpipe.report.shown", "ShowReport"),
    "explain": ("cpipe.report.explained", "ExplainReport"),
    "diff": ("cpipe.report.diff", "DiffReport"),
    "check": ("cpipe.report.check", "CheckReport"),
    "compare": ("cpipe.report.compared", "CompareReport"),
    "crossover": ("cpipe.report.crossed", "CrossoverReport"),
    "run": (__name__, "RunReport"),
    "export": ("cpipe.report.exported", "ExportReport"),
    "import": ("cpipe.report.imported", "ImportReport"),
    "doctor": ("cpipe.report.health", "DoctorReport"),
    "sweep": ("cpipe.report.sweep", "SweepReport"),
}
"""Command -> module and type of its report; other modules build on this one, and are imported when they are needed."""


def _report_type(command: str) -> Any:
    module, name = _REPORTS[command]
    return getattr(import_module(module), name)


def solve_report(
    result: SolveResult, plan: Plan, figures: Sequence[DeviceFigures], warnings: Sequence[Diagnostic] = ()
) -> SolveReport:
    """Return the report of a search that found a plan."""
    return SolveReport(
        status=result.status,
        method=result.method,
        found_by=result.found_by,
        objective=result.objective,
        makespan_ms=ns_to_ms(result.makespan_ns),
        span_ms=ns_to_ms(result.timeline.span_ns),
        lower_bound_ms=ns_to_ms(result.bound.value_ns),
        gap=result.gap,
        proved_by=result.bound.proved_by,
        placement=plan.problem.placement,
        recompute=plan.problem.recompute or msgspec.UNSET,
        offloads=len(result.schedule.offloads) or msgspec.UNSET,
        devices=tuple(map(device_report, figures)),
        diagnostics=diagnostic_reports(warnings),
    )


def validate_report(
    transport: str, profile_checked: bool, diagnostics: Sequence[Diagnostic], *, bound_checked: bool = False
) -> ValidateReport:
    """Return the report of a plan that was read; warnings alone leave it valid."""
    faulty = any(diagnostic.severity == "error" for diagnostic in diagnostics)
    return ValidateReport(
        status="invalid" if faulty else "valid",
        transport=transport,
        profile_checked=profile_checked,
        bound_checked=bound_checked,
        diagnostics=diagnostic_reports(diagnostics),
    )


def simulate_report(
    plan: Plan,
    timeline: Timeline | None,
    figures: Sequence[DeviceFigures] = (),
    diagnostics: Sequence[Diagnostic] = (),
) -> SimulateReport:
    """Return the report of a replay; `timeline` is None when the plan cannot run to its end."""
    if timeline is None:
        claimed = ns_to_ms(plan.claims.makespan_ns)
        return SimulateReport(status="invalid", claimed_ms=claimed, diagnostics=diagnostic_reports(diagnostics))
    return SimulateReport(
        status="done",
        makespan_ms=ns_to_ms(timeline.makespan_ns),
        claimed_ms=ns_to_ms(plan.claims.makespan_ns),
        difference_ms=ns_to_ms(timeline.makespan_ns - plan.claims.makespan_ns),
        devices=tuple(map(device_report, figures)),
        diagnostics=diagnostic_reports(diagnostics),
    )


def run_report(
    result: Mapping[str, Any] | None, status: Literal["done", "mismatch", "invalid"], diagnostics: Sequence[Diagnostic]
) -> RunReport:
    """Return the report of a run; `result` as `cpipe.runtime.worker.run_plan` returns it, None of a plan not run."""
    found = diagnostic_reports(diagnostics)
    if result is None:
        return RunReport(status=status, diagnostics=found)
    gradients = result["gradients"]
    difference = max((check["max_abs_difference"] for check in gradients), default=math.inf)
    return RunReport(
        status=status,
        model=result["model"],
        step_ms=tuple(result["step_ms"]),
        makespan_ms=result["step_ms"][result["step"]],
        predicted_ms=result["predicted_ms"],
        gradients_checked=bool(gradients),
        max_abs_difference=difference if math.isfinite(difference) else None,
        devices=tuple(RunDeviceReport(**entry) for entry in result["devices"]),
        channels=tuple(RunChannelReport(**entry) for entry in result["channels"]),
        diagnostics=found,
    )


def failure_report(
    command: str | None, status: str, diagnostics: Sequence[Diagnostic], hint: str | None = None
) -> Report:
    """Return the report of a command that stopped with an error.

    Parameters
    ----------
    command
        Name of the command, or None when it is not known.
    status
        ``error``, or what `solve` proved or met (``infeasible``, ``no_solution``).
    diagnostics
        The faults.
    hint
        What to do about them; goes to the last fault, unless one has it already.
    """
    found = diagnostic_reports(diagnostics)
    if found and hint is not None and all(fault.hint != hint for fault in found):
        found = (*found[:-1], msgspec.structs.replace(found[-1], hint=hint))
    if command is None or command not in _REPORTS:
        return ErrorReport(command=command, diagnostics=found)
    told = command in ("solve", "crossover") and status in ("infeasible", "no_solution")
    failed: Report = _report_type(command)(status=status if told else "error", diagnostics=found)
    return failed


def encode_report(report: Report) -> bytes:
    """Return the report as one line of JSON with a trailing newline.

    Text that UTF-8 cannot hold, such as the odd bytes of a file's name, is escaped.
    """
    try:
        return msgspec.json.encode(report) + b"\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(msgspec.to_builtins(report))) + b"\n"


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list | tuple) else value


_LEFT_OUT = ("recompute", "offloads")
"""Fields that are absent where there is nothing to tell."""


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) that every report meets."""
    kinds = (*map(_report_type, _REPORTS), ErrorReport)
    references, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for definition in definitions.values():
        # defaults are written out too
        definition["required"] = [name for name in definition["properties"] if name not in _LEFT_OUT]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cpipe.report version 1",
        "anyOf": list(references),
        "$defs": definitions,
    }


def device_report(figures: DeviceFigures) -> DeviceReport:
    """Return the report of one device."""
    return DeviceReport(
        id=figures.name,
        busy_ms=ns_to_ms(figures.busy_ns),
        bubble=figures.bubble,
        peak_bytes=figures.peak_bytes,
        static_bytes=figures.static_bytes,
        capacity_bytes=figures.capacity_bytes,
    )


def diagnostic_reports(diagnostics: Sequence[Diagnostic]) -> tuple[DiagnosticReport, ...]:
    """Return the diagnostics as a report has them."""
    return tuple(
        DiagnosticReport(**{name: getattr(found, name) for name in DiagnosticReport.__struct_fields__})
        for found in diagnostics
    )
