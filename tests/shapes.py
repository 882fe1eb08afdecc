"""Problems of the shapes that static schedules ask for: lines, loops, waves and two opposite flows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

from known_cases import PEERS, PeerProfile
from msgspec.structs import replace
from oracle.cases import case

from cpipe.ir import Collectives, Hop, Problem, Schedule
from cpipe.schedules.placements import loop_placement, wave_placement
from cpipe.sim import Simulator, memory_peaks

__all__ = ["peer", "peer_of_shape", "peer_of_two_flows", "placed", "shape", "two_flows", "unit_result"]


def placed(name: str, p: int, chunks: int) -> tuple[int, ...]:
    """Return the placement of ``chunks * p`` stages as a ``line`` (one stage each), ``loop`` or ``wave``."""
    make = wave_placement if name == "wave" else loop_placement
    return make(p * chunks, p)


def shape(
    name: str,
    p: int,
    n: int,
    chunks: int = 1,
    *,
    forward: int = 1,
    input_grad: int = 1,
    weight_grad: int = 1,
    latency: int = 0,
) -> Problem:
    """Return equal stages, everything held until W, all links alike."""
    return case(
        n,
        placed(name, p, chunks),
        forward=forward,
        input_grad=input_grad,
        weight_grad=weight_grad,
        latency=latency,
        held=1,
    )


def two_flows(p: int, n: int, *, weight_grad: int = 1) -> Problem:
    """Return two flows of p equal stages through p devices in opposite directions, n microbatches in all, F = D = 1."""
    return _opposite(case(n // 2, [*range(p), *range(p)[::-1]], weight_grad=weight_grad, held=1))


def _opposite(line: Problem) -> Problem:
    """Return a line down the devices and back up as two flows."""
    p = line.num_stages // 2

    def cut(hops: tuple[Hop | None, ...]) -> tuple[Hop | None, ...]:
        return (*hops[: p - 1], None, *hops[p:])

    problem = replace(
        line,
        flows=(0, p),
        collectives=Collectives(mode="ddp", replicas=1),
        forward_hops=cut(line.forward_hops),
        backward_hops=cut(line.backward_hops),
    )
    problem.verify()
    return problem


def peer(name: str) -> PeerProfile:
    """Return a profile of `PEERS`."""
    (found,) = (each for each in PEERS if each.name == name)
    return found


def peer_of_shape(profile: PeerProfile, shape_name: str, chunks: int) -> Problem:
    """Return a peer's profile on a placement: a device's times shared evenly by its stages.

    Without a memory limit. A link that wraps round costs the largest latency of the line.
    """
    placement = placed(shape_name, profile.p, chunks)

    def shared(times: int | Sequence[int]) -> list[int]:
        of = [times] * profile.p if isinstance(times, int) else list(times)
        return [of[device] // chunks for device in placement]

    latency = []
    for source, target in itertools.pairwise(placement):
        near = abs(source - target) == 1
        latency.append(
            0 if source == target else profile.latency[min(source, target)] if near else max(profile.latency)
        )
    return case(
        profile.n,
        placement,
        forward=shared(profile.forward),
        input_grad=shared(profile.input_grad),
        weight_grad=shared(profile.weight_grad),
        latency=latency,
        held=1,
    )


def peer_of_two_flows(profile: PeerProfile) -> Problem:
    """Return a peer's profile as two flows in opposite directions, half of the microbatches each."""

    def both(times: int | tuple[int, ...]) -> int | list[int]:
        return times if isinstance(times, int) else [*times, *times]

    return _opposite(
        case(
            profile.n // 2,
            [*range(profile.p), *range(profile.p)[::-1]],
            forward=both(profile.forward),
            input_grad=both(profile.input_grad),
            weight_grad=both(profile.weight_grad),
            latency=[*profile.latency, 0, *profile.latency[::-1]],
            held=1,
        )
    )


def unit_result(problem: Problem, schedule: Schedule) -> tuple[int, Fraction]:
    """Return makespan [ns] and the largest peak, in activations of a device with all its stages."""
    makespan = Simulator(problem).makespan(schedule.orders, schedule.pairs)
    assert makespan is not None
    stages = max(len(problem.stages_of(device)) for device in range(problem.num_devices))
    return makespan, Fraction(max(memory_peaks(problem, schedule.orders)), stages)
