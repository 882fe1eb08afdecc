"""Schedules on a V made by repeating a building block: the six ops of one microbatch at fixed times on each device.

After "Pipeline Parallelism with Controllable Memory" (Qi et al., 2024). In units of one op (F = D = W = 1), every
microbatch starts six units after the one before, so a device is always busy if its six ops fall on different times
modulo six. How long a microbatch stays on a device decides how many activations it holds: the strides (units from one
device to the next) of the four passes set the memory, the gaps between passes are the least that avoid collisions.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

from cpipe.ir import OpKind, Schedule, encode_op
from cpipe.ir.ops import KINDS

__all__ = ["Strides", "block_peak", "block_schedule", "fitting_gaps"]

_PERIOD = 6


class Strides(NamedTuple):
    """Units from one device to the next: F down and back up the V, then D down and back up."""

    forward_down: int
    forward_up: int
    backward_down: int
    backward_up: int


Gaps = tuple[int, int, int]
"""Units at the turns: from the first F pass to the second, to the first D pass, to the second D pass."""

_LENGTHS = range(1, _PERIOD + 1)
_GAPS: list[Gaps] = sorted(itertools.product(_LENGTHS, _LENGTHS, _LENGTHS), key=lambda gaps: (sum(gaps), gaps))


class _Cell(NamedTuple):
    """An op of the block on one device; `chunk` 0 is the stage on the way down, 1 the one on the way up."""

    time: int
    kind: OpKind
    chunk: int


def _cells(p: int, rank: int, strides: Strides, gaps: Gaps) -> list[_Cell] | None:
    """Return the six ops of microbatch 0 on a device, or None when two collide with those of other microbatches.

    Each W takes the first unit after its D that is free modulo six.
    """
    last = p - 1
    down = rank * strides.forward_down
    turn = last * strides.forward_down + gaps[0]
    up = turn + (last - rank) * strides.forward_up
    turn += last * strides.forward_up + gaps[1]
    back_down = turn + rank * strides.backward_down
    turn += last * strides.backward_down + gaps[2]
    back_up = turn + (last - rank) * strides.backward_up
    cells = [
        _Cell(down, OpKind.F, 0),
        _Cell(up, OpKind.F, 1),
        _Cell(back_down, OpKind.D, 1),
        _Cell(back_up, OpKind.D, 0),
    ]
    taken = {cell.time % _PERIOD for cell in cells}
    if len(taken) < len(cells):
        return None
    for chunk, time in ((1, back_down), (0, back_up)):
        while time % _PERIOD in taken:
            time += 1
        taken.add(time % _PERIOD)
        cells.append(_Cell(time, OpKind.W, chunk))
    return cells


def _held(cells: list[_Cell]) -> int:
    """Return the most activations that a device holds in the steady state, from F to W."""
    starts = [cell.time for cell in cells if cell.kind is OpKind.F]
    ends = {cell.chunk: cell.time + 1 for cell in cells if cell.kind is OpKind.W}
    spans = list(zip(starts, (ends[0], ends[1]), strict=True))
    # At unit t, microbatch m of a chunk is held when start <= t - 6 m < end.
    return max(
        sum((t - start) // _PERIOD - (t - end) // _PERIOD for start, end in spans)
        for t in range(max(end for _, end in spans), max(end for _, end in spans) + _PERIOD)
    )


@lru_cache(maxsize=256)
def block_peak(p: int, strides: Strides, gaps: Gaps) -> int | None:
    """Return the activations that the fullest of p devices holds, or None when ops of the block collide."""
    peak = 0
    for rank in range(p):
        cells = _cells(p, rank, strides, gaps)
        if cells is None:
            return None
        peak = max(peak, _held(cells))
    return peak


@lru_cache(maxsize=256)
def fitting_gaps(p: int, strides: Strides, limit: int) -> Gaps | None:
    """Return the shortest gaps with which the block holds at most `limit` activations on p devices, or None."""
    for gaps in _GAPS:
        peak = block_peak(p, strides, gaps)
        if peak is not None and peak <= limit:
            return gaps
    return None


def block_schedule(placement: tuple[int, ...], microbatches: int, strides: Strides, gaps: Gaps) -> Schedule:
    """Return the repeated block as an order of F, D and W for each device.

    Parameters
    ----------
    placement
        A V: device of each of 2 p stages.
    microbatches
        n >= 1.
    strides, gaps
        Of a block without collisions.
    """
    p = len(placement) // 2
    orders: list[tuple[int, ...]] = [()] * (max(placement) + 1)
    for rank in range(p):
        cells = _cells(p, rank, strides, gaps)
        assert cells is not None, "gaps are chosen so that nothing collides"
        # In round k, of six units, each op of the block runs for microbatch k less the rounds that it comes later.
        turns = []
        for cell in sorted(cells, key=lambda cell: cell.time % _PERIOD):
            stage = 2 * p - 1 - rank if cell.chunk else rank
            turns.append((cell.time // _PERIOD, encode_op(cell.kind, stage, 0, microbatches)))
        rounds = range(max(later for later, _ in turns) + microbatches)
        orders[placement[rank]] = tuple(
            first + (k - later) * KINDS for k in rounds for later, first in turns if 0 <= k - later < microbatches
        )
    return Schedule(orders=tuple(orders))
