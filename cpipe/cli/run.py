"""``cpipe run``: a plan on this machine, one process a rank, against what it predicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpipe.cli import complete
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.cli.files import OutputFile
    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan

__all__ = ["run"]


def run(
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN", autocompletion=complete.plan_files, help="The plan; - reads standard input."),
    ],
    model: Annotated[
        str, typer.Option(metavar="NAME", help="transformer, sleep (as long as the plan says) or MODULE:FACTORY.")
    ] = "transformer",
    steps: Annotated[
        int, typer.Option(metavar="N", help="Iterations; the first of several warms up, the fastest is shown.")
    ] = 3,
    profile: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Check the plan against this profile first.")
    ] = None,
    emulate: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Delay messages as the links of this profile would.")
    ] = None,
    time_scale: Annotated[
        float, typer.Option(metavar="FACTOR", help="Multiply the plan's times, in the sleep model and in --emulate.")
    ] = 1.0,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the measured timeline for Perfetto or chrome://tracing.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Compare the gradients with those of a single process.")] = True,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the model.")] = 0,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="End the run when it takes longer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what the ranks printed.")] = False,
) -> int:
    """Run a plan on this machine and compare it with its own claims.

    Starts one process per rank; under torchrun, each process is a rank. One pipeline runs: collectives have no other
    replica. Exits with 1 when the gradients are not those of a single process, with 5 when a rank fails or time is up.
    """
    from cpipe.cli.files import OutputFile, read_once
    from cpipe.cli.launch import require_torch, under_launcher

    _check_options(steps, time_scale, timeout, seed)
    read_once(plan, profile, emulate)
    inputs = [name for name in (plan, profile, emulate) if name is not None]
    target = None if trace is None else OutputFile(trace, inputs, "--trace")
    require_torch()
    printer = Printer(verbose=verbose)
    loaded, faults = _checked_plan(plan, profile)
    printer.errors(faults)
    if any(fault.severity == "error" for fault in faults):
        if as_json:
            from cpipe.report.document import run_report

            printer.document(run_report(None, "invalid", faults))
        return 1
    arguments = ["--model", model, "--steps", str(steps), "--seed", str(seed), "--time-scale", repr(time_scale)]
    arguments += [] if check else ["--no-check"]
    delays = None if emulate is None else _delays(loaded, emulate, time_scale)
    work = _as_rank if under_launcher() else _all_ranks
    result = work(loaded, arguments, delays, target, timeout, printer)
    return 0 if result is None else _show(result, printer, as_json)


def _check_options(steps: int, time_scale: float, timeout: float | None, seed: int) -> None:
    from cpipe.cli.options import check_ranges

    checks = [
        ("--steps", steps, steps >= 1, "a number >= 1"),
        ("--time-scale", time_scale, 0 < time_scale < float("inf"), "a factor > 0"),
        ("--seed", seed, 0 <= seed < 2**31, f"a number in [0, {2**31 - 1}]"),
    ]
    if timeout is not None:
        checks.append(("--timeout", timeout, 0 < timeout < float("inf"), "seconds > 0"))
    check_ranges(checks)


def _checked_plan(path: str, profile: str | None) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """Load the plan; return it with what is wrong with it."""
    from cpipe.cli.blame import faults_of
    from cpipe.compiler import problem_for_plan
    from cpipe.plan import load_plan, validate
    from cpipe.profile import load_profile

    plan = load_plan(path)
    if profile is None:
        return plan, validate(plan, file=path)
    with faults_of(profile):
        problem = problem_for_plan(plan, load_profile(profile))
    return plan, validate(plan, problem, file=path)


def _delays(plan: Plan, path: str, time_scale: float) -> list[dict[str, Any]]:
    """Return what `cpipe.runtime.emulate.Emulation.from_builtins` takes: the hops of the plan's placement."""
    from cpipe.cli.blame import faults_of
    from cpipe.compiler import problem_for_plan
    from cpipe.profile import load_profile

    with faults_of(path):
        problem = problem_for_plan(plan, load_profile(path))
    hops = [("activation", stage + 1, hop) for stage, hop in enumerate(problem.forward_hops)]
    hops += [("gradient", stage, hop) for stage, hop in enumerate(problem.backward_hops)]
    return [
        {
            "carries": carries,
            "stage": stage,
            "latency_s": hop.latency_ns * time_scale / 1e9,
            "occupancy_s": hop.occupancy_ns * time_scale / 1e9,
            "pipe": hop.pipe,
        }
        for carries, stage, hop in hops
        if hop is not None
    ]


