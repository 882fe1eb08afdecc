"""``cpipe validate``: does a plan do what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli import complete
from cpipe.cli.options import check_choice
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan, Problem
    from cpipe.profile import Profile
    from cpipe.report.document import ValidateReport

__all__ = ["closed_bound", "problem_of", "validate"]


def validate(
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN", autocompletion=complete.plan_files, help="The plan; - reads standard input."),
    ],
    profile: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Check costs, memory and claims against this profile."),
    ] = None,
    transport: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.transports,
            help="Queue model: channels, gloo, nccl-pair, nccl-rank or nccl-dir2.",
        ),
    ] = "channels",
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
) -> int:
    """Check a plan and report every fault.

    Exits with 0 when it is valid, with 1 when it is not.
    """
    from cpipe.cli.files import read_once
    from cpipe.plan import TRANSPORTS, load_plan
    from cpipe.plan import validate as check_plan

    check_choice("--transport", transport, TRANSPORTS)
    read_once(plan, profile)

    from cpipe.profile import load_profile
    from cpipe.report.document import validate_report

    printer = Printer()
    loaded = load_plan(plan)
    problem, unlinked = (None, ()) if profile is None else problem_of(loaded, load_profile(profile), profile)
    bound = None if problem is None else closed_bound(loaded, problem)
    found = check_plan(loaded, problem, file=plan, transport=transport, closed_bound_ns=bound)
    diagnostics = (*found, *unlinked)
    printer.errors(diagnostics)
    report = validate_report(transport, problem is not None, diagnostics, bound_checked=bound is not None)
    if as_json:
        printer.document(report)
    else:
        printer.answer(_verdict(plan, loaded, report))
    return 0 if report.status == "valid" else 1


def problem_of(plan: Plan, profile: Profile, file: str) -> tuple[Problem, tuple[Diagnostic, ...]]:
    """Return what the plan should solve, and the links that its placement lacks in the profile `file`.

    Where the plan is for a job of another shape, that is the profile's own problem: what differs is a fault of the
    plan, and so is memory that does not suffice.
    """
    from msgspec.structs import replace

    from cpipe.compiler import problem_for_plan
    from cpipe.errors import InputError
    from cpipe.profile import normalize

    try:
        return problem_for_plan(plan, profile), ()
    except InputError as error:
        unlinked = [replace(fault, file=file) for fault in error.diagnostics if fault.code == "unlinked-sites"]
        return normalize(profile, prove_memory=False), tuple(unlinked)


def closed_bound(plan: Plan, problem: Problem) -> int | None:
    """Return what closed forms prove of the problem [ns]; None when the plan rests on another proof or problem."""
    from cpipe.compiler.claims import checkable_bound_ns

    return checkable_bound_ns(plan, problem)


def _verdict(file: str, plan: Plan, report: ValidateReport) -> str:
    from cpipe.report.summary import plan_line
    from cpipe.report.terminal import printable

    if report.status == "invalid":
        errors = sum(found.severity == "error" for found in report.diagnostics)
        return f"invalid: {printable(file)}: {errors} error{'s' if errors > 1 else ''}"
    if not report.profile_checked:
        checked = "no profile given: costs are the plan's own, the lower bound was not checked"
    elif report.bound_checked:
        checked = "checked against the profile, the lower bound too"
    else:
        checked = "checked against the profile; the lower bound was not checked"
    return f"ok: {printable(file)}: {plan_line(plan)}; transport {report.transport}; {checked}"
