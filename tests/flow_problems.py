"""Problems of two flows over the same devices in opposite directions, and profiles to make them from."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from msgspec.structs import replace

from cpipe.ir import Collectives, Hop, Problem, Stage
from cpipe.profile import Profile, normalize, parse_profile
from cpipe.units import Bytes, Ns

__all__ = ["draw_flows", "flow_document", "flow_problem", "flow_profile"]


def flow_document(num_devices: int, microbatches: int, *, latency_ms: float = 0, **stage: Any) -> dict[str, Any]:
    """Return a profile of one stage a device, F 1 ms and B 1 ms; `stage` are more fields of every stage."""
    names = [f"g{index}" for index in range(num_devices)]
    costs = {"forward_ms": 1, "full_backward_ms": 1, "activation_bytes": 1} | stage
    return {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": microbatches,
        "devices": [{"id": name} for name in names],
        "stages": [{"id": f"s{index}", "device": name, **costs} for index, name in enumerate(names)],
        "links": [
            {"from": source, "to": target, "latency_ms": latency_ms, "beta_ns_per_byte": 0.5}
            for source in names
            for target in names
            if source != target
        ],
    }


def flow_profile(document: dict[str, Any]) -> Profile:
    """Return the profile of a document."""
    return parse_profile(json.dumps(document).encode(), "p.json")


def flow_problem(document: dict[str, Any]) -> Problem:
    """Return its problem of two flows, verified."""
    problem = normalize(flow_profile(document), flows=2)
    problem.verify()
    return problem


def draw_flows(draw: Random, *, shared: bool = False, splits: bool = True) -> Problem:
    """Return a random problem of two flows on 2 or 4 devices.

    With `shared` all messages take one of two pipes, which the reductions may occupy too; else each directed pair of
    devices has its own.
    """
    num_devices = draw.choice((2, 2, 4))
    placement = [*range(num_devices), *reversed(range(num_devices))]
    pipes = [f"{a}>{b}" for a in range(num_devices) for b in range(num_devices)]
    costs = {pipe: (draw.choice((0, 0, 1, 4)), draw.choice((0, 0, 1, 2))) for pipe in range(len(pipes))}

    def hop(first: int, source: int, target: int) -> Hop | None:
        if first == num_devices - 1:
            return None
        a, b = placement[source], placement[target]
        pipe = (a + b) % 2 if shared else a * num_devices + b
        latency, occupancy = costs[a * num_devices + b]
        size = Bytes(draw.randint(0, 3))
        return Hop(
            source=a, target=b, message_bytes=size, latency_ns=Ns(latency), occupancy_ns=Ns(occupancy), pipe=pipe
        )

    boundaries = range(2 * num_devices - 1)
    contended = tuple(draw.sample((0, 1), draw.randint(0, 2))) if shared else ()
    once = [_stage(draw, splits) for _ in range(num_devices)]
    return Problem(
        name="flows",
        microbatches=draw.randint(1, 3),
        devices=flow_problem(flow_document(num_devices, 2)).devices,
        stages=tuple(
            replace(once[index % num_devices], name=f"s{index % num_devices}", device=device)
            for index, device in enumerate(placement)
        ),
        forward_hops=tuple(hop(index, index, index + 1) for index in boundaries),
        backward_hops=tuple(hop(index, index + 1, index) for index in boundaries),
        pipes=tuple(pipes),
        collectives=Collectives(mode="ddp", replicas=draw.randint(1, 2), pipes=contended),
        flows=(0, num_devices),
    )


def _stage(draw: Random, splits: bool) -> Stage:
    def time() -> Ns:
        return Ns(draw.choice((0, 1, 2, 3, 5)))

    can_split = splits and draw.random() < 0.7
    return Stage(
        name="",
        device=0,
        forward_ns=time(),
        input_grad_ns=time() if can_split else Ns(0),
        weight_grad_ns=time() if can_split else Ns(0),
        full_backward_ns=time(),
        can_split=can_split,
        activation_bytes=Bytes(draw.randint(0, 3)),
        held_bytes=Bytes(draw.randint(0, 3)),
        static_bytes=Bytes(draw.randint(0, 3)),
        reduce_ns=Ns(draw.choice((0, 0, 1, 4))),
        forward_backward_ns=draw.choice((None, Ns(2), Ns(4))),
    )
