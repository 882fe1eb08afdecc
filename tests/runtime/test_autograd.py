"""Tests of cpipe.runtime.autograd: D and a later W give the bits of a whole backward, whatever the stage is made of."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
from runtime_models import Block
from torch import Tensor, nn

from cpipe.runtime.autograd import ForwardPass

WIDTH = 8


class Tied(nn.Module):
    """One weight, used three times on one path: no part of its gradient can be left for later alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor like `x`."""
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        mixed: Tensor = x * self.other(x)
        return mixed


class CrossAttention(nn.Module):
    """One weight, cut in three for queries, keys and values beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor like `x`."""
        mixed: Tensor = self.attention(x, x * 2, x + 1, need_weights=False)[0]
        return mixed


class Loose(nn.Module):
    """Outputs of all kinds: the input itself, a parameter, what hangs on parameters alone, integers."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(WIDTH))
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return five tensors."""
        return self.layer(x * self.gain), x, self.gain, self.gain * 2, x.detach().long()


class Normed(nn.Module):
    """Weights that are computed from parameters, and used twice, once through the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor like `x`."""
        mixed: Tensor = self.other(torch.tanh(self.layer(x))) + self.layer(x)
        return mixed


class Convolved(nn.Module):
    """A convolution and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor like `x`."""
        return torch.relu(self.norm(self.convolution(x)))


class Checkpointed(nn.Module):
    """A stage that runs its forward again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor like `x`."""
        output: Tensor = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
        return output


class Hooked(nn.Module):
    """A hook on what a layer with parameters makes, as is used to scale gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor like `x`."""
        hidden: Tensor = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: grad * 2)  # type: ignore[no-untyped-call]
        output: Tensor = self.second(hidden.relu())
        return output


def gradients(module: nn.Module, split: bool, needs_grad: bool = True) -> list[Tensor | None]:
    """Return the gradients of the inputs of three microbatches and of all parameters."""
    module = copy.deepcopy(module)
    passes: list[tuple[ForwardPass, tuple[Tensor, ...]]] = []
    found: list[Tensor | None] = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        dtype = next(module.parameters()).dtype
        x = torch.randn(2, 4, WIDTH, generator=generator).to(dtype).requires_grad_(needs_grad)
        outputs = module(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        kept = [tensor for tensor in outputs if tensor.requires_grad]
        grads = tuple(torch.randn(tensor.shape, generator=generator).to(dtype) for tensor in kept)
        passes.append((ForwardPass((x,), outputs), grads))
    if split:
        found += [grad for one, grads in passes for grad in one.input_grad(grads)]
        for one, _ in passes:
            one.weight_grad()
    else:
        found += [grad for one, grads in passes for grad in one.full_backward(grads)]
    return [*found, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [Block, Tied, CrossAttention, Loose, Normed, Convolved, Checkpointed, Hooked])
def test_split_is_exact(kind: type[nn.Module], dtype: torch.dtype) -> None:
    """D of several microbatches and their W later give the bits of whole backwards."""
    torch.manual_seed(0)
    module = kind().to(dtype)
    whole, split = gradients(module, False), gradients(module, True)
    assert any(grad is not None and grad.any() for grad in whole)
    for one, other in zip(whole, split, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


def test_first_stage() -> None:
    """Where no input needs a gradient, D gives none and W is the whole backward."""
    torch.manual_seed(0)
    module = Block(WIDTH)
    whole, split = gradients(module, False, needs_grad=False), gradients(module, True, needs_grad=False)
    assert len(whole) == len(list(module.parameters()))
    for one, other in zip(whole, split, strict=True):
        assert one is not None and other is not None and torch.equal(one, other)


def test_weight_grad_runs_no_input_path() -> None:
    """W starts where parameters hang on the path: a function without parameters runs backward once, in D."""
    runs: list[str] = []

    class Counted(torch.autograd.Function):
        """The identity, counting its backwards."""

        @staticmethod
        def forward(context: object, x: Tensor) -> Tensor:
            """Return a copy."""
            return x.clone()

        @staticmethod
        def backward(context: object, grad: Tensor) -> Tensor:
            """Count."""
            runs.append("backward")
            return grad

    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    x = torch.randn(2, WIDTH, requires_grad=True)
    output = second(Counted.apply(first(x)))  # type: ignore[no-untyped-call]
    one = ForwardPass((x,), (output,))
    one.input_grad((torch.ones_like(output),))
    assert runs == ["backward"]
    one.weight_grad()
    assert runs == ["backward"]
    assert first.weight.grad is not None and second.weight.grad is not None


def test_hooks_of_parameters_run() -> None:
    """W adds up gradients as a backward does: hooks on parameters see each microbatch."""
    layer = nn.Linear(WIDTH, WIDTH)
    seen: list[bool] = []
    register: Any = layer.weight.register_post_accumulate_grad_hook
    register(lambda parameter: seen.append(parameter.grad is not None))
    for _ in range(2):
        x = torch.randn(2, WIDTH, requires_grad=True)
        output = layer(x)
        one = ForwardPass((x,), (output,))
        one.input_grad((torch.ones_like(output),))
        one.weight_grad()
    assert seen == [True, True]
