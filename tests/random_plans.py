"""Random problems and feasible schedules from a seed: shared pipes, odd placements, zero durations, collectives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

from cpipe.ir import Collectives, Device, Hop, OpKind, Problem, Schedule, Stage, encode_op
from cpipe.units import Bytes, Ns

__all__ = ["draw_problem", "draw_schedule"]

_PIPES: tuple[Callable[[int, int], str], ...] = (
    lambda a, b: f"{a}>{b}",  # a pipe for each directed pair
    lambda a, b: f"{min(a, b)}-{max(a, b)}",  # half duplex
    lambda a, b: f"{a % 2}>{b % 2}",  # two sites
    lambda a, b: "one",  # everybody on one pipe
)


def draw_problem(draw: Random, *, windows: bool = True) -> Problem:
    """Return a problem of at most 4 devices, 6 stages and 5 microbatches; `windows` allows a receive window."""
    num_devices = draw.randint(1, 4)
    placement = [draw.randrange(num_devices) for _ in range(draw.randint(1, 6))]
    durations = draw.choice(((0, 1, 2, 3, 5), (1, 2, 3, 4), (0, 0, 1)))
    pipe_of, pipes = draw.choice(_PIPES), dict[str, int]()
    costs: dict[tuple[int, int], tuple[int, int]] = {}

    def hop(source: int, target: int) -> Hop | None:
        if source == target:
            return None
        latency, occupancy = costs.setdefault((source, target), (draw.choice((0, 0, 1, 4)), draw.choice((0, 0, 1, 2))))
        return Hop(
            source=source,
            target=target,
            message_bytes=Bytes(draw.randint(0, 3)),
            latency_ns=Ns(latency),
            occupancy_ns=Ns(occupancy),
            pipe=pipes.setdefault(pipe_of(source, target), len(pipes)),
        )

    forward = tuple(hop(source, target) for source, target in pairwise(placement))
    backward = tuple(hop(target, source) for source, target in pairwise(placement))
    mode = draw.choice((None, None, "ddp", "zero1"))
    collectives = None
    if mode is not None:
        shared = tuple(draw.sample(range(len(pipes)), min(len(pipes), draw.randint(0, 2))))
        collectives = Collectives(mode="ddp" if mode == "ddp" else "zero1", replicas=2, pipes=shared)
    return Problem(
        name="random",
        microbatches=draw.randint(1, 5),
        devices=tuple(Device(name=f"g{device}") for device in range(num_devices)),
        stages=tuple(_stage(draw, index, device, durations) for index, device in enumerate(placement)),
        forward_hops=forward,
        backward_hops=backward,
        pipes=tuple(pipes),
        collectives=collectives,
        receive_window=draw.choice((None, None, 1, 2)) if windows else None,
    )


def draw_schedule(draw: Random, problem: Problem) -> Schedule:
    """Return orders that can finish (without a receive window), D + W and B mixed."""
    n, last = problem.microbatches, problem.num_stages - 1
    forward, backward = [0] * (last + 1), [0] * (last + 1)
    unweighted: list[list[int]] = [[] for _ in problem.stages]
    orders: list[list[int]] = [[] for _ in problem.devices]
    laziness = draw.random()
    while True:
        ready: list[tuple[OpKind, int, float]] = []
        for stage in range(last + 1):
            if forward[stage] < n and (stage == 0 or forward[stage - 1] > forward[stage]):
                ready.append((OpKind.F, stage, 1.0))
            fed = forward[stage] if stage == last else backward[stage + 1]
            if min(fed, forward[stage]) > backward[stage]:
                ready.append((draw.choice((OpKind.D, OpKind.B)), stage, 2.0))
            if unweighted[stage]:
                ready.append((OpKind.W, stage, laziness + 0.01))
        if not ready:
            return Schedule(orders=tuple(map(tuple, orders)))
        kind, stage, _ = draw.choices(ready, [weight for *_, weight in ready])[0]
        order = orders[problem.stages[stage].device]
        if kind is OpKind.W:
            order.append(encode_op(kind, stage, unweighted[stage].pop(0), n))
            continue
        counts = forward if kind is OpKind.F else backward
        order.append(encode_op(kind, stage, counts[stage], n))
        if kind is OpKind.D:
            unweighted[stage].append(counts[stage])
        counts[stage] += 1


def _stage(draw: Random, index: int, device: int, durations: tuple[int, ...]) -> Stage:
    def time() -> Ns:
        return Ns(draw.choice(durations))

    def size() -> Bytes:
        return Bytes(draw.randint(0, 3))

    return Stage(
        name=f"s{index}",
        device=device,
        forward_ns=time(),
        input_grad_ns=time(),
        weight_grad_ns=time(),
        full_backward_ns=time(),
        activation_bytes=size(),
        held_bytes=size(),
        static_bytes=size(),
        forward_transient_bytes=size(),
        input_grad_transient_bytes=size(),
        weight_grad_transient_bytes=size(),
        all_gather_ns=time(),
        reduce_ns=time(),
    )
