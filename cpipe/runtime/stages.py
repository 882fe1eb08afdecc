"""One stage on this rank: its module, and the passes that wait for their backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cpipe.runtime.autograd import ForwardPass
from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.specs import as_tensors

__all__ = ["StageRunner"]

LossFunction = Callable[[Any, Any], Tensor]


class StageRunner:
    """Runs F, D, W and B of one stage.

    Parameters
    ----------
    stage, rank
        For messages.
    module
        Takes the tensors that the stage before gives as separate arguments; gives a tensor or a flat tuple of tensors.
    loss_fn
        Of the last stage: ``loss_fn(output, target)`` gives a scalar. None elsewhere.
    loss_scale
        What a loss is divided by before its backward.
    """

    def __init__(
        self, stage: int, rank: int, module: nn.Module, loss_fn: LossFunction | None = None, loss_scale: int = 1
    ) -> None:
        self.stage = stage
        self.module = module
        self._rank = rank
        self._loss_fn = loss_fn
        self._loss_scale = loss_scale
        self._passes: dict[int, ForwardPass] = {}
        self._trains = any(parameter.requires_grad for parameter in module.parameters())

    def forward(self, mb: int, inputs: tuple[Tensor, ...], target: Any = None) -> tuple[Tensor, ...]:
        """Run F; return the outputs, or of the last stage the loss alone, before it is scaled.

        Raises
        ------
        RuntimeFault
            When what the module or the loss function gives cannot be used.
        """
        with torch.enable_grad():
            output = self.module(*inputs)
            if self._loss_fn is not None:
                return (self._loss(mb, inputs, output, target).detach(),)
        outputs = as_tensors(output)
        if outputs is None:
            message = f"gave {_kind(output)}, expected a tensor or a flat tuple of tensors"
            raise self._fault("stage-output", mb, message)
        for tensor in outputs:
            if tensor.layout is not torch.strided:
                raise self._fault("stage-output", mb, f"gave a tensor of layout {tensor.layout}, expected a dense one")
        if self._needs_grad(inputs) and not any(tensor.requires_grad for tensor in outputs):
            message = "gave no output that requires a gradient, but its parameters or inputs do"
            raise self._fault("no-gradient", mb, message)
        self._passes[mb] = ForwardPass(inputs, outputs)
        return outputs

    def input_grad(self, mb: int, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run D; `grads` of the outputs that require one (for the last stage none), returns those of the inputs."""
        return self._passes[mb].input_grad(self._seed(grads))

    def weight_grad(self, mb: int) -> None:
        """Run W."""
        self._passes.pop(mb).weight_grad()

    def full_backward(self, mb: int, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run B; see `input_grad`."""
        return self._passes.pop(mb).full_backward(self._seed(grads))

    def _loss(self, mb: int, inputs: tuple[Tensor, ...], output: Any, target: Any) -> Tensor:
        assert self._loss_fn is not None  # noqa: S101 (the caller looked)
        loss: object = self._loss_fn(output, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else _kind(loss)
            raise self._fault("loss-shape", mb, f"the loss function gave {shape}, expected a scalar tensor")
        if self._needs_grad(inputs) and not loss.requires_grad:
            raise self._fault("no-gradient", mb, "the loss requires no gradient, but parameters or inputs do")
        scaled = loss / self._loss_scale if self._loss_scale != 1 else loss
        self._passes[mb] = ForwardPass(inputs, (scaled,))
        self._seeds = (torch.ones_like(scaled),) if scaled.requires_grad else ()
        return loss

    def _seed(self, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return grads if self._loss_fn is None else self._seeds

    def _needs_grad(self, inputs: tuple[Tensor, ...]) -> bool:
        return self._trains or any(tensor.requires_grad for tensor in inputs)

    def _fault(self, code: str, mb: int, what: str) -> RuntimeFault:
        message = f"rank {self._rank}: stage {self.stage}, microbatch {mb}: {what}"
        return RuntimeFault(message, code=code, rank=self._rank, stage=self.stage, microbatch=mb)


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    return f"{type(value).__name__}"
