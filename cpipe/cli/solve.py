"""``cpipe solve``: from a profile to a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli import complete
from cpipe.cli.interrupts import EndedEarly, stoppable
from cpipe.cli.options import OBJECTIVES, check_choice, check_solve_options
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpipe.cli.files import OutputFile
    from cpipe.compiler import Compiled
    from cpipe.errors import Diagnostic, UsageError

__all__ = ["solve"]


def solve(
    profile: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE", autocompletion=complete.profile_files, help="The profile; - reads standard input."
        ),
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="PLAN", help="Write the plan to this file.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.methods,
            help="auto, cpsat, milp, greedy, greedy-crosspipe, or a schedule of the field: gpipe, 1f1b, 1f1b-split, "
            "zb-h1, zb-h2, interleaved-1f1b, interleaved-zb, looped-bfs, zb-v, v-half, v-min, hanayo, dualpipe-v, "
            "chimera or dualpipe.",
        ),
    ] = "auto",
    placement: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.placements,
            help="profile (as written), ud, loop, wave, auto (the best of them), or bidirectional: two flows in "
            "opposite directions, with two copies of all weights.",
        ),
    ] = "profile",
    max_gap: Annotated[
        float, typer.Option(metavar="SHARE", help="Accept a plan this close to the proven bound, in [0, 1).")
    ] = 0.0,
    time_limit: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop searching after this time.")] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of every random choice.")] = 0,
    objective: Annotated[
        str,
        typer.Option(metavar="NAME", help="Minimise the makespan, or the span: the longest time that a device takes."),
    ] = "makespan",
    receive_window: Annotated[
        int | None,
        typer.Option(metavar="K", help="At most this many receives of a channel posted and not yet consumed."),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Of interleaved-1f1b: microbatches in a row, from one per device to all of them."
        ),
    ] = None,
    recompute: Annotated[
        str,
        typer.Option(
            metavar="STAGES",
            autocompletion=complete.choices("auto", "none", "all"),
            help="Stages that make activations again rather than keep them, of those with `recompute` in the profile: "
            "auto (the best found), none, all, or numbers like 0,3,5.",
        ),
    ] = "auto",
    offload: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            autocompletion=complete.choices("auto", "none"),
            help="Activations in host memory between forward and backward, of stages with `offload` in the profile: "
            "auto (where that is better) or none.",
        ),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary, no warnings, no progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show progress.")] = False,
) -> None:
    """Search the fastest schedule and write it as a plan.

    The plan goes to the file of --output, else to stdout; on a terminal a summary is shown instead. Ctrl-C ends the
    search with the best plan so far and exit code 130; a second one ends the program.
    """
    from cpipe.compiler import OFFLOADS, PLACEMENTS, SolveOptions, compile_profile
    from cpipe.solve.methods import METHODS

    check_solve_options(
        method=method,
        methods=tuple(METHODS),
        placement=placement,
        placements=PLACEMENTS,
        max_gap=max_gap,
        time_limit=time_limit,
        seed=seed,
        receive_window=receive_window,
    )
    check_choice("--objective", objective, OBJECTIVES)
    check_choice("--offload", offload, OFFLOADS)
    printer = Printer(quiet=quiet, verbose=verbose)
    target = _target(output, as_json, profile)
    if quiet and printer.to_terminal and output is None and not as_json:
        raise _nowhere()

    from cpipe.cli.blame import faults_of
    from cpipe.profile import load_profile, profile_warnings

    loaded = load_profile(profile)
    warnings = profile_warnings(loaded, profile)
    printer.warnings(warnings)
    options = SolveOptions(
        method=method,
        placement=placement,
        seed=seed,
        max_gap=max_gap,
        time_limit=time_limit,
        receive_window=receive_window,
        group_size=group_size,
        recompute=recompute,
        offload=offload,
        objective="span" if objective == "span" else "makespan",
    )
    with faults_of(profile), stoppable() as stop, printer.working() as progress:
        compiled = compile_profile(loaded, options, progress=progress, stop=stop)
    later = tuple(warning for warning in compiled.result.warnings if warning not in warnings)
    printer.warnings(later)
    _deliver(compiled, printer, target, as_json, to_stdout=output is not None, warnings=(*warnings, *later))
    if stop.requested:
        raise EndedEarly


def _target(output: str | None, as_json: bool, profile: str) -> OutputFile | None:
    """Return the file to write, checked, or None for standard output."""
    from cpipe.cli.files import OutputFile, is_standard_output
    from cpipe.errors import UsageError

    if is_standard_output(output):
        if as_json:
            raise UsageError(f"--json and --output {output} both want standard output", code="stdout-twice")
        return None
    return None if output is None else OutputFile(output, [profile])


def _nowhere() -> UsageError:
    """Return the refusal of a search whose result would go nowhere: a terminal gets the summary, and that is off."""
    from cpipe.errors import UsageError

    message = "--quiet leaves nothing to show on a terminal"
    return UsageError(message, code="nothing-to-show", hint="name a file with --output, or - for the plan itself")


def _deliver(
    compiled: Compiled,
    printer: Printer,
    target: OutputFile | None,
    as_json: bool,
    *,
    to_stdout: bool,
    warnings: Sequence[Diagnostic],
) -> None:
    """Write the plan, the summary and the report to where they belong."""
    from cpipe.plan import encode_plan
    from cpipe.report.document import solve_report
    from cpipe.report.figures import plan_figures
    from cpipe.report.summary import solve_lines

    figures = plan_figures(compiled.plan, compiled.problem)
    if target is not None:
        target.write(encode_plan(compiled.plan))
    if as_json:
        printer.document(solve_report(compiled.result, compiled.plan, figures, warnings))
        return
    summary = solve_lines(compiled.result, figures, compiled.plan.problem.recompute)
    if target is None and printer.to_terminal and not to_stdout:
        printer.answer(summary)
        return
    printer.note(summary)
    if target is None:
        printer.artefact(encode_plan(compiled.plan))
