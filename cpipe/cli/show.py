"""``cpipe show``: a plan as people read it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cpipe.cli.options import check_ranges
from cpipe.cli.printer import Printer

__all__ = ["show"]


def show(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The plan; - reads standard input.")],
    width: Annotated[
        int | None, typer.Option(metavar="COLUMNS", help="Width of the chart [the terminal's, else 100].")
    ] = None,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters alone.")] = False,
    profile: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Add static memory and capacity from this profile.")
    ] = None,
) -> None:
    """Draw a plan as a Gantt chart, with a table of its devices.

    Times and peaks are the plan's own claims; nothing is checked.
    """
    from cpipe.cli.files import read_once
    from cpipe.report.terminal import MAX_WIDTH, can_encode, line_width, use_colour

    read_once(plan, profile)
    if width is not None:
        fits = 1 <= width <= MAX_WIDTH
        check_ranges([("--width", width, fits, f"a number in [1, {MAX_WIDTH}]")])

    from cpipe.errors import Diagnostic
    from cpipe.plan import load_plan, plan_digest
    from cpipe.report.figures import plan_figures
    from cpipe.report.gantt import GANTT_CHARACTERS, render_gantt
    from cpipe.report.summary import device_table, load_line, plan_line

    loaded = load_plan(plan)
    problem = None
    if profile is not None:
        from cpipe.cli.blame import faults_of
        from cpipe.compiler import problem_for_plan
        from cpipe.profile import load_profile

        with faults_of(profile):
            problem = problem_for_plan(loaded, load_profile(profile))
    chart = render_gantt(
        loaded,
        width=width or line_width(sys.stdout),
        ascii_only=ascii_only or not can_encode(sys.stdout, GANTT_CHARACTERS),
        colour=use_colour(sys.stdout),
    )
    figures = plan_figures(loaded, problem)
    printer = Printer()
    if plan_digest(loaded) != loaded.digest:
        message = "the digest is not that of the content: the plan was changed by hand and may not be valid"
        printer.warnings([Diagnostic(code="plan-digest", file=plan, message=message, severity="warning")])
    printer.answer("\n".join([plan_line(loaded, "\n"), "", chart, "", device_table(figures), "", load_line(figures)]))
