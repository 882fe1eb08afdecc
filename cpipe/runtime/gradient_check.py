"""Compare the gradients of a pipeline with those of one process that does the same sums in the same order.

On CPU they must be equal bit by bit: the same kernels see the same numbers, and a stage's microbatches are added up in
the order of its W and B in the plan. Elsewhere kernels may add up in an order of their own, so a small relative
difference is let pass. A stage that draws random numbers as it runs (dropout) cannot be checked, nor can those beside
it; which stages do is noticed by torch's generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cpipe.ir import Plan
from cpipe.runtime.models import PipelineModel
from cpipe.runtime.specs import as_tensors, moved

__all__ = ["Gradients", "StageCheck", "accumulation_orders", "added", "check_stage", "reference_gradients"]

_ACCELERATOR_TOLERANCE = 1e-5

Gradients = dict[str, Tensor | None]
"""By name of the parameter; None where nothing depends on it."""


@dataclass(frozen=True, kw_only=True)
class StageCheck:
    """How the gradients of one stage compare.

    Attributes
    ----------
    stage
        Which.
    equal
        Whether they pass: equal bit by bit on CPU.
    max_abs_difference
        Over all elements of all parameters; infinite when one side has no gradient or another shape.
    parameter
        Where that is; empty when nothing differs.
    random
        Whether the stage draws random numbers, so that a difference says nothing.
    """

    stage: int
    equal: bool
    max_abs_difference: float
    parameter: str = ""
    random: bool = False


def accumulation_orders(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Return, for each stage, its microbatches in the order in which their gradients are added up."""
    orders: dict[int, list[int]] = {stage: [] for stage in range(plan.problem.stages)}
    for program in plan.ranks:
        for op in program.ops:
            if op.op in ("W", "B") and op.stage is not None and op.mb is not None:
                orders[op.stage].append(op.mb)
            elif op.backward_stage is not None and op.backward_mb is not None:
                orders[op.backward_stage].append(op.backward_mb)
    return {stage: tuple(order) for stage, order in orders.items()}


def reference_gradients(
    model: PipelineModel,
    orders: Mapping[int, Sequence[int]],
    step: int,
    device: torch.device,
    *,
    part: slice = slice(None),
    drawing: set[int] | None = None,
) -> dict[int, Gradients]:
    """Run all stages in this process, one microbatch after the other, and add up the gradients.

    Parameters
    ----------
    model
        A fresh instance.
    orders
        As `accumulation_orders` returns them; its keys are all stages.
    step
        The iteration whose inputs and targets are used.
    device
        Where to run.
    part
        Which of the model's microbatches are used; `orders` counts from the first of them.
    drawing
        Is given the stages whose forward draws random numbers from torch's generator.

    Returns
    -------
    dict
        For each stage the sum of the gradients over its microbatches.
    """
    stages = [model.stage(stage).to(device) for stage in sorted(orders)]
    inputs, targets = model.inputs(step)[part], model.targets(step)[part]
    sums = [_Sum(module, orders[stage]) for stage, module in enumerate(stages)]
    for mb, (value, target) in enumerate(zip(inputs, targets, strict=True)):
        hidden: Any = moved(value, device)
        for stage, module in enumerate(stages):
            before = _random_state(device)
            hidden = module(*(as_tensors(hidden) or (hidden,)))
            if drawing is not None and not torch.equal(before, _random_state(device)):
                drawing.add(stage)
        loss = model.loss_fn(hidden, moved(target, device))
        gradients = iter(torch.autograd.grad(loss, [p for s in sums for p in s.parameters], allow_unused=True))
        for total in sums:
            total.add(mb, [next(gradients) for _ in total.parameters])
    return {stage: total.gradients() for stage, total in enumerate(sums)}


def added(parts: Sequence[Mapping[int, Gradients]]) -> dict[int, Gradients]:
    """Return the sums over several flows of what `reference_gradients` gives for each; None counts as nothing."""
    first, *others = parts
    total = dict(first)
    for part in others:
        for stage, gradients in part.items():
            total[stage] = {
                name: ours if theirs is None else theirs if ours is None else ours + theirs
                for (name, ours), theirs in zip(total[stage].items(), gradients.values(), strict=True)
            }
    return total


def check_stage(stage: int, actual: Gradients, expected: Gradients) -> StageCheck:
    """Compare the gradients of a stage, parameter by parameter."""
    worst, where, passed = 0.0, "", True
    for name in sorted(actual.keys() | expected.keys()):
        difference, fits = _compare(actual.get(name), expected.get(name))
        passed = passed and fits
        if difference > worst:
            worst, where = difference, name
    return StageCheck(stage=stage, equal=passed, max_abs_difference=worst, parameter=where)


class _Sum:
    """Adds up one stage's gradients in a given order of microbatches, whatever the order in which they come."""

    def __init__(self, module: nn.Module, order: Sequence[int]) -> None:
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.parameters = [parameter for _, parameter in named]
        self._names = [name for name, _ in named]
        self._order = list(order)
        self._early: dict[int, Sequence[Tensor | None]] = {}
        self._total: list[Tensor | None] = [None] * len(named)

    def add(self, mb: int, gradients: Sequence[Tensor | None]) -> None:
        """Take the gradients of one microbatch; add what is due."""
        self._early[mb] = gradients
        while self._order and self._order[0] in self._early:
            for index, gradient in enumerate(self._early.pop(self._order.pop(0))):
                total = self._total[index]
                if gradient is not None:
                    self._total[index] = gradient.clone() if total is None else total.add_(gradient)

    def gradients(self) -> Gradients:
        """Return the sums by name."""
        return dict(zip(self._names, self._total, strict=True))


def _random_state(device: torch.device) -> Tensor:
    """Return the state of all generators that a stage on `device` may draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def _compare(actual: Tensor | None, expected: Tensor | None) -> tuple[float, bool]:
    """Return the largest difference of two gradients, and whether it passes; a NaN never does."""
    if expected is None and (actual is None or not actual.any()):
        return 0.0, True  # a flat buffer has zeros where nothing depends on a parameter
    if actual is None or expected is None:
        return float("inf"), False
    if actual.shape != expected.shape:
        return float("inf"), False
    if torch.equal(actual, expected):
        return 0.0, True
    difference = float((actual.double() - expected.double()).abs().max())
    if difference != difference:
        return float("inf"), False
    scale = 0.0 if actual.device.type == "cpu" else _ACCELERATOR_TOLERANCE * float(expected.abs().max())
    return difference, difference <= scale
