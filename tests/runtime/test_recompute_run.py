"""Tests of stages that run their forward again: the numbers of a single process, and what is kept meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from runtime_models import Case, make_stage, mixed_schedule, reference, run_cases, squared_error
from runtime_workers import run_ranks
from sample_plans import make_problem
from torch import Tensor, nn

from cpipe.ir import OpKind, Problem, Schedule, encode_op
from cpipe.plan import decode_plan, encode_plan
from cpipe.profile import RecomputeSpec
from cpipe.profile.recompute import recomputing
from cpipe.runtime.models import Job, SleepModel
from cpipe.runtime.stages import StageRunner
from cpipe.schedules import static_schedule

WIDTH = 6


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Compute the reference as the workers compute: sums of several threads round differently."""
    torch.set_num_threads(1)


def recomputed(problem: Problem, *stages: int) -> Problem:
    """Return the problem in which `stages` recompute."""
    spec = RecomputeSpec(activation_bytes=0, extra_ms=1)
    return replace(
        problem,
        stages=tuple(
            recomputing(stage, spec) if index in stages else stage for index, stage in enumerate(problem.stages)
        ),
    )


def case_with(problem: Problem, schedule: Schedule, **options: Any) -> Case:
    """Return a case of a plan, checked."""
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    assert plan.problem.recompute == problem.recompute
    return Case(encode_plan(plan), **options)


def check_all(world_size: int, cases: list[Case]) -> None:
    """Run all cases in one launch; gradients (or weights) and losses must be those of a single process, bit by bit."""
    results = run_ranks(run_cases, world_size, cases, timeout=60)
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


def test_gradients() -> None:
    """First, middle and last stages that recompute, split or whole, give the gradients of a single process."""
    problem = make_problem(3, 5)
    cases = []
    for stages in ((0,), (1,), (2,), (0, 1, 2)):
        changed = recomputed(problem, *stages)
        cases += [case_with(changed, static_schedule(name, changed)) for name in ("1f1b", "zb-h1")]
    changed = recomputed(problem, 0, 1, 2)
    cases.append(case_with(changed, mixed_schedule(static_schedule("1f1b", changed)), model="uneven"))
    cases.append(case_with(changed, static_schedule("zb-h1", changed), model="uneven", frozen=(0,)))
    cases.append(case_with(changed, static_schedule("1f1b", changed), steps=3, adam=True))
    check_all(3, cases)


