"""A plan on a profile: the problem that it solves there, and its replay."""

from __future__ import annotations

from collections.abc import Iterator

from cpipe.errors import Diagnostic, PlanError, ProfileError
from cpipe.ir import Plan, Problem, Timeline
from cpipe.plan import lift, posting_gates
from cpipe.profile import Profile, normalize
from cpipe.profile.recompute import offers
from cpipe.sim import simulate

__all__ = ["problem_for_plan", "simulate_plan"]


def problem_for_plan(plan: Plan, profile: Profile, receive_window: int | None = None) -> Problem:
    """Return the problem of `profile` under the plan's own choices, whether or not its memory suffices.

    Those are its placement and the stages that recompute.

    Raises
    ------
    ProfileError
        When numbers of devices, stages or microbatches differ, its placement needs a link that the profile lacks, or it
        recomputes a stage that does not offer it: the plan is not for this job.
    """
    summary = plan.problem
    flows = summary.flows
    sizes = (
        ("devices", summary.devices, len(profile.devices)),
        ("stages", summary.stages, flows * len(profile.stages)),
        ("microbatches", flows * summary.microbatches, profile.microbatches),
        ("flows", flows, min(max(flows, 1), 2)),
    )
    faults = [
        Diagnostic(code="different-size", path=f"$.{name}", message=f"the plan has {ours} {name}, the profile {theirs}")
        for name, ours, theirs in sizes
        if ours != theirs
    ]
    if len(summary.placement) != summary.stages:
        faults.append(
            Diagnostic(
                code="different-size", message=f"the plan places {len(summary.placement)} of {summary.stages} stages"
            )
        )
    faults += [
        Diagnostic(
            code="different-size",
            message=f"the plan places stage {stage} on device {device}, the profile has {len(profile.devices)} devices",
        )
        for stage, device in enumerate(summary.placement)
        if not 0 <= device < len(profile.devices)
    ]
    offered = offers(profile)
    faults += [
        Diagnostic(
            code="recompute-not-offered", message=f"the plan recomputes stage {stage}, the profile does not offer it"
        )
        for stage in summary.recompute
        if not 0 <= stage < summary.stages or stage % len(profile.stages) not in offered
    ]
    if faults:
        raise ProfileError(faults)
    return normalize(
        profile,
        placement=summary.placement,
        receive_window=receive_window,
        prove_memory=False,
        flows=flows,
        recompute=summary.recompute,
    )


def simulate_plan(plan: Plan, problem: Problem) -> Timeline:
    """Replay the plan's program on `problem`: its orders, and its messages posted where it posts them.

    Raises
    ------
    PlanError
        When the problem has no costs for the ops of the plan: it does not split a stage that the plan splits, its
        stages offer nothing that the plan moves to host memory, or its data parallelism is another.
    cpipe.sim.DeadlockError
        When the program cannot finish.
    """
    if faults := (*_split_faults(plan, problem), *_mode_faults(plan, problem), *_copy_faults(plan, problem)):
        raise PlanError(faults)
    return simulate(problem, lift(plan)[0], posting_gates(plan))


def _split_faults(plan: Plan, problem: Problem) -> Iterator[Diagnostic]:
    """Yield a fault for each stage that runs D and W in the plan and is whole in the problem."""
    seen: set[int] = set()
    for place, program in enumerate(plan.ranks):
        for index, step in enumerate(program.ops):
            stage = step.stage
            if step.op not in ("D", "W") or stage is None or stage in seen or not 0 <= stage < problem.num_stages:
                continue
            if problem.stages[stage].can_split:
                continue
            seen.add(stage)
            name = problem.stages[stage].name
            message = f"the plan runs D and W of stage {stage}, but the profile gives {name!r} a full backward alone"
            yield Diagnostic(code="cannot-split", message=message, path=f"$.ranks[{place}].ops[{index}]")


def _copy_faults(plan: Plan, problem: Problem) -> Iterator[Diagnostic]:
    """Yield a fault for each stage that the plan copies to host memory and the problem does not."""
    seen: set[int] = set()
    for place, program in enumerate(plan.ranks):
        for index, step in enumerate(program.ops):
            stage = step.stage
            if step.op != "OFFLOAD" or stage is None or stage in seen or not 0 <= stage < problem.num_stages:
                continue
            if problem.stages[stage].offload_bytes:
                continue
            seen.add(stage)
            message = f"the plan moves activations of stage {stage} to host memory, the profile does not offer it"
            yield Diagnostic(code="copy-not-offered", message=message, path=f"$.ranks[{place}].ops[{index}]")


_COLLECTIVES = {"ALL_GATHER": "zero1", "REDUCE_SCATTER": "zero1", "ALL_REDUCE": "ddp"}


def _mode_faults(plan: Plan, problem: Problem) -> Iterator[Diagnostic]:
    """Yield a fault when plan and problem differ in their data parallelism."""
    ours = next((_COLLECTIVES[step.op] for rank in plan.ranks for step in rank.ops if step.op in _COLLECTIVES), "none")
    theirs = problem.collectives.mode if problem.collectives is not None else "none"
    if ours != theirs:
        message = f"the plan's data parallelism is {ours}, that of the profile is {theirs}"
        yield Diagnostic(code="different-job", message=message, path="$.groups")
