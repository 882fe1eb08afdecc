"""Plan -> the arguments with which Megatron-LM runs it.

Megatron takes no order, so a plan goes out only where Megatron makes the same one (`megatron_faults`).
"""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.ir import Plan
from cpipe.plan.exchange.layer_layout import Layers, layer_layout
from cpipe.plan.exchange.megatron_order import shape_of

__all__ = ["megatron_arguments"]


def megatron_arguments(plan: Plan, layers: Sequence[Layers]) -> str:
    """Return the arguments of a plan without `megatron_faults`, as an array of bash.

    Parameters
    ----------
    plan
        A valid plan.
    layers
        Of each stage; see `cpipe.plan.exchange.layer_layout.stage_layers`.

    Returns
    -------
    str
        To be sourced; the array is ``MEGATRON_ARGS``.
    """
    shape = shape_of(plan)
    counts = {letter: sum(count for runs in layers for kind, count in runs if kind == letter) for letter in "tm"}
    lines = [f"--num-layers {counts['t']}"]
    if counts["m"]:
        lines.append(f"--mtp-num-layers {counts['m']}")
    lines += [
        f"--pipeline-model-parallel-size {shape.num_ranks}",
        f"--pipeline-model-parallel-layout '{layer_layout(layers)}'",
    ]
    if shape.chunks > 1:
        lines.append(f"--microbatch-group-size-per-virtual-pipeline-stage {shape.group}")
    if shape.overlap:
        lines.append("--overlap-moe-expert-parallel-comm")
    if shape.delay:
        lines.append("--delay-wgrad-compute")
    if any(step.op == "REDUCE_SCATTER" for program in plan.ranks for step in program.ops):
        lines.append("--use-distributed-optimizer")
    body = "".join(f"    {line}\n" for line in lines)
    interleaved = f"# {shape.chunks} virtual stages a rank, which Megatron reads off the layout\n"
    return (
        f"# {plan.problem.microbatches} microbatches:\n"
        f"# --global-batch-size = {plan.problem.microbatches} x --micro-batch-size x data-parallel size\n"
        f"{interleaved if shape.chunks > 1 else ''}MEGATRON_ARGS=(\n{body})\n"
    )
