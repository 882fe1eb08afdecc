"""What the static generators share: their preconditions on the placement, and how steps become a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cpipe.ir import OpKind, Schedule, encode_op

__all__ = ["Step", "line_blocks", "loop_chunks", "opposite_flows", "per_stage_schedule", "schedule_of", "wave_chunks"]

Step = tuple[OpKind, int]
"""An op of the stage at hand: its kind and microbatch."""


def per_stage_schedule(
    num_stages: int, microbatches: int, placement: Sequence[int], steps: Callable[[int], Iterator[Step]]
) -> Schedule:
    """Build a schedule of a pipeline in line from one generator of steps per device.

    Stages that follow each other on one device act as a single one: each step runs them all, forwards in flow order,
    the rest against it.

    Parameters
    ----------
    num_stages, microbatches
        Sizes, both >= 1.
    placement
        Device of each stage (length `num_stages`): each device holds one run of stages.
    steps
        Yields the steps of the k-th device in flow order.

    Raises
    ------
    ValueError
        When a device holds stages that do not follow each other.
    """
    orders: list[tuple[int, ...]] = [()] * (max(placement) + 1)
    for position, block in enumerate(line_blocks(placement)):
        orders[placement[block[0]]] = tuple(
            encode_op(kind, stage, microbatch, microbatches)
            for kind, microbatch in steps(position)
            for stage in (block if kind is OpKind.F else reversed(block))
        )
    return Schedule(orders=tuple(orders))


def line_blocks(placement: Sequence[int]) -> list[range]:
    """Return the run of stages of each device in flow order.

    Raises
    ------
    ValueError
        When a device holds stages that do not follow each other.
    """
    starts = [stage for stage, device in enumerate(placement) if stage == 0 or placement[stage - 1] != device]
    if len(starts) != len(set(placement)):
        raise ValueError(
            "needs one stage on each device, or one run of adjacent stages (--placement ud), "
            f"got the placement {list(placement)}"
        )
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(placement)], strict=True)]


def loop_chunks(placement: Sequence[int]) -> int:
    """Return the number of stages on each device of a loop: stage k on the device of stage k mod p.

    Raises
    ------
    ValueError
        When the placement is no loop, or a single round.
    """
    p = len(set(placement))
    if len(placement) % p or any(device != placement[k % p] for k, device in enumerate(placement)):
        raise ValueError(
            "needs stages that go round the devices, the same number on each (--placement loop), "
            f"got the placement {list(placement)}"
        )
    if len(placement) == p and p > 1:
        raise ValueError(f"needs two or more stages on each device, got {len(placement)} stages on {p} devices")
    return len(placement) // p


def wave_chunks(placement: Sequence[int], chunks: int | None = None) -> int:
    """Return the number of stages on each device of a wave: down the devices and back up, as often as it takes.

    Parameters
    ----------
    placement
        Device of each stage.
    chunks
        The number that is needed; None is any even one.

    Raises
    ------
    ValueError
        When the placement is no such wave.
    """
    p = len(set(placement))
    down = list(placement[:p])
    snake = [device for turn in range(len(placement) // p) for device in (down[::-1] if turn % 2 else down)]
    found = len(placement) // p
    if list(placement) != snake or found % 2 or (chunks is not None and found != chunks):
        wanted = "two" if chunks == 2 else "an even number of"
        shape = "a V" if chunks == 2 else "waves"
        placed = f"placed in {shape} (--placement wave), got the placement {list(placement)}"
        if len(placement) % p or found % 2 or (chunks is not None and found != chunks):  # no placement helps
            placed = f"got {len(placement)} stages on {p} devices: cut the model into more or fewer stages"
        raise ValueError(f"needs {wanted} stages on each device, {placed}")
    return found


def opposite_flows(placement: Sequence[int]) -> int:
    """Return the number of devices of two flows in opposite directions, one stage of each on every device.

    Raises
    ------
    ValueError
        When the placement is another.
    """
    p = len(placement) // 2
    first, second = list(placement[:p]), list(placement[p:])
    if len(set(first)) != p or second != first[::-1]:
        raise ValueError(
            "needs one stage of each flow on each device, the second flow in reverse order, "
            f"got the placements {first} and {second}"
        )
    return p


def schedule_of(
    num_devices: int, microbatches: int, orders: Iterable[tuple[int, Iterable[tuple[OpKind, int, int]]]]
) -> Schedule:
    """Return the schedule of (device, ops as kind, stage and microbatch); devices that are not named stay idle."""
    encoded: list[tuple[int, ...]] = [()] * num_devices
    for device, ops in orders:
        encoded[device] = tuple(encode_op(kind, stage, microbatch, microbatches) for kind, stage, microbatch in ops)
    return Schedule(orders=tuple(encoded))
