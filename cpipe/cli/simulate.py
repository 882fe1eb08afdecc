"""``cpipe simulate``: what a plan costs on a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan
    from cpipe.profile import Profile
    from cpipe.report.figures import DeviceFigures
    from cpipe.sim import DeadlockError

__all__ = ["check_plan", "deadlock_faults", "overfull", "simulate"]

# What a plan says of itself; a plan edited by hand can still be replayed, and that is when one wants to.
_STALE = {
    "before-input",
    "bound",
    "negative-work",
    "overlap",
    "plan-digest",
    "unknown-prover",
    "wrong-gap",
    "wrong-makespan",
    "wrong-peak",
    "wrong-status",
    "wrong-transport",
}


def simulate(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The plan; - reads standard input.")],
    profile: Annotated[
        str,
        typer.Option(metavar="PROFILE", help="The profile to run it on; need not be the one it was made for."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
) -> int:
    """Replay a plan on a profile, against its own claims.

    Exits with 1 when the plan cannot finish, with 3 when the profile is of another job and has no costs for it.
    """
    from cpipe.cli.files import read_once

    read_once(plan, profile)

    from cpipe.plan import load_plan
    from cpipe.profile import load_profile, profile_warnings
    from cpipe.report.document import simulate_report

    loaded = load_plan(plan)
    loaded_profile = load_profile(profile)
    faults, stale = check_plan(loaded, plan)
    warnings = (*stale, *profile_warnings(loaded_profile, profile))
    printer = Printer()
    printer.warnings(warnings)
    if not faults:
        faults = _replay(loaded, loaded_profile, (plan, profile), printer, warnings, as_json)
    if faults:
        printer.errors(faults, "a plan that cannot finish has no makespan; see 'cpipe validate'")
        if as_json:
            printer.document(simulate_report(loaded, None, diagnostics=(*warnings, *faults)))
    return 1 if faults else 0


def _replay(
    plan: Plan,
    profile: Profile,
    files: tuple[str, str],
    printer: Printer,
    warnings: Sequence[Diagnostic],
    as_json: bool,
) -> tuple[Diagnostic, ...]:
    """Replay the plan and show what it costs; return what blocks it when it cannot finish.

    `files` are the names of plan and profile.
    """
    from cpipe.cli.blame import faults_of
    from cpipe.compiler import problem_for_plan, simulate_plan
    from cpipe.plan import lift
    from cpipe.report.document import simulate_report
    from cpipe.report.figures import replay_figures
    from cpipe.report.summary import simulate_lines
    from cpipe.sim import DeadlockError, memory_peaks

    with faults_of(files[1]):
        problem = problem_for_plan(plan, profile)
    try:
        with faults_of(files[0]):
            timeline = simulate_plan(plan, problem)
    except DeadlockError as error:
        return deadlock_faults(error, files[0], plan)
    schedule, _ = lift(plan)
    figures = replay_figures(plan, problem, schedule, timeline, memory_peaks(problem, schedule.orders, schedule.pairs))
    full = overfull(figures, files[1])
    printer.warnings(full)
    warnings = (*warnings, *full)
    if as_json:
        printer.document(simulate_report(plan, timeline, figures, warnings))
    else:
        printer.answer(simulate_lines(plan, timeline, figures))
    return ()


def overfull(figures: Sequence[DeviceFigures], file: str) -> tuple[Diagnostic, ...]:
    """Return a warning for each device on which the plan needs more memory than there is."""
    from cpipe.errors import Diagnostic

    return tuple(
        Diagnostic(
            code="over-capacity",
            message=f"device {device.name} would need {device.peak_bytes} bytes and has {device.capacity_bytes}",
            severity="warning",
            file=file,
            path=f"$.devices[{index}].memory_bytes",
        )
        for index, device in enumerate(figures)
        if device.capacity_bytes is not None and device.peak_bytes > device.capacity_bytes
    )


def check_plan(plan: Plan, file: str) -> tuple[tuple[Diagnostic, ...], tuple[Diagnostic, ...]]:
    """Return what keeps the plan from running, and what is merely stale, as warnings."""
    from msgspec.structs import replace

    from cpipe.plan import validate

    found = [fault for fault in validate(plan, file=file) if fault.severity == "error"]
    stale = tuple(replace(fault, severity="warning") for fault in found if fault.code in _STALE)
    return tuple(fault for fault in found if fault.code not in _STALE), stale


def deadlock_faults(error: DeadlockError, file: str, plan: Plan) -> tuple[Diagnostic, ...]:
    """Return one fault for each device that stands in a deadlock."""
    from cpipe.errors import Diagnostic

    return tuple(
        Diagnostic(
            code="deadlock",
            message=f"device {plan.ranks[block.device].device} at {block.op} waits for {block.waits_for}",
            file=file,
        )
        for block in error.blocked
    )
