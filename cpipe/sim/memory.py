"""Memory over a device's order: a prefix sum that never depends on times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cpipe.ir import Offload, OpKind, Problem
from cpipe.ir.ops import KINDS

__all__ = ["MemoryStep", "fits", "memory_peaks", "memory_rooms", "memory_steps", "receive_reserve"]


class MemoryStep(NamedTuple):
    """What one op does to its device's memory [bytes]: `during` while it runs, `after` from its end on.

    Both are relative to the level before the op.
    """

    during: int
    after: int


def memory_steps(problem: Problem) -> tuple[MemoryStep, ...]:
    """Return the memory step of each (stage, op kind).

    Returns
    -------
    tuple of MemoryStep
        Length 4 S, indexed by ``stage * 4 + kind``. What an op allocates counts from its start, what it frees is
        free from its end (the released model of CrossPipe, section 4.1, with transients added).
    """
    steps: list[MemoryStep] = []
    for stage in problem.stages:
        activation, held = stage.activation_bytes, stage.held_bytes
        steps += (
            MemoryStep(activation + stage.forward_transient_bytes, activation),
            MemoryStep(max(0, held - activation) + stage.input_grad_transient_bytes, held - activation),
            MemoryStep(stage.weight_grad_transient_bytes, -held),
            MemoryStep(stage.whole_transient_bytes, -activation),
        )
    return tuple(steps)


def receive_reserve(problem: Problem) -> tuple[int, ...]:
    """Return the bytes that each device sets aside for posted receives.

    Returns
    -------
    tuple of int
        Length P: the largest message of every incoming channel, times ``receive_window``; without a window, times
        one, since a message needs a receive to go to whatever the order is.
    """
    reserve = [0] * problem.num_devices
    window = min(problem.receive_window or 1, problem.microbatches)
    for (_, target, _), size in problem.largest_messages().items():
        reserve[target] += window * size
    return tuple(reserve)


def memory_rooms(problem: Problem) -> tuple[int | None, ...]:
    """Return what each device has left for activations and transients [bytes]; None without a limit.

    Length P. Static bytes and the receive buffers of `receive_reserve` are taken off; negative if they do not fit.
    """
    reserve = receive_reserve(problem)
    return tuple(
        None
        if owner.capacity_bytes is None
        else owner.capacity_bytes
        - reserve[index]
        - sum(problem.stages[s].static_bytes for s in problem.stages_of(index))
        for index, owner in enumerate(problem.devices)
    )


def memory_peaks(
    problem: Problem,
    orders: Sequence[Sequence[int]],
    pairs: Sequence[tuple[int, int]] = (),
    offloads: Sequence[Offload] = (),
) -> tuple[int, ...]:
    """Return each device's peak [bytes]: static bytes plus activations and transients, without receive buffers.

    Parameters
    ----------
    problem
        The problem.
    orders
        Length P: op ids of each device, in order (possibly incomplete).
    pairs
        Fused pairs (`Schedule.pairs`): what both ops hold counts together, until the pair ends.
    offloads
        What is in host memory meanwhile (`Schedule.offloads`).
    """
    steps = memory_steps(problem)
    moves = _moves(problem, offloads)
    partner = dict(pairs)
    per_stage = problem.microbatches * KINDS
    peaks = []
    for device, order in enumerate(orders):
        level: int = sum(problem.stages[stage].static_bytes for stage in problem.stages_of(device))
        peak = level
        for place, op in enumerate(order):
            if moves:
                level += moves.get((device, place), 0)
                peak = max(peak, level)
            during, after = steps[op // per_stage * KINDS + op % KINDS]
            if op in partner:  # its backward comes next, and adds its `after`
                other = partner[op]
                during += steps[other // per_stage * KINDS + other % KINDS].during
            if level + during > peak:
                peak = level + during
            level += after
        peaks.append(peak)
    return tuple(peaks)


def _moves(problem: Problem, offloads: Sequence[Offload]) -> dict[tuple[int, int], int]:
    """Return what is taken [bytes] right before the op at a device's position; negative where more is freed."""
    moves: dict[tuple[int, int], int] = {}
    for entry in offloads:
        stage = problem.stages[entry.stage]
        for place, change in ((entry.freed_before, -1), (entry.reloaded_before, 1)):
            key = stage.device, place
            moves[key] = moves.get(key, 0) + change * stage.offload_bytes
    return moves


def fits(
    problem: Problem,
    orders: Sequence[Sequence[int]],
    pairs: Sequence[tuple[int, int]] = (),
    offloads: Sequence[Offload] = (),
) -> bool:
    """Return whether every device's peak, receive buffers of `receive_window` included, is within its capacity."""
    reserve = receive_reserve(problem)
    return all(
        device.capacity_bytes is None or peak + extra <= device.capacity_bytes
        for device, peak, extra in zip(
            problem.devices, memory_peaks(problem, orders, pairs, offloads), reserve, strict=True
        )
    )


assert [kind.name for kind in OpKind] == ["F", "D", "W", "B"], "memory_steps lists its steps in this order"
