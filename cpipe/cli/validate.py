"""``cpipe validate``: does a plan do what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli.options import TRANSPORTS, check_choice
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.ir import Plan, Problem
    from cpipe.report.document import ValidateReport

__all__ = ["validate"]


def validate(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The plan; - reads standard input.")],
    profile: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Check costs, memory and claims against this profile."),
    ] = None,
    transport: Annotated[
        str,
        typer.Option(metavar="NAME", help="Queue model: channels, gloo, nccl-pair, nccl-rank or nccl-dir2."),
    ] = "channels",
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
) -> int:
    """Check a plan and report every fault.

    Exits with 0 when it is valid, with 1 when it is not.
    """
    from cpipe.cli.files import read_once

    check_choice("--transport", transport, TRANSPORTS)
    read_once(plan, profile)

    from cpipe.plan import load_plan
    from cpipe.plan import validate as check_plan
    from cpipe.report.document import validate_report

    printer = Printer()
    loaded = load_plan(plan)
    problem = None if profile is None else _problem(loaded, profile, transport)
    diagnostics = check_plan(loaded, problem, file=plan, transport=transport)
    printer.errors(diagnostics)
    report = validate_report(transport, problem is not None, diagnostics)
    if as_json:
        printer.document(report)
    else:
        printer.answer(_verdict(plan, loaded, report))
    return 0 if report.status == "valid" else 1


def _problem(plan: Plan, profile: str, transport: str) -> Problem | None:
    """Return what the plan should solve; None when the plan's own head is too wrong to say."""
    from cpipe.compiler import problem_for_plan
    from cpipe.errors import CpipeError
    from cpipe.plan import validate as check_plan
    from cpipe.profile import load_profile

    loaded = load_profile(profile)
    try:
        return problem_for_plan(plan, loaded)
    except CpipeError:
        if any(found.severity == "error" for found in check_plan(plan, transport=transport)):
            return None
        raise


def _verdict(file: str, plan: Plan, report: ValidateReport) -> str:
    from cpipe.report.summary import plan_line
    from cpipe.report.terminal import printable

    if report.status == "invalid":
        errors = sum(found.severity == "error" for found in report.diagnostics)
        return f"invalid: {printable(file)}: {errors} error{'s' if errors > 1 else ''}"
    checked = "checked against the profile" if report.profile_checked else "no profile given: costs are the plan's own"
    return f"ok: {printable(file)}: {plan_line(plan)}; transport {report.transport}; {checked}"
