"""Recomputation: a stage keeps part of its activation only, and makes the rest again when its backward needs it.

A stage that recomputes is a stage with other costs, so that nothing behind the profile has to know more about it:

* F leaves ``recompute.activation_bytes`` behind.
* The first op of the backward that does something takes ``recompute.extra_ms`` longer: B; and D, or W where D takes no
  time, as on a first stage. While it runs the whole activation is there again: D or W then has its transient beside
  max(activation, held) bytes, B has the larger of both transients beside the activation.
* What it keeps stays on the device: a stage that recomputes offloads nothing.
* Between D and W the stage holds what it held anyway; where D does nothing, no more than F left.
"""

from __future__ import annotations

from msgspec.structs import replace

from cpipe.ir.problem import Problem, Stage
from cpipe.profile.schema import Profile, RecomputeSpec
from cpipe.units import Bytes, Ns, ms_to_ns

__all__ = ["lightest", "offers", "recomputing"]


def offers(profile: Profile) -> tuple[int, ...]:
    """Return the stages that may recompute, in flow order."""
    return tuple(index for index, spec in enumerate(profile.stages) if spec.recompute is not None)


def recomputing(stage: Stage, spec: RecomputeSpec) -> Stage:
    """Return `stage` as it is when it recomputes."""
    extra, kept, whole = ms_to_ns(spec.extra_ms), Bytes(spec.activation_bytes), stage.activation_bytes
    waits = _waits_for_weight_grad(stage)
    held = min(kept, stage.held_bytes) if waits else stage.held_bytes
    changed = replace(
        stage,
        recomputes=True,
        recompute_ns=extra,
        full_backward_ns=Ns(stage.full_backward_ns + extra),
        full_backward_transient_bytes=Bytes(stage.whole_transient_bytes + whole - kept),
        activation_bytes=kept,
        held_bytes=held,
        offload_bytes=Bytes(0),
        offload_ns=Ns(0),
    )
    back = max(whole, stage.held_bytes) - max(kept, held)
    if waits:
        return replace(
            changed,
            weight_grad_ns=Ns(stage.weight_grad_ns + extra),
            weight_grad_transient_bytes=Bytes(stage.weight_grad_transient_bytes + back + max(kept, held) - held),
        )
    if stage.can_split:
        return replace(
            changed,
            input_grad_ns=Ns(stage.input_grad_ns + extra),
            input_grad_transient_bytes=Bytes(stage.input_grad_transient_bytes + back),
        )
    return changed


def lightest(problem: Problem, profile: Profile) -> Problem:
    """Return a job that is never harder than `problem`, whichever of its stages recompute.

    Stages that offer it keep as little as if they did, and take as long as if they did not: what no order of this job
    can reach, no choice can. `problem` is that of `profile` (of both flows, where there are two) with no choice taken.
    """
    stages = []
    for index, stage in enumerate(problem.stages):
        spec = profile.stages[index % len(profile.stages)].recompute
        if spec is not None:
            again = recomputing(stage, spec)
            # While D or B runs the whole activation is there either way; during W only where it makes it again.
            stage = replace(
                stage,
                activation_bytes=again.activation_bytes,
                held_bytes=again.held_bytes,
                input_grad_transient_bytes=again.input_grad_transient_bytes,
                full_backward_transient_bytes=again.full_backward_transient_bytes,
                # with what a stage leaves that offloads instead (`cpipe.profile.offload.unloaded`), the lesser of both
                offload_bytes=Bytes(max(0, again.activation_bytes - stage.activation_bytes + stage.offload_bytes)),
            )
        stages.append(stage)
    return replace(problem, stages=tuple(stages))


def _waits_for_weight_grad(stage: Stage) -> bool:
    """Whether D does nothing, so that W is the first op that needs the activation."""
    return stage.can_split and stage.input_grad_ns == 0
