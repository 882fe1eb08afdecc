"""Small random problems, from a seed: every feature that the exhaustive search covers, in small numbers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from cpipe.ir import Collectives, Device, Hop, Problem, Stage
from cpipe.units import Bytes, Ns

__all__ = ["random_problem", "random_shared_problem"]

_PLACEMENTS: tuple[tuple[int, ...], ...] = (
    (0,), (0, 1), (0, 1), (0, 1, 2), (0, 1, 2), (0, 0), (0, 1, 1), (0, 1, 0), (0, 1, 0, 1), (0, 1, 1, 0), (1, 0)
)  # fmt: skip


def random_problem(seed: int) -> Problem:
    """Return a problem of at most 3 devices, 4 stages and 3 microbatches."""
    draw = Random(seed)
    placement = draw.choice(_PLACEMENTS)
    microbatches = draw.randint(1, 2 if len(placement) == 4 else 3)
    stages = tuple(_stage(draw, index, device) for index, device in enumerate(placement))
    limited = draw.random() < 0.6
    devices = tuple(
        Device(name=f"g{device}", capacity_bytes=_capacity(draw, stages, device) if limited else None)
        for device in range(max(placement) + 1)
    )
    delay = draw.choice(((0, 0), (6, 0), (0, 5), (6, 5)))
    pairs = sorted({pair for a, b in pairwise(placement) for pair in ((a, b), (b, a))})
    forward = tuple(_hop(draw, a, b, pairs, delay) for a, b in pairwise(placement))
    backward = tuple(_hop(draw, b, a, pairs, delay) for a, b in pairwise(placement))
    problem = Problem(
        name=f"random-{seed}",
        microbatches=microbatches,
        devices=devices,
        stages=stages,
        forward_hops=forward,
        backward_hops=backward,
        pipes=tuple(f"{a}->{b}" for a, b in pairs),
        collectives=_collectives(draw),
    )
    problem.verify()
    return problem


def random_shared_problem(seed: int) -> Problem:
    """Return a problem of one stage a device with what the exhaustive search leaves out.

    Half-duplex or common pipes, receive windows, collectives that hold a pipe; small enough to try every order.
    """
    draw = Random(seed)
    placement, microbatches = draw.choice((((0, 1), 2), ((0, 1), 3), ((0, 1, 2), 2)))
    stages = tuple(_stage(draw, index, device) for index, device in enumerate(placement))
    limited = draw.random() < 0.4
    boundaries = list(pairwise(placement))
    pipe = {pair: draw.randint(0, 1) for a, b in boundaries for pair in ((a, b), (b, a))}
    collectives = _collectives(draw)
    if collectives is not None and draw.random() < 0.7:
        collectives = Collectives(mode=collectives.mode, replicas=2, pipes=(draw.randint(0, 1),))
    problem = Problem(
        name=f"shared-{seed}",
        microbatches=microbatches,
        devices=tuple(
            Device(name=f"g{device}", capacity_bytes=_capacity(draw, stages, device) if limited else None)
            for device in placement
        ),
        stages=stages,
        forward_hops=tuple(_shared_hop(draw, a, b, pipe) for a, b in boundaries),
        backward_hops=tuple(_shared_hop(draw, b, a, pipe) for a, b in boundaries),
        pipes=("first", "second"),
        collectives=collectives,
        receive_window=draw.choice((None, 1, 2)),
    )
    problem.verify()
    return problem


def _shared_hop(draw: Random, source: int, target: int, pipe: dict[tuple[int, int], int]) -> Hop:
    return Hop(
        source=source,
        target=target,
        message_bytes=Bytes(draw.randint(0, 1)),
        latency_ns=Ns(draw.randint(0, 4)),
        occupancy_ns=Ns(draw.randint(0, 4)),
        pipe=pipe[source, target],
    )


def _stage(draw: Random, index: int, device: int) -> Stage:
    forward, first, second = draw.randint(0, 6), draw.randint(0, 6), draw.randint(0, 6)
    full = max(0, first + second + draw.choice((-2, -1, 0, 0, 0, 0, 1)))
    can_split = draw.random() < 0.85
    return Stage(
        name=f"s{index}",
        device=device,
        forward_ns=Ns(forward),
        input_grad_ns=Ns(first if can_split else 0),
        weight_grad_ns=Ns(second if can_split else 0),
        full_backward_ns=Ns(full),
        can_split=can_split,
        activation_bytes=Bytes(draw.randint(0, 3)),
        held_bytes=Bytes(draw.randint(0, 4)),
        static_bytes=Bytes(draw.randint(0, 2)),
        forward_transient_bytes=Bytes(draw.choice((0, 0, 1))),
        input_grad_transient_bytes=Bytes(draw.choice((0, 0, 1))),
        weight_grad_transient_bytes=Bytes(draw.choice((0, 0, 1))),
        all_gather_ns=Ns(draw.randint(0, 4)),
        reduce_ns=Ns(draw.randint(0, 4)),
    )


def _capacity(draw: Random, stages: tuple[Stage, ...], device: int) -> Bytes:
    """Return room for the device's static bytes and a few activations, often too little."""
    own = [stage for stage in stages if stage.device == device]
    static = sum(stage.static_bytes for stage in own)
    one_each = sum(max(stage.activation_bytes, stage.held_bytes) for stage in own)
    return Bytes(static + one_each + draw.randint(0, 5))


def _hop(draw: Random, source: int, target: int, pairs: list[tuple[int, int]], delay: tuple[int, int]) -> Hop | None:
    if source == target:
        return None
    return Hop(
        source=source,
        target=target,
        message_bytes=Bytes(1),
        latency_ns=Ns(draw.randint(0, delay[0])),
        occupancy_ns=Ns(draw.randint(0, delay[1])),
        pipe=pairs.index((source, target)),
    )


def _collectives(draw: Random) -> Collectives | None:
    mode = draw.choice((None, None, "ddp", "zero1"))
    if mode is None:
        return None
    return Collectives(mode="ddp" if mode == "ddp" else "zero1", replicas=2)
