"""What a stage costs: its ops timed apart, the bytes it holds between them, the bytes it sends.

F, D, W and B run as the executor runs them, one stage alone, so no wait is in a time; of the repeats the minimum
counts. On CPU every storage that ops make is watched; on CUDA the allocator says what is held (that path is written for
a GPU, and not covered by the tests).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from cpipe.errors import UsageError
from cpipe.runtime.autograd import ForwardPass
from cpipe.runtime.specs import as_tensors
from cpipe.runtime.storage import LiveBytes

__all__ = ["StageCosts", "measure_stage"]

Values = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """One stage and one microbatch.

    Attributes
    ----------
    forward_s, input_grad_s, weight_grad_s, full_backward_s
        Shortest time of F, D, W and B [s]; D and W are None where the stage cannot be split.
    spread
        (median - minimum) / minimum of each op's times.
    activation_bytes
        Held after F: what the backward needs, the stage's input and its output [bytes].
    held_bytes
        Held between D and W, the incoming gradient included [bytes].
    forward_transient_bytes, input_grad_transient_bytes, weight_grad_transient_bytes
        Most that F, D and W hold more while they run [bytes]; what B needs more than D counts as D's.
    parameter_bytes, buffer_bytes
        Sizes of all parameters, and of all buffers [bytes]; gradients are as large as the parameters that have one.
    gradient_bytes
        Of the parameters that have a gradient [bytes].
    output_bytes
        Of the message to the next stage; 0 for the last [bytes].
    reruns
        How often a module's forward ran again in D and W, less how often it does in B: more than 0 where activation
        checkpoints are run through more than once because of the split.
    split_error
        Why D and W cannot be run apart, or empty.
    """

    forward_s: float
    input_grad_s: float | None
    weight_grad_s: float | None
    full_backward_s: float
    spread: dict[str, float]
    activation_bytes: int
    held_bytes: int
    forward_transient_bytes: int
    input_grad_transient_bytes: int
    weight_grad_transient_bytes: int
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    output_bytes: int
    reruns: int
    split_error: str = ""


def measure_stage(
    module: nn.Module,
    inputs: Values,
    *,
    repeats: int,
    first: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
) -> tuple[StageCosts, Values]:
    """Measure one stage on the device where its parameters and `inputs` are.

    Parameters
    ----------
    module
        The stage.
    inputs
        Of one microbatch.
    repeats
        How often each op is timed, >= 1, after a pass that warms up.
    first
        Whether this is the first stage, whose inputs need no gradient: its D is nothing and its W the whole backward.
    loss
        From the output to the loss, in the last stage; it is part of F there.

    Returns
    -------
    tuple
        The costs, and the outputs that the next stage reads (of the last stage: the loss), detached.
    """
    bench = _Bench(module, inputs, first, loss)
    bench.whole()  # makes gradients, so that later passes add to them
    split_error = ""
    try:
        bench.split()
    except RuntimeError as error:
        split_error = " ".join(str(error).split())
    times: dict[str, list[float]] = {"F": [], "D": [], "W": [], "B": []}
    for _ in range(repeats):
        for measured in (bench.whole(), {} if split_error else bench.split()):
            for op, seconds in measured.items():
                times[op].append(seconds)
    reruns_whole, reruns_split = bench.reruns(bench.whole), 0 if split_error else bench.reruns(bench.split)
    bytes_of = bench.memory(split=not split_error)
    parameters = list(module.parameters())
    outputs = tuple(tensor.detach() for tensor in bench.forward().outputs)
    costs = StageCosts(
        forward_s=min(times["F"]),
        input_grad_s=min(times["D"], default=None),
        weight_grad_s=min(times["W"], default=None),
        full_backward_s=min(times["B"]),
        spread={op: _spread(values) for op, values in times.items() if values},
        activation_bytes=bytes_of["activation"],
        held_bytes=bytes_of["held"],
        forward_transient_bytes=bytes_of["F"],
        input_grad_transient_bytes=max(bytes_of["D"], bytes_of["B"]),
        weight_grad_transient_bytes=bytes_of["W"],
        parameter_bytes=_num_bytes(parameters),
        buffer_bytes=_num_bytes(module.buffers()),
        gradient_bytes=_num_bytes(p.grad for p in parameters if p.grad is not None),
        output_bytes=0 if loss is not None else _num_bytes(outputs),
        reruns=max(0, reruns_split - reruns_whole),
        split_error=split_error,
    )
    return costs, outputs


@dataclass(frozen=True)
class _Forward:
    """A forward that was run: its outputs, and what the backward takes."""

    backward: ForwardPass
    outputs: Values

    def gradients(self) -> Values:
        """Return a gradient for each output that needs one."""
        return tuple(torch.ones_like(tensor) for tensor in self.outputs if tensor.requires_grad)


class _Bench:
    """Runs the ops of one stage."""

    def __init__(self, module: nn.Module, inputs: Values, first: bool, loss: Callable[[Any], Tensor] | None) -> None:
        self._module = module
        self._inputs = inputs
        self._first = first
        self._loss = loss
        self._cuda = any(tensor.is_cuda for tensor in (*inputs, *module.parameters()))

    def forward(self) -> _Forward:
        """Run F on fresh leaves."""
        leaves = tuple(
            tensor.detach().requires_grad_(not self._first and tensor.is_floating_point()) for tensor in self._inputs
        )
        result = self._module(*leaves)
        if self._loss is not None:
            result = self._loss(result)
        outputs = as_tensors(result)
        if outputs is None:
            message = f"the stage's output: expected a tensor or a flat tuple of tensors, got {type(result).__name__}"
            raise UsageError(message, code="stage-output")
        return _Forward(ForwardPass(leaves, outputs), outputs)

    def whole(self) -> dict[str, float]:
        """Run F and B; return their times [s]."""
        forward, forward_s = self._timed(self.forward)
        grads = forward.gradients()
        _, backward_s = self._timed(lambda: forward.backward.full_backward(grads))
        return {"F": forward_s, "B": backward_s}

    def split(self) -> dict[str, float]:
        """Run F, D and W; return their times [s]."""
        forward, forward_s = self._timed(self.forward)
        grads = forward.gradients()
        _, input_s = self._timed(lambda: forward.backward.input_grad(grads))
        _, weight_s = self._timed(forward.backward.weight_grad)
        return {"F": forward_s, "D": 0.0 if self._first else input_s, "W": weight_s}

    def reruns(self, work: Callable[[], object]) -> int:
        """Return how many modules ran forward in `work` beyond one pass."""
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        hooks = [module.register_forward_pre_hook(count) for module in self._module.modules()]
        try:
            self.forward()
            once, calls = calls, 0
            work()
        finally:
            for hook in hooks:
                hook.remove()
        return calls - once

    def memory(self, *, split: bool) -> dict[str, int]:
        """Return bytes held after F and D, and what each op needs more while it runs [bytes]."""
        found = dict.fromkeys(("F", "D", "W", "B", "activation", "held"), 0)
        with self._meter() as meter:
            forward = self.forward()
            found["activation"] = meter.current()
            found["F"] = max(0, meter.peak - found["activation"])
            meter.reset_peak()
            forward.backward.full_backward(forward.gradients())
            found["B"] = max(0, meter.peak - found["activation"])
            del forward
        if not split:
            return found
        with self._meter() as meter:
            forward = self.forward()
            meter.reset_peak()
            forward.backward.input_grad(forward.gradients())
            peak, found["held"] = meter.peak, meter.current()
            found["D"] = max(0, peak - max(found["activation"], found["held"]))
            meter.reset_peak()
            forward.backward.weight_grad()
            found["W"] = max(0, meter.peak - found["held"])
        return found

    def _meter(self) -> AbstractContextManager[LiveBytes | _CudaBytes]:
        if self._cuda:
            return nullcontext(_CudaBytes())
        return _cpu_meter(self._module, self._inputs, self._first)

    def _timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        self._synchronize()
        start = time.perf_counter()
        result = work()
        self._synchronize()
        return result, time.perf_counter() - start

    def _synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


class _CudaBytes:
    """What the CUDA allocator holds beyond what it held at first [bytes]."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()

    @property
    def peak(self) -> int:
        """Most bytes at once since `reset_peak`."""
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - self._base

    def current(self) -> int:
        """Bytes now."""
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - self._base

    def reset_peak(self) -> None:
        """Forget the peak."""
        torch.cuda.reset_peak_memory_stats()


@contextmanager
def _cpu_meter(module: nn.Module, inputs: Sequence[Tensor], first: bool) -> Iterator[LiveBytes]:
    lasting = [*module.parameters(), *module.buffers()]
    lasting += [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    lasting += inputs if first else ()  # the data's own
    with LiveBytes(lasting) as meter:
        meter.watch(inputs)
        yield meter


def _spread(seconds: Sequence[float]) -> float:
    return median(seconds) / min(seconds) - 1 if min(seconds) > 0 else 0.0


def _num_bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
