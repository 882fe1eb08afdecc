"""``cpipe simulate``: what a plan costs on a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cpipe.cli import complete
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpipe.cli.files import OutputFile
    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan, Problem, Timeline
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
    "wrong-span",
    "wrong-status",
    "wrong-transport",
}


def simulate(
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN", autocompletion=complete.plan_files, help="The plan; - reads standard input."),
    ],
    profile: Annotated[
        str,
        typer.Option(metavar="PROFILE", help="The profile to run it on; need not be the one it was made for."),
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="NEW", help="Write the plan with its times and claims on this profile."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
) -> int:
    """Replay a plan on a profile, against its own claims.

    With --output a plan whose orders were edited by hand, or that was made for another profile, is written with the
    times, claims and digests that it has on this one, once it is valid there.

    Exits with 1 when the plan cannot finish, or is not valid there to be written; with 3 when the profile is of
    another job and has no costs for it.
    """
    from cpipe.cli.files import read_once

    read_once(plan, profile)
    target = _target(output, as_json, [plan, profile])

    from cpipe.plan import load_plan
    from cpipe.profile import load_profile, profile_warnings
    from cpipe.report.document import simulate_report

    loaded = load_plan(plan)
    loaded_profile = load_profile(profile)
    faults, stale = _check_recounted(loaded, plan)
    warnings = (*stale, *profile_warnings(loaded_profile, profile))
    printer = Printer()
    printer.warnings(warnings)
    hint = "a plan that cannot finish has no makespan; see 'cpipe validate'"
    if not faults:
        try:
            faults = _replay(loaded, loaded_profile, (plan, profile), printer, warnings, as_json, target)
        except _NotValid as refusal:
            faults, hint = refusal.faults, "the plan was not written: it is not valid on this profile"
    if faults:
        printer.errors(faults, hint)
        if as_json:
            printer.document(simulate_report(loaded, None, diagnostics=(*warnings, *faults)))
    return 1 if faults else 0


class _Target(NamedTuple):
    """Where the new plan goes: a file, or None for standard output."""

    file: OutputFile | None


class _NotValid(Exception):
    """The new plan has `faults`."""

    def __init__(self, faults: tuple[Diagnostic, ...]) -> None:
        super().__init__()
        self.faults = faults


def _target(output: str | None, as_json: bool, inputs: Sequence[str]) -> _Target | None:
    """Return where to write, checked; None when nothing is to be written."""
    from cpipe.cli.files import OutputFile, is_standard_output
    from cpipe.errors import UsageError

    if output is None:
        return None
    if is_standard_output(output):
        if as_json:
            raise UsageError(f"--json and --output {output} both want standard output", code="stdout-twice")
        return _Target(None)
    return _Target(OutputFile(output, inputs))


def _check_recounted(plan: Plan, file: str) -> tuple[tuple[Diagnostic, ...], tuple[Diagnostic, ...]]:
    """Return what `check_plan` does; receive windows that the programs do not have are merely stale here."""
    from msgspec.structs import replace

    faults, stale = check_plan(plan, file)
    windows = tuple(replace(fault, severity="warning") for fault in faults if fault.code == "window")
    return tuple(fault for fault in faults if fault.code != "window"), (*stale, *windows)


def _write(plan: Plan, problem: Problem, timeline: Timeline, file: str, target: _Target, printer: Printer) -> None:
    """Write the plan timed anew; raise `_NotValid` when it would not be a valid one."""
    from cpipe.compiler.retime import retimed
    from cpipe.plan import encode_plan, validate

    new = retimed(plan, problem, timeline)
    if faults := validate(new, problem, file=file):
        raise _NotValid(faults)
    if target.file is None:
        printer.artefact(encode_plan(new))
    else:
        target.file.write(encode_plan(new))


def _replay(
    plan: Plan,
    profile: Profile,
    files: tuple[str, str],
    printer: Printer,
    warnings: Sequence[Diagnostic],
    as_json: bool,
    target: _Target | None,
) -> tuple[Diagnostic, ...]:
    """Replay the plan and show what it costs; return what blocks it when it cannot finish.

    `files` are the names of plan and profile.
    """
    from cpipe.cli.blame import faults_of
    from cpipe.compiler import problem_for_plan, simulate_plan
    from cpipe.compiler.retime import recounted
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
    plan = recounted(plan)
    figures = replay_figures(
        plan, problem, schedule, timeline, memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads)
    )
    full = overfull(figures, files[1])
    printer.warnings(full)
    warnings = (*warnings, *full)
    if target is not None:
        _write(plan, problem, timeline, files[0], target, printer)
    if as_json:
        printer.document(simulate_report(plan, timeline, figures, warnings))
    elif target is not None and target.file is None:
        printer.note(simulate_lines(plan, timeline, figures))
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
