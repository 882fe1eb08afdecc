"""Which stage stands on which device: in line, in a loop, in waves."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["line_placement", "loop_placement", "wave_placement"]


def loop_placement(num_stages: int, num_devices: int) -> tuple[int, ...]:
    """Return stage k on device k mod p."""
    return tuple(stage % num_devices for stage in range(num_stages))


def wave_placement(num_stages: int, num_devices: int) -> tuple[int, ...]:
    """Return the stages down the devices and back up, in turns: a V, or a snake."""
    turns = (divmod(stage, num_devices) for stage in range(num_stages))
    return tuple(num_devices - 1 - step if turn % 2 else step for turn, step in turns)


def line_placement(loads: Sequence[int], num_devices: int) -> tuple[int, ...]:
    """Return runs of adjacent stages, one for each device, none empty, that are as even as they can be.

    The largest load of a device is as small as possible; of the placements with that, the squares of the loads have
    the least sum; of those, the first devices have the fewest stages.

    Parameters
    ----------
    loads
        Of each stage in flow order, >= 0.
    num_devices
        p, at most the number of stages.

    Returns
    -------
    tuple of int
        Device of each stage.
    """
    assert 1 <= num_devices <= len(loads), "each device gets a stage"
    starts = _even_starts(loads, num_devices, _least_maximum(loads, num_devices))
    ends = [*starts[1:], len(loads)]
    return tuple(
        device for device, (start, end) in enumerate(zip(starts, ends, strict=True)) for _ in range(start, end)
    )


def _least_maximum(loads: Sequence[int], num_devices: int) -> int:
    """Return the least possible maximum of the sums of `num_devices` runs.

    Runs that are too few can always be cut further, so only their number has to be small enough.
    """
    low, high = max(loads), sum(loads)
    while low < high:
        middle = (low + high) // 2
        runs, level = 1, 0
        for load in loads:
            level += load
            if level > middle:
                runs, level = runs + 1, load
        if runs <= num_devices:
            high = middle
        else:
            low = middle + 1
    return low


def _even_starts(loads: Sequence[int], num_devices: int, maximum: int) -> list[int]:
    """Return where each of the runs starts, none above `maximum`, the sum of their squares the least."""
    num_stages = len(loads)
    never = (1 << 200, num_stages)
    # Of stages k.. on the devices that remain: least sum of squares, and where the next run starts.
    best = [never] * num_stages + [(0, num_stages)]
    passes = []
    for remaining in range(1, num_devices + 1):
        found = [never] * (num_stages + 1)
        for start in range(num_devices - remaining, num_stages - remaining + 1):
            level = 0
            for end in range(start + 1, num_stages - remaining + 2):
                level += loads[end - 1]
                if level > maximum:
                    break
                found[start] = min(found[start], (level * level + best[end][0], end))
        best = found
        passes.append(found)
    starts = [0]
    for found in reversed(passes[1:]):
        starts.append(found[starts[-1]][1])
    return starts
