"""``cpipe explain``: why a plan takes as long as it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cpipe.cli import complete
from cpipe.cli.options import check_ranges
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan
    from cpipe.ir.explanation import Explanation
    from cpipe.report.figures import DeviceFigures

__all__ = ["explain"]

_CONTRADICTIONS = ("before-input", "overlap")  # stale times, where they are all that there is


class _Explained(NamedTuple):
    """An explanation, or the faults that there is none."""

    explanation: Explanation | None
    figures: Sequence[DeviceFigures] = ()
    warnings: tuple[Diagnostic, ...] = ()
    faults: tuple[Diagnostic, ...] = ()


def explain(
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN", autocompletion=complete.plan_files, help="The plan; - reads standard input."),
    ],
    profile: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Replay on this profile: adds links, memory and what-ifs."),
    ] = None,
    top: Annotated[int, typer.Option(metavar="K", help="Rows of each list that may be long.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document, complete.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No warnings, no progress.")] = False,
) -> int:
    """Say why a plan takes as long as it does, and what would help.

    Shows its critical path, idle time by cause, and what a change of links, memory or microbatches would give.

    Exits with 1 when the plan cannot finish, with 3 when the profile is of another job and has no costs for it.
    """
    from cpipe.cli.files import read_once
    from cpipe.cli.simulate import check_plan

    read_once(plan, profile)
    check_ranges([("--top", top, top >= 1, "a number >= 1")])

    from cpipe.plan import load_plan
    from cpipe.report.explain import explain_lines
    from cpipe.report.explained import explain_report

    loaded = load_plan(plan)
    printer = Printer(quiet=quiet)
    faults, stale = check_plan(loaded, plan)
    if not faults and profile is None:
        done = _by_itself(loaded, stale)
    elif not faults and profile is not None:
        done = _on_profile(loaded, plan, profile, stale, printer)
    else:
        done = _Explained(None, warnings=stale, faults=faults)
    printer.warnings(done.warnings)
    if done.explanation is None:
        printer.errors(done.faults, "a plan that cannot finish has no makespan; see 'cpipe validate'")
    if as_json:
        found = (*done.warnings, *done.faults)
        checked = profile is not None
        printer.document(explain_report(loaded, done.explanation, done.figures, found, profile_checked=checked))
    elif done.explanation is not None:
        known = profile is not None
        printer.answer(explain_lines(loaded, done.explanation, done.figures, top=top, has_profile=known))
    return 1 if done.explanation is None else 0


def _by_itself(plan: Plan, stale: tuple[Diagnostic, ...]) -> _Explained:
    """Explain a plan by its own times; where they contradict each other there is nothing to explain."""
    from msgspec.structs import replace

    from cpipe.analysis import explain_stated
    from cpipe.report.figures import plan_figures

    wrong = tuple(replace(fault, severity="error") for fault in stale if fault.code in _CONTRADICTIONS)
    if wrong:
        return _Explained(None, warnings=tuple(f for f in stale if f.code not in _CONTRADICTIONS), faults=wrong)
    explanation = explain_stated(plan)
    figures = sorted(zip((program.rank for program in plan.ranks), plan_figures(plan), strict=True))
    found = [replace(device, makespan_ns=explanation.makespan_ns) for _, device in figures]
    return _Explained(explanation, found, stale)


def _on_profile(plan: Plan, file: str, profile: str, stale: tuple[Diagnostic, ...], printer: Printer) -> _Explained:
    """Explain the plan's replay on a profile."""
    from cpipe.analysis import explain_plan
    from cpipe.cli.blame import faults_of
    from cpipe.cli.simulate import deadlock_faults, overfull
    from cpipe.compiler import problem_for_plan, simulate_plan
    from cpipe.errors import Diagnostic
    from cpipe.plan import lift, problem_digest
    from cpipe.profile import load_profile, profile_warnings
    from cpipe.report.figures import replay_figures
    from cpipe.sim import DeadlockError, memory_peaks

    loaded = load_profile(profile)
    warnings = [*stale, *profile_warnings(loaded, profile)]
    with faults_of(profile):
        problem = problem_for_plan(plan, loaded)
    if problem_digest(problem) != plan.problem.digest:
        message = "the plan was made for another problem: times, bound and what-ifs are those of this profile"
        warnings.append(
            Diagnostic(code="problem-digest", message=message, severity="warning", file=file, path="$.problem.digest")
        )
    try:
        with faults_of(file):
            timeline = simulate_plan(plan, problem)
    except DeadlockError as error:
        return _Explained(None, warnings=tuple(warnings), faults=deadlock_faults(error, file, plan))
    schedule, _ = lift(plan)
    peaks = memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads)
    figures = replay_figures(plan, problem, schedule, timeline, peaks)
    warnings += overfull(figures, profile)
    with printer.working() as progress:
        explanation = explain_plan(plan, problem, timeline, progress)
    return _Explained(explanation, figures, tuple(warnings))
