"""What a model must offer so that `cpipe run` and `cpipe profile` can use it, and two built-in ones.

Write ``MODULE:FACTORY`` for a model of your own: a function that takes a `Job` and returns an object with the methods
of `PipelineModel`. Every rank calls it, for its own stages, and the gradient check calls it again for all of them, so a
stage must come out the same each time: seed from `Job.seed` and the stage, as `stage_seed` does.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from cpipe.errors import UsageError
from cpipe.ir import Instruction, Plan

__all__ = [
    "BUILT_IN",
    "Job",
    "ModelFactory",
    "PipelineModel",
    "SleepModel",
    "TransformerModel",
    "load_factory",
    "stage_seed",
]

_COMPUTE = ("F", "D", "W", "B", "FB")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a factory is told.

    Attributes
    ----------
    num_stages, microbatches
        Sizes of the pipeline.
    seed
        Of every random number.
    plan
        The plan that will run; None while a profile is being measured.
    time_scale
        Seconds that the sleep model sleeps for each second of the plan; 0 in the gradient check.
    """

    num_stages: int
    microbatches: int
    seed: int = 0
    plan: Plan | None = None
    time_scale: float = 1.0


class PipelineModel(Protocol):
    """A model that is cut into stages."""

    loss_fn: Callable[[Any, Any], Tensor]
    """From the last stage's output and a microbatch's target to a scalar."""

    def stage(self, stage: int) -> nn.Module:
        """Return stage `stage`, with the same parameters at each call."""

    def inputs(self, step: int) -> Sequence[Any]:
        """Return the inputs of stage 0 in iteration `step`: one tensor, or flat tuple of tensors, a microbatch."""

    def targets(self, step: int) -> Sequence[Any]:
        """Return what the loss compares with in iteration `step`: one entry a microbatch."""


ModelFactory = Callable[[Job], PipelineModel]


