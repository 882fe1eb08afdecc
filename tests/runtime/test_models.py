"""Tests of cpipe.runtime.models: what a factory gives, and what the sleep model sleeps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
from flow_problems import flow_document, flow_problem
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from sample_plans import make_problem, one_f_one_b

from cpipe.errors import UsageError
from cpipe.ir import Plan, Schedule
from cpipe.runtime import models
from cpipe.runtime.autograd import ForwardPass
from cpipe.runtime.models import Job, SleepModel, TransformerModel, load_factory

MS = 1e-3


def plan(*, split: bool) -> Plan:
    """Return 1F1B of two ranks: F 2 ms, D 2 ms, W 1 ms, B 3 ms."""
    problem = make_problem(2, 3)
    return plan_of(problem, one_f_one_b(problem, split=split))


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Sleep no more; note how long it would have been [s]."""
    monkeypatch.setattr(models, "_overshoot_s", lambda: 0.0)
    naps: list[float] = []
    monkeypatch.setattr("time.sleep", naps.append)
    return naps


@pytest.mark.parametrize("factory", ["transformer", "sleep"])
def test_stages_come_out_the_same(factory: str) -> None:
    """A stage has the same parameters at each call, and others with another seed or number."""
    job = Job(num_stages=3, microbatches=2, seed=1, plan=plan(split=True))

    def weights(seed: int, stage: int) -> list[float]:
        model = load_factory(factory)(Job(num_stages=3, microbatches=2, seed=seed, plan=job.plan))
        return torch.cat([item.flatten() for item in model.stage(stage).parameters()]).tolist()[-50:]

    assert weights(1, 1) == weights(1, 1) != weights(1, 0)
    if factory == "transformer":
        assert weights(1, 1) != weights(2, 1)


def test_random_state_is_left_alone() -> None:
    """Building a stage does not move the random numbers of its process."""
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    TransformerModel(Job(num_stages=2, microbatches=2)).stage(0)
    assert torch.equal(torch.rand(3), expected)


def test_inputs_and_targets() -> None:
    """There is one input and one target a microbatch; the target is the token that follows; steps differ."""
    model = TransformerModel(Job(num_stages=2, microbatches=3))
    inputs, targets = model.inputs(0), model.targets(0)
    assert len(inputs) == len(targets) == 3
    assert torch.equal(inputs[0][:, 1:], targets[0][:, :-1])
    assert not torch.equal(inputs[0], inputs[1])
    assert not torch.equal(inputs[0], model.inputs(1)[0])


def test_transformer_runs_from_tokens_to_loss() -> None:
    """The stages fit together, and the loss of fresh weights is near that of guessing."""
    model = TransformerModel(Job(num_stages=3, microbatches=1))
    hidden = model.inputs(0)[0]
    for stage in range(3):
        hidden = model.stage(stage)(hidden)
    assert hidden.shape == (2, 16, 64)
    assert 3.5 < float(model.loss_fn(hidden, model.targets(0)[0]).detach()) < 5.0


def test_sleep_by_split_ops(slept: list[float]) -> None:
    """F, D and W sleep as long as the plan says, scaled, each in its own op."""
    stage = SleepModel(Job(num_stages=2, microbatches=3, plan=plan(split=True), time_scale=0.5)).stage(1)
    value = torch.rand(4, 4, requires_grad=True)
    output = stage(value)
    assert slept == [1 * MS]
    backward = ForwardPass((value,), (output,))
    backward.input_grad((torch.ones_like(output),))
    assert slept == [1 * MS, 1 * MS]
    backward.weight_grad()
    assert slept == [1 * MS, 1 * MS, 0.5 * MS]


def test_sleep_by_whole_backward(slept: list[float]) -> None:
    """B sleeps its own time, which need not be that of D and W."""
    stage = SleepModel(Job(num_stages=2, microbatches=3, plan=plan(split=False))).stage(1)
    value = torch.rand(4, 4, requires_grad=True)
    output = stage(value)
    ForwardPass((value,), (output,)).full_backward((torch.ones_like(output),))
    assert sum(slept) == pytest.approx(5 * MS)


