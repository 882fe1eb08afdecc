"""``cpipe show``: a plan, or two, as people read it: in the terminal, as pictures, as a page and as a trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cpipe.cli import complete
from cpipe.cli.options import check_ranges
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan, Problem
    from cpipe.profile import Profile
    from cpipe.report.time_axis import TimeWindow
    from cpipe.report.view import PlanView

__all__ = ["show"]


class _Part(NamedTuple):
    """What of the plans is shown: the numbers of ranks (None: all), a part of time."""

    ranks: tuple[int, ...] | None
    window: TimeWindow


def show(
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN", autocompletion=complete.plan_files, help="The plan; - reads standard input."),
    ],
    other: Annotated[str | None, typer.Argument(metavar="OTHER", help="A second plan, to compare.")] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROFILE",
            help="Replay on this profile: adds messages, memory and links. Give it twice for two plans of two jobs.",
        ),
    ] = None,
    ranks: Annotated[str | None, typer.Option(metavar="LIST", help="Show these ranks alone, as in 0-3,5.")] = None,
    first_ms: Annotated[float | None, typer.Option("--from", metavar="MS", help="Show from this time on.")] = None,
    last_ms: Annotated[float | None, typer.Option("--to", metavar="MS", help="Show up to this time.")] = None,
    width: Annotated[
        int | None, typer.Option(metavar="COLUMNS", help="Width of the chart [the terminal's, else 100].")
    ] = None,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters alone.")] = False,
    svg: Annotated[str | None, typer.Option(metavar="FILE", help="Write a picture as SVG.")] = None,
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Write a picture as PNG (needs cpipe[png]).")] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write one page to look around in, for a browser.")
    ] = None,
    trace: Annotated[str | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
) -> None:
    """Draw a plan as a Gantt chart, with a table of its devices.

    Times and peaks are the plan's own claims; with --profile, those of its replay. Pictures, page and trace are
    written instead of the chart.
    """
    from cpipe.cli.outputs import output_files

    plans = [plan] if other is None else [plan, other]
    profiles = profile or []
    part = _checked_part(plans, profiles, ranks, (first_ms, last_ms), width)
    outputs = output_files({"--svg": svg, "--png": png, "--html": html, "--trace": trace}, [*plans, *profiles], as_json)

    from cpipe.plan import load_plan
    from cpipe.profile import load_profile
    from cpipe.report.shown import show_report
    from cpipe.report.shown_plan import shown

    printer = Printer()
    views, warnings = [], []
    loaded = [load_plan(file) for file in plans]
    jobs = [(file, load_profile(file)) for file in profiles]  # each read once: it may be standard input
    for number, file in enumerate(plans):
        job = jobs[number if len(jobs) > 1 else 0] if jobs else None
        view, found = _view(loaded[number], file, job, part)
        views.append(view)
        warnings += found
    end = max(view.horizon for view in views) / 1e6
    if first_ms is not None:
        check_ranges([("--from", first_ms, first_ms < max(end, 1e-6), f"milliseconds below the makespan, {end:g}")])
    printer.warnings(warnings)
    for option, output in outputs.items():
        data = _picture(option, views, plans, part)
        if output is None:
            printer.artefact(data)
        else:
            output.write(data)
    if as_json:
        found_plans = [shown(view, file, part.window) for view, file in zip(views, plans, strict=True)]
        printer.document(show_report(found_plans, warnings, ranks=part.ranks, window=part.window))
    elif not outputs:
        charts = (_chart(view, part, width, ascii_only) for view in views)
        printer.answer("\n\n\n".join(charts))


def _checked_part(
    plans: Sequence[str],
    profiles: Sequence[str],
    ranks: str | None,
    times: tuple[float | None, float | None],
    width: int | None,
) -> _Part:
    """Check the options; return what of the plans to show."""
    from cpipe.cli.files import read_once
    from cpipe.errors import UsageError
    from cpipe.report.terminal import MAX_WIDTH
    from cpipe.report.time_axis import TimeWindow
    from cpipe.units import ms_to_ns

    if len(profiles) > len(plans):
        raise UsageError(f"{len(profiles)} profiles for {len(plans)} plans", code="too-many-profiles")
    read_once(*plans, *profiles)
    first, last = times
    checks: list[tuple[str, float, bool, str]] = []
    if width is not None:
        checks.append(("--width", width, 1 <= width <= MAX_WIDTH, f"a number in [1, {MAX_WIDTH}]"))
    if first is not None:
        checks.append(("--from", first, 0 <= first < float("inf"), "milliseconds >= 0"))
    if last is not None:
        after = max(0.0, first or 0.0)
        checks.append(("--to", last, after < last < float("inf"), f"milliseconds > {after:g}"))
    check_ranges(checks)
    return _Part(
        None if ranks is None else _rank_list(ranks),
        TimeWindow(None if first is None else ms_to_ns(first), None if last is None else ms_to_ns(last)),
    )


def _rank_list(text: str) -> tuple[int, ...]:
    """Return the ranks that a list such as ``0-3,5`` names."""
    from cpipe.errors import UsageError

    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = first, last if dash else first
        if not all(end.isascii() and end.isdigit() and len(end) < 7 for end in ends) or int(ends[0]) > int(ends[1]):
            message = f"--ranks: expected numbers and ranges such as 0-3,5, got {text!r}"
            raise UsageError(message, code="rank-list")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))


def _view(plan: Plan, file: str, job: tuple[str, Profile] | None, part: _Part) -> tuple[PlanView, list[Diagnostic]]:
    """Return what is shown of a plan, and what there is to warn of; `job` is a profile and the name of its file."""
    from cpipe.errors import Diagnostic, UsageError
    from cpipe.plan import plan_digest
    from cpipe.report.build_view import plan_view

    warnings: list[Diagnostic] = []
    here = {program.rank for program in plan.ranks}
    if part.ranks is not None and not here.intersection(part.ranks):
        known = f"ranks {min(here)} to {max(here)}" if here else "no ranks"
        raise UsageError(f"--ranks: {file} has {known}", code="no-such-rank")
    problem = None if job is None else _problem(plan, *job)
    view = None
    if problem is not None:
        view, refusal = _replayed(plan, problem, file)
        warnings += refusal
    view = view or plan_view(plan, problem)
    if part.ranks is not None:
        view = view.only_ranks(part.ranks)
    if plan_digest(plan) != plan.digest:
        message = "the digest is not that of the content: the plan was changed by hand and may not be valid"
        warnings.append(Diagnostic(code="plan-digest", file=file, message=message, severity="warning"))
    return view, warnings


def _problem(plan: Plan, file: str, profile: Profile) -> Problem:
    from cpipe.cli.blame import faults_of
    from cpipe.compiler import problem_for_plan

    with faults_of(file):
        return problem_for_plan(plan, profile)


def _replayed(plan: Plan, problem: Problem, file: str) -> tuple[PlanView | None, list[Diagnostic]]:
    """Return the view of the plan's replay on `problem`, or None and a warning why it cannot be replayed."""
    from cpipe.analysis import replayed_view
    from cpipe.compiler import simulate_plan
    from cpipe.errors import Diagnostic, PlanError
    from cpipe.ir import InvariantError
    from cpipe.plan import lift
    from cpipe.sim import DeadlockError

    try:
        schedule, _ = lift(plan)
        schedule.verify(problem)
        timeline = simulate_plan(plan, problem)
    except (InvariantError, DeadlockError, PlanError) as error:
        reason = error.diagnostics[0].message if isinstance(error, PlanError) else str(error)
        message = f"the plan cannot be replayed, its own times are shown: {reason}"
        return None, [Diagnostic(code="not-replayed", file=file, message=message, severity="warning")]
    return replayed_view(plan, problem, timeline), []


