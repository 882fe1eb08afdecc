"""Interleaved 1F1B on a loop: several stages on each device, so that a step of the warm-up is shorter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.ir import OpKind, Schedule
from cpipe.schedules.common import loop_chunks, schedule_of

__all__ = ["group_sizes", "interleaved_1f1b", "interleaved_order", "looped_bfs"]

Slot = tuple[int, int]
"""Stage of a device, counted in flow order, and microbatch."""


def group_sizes(num_devices: int, microbatches: int, group_size: int | None = None) -> tuple[int, ...]:
    """Return how many consecutive microbatches go through one stage of a device before its next stage has its turn.

    As many groups as n asks for, none larger than `group_size`, as even as they can be. A group smaller than the
    number of devices would wait for itself to come round: rather than that, the groups are fewer and larger.

    Parameters
    ----------
    num_devices, microbatches
        p and n, both >= 1.
    group_size
        N, from p (depth first, the default) to n (breadth first).

    Raises
    ------
    ValueError
        When N is below p and below n, or above n.
    """
    least = min(num_devices, microbatches)
    size = least if group_size is None else group_size
    if not least <= size <= microbatches:
        asked = f"{microbatches} microbatches on {num_devices} devices"
        allowed = f"from {least} to {microbatches}" if least < microbatches else f"of {least}"
        raise ValueError(f"needs a group size {allowed} for {asked}, got {size}")
    groups = max(1, min(-(-microbatches // size), microbatches // num_devices))
    small, larger = divmod(microbatches, groups)
    return (small + 1,) * larger + (small,) * (groups - larger)


def interleaved_order(chunks: int, sizes: Sequence[int], in_flight: int) -> Iterator[tuple[bool, Slot]]:
    """Yield (is forward, slot) of a device that runs `in_flight` forwards before it turns to one for one.

    Forwards go group by group, within a group stage by stage, within a stage microbatch by microbatch; backwards too,
    the last stage first.
    """
    forwards = list(_slots(range(chunks), sizes))
    backwards = list(_slots(range(chunks)[::-1], sizes))
    for slot in forwards[:in_flight]:
        yield True, slot
    for number, slot in enumerate(backwards):
        if in_flight + number < len(forwards):
            yield True, forwards[in_flight + number]
        yield False, slot


def _slots(stages: range, sizes: Sequence[int]) -> Iterator[Slot]:
    first = 0
    for size in sizes:
        for stage in stages:
            for microbatch in range(first, first + size):
                yield stage, microbatch
        first += size


def interleaved_1f1b(
    num_stages: int, microbatches: int, placement: Sequence[int], group_size: int | None = None
) -> Schedule:
    """Return interleaved 1F1B (Narayanan et al., 2021) with full backwards, in groups (Llama 3, 2024).

    Two devices with two stages each, four microbatches::

        device 0   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
        device 1   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3

    With V stages on each of p devices, n a multiple of p, equal stages and free links the bubble is
    ``(p - 1) / (V n)`` of the work, whatever the group size N; a device holds at most ``2 (p - 1) + (V - 1) N + 1``
    of its stages' activations.

    Parameters
    ----------
    num_stages, microbatches
        V p and n, both >= 1.
    placement
        Device of each stage, in a loop.
    group_size
        N, from p (depth first, the default) to n (breadth first); see `group_sizes`.

    Raises
    ------
    ValueError
        When the stages are not placed in a loop, or N is out of range.
    """
    chunks = loop_chunks(placement)
    p = num_stages // chunks
    sizes = group_sizes(p, microbatches, group_size)
    orders = []
    for rank, device in enumerate(placement[:p]):
        in_flight = min(chunks * microbatches, 2 * (p - rank - 1) + (chunks - 1) * sizes[0])
        order = interleaved_order(chunks, sizes, in_flight)
        orders.append(
            (device, [((OpKind.F if forward else OpKind.B), chunk * p + rank, mb) for forward, (chunk, mb) in order])
        )
    return schedule_of(max(placement) + 1, microbatches, orders)


def looped_bfs(num_stages: int, microbatches: int, placement: Sequence[int]) -> Schedule:
    """Return looped breadth-first scheduling (Lamy-Poirier, 2023): all forwards, stage by stage, then all backwards.

    Two devices with two stages each, two microbatches::

        device 0   0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        device 1   1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1

    With n >= p, equal stages and free links the bubble is that of interleaved 1F1B; a device holds the activations of
    all n microbatches.

    Parameters
    ----------
    num_stages, microbatches
        V p and n, both >= 1.
    placement
        Device of each stage, in a loop.

    Raises
    ------
    ValueError
        When the stages are not placed in a loop.
    """
    chunks = loop_chunks(placement)
    p = num_stages // chunks
    orders = [
        (
            device,
            [
                (kind, chunk * p + rank, microbatch)
                for kind, turn in ((OpKind.F, range(chunks)), (OpKind.B, range(chunks)[::-1]))
                for chunk, microbatch in _slots(turn, (microbatches,))
            ],
        )
        for rank, device in enumerate(placement[:p])
    ]
    return schedule_of(max(placement) + 1, microbatches, orders)
