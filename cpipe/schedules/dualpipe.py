"""DualPipe and DualPipeV: two streams cross on every device, a forward of one beside a backward of the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.ir import OpKind, Schedule, encode_op
from cpipe.schedules.common import opposite_flows, wave_chunks

__all__ = ["dualpipe", "dualpipe_v"]

Unit = tuple[tuple[OpKind, int], ...]
"""What runs at once: (kind, side) of one op, or of the F and the B of a fused pair. A device has two stages: side 0 is
the one nearer to its flow's start, side 1 the other."""

_F, _D, _W, _B = OpKind.F, OpKind.D, OpKind.W, OpKind.B


def dualpipe_v(num_stages: int, microbatches: int, placement: Sequence[int]) -> Schedule:
    """Return DualPipeV (DeepSeek, 2025): DualPipe cut in half, on a V of two stages a device, with fused pairs.

    Two devices, four microbatches; a device's two streams are its stage on the way down and the one on the way up::

        device 0   0F0 0F1 0F2 3F0 3D0 3W0 3F1 0F3+3B1 3F2+0B0 3B2 3F3+0B1 3B3 0D2 0W2 0D3 0W3
        device 1   1F0 2F0 1F1 2F1 1F2 2B0 2F2+1B0 1F3+2B1 2F3+1B1 2B2 1B2 2D3 1D3 2W3 1W3

    On r devices with F = D = W on every stage and free links, a pair as long as its parts, the makespan exceeds the
    work by ``(r - 1) (FB + B - 3 W)``, and a device holds at most ``2 r + 1`` of its stages' activations.

    Parameters
    ----------
    num_stages, microbatches
        2 r and n >= 2 r.
    placement
        Device of each stage, in a V.

    Raises
    ------
    ValueError
        When the stages are not placed in a V, or the microbatches are too few.
    """
    wave_chunks(placement, 2)
    ranks = num_stages // 2
    _check_microbatches(microbatches, num_stages, "")
    sides = [(placement[rank], rank, (rank, num_stages - 1 - rank)) for rank in range(ranks)]
    return _schedule(sides, ranks, microbatches)


def dualpipe(num_stages: int, microbatches: int, placement: Sequence[int]) -> Schedule:
    """Return DualPipe (DeepSeek-V3, 2024): two flows in opposite directions, with fused pairs.

    Devices d and p - 1 - d work as one device of DualPipeV on half as many ranks, each on one flow's near and the
    other's far stage. A device holds at most ``p + 1`` activations.

    Parameters
    ----------
    num_stages
        Of both flows together, 2 p with p even.
    microbatches
        Of each flow, at least p.
    placement
        Device of each stage, flow after flow.

    Raises
    ------
    ValueError
        When the flows do not run through the same devices in opposite directions, their number is odd, or the
        microbatches are too few.
    """
    p = opposite_flows(placement)
    if p % 2:
        raise ValueError(f"needs an even number of devices, got {p}")
    _check_microbatches(microbatches, p, " in each flow")
    sides = []
    for position in range(p // 2):
        near, far = position, p - 1 - position
        sides.append((placement[near], position, (near, p + far)))
        sides.append((placement[far], position, (p + near, far)))
    return _schedule(sides, p // 2, microbatches)


def _check_microbatches(microbatches: int, least: int, where: str) -> None:
    if microbatches < least:
        raise ValueError(f"needs at least {least} microbatches{where}, got {microbatches}")


def _schedule(devices: Sequence[tuple[int, int, tuple[int, int]]], ranks: int, microbatches: int) -> Schedule:
    """Return the schedule of (device, rank in the fold, stage of either side)."""
    orders: list[tuple[int, ...]] = [()] * (max(device for device, _, _ in devices) + 1)
    pairs: list[tuple[int, int]] = []
    for device, rank, stages in devices:
        order: list[int] = []
        count = [[0, 0] for _ in OpKind]
        for unit in _units(ranks, rank, microbatches):
            ops = []
            for kind, side in unit:
                microbatch = count[_D if kind is _B else kind][side]
                count[_D if kind is _B else kind][side] += 1
                if kind is _B:
                    count[_W][side] += 1
                ops.append(encode_op(kind, stages[side], microbatch, microbatches))
            order += ops
            if len(ops) == 2:
                pairs.append((ops[0], ops[1]))
        orders[device] = tuple(order)
    return Schedule(orders=tuple(orders), pairs=tuple(pairs))


def _units(ranks: int, rank: int, microbatches: int) -> Iterator[Unit]:
    """Yield what a rank of the fold runs, in the eight phases of the published schedule.

    From rank 0, where the streams enter, to the last, where they meet: forwards of side 0, forwards of both sides,
    split backwards and forwards of side 1, pairs, pairs of the streams that end, backwards of both sides (the second
    half of them split), the input gradients that are left, the weight gradients that are left.
    """
    before = ranks - 1 - rank
    pending: list[int] = []  # sides of the D whose W is to come

    def ended(side: int, *, split: bool) -> Unit:
        if split:
            pending.append(side)
        return ((_D if split else _B, side),)

    for _ in range(2 * before):
        yield ((_F, 0),)
    for _ in range(rank + 1):
        yield ((_F, 0),)
        yield ((_F, 1),)
    for _ in range(before):
        yield ((_D, 1),)
        yield ((_W, 1),)
        yield ((_F, 1),)
    for turn in range(microbatches - 2 * ranks + rank + 1):
        if turn == 0 and before == 0:  # apart, so that the first gradient leaves a forward earlier
            yield ((_F, 0),)
            yield ((_B, 1),)
        else:
            yield (_F, 0), (_B, 1)
        yield (_F, 1), (_B, 0)
    for _ in range(before):
        yield ((_B, 1),)
        yield (_F, 1), (_B, 0)
    for turn in range(2 * (rank + 1)):
        yield ended(1 - turn % 2, split=turn > rank)
    for _ in range(before):
        yield ((_W, pending.pop(0)),)
        yield ended(0, split=True)
    for side in pending:
        yield ((_W, side),)