def _picture(option: str, views: Sequence[PlanView], files: Sequence[str], part: _Part) -> bytes:
    """Return the bytes of the file that `option` asks for."""
    titles = [view.plan.problem.name or file for view, file in zip(views, files, strict=True)]
    if option == "--trace":
        from cpipe.report.trace import encode_trace

        return encode_trace(views, titles)
    if option == "--html":
        from cpipe.report.html import render_html

        return render_html(views, files, part.window)
    from cpipe.report.drawing import draw_plans

    drawing = draw_plans(views, titles, part.window)
    if option == "--svg":
        from cpipe.report.svg import render_svg

        return render_svg(drawing)
    from cpipe.report.png import render_png

    return render_png(drawing)


def _chart(view: PlanView, part: _Part, width: int | None, ascii_only: bool) -> str:
    """Return what is shown of one plan in the terminal."""
    from cpipe.report.gantt import GANTT_CHARACTERS, render_gantt
    from cpipe.report.summary import device_table, load_line, plan_line, verdict
    from cpipe.report.terminal import can_encode, line_width, use_colour

    chart = render_gantt(
        view.shown_plan(),
        width=width or line_width(sys.stdout),
        ascii_only=ascii_only or not can_encode(sys.stdout, GANTT_CHARACTERS),
        colour=use_colour(sys.stdout),
        window=part.window,
    )
    first = verdict(view) if view.bound_ns is None else plan_line(view.plan, "\n")
    figures = view.shown_figures
    parts = [first, "", chart, "", device_table(figures), "", load_line(view.figures)]
    return "\n".join(parts)