def test_stages_on_one_rank() -> None:
    """What is handed over inside a rank needs no second forward to tell who wants gradients."""
    problem = recomputed(make_problem(2, 4, placement=(0, 1, 1, 0)), 0, 2, 3)
    backward = [encode_op(OpKind.B, stage, mb, 4) for stage in (3, 2, 1, 0) for mb in range(4)]
    forward = [encode_op(OpKind.F, stage, mb, 4) for stage in range(4) for mb in range(4)]
    orders = tuple(
        tuple(op for op in (*forward, *backward) if problem.stages[op // 16].device == device) for device in range(2)
    )
    check_all(2, [case_with(problem, Schedule(orders=orders))])


class Watched(nn.Module):
    """A layer behind one whose output nothing else holds; counts its runs, draws random numbers, has a buffer."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.runs = 0
        self.hidden: Callable[[], Tensor | None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor like `x`."""
        self.runs += 1
        hidden = torch.sin(self.first(x))
        self.hidden = weakref.ref(hidden)
        output: Tensor = self.norm(self.second(self.dropout(torch.cos(hidden))))
        return output


def module(seed: int = 0) -> Watched:
    """Return a module whose weights depend on the seed alone."""
    torch.manual_seed(seed)
    return Watched()


def trained(runner: StageRunner, inputs: list[Tensor], split: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Run F of all microbatches, then their backwards; return outputs, and gradients of inputs and parameters."""
    torch.manual_seed(7)
    outputs = [runner.forward(mb, (x,))[0] for mb, x in enumerate(inputs)]
    drawn = torch.rand(3)
    found: list[Tensor] = []
    for mb, output in enumerate(outputs):
        grads = (torch.ones_like(output) * (mb + 1),)
        found += runner.input_grad(mb, grads) if split else runner.full_backward(mb, grads)
    if split:
        for mb in range(len(inputs)):
            runner.weight_grad(mb)
    found += [drawn, torch.rand(3)]
    return outputs, found + [parameter.grad for parameter in runner.module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_same_numbers(split: bool, first: bool) -> None:
    """Random numbers, running statistics and gradients are those without; each forward runs twice."""
    results = []
    for recomputes in (False, True):
        runner = StageRunner(0, 0, module(), recomputes=recomputes)
        inputs = [torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(mb)) for mb in range(3)]
        inputs = [x.requires_grad_(not first) for x in inputs]
        outputs, found = trained(runner, inputs, split)
        assert isinstance(runner.module, Watched)
        assert runner.module.runs == (6 if recomputes else 3)
        results.append([*outputs, *found, *runner.module.buffers()])
        assert all(output.requires_grad for output in outputs)
    assert len(results[0]) == len(results[1])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_what_is_kept() -> None:
    """Between F and the backward nothing is kept of what was made on the way; between D and W it is."""
    x = torch.randn(4, WIDTH, requires_grad=True)
    for recomputes in (False, True):
        runner = StageRunner(0, 0, module(), recomputes=recomputes)
        assert isinstance(runner.module, Watched)
        (output,) = runner.forward(0, (x,))
        assert (runner.module.hidden() is None) == recomputes
        grads = (torch.ones_like(output),)
        del output  # it holds all that it came from, as long as it is not sent
        runner.input_grad(0, grads)
        assert runner.module.hidden() is not None
        runner.weight_grad(0)
        assert runner.module.hidden() is None


def test_first_stage_recomputes_in_its_weight_gradient() -> None:
    """Where no input needs a gradient D does nothing, and W runs the forward again."""
    runner = StageRunner(0, 0, module(), recomputes=True)
    assert isinstance(runner.module, Watched)
    (output,) = runner.forward(0, (torch.randn(4, WIDTH),))
    assert runner.input_grad(0, (torch.ones_like(output),)) == ()
    assert runner.module.runs == 1
    runner.weight_grad(0)
    assert runner.module.runs == 2
    assert runner.module.first.weight.grad is not None


def test_last_stage_recomputes_its_loss() -> None:
    """The loss is part of the forward that runs again, and scaled once."""
    stage, results = make_stage("block", 1, 2), []
    x, target = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    for recomputes in (False, True):
        stage.zero_grad()
        runner = StageRunner(1, 0, stage, squared_error, 4, recomputes=recomputes)
        (loss,) = runner.forward(0, (x.clone().requires_grad_(),), target)
        grads = runner.full_backward(0, ())
        results.append([loss, *grads, *(p.grad.clone() for p in stage.parameters() if p.grad is not None)])
        assert not loss.requires_grad
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_stage_that_trains_nothing() -> None:
    """A stage that needs no backward at all runs once."""
    frozen = module().requires_grad_(False)
    runner = StageRunner(0, 0, frozen, recomputes=True)
    (output,) = runner.forward(0, (torch.randn(4, WIDTH),))
    assert runner.full_backward(0, ()) == ()
    assert (frozen.runs, output.requires_grad) == (1, False)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("1f1b", {0: "F0 F1 0 1", 1: "F0 0 F1 1"}),
        ("zb-h1", {0: "F0 F1 0 1", 1: "F0 0 F1 1"}),
    ],
)
def test_sleeping_stages_know_their_runs(schedule: str, expected: dict[int, str]) -> None:
    """A stage that sleeps by the plan knows which of its runs is an F, and which is part of a backward."""
    problem = recomputed(make_problem(2, 2), 0, 1)
    plan = decode_plan(case_with(problem, static_schedule(schedule, problem)).plan, "plan.json")
    naps = SleepModel(Job(num_stages=2, microbatches=2, plan=plan))._naps
    found = {stage: " ".join("F" * first + str(mb) for mb, first in nap.runs) for stage, nap in naps.items()}
    assert found == expected
    plain = make_problem(2, 2)
    plan = decode_plan(case_with(plain, static_schedule(schedule, plain)).plan, "plan.json")
    naps = SleepModel(Job(num_stages=2, microbatches=2, plan=plan))._naps
    assert {stage: nap.runs for stage, nap in naps.items()} == {0: [(0, True), (1, True)], 1: [(0, True), (1, True)]}
