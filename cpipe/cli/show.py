"""``cpipe show``: a plan as people read it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

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
    from cpipe.errors import UsageError

    read_once(plan, profile)
    if width is not None and width < 1:
        raise UsageError(f"--width: expected a number >= 1, got {width}", code="value-out-of-range")

    from cpipe.plan import load_plan
    from cpipe.report.figures import plan_figures
    from cpipe.report.gantt import GANTT_CHARACTERS, render_gantt
    from cpipe.report.summary import device_table, load_line, plan_line
    from cpipe.report.terminal import can_encode, line_width, use_colour

    loaded = load_plan(plan)
    problem = None
    if profile is not None:
        from cpipe.compiler import problem_for_plan
        from cpipe.profile import load_profile

        problem = problem_for_plan(loaded, load_profile(profile))
    chart = render_gantt(
        loaded,
        width=width or line_width(sys.stdout),
        ascii_only=ascii_only or not can_encode(sys.stdout, GANTT_CHARACTERS),
        colour=use_colour(sys.stdout),
    )
    figures = plan_figures(loaded, problem)
    Printer().answer("\n".join([plan_line(loaded), "", chart, "", device_table(figures), "", load_line(figures)]))
