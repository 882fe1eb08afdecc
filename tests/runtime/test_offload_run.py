"""Tests of activations in host memory: the numbers of a single process, what is moved, and what is refused."""

from __future__ import annotations

import weakref
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from random_offloads import draw_offloads
from runtime_models import Block, Case, mixed_schedule, reference, run_cases
from runtime_workers import run_ranks
from sample_plans import make_problem
from torch import Tensor, nn

from cpipe.ir import OpKind, Problem, Schedule, encode_op
from cpipe.plan import encode_plan
from cpipe.runtime.offload import CopyStreams, Stash
from cpipe.runtime.stages import StageRunner
from cpipe.schedules import static_schedule
from cpipe.units import Bytes, Ns

WIDTH = 6


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Compute the reference as the workers compute: sums of several threads round differently."""
    torch.set_num_threads(1)


def offering(problem: Problem) -> Problem:
    """Return the problem with activations that may all go to host memory."""
    stages = [
        replace(stage, activation_bytes=Bytes(10), offload_bytes=Bytes(10), offload_ns=Ns(1))
        for stage in problem.stages
    ]
    return replace(problem, stages=tuple(stages))


def case_with(problem: Problem, schedule: Schedule, seed: int, **options: Any) -> Case:
    """Return a case of a plan that offloads at random positions, checked."""
    moved = draw_offloads(Random(seed), problem, schedule)
    assert moved.offloads
    plan = plan_of(problem, moved)
    assert_plan_ok(plan, problem)
    return Case(encode_plan(plan), **options)


def test_gradients() -> None:
    """Offloaded activations, backward split or whole, give the gradients and losses of a single process, bit by bit."""
    problem = offering(make_problem(3, 5))
    orders = [static_schedule(name, problem) for name in ("1f1b", "zb-h1", "gpipe")]
    cases = [case_with(problem, order, seed) for seed, order in enumerate(orders, 1)]
    cases.append(case_with(problem, mixed_schedule(orders[0]), 4, model="uneven"))
    cases.append(case_with(problem, orders[1], 5, model="uneven", frozen=(0,)))
    cases.append(case_with(problem, orders[2], 6, steps=3, adam=True, record=True))
    results = run_ranks(run_cases, 3, cases, timeout=60)
    for index, case in enumerate(cases):
        expected, losses = reference(case)
        outcomes = [ranks[index] for ranks in results]
        found = {stage: tensors for outcome in outcomes for stage, tensors in outcome.tensors.items()}
        for stage, tensors in expected.items():
            for ours, theirs in zip(found[stage], tensors, strict=True):
                if ours is None or theirs is None:
                    assert theirs is None and (ours is None or not ours.any())
                else:
                    assert torch.equal(ours, theirs), stage
        last = next(outcome.losses for outcome in outcomes if outcome.losses[0])
        for step, wanted in enumerate(losses):
            assert [last[step][mb].item() for mb in range(len(wanted))] == [loss.item() for loss in wanted]


def test_stages_on_one_rank() -> None:
    """Two stages of a rank offload side by side, one while the other computes."""
    problem = offering(make_problem(2, 4, placement=(0, 1, 1, 0)))
    backward = [encode_op(OpKind.B, stage, mb, 4) for stage in (3, 2, 1, 0) for mb in range(4)]
    forward = [encode_op(OpKind.F, stage, mb, 4) for stage in range(4) for mb in range(4)]
    orders = tuple(
        tuple(op for op in (*forward, *backward) if problem.stages[op // 16].device == device) for device in range(2)
    )
    cases = [case_with(problem, Schedule(orders=orders), seed) for seed in (1, 2)]
    for index, case in enumerate(cases):
        expected, _ = reference(case)
        for ranks in run_ranks(run_cases, 2, cases, timeout=60):
            for stage, tensors in ranks[index].tensors.items():
                for ours, theirs in zip(tensors, expected[stage], strict=True):
                    assert ours is not None and theirs is not None and torch.equal(ours, theirs)


class Hidden(nn.Module):
    """Two layers; what lies between them is only held by autograd."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("scale", torch.full((4 * WIDTH,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`."""
        hidden = torch.tanh(self.first(x)) * self.scale
        out: Tensor = torch.sigmoid(self.second(hidden))
        return out


