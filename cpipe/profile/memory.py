"""The least memory with which a device can run at all: one microbatch through all of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.errors import Diagnostic
from cpipe.ir.problem import Problem, Stage
from cpipe.jsontext import shown

__all__ = ["everything_bytes", "least_activation_bytes", "memory_faults", "receive_bytes"]


def memory_faults(problem: Problem) -> Iterator[Diagnostic]:
    """Yield a fault for each device whose memory cannot hold one microbatch.

    More microbatches only add to it, so this proves that no schedule exists.
    """
    for index, device in enumerate(problem.devices):
        stages = [problem.stages[stage] for stage in problem.stages_of(index)]
        if device.capacity_bytes is None or not stages:
            continue
        static, buffers = sum(stage.static_bytes for stage in stages), receive_bytes(problem, index)
        flows = (problem.stages_of_flow(index, first) for first in problem.flows)
        activations = max(least_activation_bytes([problem.stages[stage] for stage in flow]) for flow in flows)
        needed = static + buffers + activations
        if needed > device.capacity_bytes:
            yield Diagnostic(
                code="memory-too-small",
                message=f"device {shown(device.name)} needs {needed} bytes for one microbatch (static {static}, "
                f"activations {activations}, receive buffers {buffers}) and has {device.capacity_bytes}, "
                f"short by {needed - device.capacity_bytes}",
                path=f"$.devices[{index}].memory_bytes",
            )


def receive_bytes(problem: Problem, device: int) -> int:
    """Return the receive buffers [bytes] of `device` when each incoming channel has one posted."""
    return sum(size for (_, target, _), size in problem.largest_messages().items() if target == device)


def least_activation_bytes(stages: Sequence[Stage]) -> int:
    """Return the least peak [bytes], static memory and buffers aside, of one microbatch through `stages`.

    `stages` are those of one device in flow order. The forwards climb; each backward then runs as B or as
    D with its W at any later point, whatever peaks lowest.
    """
    low, high = 0, sum(map(everything_bytes, stages))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(stages, middle) else (middle + 1, high)
    return low


def everything_bytes(stage: Stage) -> int:
    """Return all that one microbatch can ever hold on `stage` [bytes], as if at once."""
    transients = stage.forward_transient_bytes + stage.input_grad_transient_bytes + stage.weight_grad_transient_bytes
    transients += stage.full_backward_transient_bytes or 0
    return stage.activation_bytes + stage.held_bytes + transients


def _fits(stages: Sequence[Stage], capacity: int) -> bool:
    """Whether one microbatch runs within `capacity` [bytes].

    Greedy is exact here: B, where it fits, frees all there is to free; a W that fits frees memory and
    should run at once.
    """
    resident = 0
    for stage in stages:
        resident += stage.activation_bytes
        if resident + stage.forward_transient_bytes > capacity:
            return False
    waiting: list[Stage] = []
    for stage in reversed(stages):
        grown = max(0, stage.held_bytes - stage.activation_bytes)
        if resident + stage.whole_transient_bytes <= capacity:
            resident -= stage.activation_bytes
        elif stage.can_split and resident + grown + stage.input_grad_transient_bytes <= capacity:
            resident += stage.held_bytes - stage.activation_bytes
            waiting.append(stage)
        else:
            return False
        resident = _run_weight_grads(waiting, resident, capacity)
    return not waiting


def _run_weight_grads(waiting: list[Stage], resident: int, capacity: int) -> int:
    """Run every W of `waiting` that fits, smallest transient first; return the bytes still resident."""
    waiting.sort(key=lambda stage: stage.weight_grad_transient_bytes)
    while waiting and resident + waiting[0].weight_grad_transient_bytes <= capacity:
        resident -= waiting.pop(0).held_bytes
    return resident