def load_factory(name: str) -> ModelFactory:
    """Return the factory that `name` stands for: ``transformer``, ``sleep`` or ``MODULE:FACTORY``.

    A module may lie in the working directory, which is searched first, as ``python -m`` does.

    Raises
    ------
    UsageError
        When there is no such module, or no such function in it.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        known = ", ".join(BUILT_IN)
        raise UsageError(f"--model: expected one of {known}, or MODULE:FACTORY, got {name!r}", code="unknown-model")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # a console script, which torchrun may start, does not have it
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # the module is there; what it imports is not
        raise UsageError(f"--model: there is no module {module_name!r}", code="unknown-model") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(f"--model: module {module_name!r} has no function {attribute!r}", code="unknown-model")
    return factory  # type: ignore[no-any-return]


def stage_seed(seed: int, stage: int) -> int:
    """Return a seed for `stage` that differs from those of other stages and of other seeds."""
    return seed * 1_000_003 + stage


class TransformerModel:
    """A small decoder: an embedding in the first stage, one block a stage, a projection in the last; float32.

    Microbatches are token ids of shape (batch 2, length 16); the loss is the cross entropy of the next token.
    """

    batch, length, width, heads, vocabulary = 2, 16, 32, 4, 64

    def __init__(self, job: Job) -> None:
        self._job = job
        self.loss_fn: Callable[[Any, Any], Tensor] = _next_token_loss

    def stage(self, stage: int) -> nn.Module:
        """Return stage `stage`; its parameters depend on the seed and the stage alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stage_seed(self._job.seed, stage))
            parts: list[nn.Module] = [_Block(self.width, self.heads)]
            if stage == 0:
                parts.insert(0, nn.Embedding(self.vocabulary, self.width))
            if stage == self._job.num_stages - 1:
                parts += [nn.LayerNorm(self.width), nn.Linear(self.width, self.vocabulary)]
            return nn.Sequential(*parts)

    def inputs(self, step: int) -> list[Tensor]:
        """Return one (batch, length) tensor of token ids a microbatch."""
        return [tokens[:, :-1].contiguous() for tokens in self._tokens(step)]

    def targets(self, step: int) -> list[Tensor]:
        """Return the tokens that follow those of `inputs`, same shapes."""
        return [tokens[:, 1:].contiguous() for tokens in self._tokens(step)]

    def _tokens(self, step: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(stage_seed(self._job.seed, 1_000 + step))
        shape = (self.batch, self.length + 1)
        return [torch.randint(self.vocabulary, shape, generator=generator) for _ in range(self._job.microbatches)]


def _next_token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class _Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and beside the identity."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return a tensor of the shape of `hidden`, (batch, length, width)."""
        batch, length, width = hidden.shape
        parts = self.query_key_value(self.attention_norm(hidden)).view(batch, length, 3, self._heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        output: Tensor = hidden + self.perceptron(hidden)
        return output


class SleepModel:
    """Stages that sleep as long as the plan says their ops take, times `Job.time_scale`; float32.

    What remains is the order of ops, messages and waits, so measured times can be held against the plan's. The first
    stage has no input gradient: what its D would sleep, its W does.
    """

    shape = (4, 4)

    def __init__(self, job: Job) -> None:
        if job.plan is None:
            raise UsageError("the sleep model needs a plan to sleep by; it cannot be profiled", code="unknown-model")
        self._job = job
        self.loss_fn: Callable[[Any, Any], Tensor] = _mean_square
        self._naps = _naps(job.plan, job.time_scale)

    def stage(self, stage: int) -> nn.Module:
        """Return stage `stage` of the plan: one weight, as its copies in other flows, and the times it sleeps."""
        return _SleepStage(self._naps[stage], stage % self._job.num_stages, self.shape)

    def inputs(self, step: int) -> list[Tensor]:
        """Return one tensor of shape `SleepModel.shape` a microbatch."""
        generator = torch.Generator().manual_seed(stage_seed(self._job.seed, 1_000 + step))
        return [torch.rand(self.shape, generator=generator) for _ in range(self._job.microbatches)]

    def targets(self, step: int) -> list[Tensor]:
        """Return zeros, one tensor of shape `SleepModel.shape` a microbatch."""
        return [torch.zeros(self.shape) for _ in range(self._job.microbatches)]


_TRIAL_S = 0.005
BUILT_IN: dict[str, ModelFactory] = {"transformer": TransformerModel, "sleep": SleepModel}


def _mean_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def _nap(seconds: float) -> None:
    """Sleep for `seconds` [s], less what a sleep on this machine takes too long at least."""
    time.sleep(max(0.0, seconds - _overshoot_s()))


@functools.cache
def _overshoot_s() -> float:
    """Return how much longer than asked the shortest of a few sleeps took [s]."""
    late = []
    for _ in range(5):
        began = time.monotonic()
        time.sleep(_TRIAL_S)
        late.append(time.monotonic() - began - _TRIAL_S)
    return max(0.0, min(late))


@dataclass
class _Naps:
    """How long the ops of one stage sleep [s], by microbatch; and what each run of its module is.

    `runs` has (microbatch, whether that is its F). A stage that recomputes runs once more in the first op of the
    backward that does something, whose time has that in it.
    """

    forward: dict[int, float] = field(default_factory=dict)
    input_grad: dict[int, float] = field(default_factory=dict)
    weight_grad: dict[int, float] = field(default_factory=dict)
    runs: list[tuple[int, bool]] = field(default_factory=list)


def _naps(plan: Plan, scale: float) -> dict[int, _Naps]:
    """Read the durations off a plan; B sleeps where the weight gradient is made, which every stage has."""
    naps: defaultdict[int, _Naps] = defaultdict(_Naps)
    for program in plan.ranks:
        for op in program.ops:
            if op.op not in _COMPUTE or op.stage is None or op.mb is None:
                continue
            seconds = ((op.end_ns or 0) - (op.start_ns or 0)) * scale / 1e9
            nap = naps[op.stage]
            for stage, mb, is_forward in _runs(op, plan):
                naps[stage].runs.append((mb, is_forward))
            if op.op == "F":
                nap.forward[op.mb] = seconds
            elif op.op == "FB" and op.backward_stage is not None and op.backward_mb is not None:  # half and half
                nap.forward[op.mb] = seconds / 2
                naps[op.backward_stage].weight_grad[op.backward_mb] = seconds / 2
            elif op.op == "D" and not plan.problem.is_first(op.stage):
                nap.input_grad[op.mb] = seconds
            else:
                nap.weight_grad[op.mb] = nap.weight_grad.get(op.mb, 0.0) + seconds
    return naps


def _runs(op: Instruction, plan: Plan) -> Iterator[tuple[int, int, bool]]:
    """Yield stage, microbatch and whether it is an F, of the runs of modules that a compute op is."""
    backward = (op.backward_stage, op.backward_mb) if op.op == "FB" else (op.stage, op.mb)
    if op.op in ("F", "FB") and op.stage is not None and op.mb is not None:
        yield op.stage, op.mb, True
    stage, mb = backward
    if stage is None or mb is None or stage not in plan.problem.recompute:
        return
    if op.op in ("B", "FB", "W" if plan.problem.is_first(stage) else "D"):
        yield stage, mb, False


class _SleepStage(nn.Module):
    """Adds its weight; the k-th run of it is the k-th that the plan asks of the stage."""

    def __init__(self, naps: _Naps, stage: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, 1.0 + stage / 8))
        self._naps = naps
        self._calls = 0

    def forward(self, hidden: Tensor) -> Tensor:
        """Return a tensor of the shape of `hidden`."""
        mb, is_forward = self._naps.runs[self._calls % len(self._naps.runs)]
        self._calls += 1
        if is_forward:
            _nap(self._naps.forward[mb])
        data = _SleepInBackward.apply(hidden, self._naps.input_grad.get(mb, 0.0))  # type: ignore[no-untyped-call]
        weight = _SleepInBackward.apply(self.weight, self._naps.weight_grad.get(mb, 0.0))  # type: ignore[no-untyped-call]
        output: Tensor = data * weight
        return output


class _SleepInBackward(torch.autograd.Function):
    """The identity; its backward sleeps."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.seconds > 0:
            _nap(ctx.seconds)
        return gradients[0], None