def stash_of(module: nn.Module, x: Tensor) -> tuple[Stash, Tensor]:
    """Return the stash and the output of a forward."""
    stash = Stash(module, [x], CopyStreams(torch.device("cpu")))
    with stash.saving():
        out = module(x)
    stash.keep([out])
    return stash, out


def test_what_is_moved() -> None:
    """Intermediate tensors are moved, once each; parameters, buffers, inputs and outputs stay."""
    x = torch.randn(3, WIDTH, requires_grad=True)
    stash, _ = stash_of(Hidden(), x)
    stash.offload()
    tanh_and_product = 2 * 3 * 4 * WIDTH * 4
    assert stash.num_bytes == tanh_and_product


def test_views_of_one_storage_move_together() -> None:
    """Saved views of one tensor are copied as one, and come back as views of one."""
    base = nn.Parameter(torch.randn(4, 8))

    def forward(x: Tensor) -> Tensor:
        whole = x @ base
        left, right = whole[:, :4], whole[:, 4:]
        return (left * right).sum()

    x = torch.randn(3, 4, requires_grad=True)
    module = nn.Module()
    module.register_parameter("base", base)
    stash = Stash(module, [x], CopyStreams(torch.device("cpu")))
    with stash.saving():
        out = forward(x)
    stash.keep([out])
    stash.offload()
    assert stash.num_bytes == 3 * 8 * 4
    stash.offloaded()
    stash.reload()
    stash.reloaded()
    (found,) = torch.autograd.grad(out, x)
    (expected,) = torch.autograd.grad(forward(x), x)
    assert torch.equal(found, expected)


def test_memory_is_given_up() -> None:
    """Behind the wait nothing of ours holds the device's copy, and a backward before the RELOAD is refused."""
    stash, out = stash_of(Hidden(), torch.randn(3, WIDTH, requires_grad=True))
    stash.offload()
    held = [weakref.ref(block.device) for block in stash._blocks if block.device is not None]
    saved = [entry for block in stash._blocks for ref in block._saved if (entry := ref()) is not None]
    assert len(held) == 2 and all(ref() is not None for ref in held)
    assert saved and all(entry.alias is not None for entry in saved)
    stash.offloaded()
    assert all(ref() is None for ref in held)
    assert all(entry.alias is None for entry in saved)
    with pytest.raises(RuntimeError, match="a backward needs what is in host memory"):
        torch.autograd.backward([out.sum()], retain_graph=True)
    stash.reload()
    stash.reloaded()
    assert stash.num_bytes == 0
    torch.autograd.backward([out.sum()])


def test_change_in_place_is_found() -> None:
    """A saved tensor that is changed in place is refused as autograd refuses it, offloaded or not."""

    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.seen = torch.empty(0)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.tanh(self.layer(x))
            self.seen = hidden.detach()
            return (hidden * hidden).sum(-1)

    for moved in (False, True):
        module = Careless()
        stash, out = stash_of(module, torch.randn(2, WIDTH, requires_grad=True))
        module.seen.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            if moved:
                stash.offload()
                stash.offloaded()
            else:
                torch.autograd.backward([out.sum()])


@pytest.mark.parametrize("split", [False, True])
def test_runner(split: bool) -> None:
    """A stage runner gives the same gradients with and without the way to the host, D and W apart or as one."""
    x, grad = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    found = []
    for offloads in ((), (0,)):
        torch.manual_seed(1)
        module = Block()
        runner = StageRunner(0, 0, module, offloads=offloads)
        leaf = x.clone().requires_grad_()
        runner.forward(0, (leaf,))
        for copy in ("OFFLOAD", "RELOAD") if offloads else ():
            runner.move(0, copy, wait=False)
            runner.move(0, copy, wait=True)
        grads = runner.input_grad(0, (grad,)) if split else runner.full_backward(0, (grad,))
        if split:
            runner.weight_grad(0)
        found.append([*grads, *(parameter.grad for parameter in module.parameters())])
        assert not runner._stashes
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
