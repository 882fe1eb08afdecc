"""A forward that keeps its inputs only, and runs again when the backward needs what it made on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

__all__ = ["Again", "forgetting"]

T = TypeVar("T")


class Again(Generic[T]):
    """How to run a forward a second time as it ran the first time; made right before that.

    Parameters
    ----------
    module
        Whose buffers the second run leaves as they are (running statistics count each microbatch once).
    inputs
        What it reads.
    action
        The forward.

    Attributes
    ----------
    inputs
        As given.
    grads
        Gradients of the outputs, where they are there before the second run.
    """

    def __init__(self, module: nn.Module, inputs: tuple[Tensor, ...], action: Callable[[], T]) -> None:
        self.inputs = inputs
        self.grads: tuple[Tensor, ...] = ()
        self._module = module
        self._action = action
        self._devices = sorted({tensor.device.index for tensor in self._tensors() if tensor.device.type == "cuda"})
        self._state = torch.get_rng_state()
        self._states = [torch.cuda.get_rng_state(device) for device in self._devices]

    def run(self) -> T:
        """Run it, with the random numbers that it drew before; those to come are what they would have been."""
        kept = [(buffer, buffer.detach().clone()) for buffer in self._module.buffers()]
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self._state)
            for device, state in zip(self._devices, self._states, strict=True):
                torch.cuda.set_rng_state(state, device)
            made = self._action()
        for buffer, value in kept:
            buffer.data.copy_(value)  # unseen by autograd, as what was saved for the backward has not changed
        return made

    def _tensors(self) -> list[Tensor]:
        return [*self.inputs, *self._module.parameters()]


def forgetting() -> AbstractContextManager[Any]:
    """Return a context in which a forward saves nothing for its backward."""
    return torch.autograd.graph.saved_tensors_hooks(_forget, _missing)


def _forget(tensor: Tensor) -> None:
    return None


def _missing(nothing: None) -> Tensor:
    raise AssertionError("a backward through a forward that kept nothing")
