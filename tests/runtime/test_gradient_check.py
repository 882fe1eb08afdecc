"""Tests of cpipe.runtime.gradient_check: the reference, and what counts as equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
from helpers import plan_of
from sample_plans import make_problem, one_f_one_b
from toy_models import ToyModel, two_tensors

from cpipe.runtime.gradient_check import StageCheck, accumulation_orders, check_stage, reference_gradients
from cpipe.runtime.models import Job, ModelFactory, TransformerModel

CPU = torch.device("cpu")


def test_orders_are_those_of_the_plan() -> None:
    """A stage's gradients are added up in the order of its W, or B, in the plan."""
    problem = make_problem(2, 3)
    for split in (False, True):
        plan = plan_of(problem, one_f_one_b(problem, split=split))
        assert accumulation_orders(plan) == {0: (0, 1, 2), 1: (0, 1, 2)}


@pytest.mark.parametrize("make", [TransformerModel, two_tensors])
def test_reference_is_plain_accumulation(make: ModelFactory) -> None:
    """In the natural order the reference is what `backward`, microbatch by microbatch, leaves in `grad`."""
    job = Job(num_stages=3, microbatches=3, seed=5)
    model = make(job)
    found = reference_gradients(model, {stage: (0, 1, 2) for stage in range(3)}, 1, CPU)
    stages = [model.stage(stage) for stage in range(3)]
    for value, target in zip(model.inputs(1), model.targets(1), strict=True):
        hidden: Any = value
        for module in stages:
            hidden = module(*hidden) if isinstance(hidden, tuple) else module(hidden)
        torch.autograd.backward(model.loss_fn(hidden, target))
    for stage, module in enumerate(stages):
        expected = {name: parameter.grad for name, parameter in module.named_parameters()}
        assert check_stage(stage, found[stage], expected) == StageCheck(stage=stage, equal=True, max_abs_difference=0.0)


class Orderly(ToyModel):
    """One stage of one number whose gradients are 1, 2^24 and 1 - 2^24: their float32 sum depends on the order."""

    def __init__(self) -> None:
        super().__init__(Job(num_stages=1, microbatches=3), lambda stage, job: Scale())
        self.loss_fn = lambda output, target: output.sum()

    def inputs(self, step: int) -> list[torch.Tensor]:
        """Return the gradients to come."""
        return [torch.tensor([value]) for value in (2.0**24, 1.0, -(2.0**24))]


class Scale(torch.nn.Module):
    """Multiplies by its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.unused = torch.nn.Parameter(torch.ones(1))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return `weight` x `value`."""
        return self.weight * value


@pytest.mark.parametrize(("order", "total"), [((0, 1, 2), 0.0), ((0, 2, 1), 1.0), ((2, 0, 1), 1.0)])
def test_the_order_of_sums_is_kept(order: tuple[int, ...], total: float) -> None:
    """Gradients are added in the order asked for, whatever the order in which microbatches run."""
    found = reference_gradients(Orderly(), {0: order}, 0, CPU)
    assert found[0]["weight"] is not None
    assert float(found[0]["weight"]) == total
    assert found[0]["unused"] is None


def test_the_smallest_difference_counts() -> None:
    """On CPU one unit in the last place is a mismatch, reported with its size and its parameter."""
    one = torch.ones(3)
    other = one.clone()
    other[1] = torch.nextafter(one[1], torch.tensor(2.0))
    check = check_stage(4, {"a": one, "b": other}, {"a": one, "b": one})
    assert check == StageCheck(stage=4, equal=False, max_abs_difference=2.0**-23, parameter="b")


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (None, torch.ones(2)),
        (torch.ones(2), None),
        (torch.ones(2), torch.ones(3)),
        (torch.tensor([1.0, float("nan")]), torch.ones(2)),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")])),
    ],
)
def test_what_never_passes(actual: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    """A gradient that is missing, of another shape, or not a number is infinitely wrong."""
    check = check_stage(0, {"a": actual}, {"a": expected})
    assert check == StageCheck(stage=0, equal=False, max_abs_difference=float("inf"), parameter="a")


def test_a_parameter_that_only_one_side_has() -> None:
    """Parameters are compared by name, and none may be left out; without gradient on both sides it passes."""
    check = check_stage(0, {"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)})
    assert replace(check, equal=True) == StageCheck(stage=0, equal=True, max_abs_difference=float("inf"), parameter="b")
    assert not check.equal
    assert check_stage(0, {"a": None}, {"a": None}).equal
    assert check_stage(0, {"a": torch.zeros(2)}, {"a": None}).equal


class Listing(torch.nn.Module):
    """Gives a list of two tensors, one of them with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Return `weight` x `value` twice."""
        return [self.weight * value, torch.nn.functional.dropout(self.weight * value)]


class Adding(torch.nn.Module):
    """Adds two tensors."""

    def forward(self, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return value + other


def test_lists_numbers_and_dropout() -> None:
    """Stages may give lists, targets may be anything, and stages that draw random numbers are named."""
    model = ToyModel(Job(num_stages=2, microbatches=1), lambda stage, job: Adding() if stage else Listing())
    model.targets = lambda step: [2]  # type: ignore[method-assign, list-item]
    model.loss_fn = lambda output, target: (output * target).sum()
    drawing: set[int] = set()
    found = reference_gradients(model, {0: (0,), 1: (0,)}, 0, CPU, drawing=drawing)
    assert found[0]["weight"] is not None
    assert drawing == {0}