def test_first_stage_sleeps_in_its_weight_gradient(slept: list[float]) -> None:
    """The first stage has no input gradient: D sleeps nothing and W what both would."""
    stage = SleepModel(Job(num_stages=2, microbatches=3, plan=plan(split=True))).stage(0)
    output = stage(torch.rand(4, 4))
    backward = ForwardPass((), (output,))
    backward.input_grad((torch.ones_like(output),))
    assert slept == [2 * MS]
    backward.weight_grad()
    assert slept == [2 * MS, 3 * MS]


def test_copies_sleep_by_their_own_ops(slept: list[float]) -> None:
    """Of two flows, each copy of a stage has the same weight, and the times and runs that the plan has for it."""
    problem = flow_problem(flow_document(2, 4, input_grad_ms=2, weight_grad_ms=1, full_backward_ms=3))
    order = "0F0 0F1 3F0 3D0 3W0 3F1 3B1 0B0 0B1\n2F0 2F1 1F0 1B0 1F1+2B0 1B1 2D1 2W1"
    schedule = Schedule.from_text(order, 2)
    schedule.verify(problem)
    made = plan_of(problem, schedule)
    assert_plan_ok(made, problem)
    made = replace(made, problem=replace(made.problem, recompute=(3,)))  # the copy of 1, which does not
    model = SleepModel(Job(num_stages=2, microbatches=4, plan=made))
    stages = [model.stage(stage) for stage in range(4)]
    weights = [next(stage.parameters()) for stage in stages]
    assert torch.equal(weights[0], weights[2]) and torch.equal(weights[1], weights[3])
    value = torch.rand(4, 4)
    for _ in range(2):
        stages[1](value)
    assert slept == [1 * MS, 2 * MS], "half of the pair of 4 ms"
    slept.clear()
    for _ in range(4):  # F0, again for D0, F1, again for B1
        stages[3](value)
    assert slept == [1 * MS, 1 * MS]
    slept.clear()
    outputs = [stages[2](value) for _ in range(2)]
    assert slept == [1 * MS, 1 * MS]
    slept.clear()
    backward = ForwardPass((), (outputs[1],))
    backward.input_grad((torch.ones_like(value),))
    backward.weight_grad()
    assert slept == [3 * MS], "the first stage of the second flow has no input gradient either"


def test_sleep_needs_a_plan() -> None:
    """Without a plan there is nothing to sleep by."""
    with pytest.raises(UsageError, match="the sleep model needs a plan to sleep by"):
        load_factory("sleep")(Job(num_stages=2, microbatches=1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "expected one of transformer, sleep, or MODULE:FACTORY, got 'nothing'"),
        ("toy_models:", "expected one of transformer, sleep, or MODULE:FACTORY, got 'toy_models:'"),
        ("no_such.module:make", r"there is no module 'no_such\.module'"),
        ("toy_models:nothing", "module 'toy_models' has no function 'nothing'"),
        ("toy_models:WIDTH", "module 'toy_models' has no function 'WIDTH'"),
    ],
)
def test_unknown_factory(name: str, message: str) -> None:
    """A factory that does not exist is a fault of the call, with what was looked for."""
    with pytest.raises(UsageError, match=message):
        load_factory(name)


def test_working_directory_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the working directory is found, whoever started Python."""
    (tmp_path / "lies_here.py").write_text("def make(job): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    assert callable(load_factory("lies_here:make"))


def test_import_error_inside_a_model_is_its_own(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is there but imports one that is not fails as Python says, not as a wrong name."""
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")  # type: ignore[operator]
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_factory("needs_more:make")


def test_sleeps_are_calibrated(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sleep takes too long on this machine is taken off, and never more than there is."""
    monkeypatch.setattr(models, "_overshoot_s", lambda: 0.25 * MS)
    models._nap(MS)
    models._nap(0.1 * MS)
    assert slept == [pytest.approx(0.75 * MS), 0.0]
