"""The text that people read after `solve`, `simulate` and `show`: a verdict and a table of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cpipe.ir import Plan, ProblemSummary, Schedule, SolveResult, Timeline
from cpipe.report.figures import DeviceFigures
from cpipe.report.tables import byte_unit, format_bytes, format_ms, format_percent, render_table
from cpipe.report.terminal import printable
from cpipe.report.view import PlanView

__all__ = [
    "device_table",
    "load_line",
    "outline",
    "plan_line",
    "simulate_lines",
    "solve_lines",
    "stage_ranges",
    "verdict",
]


def solve_lines(result: SolveResult, figures: Sequence[DeviceFigures], recompute: Sequence[int] = ()) -> str:
    """Return the summary of a search: verdict, devices, what limits the schedule; `recompute` lists such stages."""
    bound = f"{format_ms(result.bound.value_ns)} ms"
    reason = f" ({printable(result.bound.reason)})" if result.bound.reason else ""
    lines = [
        f"{result.status}: makespan {format_ms(result.makespan_ns)} ms, "
        f"{_span(result.timeline.span_ns if result.objective == 'span' else None)}lower bound {bound}, "
        f"gap {format_percent(result.gap)}, found by {result.found_by}, "
        f"bound proved by {_prover(result.bound.proved_by)}",
        "",
        device_table(figures),
        "",
        load_line(figures),
        f"no schedule beats {bound}{reason}",
        *([f"recomputing: {_stages(recompute)}"] if recompute else []),
        *([f"in host memory meanwhile: {_offloads(result.schedule)}"] if result.schedule.offloads else []),
    ]
    return "\n".join(lines)


def _offloads(schedule: Schedule) -> str:
    """Return how many activations a schedule offloads, and of which stages."""
    stages = sorted({entry.stage for entry in schedule.offloads})
    count = len(schedule.offloads)
    return f"{count} activation{'s' if count > 1 else ''} of {_stages(stages)}"


def plan_line(plan: Plan, separator: str = "; ") -> str:
    """Return what a plan claims, sizes and claims apart by `separator`."""
    claims, problem = plan.claims, plan.problem
    reached = claims.span_ns or claims.makespan_ns if claims.objective == "span" else claims.makespan_ns
    gap = (reached - claims.lower_bound_ns) / reached if reached else 0.0
    name = f"{printable(problem.name)}: " if problem.name else ""
    return (
        f"{name}{outline(problem)}{separator}"
        f"makespan {format_ms(claims.makespan_ns)} ms, {_span(claims.span_ns)}"
        f"lower bound {format_ms(claims.lower_bound_ns)} ms, "
        f"gap {format_percent(gap)}, made by {printable(plan.made_by.method)}, "
        f"bound proved by {_prover(claims.proved_by)}"
    )


def verdict(view: PlanView) -> str:
    """Return sizes, makespan, bound and gap of what is shown, in one line; no bound where it is of another job."""
    problem, claims = view.plan.problem, view.plan.claims
    parts = [
        outline(problem),
        f"makespan {format_ms(claims.makespan_ns)} ms",
    ]
    if claims.span_ns is not None:
        parts.append(f"span {format_ms(claims.span_ns)} ms")
    if view.bound_ns is not None and view.gap is not None:
        parts += [f"lower bound {format_ms(view.bound_ns)} ms", f"gap {format_percent(view.gap)}"]
    parts.append(f"made by {printable(view.plan.made_by.method)}")
    return "; ".join(parts)


def outline(problem: ProblemSummary) -> str:
    """Return the sizes of a job, and the stages that recompute."""
    sizes = f"{problem.devices} devices, {problem.stages} stages, {problem.microbatches} microbatches"
    return f"{sizes}, {_stages(problem.recompute)} recomputing" if problem.recompute else sizes


def _stages(stages: Sequence[int]) -> str:
    return f"stage{'s' * (len(stages) > 1)} {stage_ranges(stages)}"


def _span(span_ns: int | None) -> str:
    """Return the span for a verdict, where it was the objective."""
    return "" if span_ns is None else f"span {format_ms(span_ns)} ms, "


def simulate_lines(plan: Plan, timeline: Timeline, figures: Sequence[DeviceFigures]) -> str:
    """Return the summary of a replay: makespan, the plan's own claim, the difference, devices."""
    claimed = plan.claims.makespan_ns
    difference = timeline.makespan_ns - claimed
    share = f" ({100 * difference / claimed:+.2f} %)" if claimed and difference else ""
    sign = "+" if difference > 0 else ""
    return "\n".join(
        (
            f"makespan {format_ms(timeline.makespan_ns)} ms, the plan claims {format_ms(claimed)} ms, "
            f"difference {sign}{format_ms(difference)} ms{share}",
            "",
            device_table(figures),
            "",
            load_line(figures),
        )
    )


def load_line(figures: Sequence[DeviceFigures]) -> str:
    """Return which device has most to do, and how even the load is (mean / maximum of busy times)."""
    if not figures:
        return "bottleneck: none"
    busiest = max(figures, key=lambda device: device.busy_ns)
    total = sum(device.busy_ns for device in figures)
    balance = total / (len(figures) * busiest.busy_ns) if busiest.busy_ns else 1.0
    return (
        f"bottleneck: device {printable(busiest.name)}, busy {format_percent(1 - busiest.bubble)} of the makespan; "
        f"load balance {format_percent(balance)} (mean / maximum)"
    )


def device_table(figures: Sequence[DeviceFigures]) -> str:
    """Return one line per device; columns that nothing is known about are left out.

    ``in flight`` is the most microbatches whose forward has started and whose backward has not ended: it is what
    makes the first devices of a pipeline the fullest.
    """
    if not figures:
        return "no devices"
    unit = byte_unit(max(max(d.peak_bytes, d.static_bytes or 0, d.capacity_bytes or 0) for d in figures))
    columns: list[tuple[str, Literal["<", ">"], list[str]]] = [
        ("device", "<", [device.name for device in figures]),
        ("stages", "<", [stage_ranges(device.stages) for device in figures]),
        ("busy ms", ">", [format_ms(device.busy_ns) for device in figures]),
        ("bubble", ">", [format_percent(device.bubble) for device in figures]),
        ("in flight", ">", [str(device.in_flight) for device in figures]),
        (f"peak {unit[1]}", ">", [format_bytes(device.peak_bytes, unit) for device in figures]),
    ]
    if any(device.static_bytes is not None for device in figures):
        columns.append((f"static {unit[1]}", ">", [format_bytes(device.static_bytes or 0, unit) for device in figures]))
    if any(device.capacity_bytes is not None for device in figures):
        limits = [d.capacity_bytes for d in figures]
        cells = ["none" if limit is None else format_bytes(limit, unit) for limit in limits]
        columns.append((f"capacity {unit[1]}", ">", cells))
    headers, align, cells_of = zip(*columns, strict=True)
    return render_table(headers, list(zip(*cells_of, strict=True)), align)


def _prover(name: str) -> str:
    return "a closed form" if name == "bound" else printable(name)


def stage_ranges(stages: Sequence[int]) -> str:
    """Return stage numbers with runs joined: ``0-2,7``."""
    runs: list[list[int]] = []
    for stage in stages:
        if runs and stage == runs[-1][1] + 1:
            runs[-1][1] = stage
        else:
            runs.append([stage, stage])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