def _all_ranks(
    plan: Plan,
    arguments: list[str],
    delays: list[dict[str, Any]] | None,
    trace: OutputFile | None,
    timeout: float | None,
    printer: Printer,
) -> dict[str, Any] | None:
    """Start one process per rank and return the result."""
    from tempfile import TemporaryDirectory

    from cpipe.cli.launch import launch

    with TemporaryDirectory(prefix="cpipe-run-") as name:
        directory = Path(name)
        command = _command(directory, plan, arguments, delays, trace is not None)
        logs = launch(
            "cpipe.runtime",
            command,
            num_ranks=len(plan.ranks),
            directory=directory,
            timeout_s=timeout,
            note=printer.note,
        )
        for rank, log in logs.items():
            for line in log.splitlines():
                printer.progress(f"rank {rank}: {line}")
        return _collect(directory, trace)


def _as_rank(
    plan: Plan,
    arguments: list[str],
    delays: list[dict[str, Any]] | None,
    trace: OutputFile | None,
    timeout: float | None,
    printer: Printer,
) -> dict[str, Any] | None:
    """Run as the rank that another launcher says this process is."""
    from tempfile import TemporaryDirectory

    from cpipe.cli.launch import refuse_timeout
    from cpipe.errors import NoSolutionError

    refuse_timeout(timeout)

    from cpipe.runtime.__main__ import main
    from cpipe.runtime.faults import RuntimeFault

    with TemporaryDirectory(prefix="cpipe-run-") as name:
        directory = Path(name)
        try:
            main(_command(directory, plan, arguments, delays, trace is not None))
        except RuntimeFault as error:
            raise NoSolutionError(error.diagnostics, hint=error.hint) from error
        return _collect(directory, trace)


def _command(
    directory: Path, plan: Plan, arguments: list[str], delays: list[dict[str, Any]] | None, traced: bool
) -> list[str]:
    """Write what the ranks read to `directory`; return their arguments."""
    from cpipe.plan import encode_plan

    (directory / "plan.json").write_bytes(encode_plan(plan))
    command = [str(directory / "plan.json"), *arguments, "--result", str(directory / "result.json")]
    if delays is not None:
        (directory / "delays.json").write_text(json.dumps(delays), encoding="utf-8")
        command += ["--emulation", str(directory / "delays.json")]
    return [*command, "--trace", str(directory / "trace.json")] if traced else command


def _collect(directory: Path, trace: OutputFile | None) -> dict[str, Any] | None:
    """Return the result, and write the trace to its place; None on a rank that has none."""
    path = directory / "result.json"
    if not path.is_file():
        return None
    if trace is not None:
        trace.write((directory / "trace.json").read_bytes())
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def _show(result: dict[str, Any], printer: Printer, as_json: bool) -> int:
    """Print the summary or the report; return the exit code."""
    from cpipe.report.document import run_report
    from cpipe.report.run import run_lines

    faults = _mismatches(result)
    report = run_report(result, "mismatch" if faults else "done", faults)
    printer.errors(faults)
    if as_json:
        printer.document(report)
    else:
        printer.answer(run_lines(report))
    return 1 if faults else 0


def _mismatches(result: dict[str, Any]) -> list[Diagnostic]:
    """Return a fault for each stage whose gradients are wrong, and for each rank that ran other ops than planned."""
    from cpipe.errors import Diagnostic

    random = any(check.get("random") for check in result["gradients"])
    faults = [
        Diagnostic(code="gradient-mismatch", message=_difference(check, random))
        for check in result["gradients"]
        if not check["equal"]
    ]
    return faults + [
        Diagnostic(
            code="order-not-kept", message=f"device {device['id']} ran other ops than the plan has, or in another order"
        )
        for device in result["devices"]
        if not device["order_kept"]
    ]


def _difference(check: dict[str, Any], random: bool) -> str:
    """Say how the gradients of a stage differ; `random`: whether any stage draws random numbers."""
    stage = f"stage {check['stage']}"
    if check.get("random"):
        return f"{stage} draws random numbers (dropout?): its gradients cannot be compared"
    if random:
        return f"{stage}: its gradients cannot be compared, as another stage draws random numbers (dropout?)"
    return (
        f"{stage}: the gradient of {check['parameter']} differs by up to {check['max_abs_difference']:g} "
        "from that of a single process"
    )
