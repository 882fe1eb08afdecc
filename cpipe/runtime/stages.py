"""One stage on this rank: its module, and the passes that wait for their backward."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from cpipe.runtime.autograd import ForwardPass
from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.offload import CopyStreams, Stash
from cpipe.runtime.recompute import Again, forgetting
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
    recomputes
        Whether F keeps its inputs only, and the first op of the backward that needs more runs it again.
    offloads
        Microbatches of which what F saves goes to host memory and back.
    streams
        Where those copies run.
    """

    def __init__(
        self,
        stage: int,
        rank: int,
        module: nn.Module,
        loss_fn: LossFunction | None = None,
        loss_scale: int = 1,
        *,
        recomputes: bool = False,
        offloads: Collection[int] = (),
        streams: CopyStreams | None = None,
    ) -> None:
        self.stage = stage
        self.module = module
        self._rank = rank
        self._loss_fn = loss_fn
        self._loss_scale = loss_scale
        self._passes: dict[int, ForwardPass] = {}
        self._recomputes = recomputes
        self._again: dict[int, Again[ForwardPass]] = {}
        self._offloads = frozenset(offloads)
        self._streams = streams or CopyStreams(torch.device("cpu"))
        self._stashes: dict[int, Stash] = {}
        self._trains = any(parameter.requires_grad for parameter in module.parameters())

    def forward(self, mb: int, inputs: tuple[Tensor, ...], target: Any = None) -> tuple[Tensor, ...]:
        """Run F; return the outputs, or of the last stage the loss alone, before it is scaled.

        Raises
        ------
        RuntimeFault
            When what the module or the loss function gives cannot be used.
        """
        if self._recomputes:
            again = Again(self.module, inputs, lambda: self._run(mb, inputs, target)[1])
            with forgetting():
                outputs, forward_pass = self._run(mb, inputs, target)
            if self._needs_grad(inputs):
                self._again[mb] = again
                return tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in outputs)
        elif mb in self._offloads:
            stash = self._stashes[mb] = Stash(self.module, inputs, self._streams)
            with stash.saving():
                outputs, forward_pass = self._run(mb, inputs, target)
            stash.keep(outputs)
        else:
            outputs, forward_pass = self._run(mb, inputs, target)
        self._passes[mb] = forward_pass
        return outputs

    def _run(self, mb: int, inputs: tuple[Tensor, ...], target: Any) -> tuple[tuple[Tensor, ...], ForwardPass]:
        """Run the module, and the loss function; return what F returns, and what waits for the backward."""
        with torch.enable_grad():
            output = self.module(*inputs)
            if self._loss_fn is not None:
                return self._loss(mb, inputs, output, target)
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
        return outputs, ForwardPass(inputs, outputs)

    def input_grad(self, mb: int, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run D; `grads` of the outputs that require one (for the last stage none), returns those of the inputs."""
        if mb in self._again:
            if not any(tensor.requires_grad for tensor in self._again[mb].inputs):
                self._again[mb].grads = self._seed(grads)
                return ()
            self._make_again(mb)
        return self._passes[mb].input_grad(self._seed(grads))

    def weight_grad(self, mb: int) -> None:
        """Run W."""
        if mb in self._again:  # D had nothing to do
            grads = self._again[mb].grads
            self._make_again(mb)
            self._passes[mb].input_grad(grads)
        self._passes.pop(mb).weight_grad()

    def full_backward(self, mb: int, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run B; see `input_grad`."""
        if mb in self._again:
            self._make_again(mb)
        return self._passes.pop(mb).full_backward(self._seed(grads))

    def move(self, mb: int, copy: str, *, wait: bool) -> None:
        """Post the copy of what F saved, ``OFFLOAD`` or ``RELOAD``, or wait for it."""
        stash = self._stashes[mb]
        if copy == "OFFLOAD":
            (stash.offloaded if wait else stash.offload)()
        elif wait:
            self._stashes.pop(mb).reloaded()
        else:
            stash.reload()

    def _make_again(self, mb: int) -> None:
        """Run F once more, for the backward."""
        self._passes[mb] = self._again.pop(mb).run()

    def _loss(
        self, mb: int, inputs: tuple[Tensor, ...], output: Any, target: Any
    ) -> tuple[tuple[Tensor, ...], ForwardPass]:
        assert self._loss_fn is not None  # noqa: S101 (the caller looked)
        loss: object = self._loss_fn(output, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else _kind(loss)
            raise self._fault("loss-shape", mb, f"the loss function gave {shape}, expected a scalar tensor")
        if self._needs_grad(inputs) and not loss.requires_grad:
            raise self._fault("no-gradient", mb, "the loss requires no gradient, but parameters or inputs do")
        scaled = loss / self._loss_scale if self._loss_scale != 1 else loss
        self._seeds = (torch.ones_like(scaled),) if scaled.requires_grad else ()
        return (loss.detach(),), ForwardPass(inputs, (scaled,))

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
