"""``cpipe diff``: in what two plans differ, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cpipe.cli import complete
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan
    from cpipe.profile import Profile
    from cpipe.report.figures import DeviceFigures

__all__ = ["diff"]


class _Cost(NamedTuple):
    """What a plan takes, or the faults that it has no replay, and whether these are its own."""

    makespan_ns: int | None
    figures: Sequence[DeviceFigures] = ()
    faults: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()


def diff(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN", autocompletion=complete.plan_files, help="The first plan, a; - reads standard input."
        ),
    ],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The second plan, b.")],
    profile: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Replay both on this profile, to tell what they take there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document, complete.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No warnings.")] = False,
) -> int:
    """Say in what two plans differ, and what that costs.

    Orders, messages and times are compared rank by rank, then what the plans claim, for which problem, and how they
    were made. Makespans and devices are as claimed; with --profile, those of replays.

    Exits with 0 when the plans are the same, with 1 when they differ or cannot be replayed, with 3 when the profile
    is of another job than both.
    """
    from cpipe.cli.files import read_once

    read_once(plan, other, profile)

    from cpipe.plan import decode_plan, read_plan
    from cpipe.profile import load_profile
    from cpipe.report.diff import compare_plans, diff_report
    from cpipe.report.diff_lines import diff_lines

    printer = Printer(quiet=quiet)
    files = plan, other
    data = read_plan(plan), read_plan(other)
    plans = decode_plan(data[0], plan), decode_plan(data[1], other)
    if profile is None:
        costs = [_claimed(loaded, file) for loaded, file in zip(plans, files, strict=True)]
    else:
        costs = _replays(plans, files, load_profile(profile), profile)
    warnings = [*_other_problem(plans, profile, other), *(found for cost in costs for found in cost.warnings)]
    faults = [fault for cost in costs for fault in cost.faults]
    printer.warnings(warnings)
    printer.errors(faults, "a plan that cannot finish has no makespan; see 'cpipe validate'" if faults else None)
    report = diff_report(
        compare_plans(*plans),
        plans,
        files,
        (costs[0].makespan_ns, costs[1].makespan_ns),
        (costs[0].figures, costs[1].figures),
        (*warnings, *faults),
        identical=data[0] == data[1],
        profile_checked=profile is not None,
    )
    if as_json:
        printer.document(report)
    else:
        printer.answer(diff_lines(report, plans))
    return 1 if report.status == "differ" or faults else 0


def _other_problem(plans: tuple[Plan, Plan], profile: str | None, file: str) -> Iterator[Diagnostic]:
    """Yield a warning when the plans were made for different problems."""
    from cpipe.errors import Diagnostic

    a, b = (plan.problem for plan in plans)
    if a.digest == b.digest:
        return
    sizes = [
        f"{name} {getattr(a, name)} and {getattr(b, name)}"
        for name in ("devices", "stages", "microbatches", "flows")
        if getattr(a, name) != getattr(b, name)
    ]
    if sizes:
        message = f"these are plans of different jobs ({', '.join(sizes)}): ranks are compared as far as both have them"
        yield Diagnostic(code="different-job", message=message, severity="warning", file=file, path="$.problem")
    else:
        chosen = [name for name in ("placement", "recompute") if getattr(a, name) != getattr(b, name)]
        why = f"with another {' and '.join(chosen)}" if chosen else "for different profiles"
        more = "" if profile is not None else "; --profile replays both on one"
        message = f"the plans were made {why}: the times that they state are of different costs{more}"
        yield Diagnostic(code="problem-digest", message=message, severity="warning", file=file, path="$.problem.digest")


def _claimed(plan: Plan, file: str) -> _Cost:
    """Return what a plan claims, with a warning when somebody changed it by hand."""
    from cpipe.errors import Diagnostic
    from cpipe.plan import plan_digest
    from cpipe.report.figures import plan_figures

    warnings = []
    if plan.digest != plan_digest(plan):
        message = "the plan was changed after it was made: what it claims may be wrong"
        warnings.append(Diagnostic(code="plan-digest", message=message, severity="warning", file=file, path="$.digest"))
    programs = sorted(
        zip((program.rank for program in plan.ranks), plan_figures(plan), strict=True), key=lambda of: of[0]
    )
    return _Cost(plan.claims.makespan_ns, [figures for _, figures in programs], warnings=tuple(warnings))


def _replays(plans: tuple[Plan, Plan], files: tuple[str, str], profile: Profile, profile_file: str) -> list[_Cost]:
    """Return what both plans take on a profile; one that is of another job than the profile has no cost.

    Raises
    ------
    cpipe.errors.InputError
        When neither is of the profile's job.
    """
    from msgspec.structs import replace

    from cpipe.errors import InputError

    costs: list[_Cost] = []
    errors: list[InputError] = []
    for plan, file in zip(plans, files, strict=True):
        try:
            costs.append(_replay(plan, file, profile, profile_file))
        except InputError as error:
            errors.append(error)
            found = tuple(
                replace(fault, severity="warning", file=file, message=f"not replayed: {fault.message}")
                for fault in error.diagnostics
            )
            costs.append(_Cost(None, warnings=found))
    if len(errors) == len(plans):
        raise errors[0]
    return costs


def _replay(plan: Plan, file: str, profile: Profile, profile_file: str) -> _Cost:
    from cpipe.cli.blame import faults_of
    from cpipe.cli.simulate import check_plan, deadlock_faults, overfull
    from cpipe.compiler import problem_for_plan, simulate_plan
    from cpipe.plan import lift
    from cpipe.report.figures import replay_figures
    from cpipe.sim import DeadlockError, memory_peaks

    faults, stale = check_plan(plan, file)
    if faults:
        return _Cost(None, faults=faults, warnings=stale)
    with faults_of(profile_file):
        problem = problem_for_plan(plan, profile)
    try:
        with faults_of(file):
            timeline = simulate_plan(plan, problem)
    except DeadlockError as error:
        return _Cost(None, faults=deadlock_faults(error, file, plan), warnings=stale)
    schedule, _ = lift(plan)
    figures = replay_figures(
        plan, problem, schedule, timeline, memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads)
    )
    return _Cost(timeline.makespan_ns, figures, warnings=(*stale, *overfull(figures, profile_file)))
