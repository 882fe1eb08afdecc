"""What ``cpipe export`` writes: one function a kind of file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan

__all__ = ["KINDS", "LAYOUTS", "Request", "Written", "left_out"]

LAYOUTS = ("compute_only", "compute_comms")


class Request(NamedTuple):
    """A plan, its file, and the options that some kinds of file take; None where one was not given."""

    plan: Plan
    file: str
    layout: str | None
    fsdp: bool | None
    layers: str | None
    profile: str | None


class Written(NamedTuple):
    """The text of the file, None of a plan that was refused, and what is to be said of it."""

    text: str | None
    found: Sequence[Diagnostic] = ()


def left_out(request: Request) -> Sequence[Diagnostic]:
    """Return a warning of what no program reads out of its file."""
    from cpipe.errors import Diagnostic

    stages = request.plan.problem.recompute
    if not stages:
        return ()
    named = ", ".join(map(str, stages))
    message = f"stages that recompute: {named}; the file cannot say so, switch it on in the model"
    path = "$.problem.recompute"
    return [Diagnostic(code="not-exported", message=message, file=request.file, path=path, severity="warning")]


def _torch_csv(request: Request) -> Written:
    from cpipe.plan.exchange import torch_csv, torch_faults

    layout, fsdp = request.layout or LAYOUTS[0], bool(request.fsdp)
    faults = torch_faults(request.plan, layout=layout, fsdp=fsdp, file=request.file)
    if faults:
        return Written(None, faults)
    warnings = _unsafe(request.plan, request.file) if layout == "compute_comms" else ()
    return Written(torch_csv(request.plan, layout=layout, fsdp=fsdp), warnings)


def _unsafe(plan: Plan, file: str) -> list[Diagnostic]:
    """Return a warning for each kind of NCCL group on which the messages would hang or be swapped."""
    from cpipe.errors import Diagnostic
    from cpipe.plan import TRANSPORTS, safe_transports

    safe = safe_transports(plan)
    message = "on such a group the messages can hang; see 'cpipe validate --transport {}'"
    return [
        Diagnostic(code="torch-transport", message=f"{name}: {message.format(name)}", file=file, severity="warning")
        for name in TRANSPORTS
        if name.startswith("nccl") and name not in safe
    ]


def _megatron(request: Request) -> Written:
    from cpipe.plan.exchange import megatron_arguments, megatron_faults, stage_layers

    faults = megatron_faults(request.plan, file=request.file)
    if faults:
        return Written(None, faults)
    summary = request.plan.problem
    layers = stage_layers(request.layers or "", summary.stages, summary.devices)
    return Written(megatron_arguments(request.plan, layers))


def _deepspeed(request: Request) -> Written:
    from cpipe.plan.exchange import deepspeed_faults, deepspeed_text

    faults = deepspeed_faults(request.plan, file=request.file)
    return Written(None, faults) if faults else Written(deepspeed_text(request.plan))


def _timeline_csv(request: Request) -> Written:
    from cpipe.plan import validate
    from cpipe.plan.exchange import timeline_csv

    faults = [fault for fault in validate(request.plan, file=request.file) if fault.severity == "error"]
    if faults:
        return Written(None, faults)
    if request.profile is None:
        return Written(timeline_csv(request.plan))

    from cpipe.cli.blame import faults_of
    from cpipe.compiler import problem_for_plan, simulate_plan
    from cpipe.profile import load_profile, profile_warnings

    loaded = load_profile(request.profile)
    with faults_of(request.profile):
        problem = problem_for_plan(request.plan, loaded)
    with faults_of(request.file):
        timeline = simulate_plan(request.plan, problem)
    return Written(timeline_csv(request.plan, (problem, timeline)), profile_warnings(loaded, request.profile))


KINDS: dict[str, Callable[[Request], Written]] = {
    "torch-csv": _torch_csv,
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "timeline-csv": _timeline_csv,
}
