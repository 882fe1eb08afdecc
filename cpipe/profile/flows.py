"""Two flows over the same devices in opposite directions: each stage has a second copy of its weights.

As in Chimera (arXiv 2107.06925) and DualPipe: stages S .. 2S - 1 are copies of 0 .. S - 1 and, unless they are placed
otherwise, stand on the devices in reverse. Each flow trains one half of the microbatches; then every stage's gradients
are added up over its two copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cpipe.errors import Diagnostic, UsageError
from cpipe.jsontext import shown
from cpipe.profile.collectives import ring_ns
from cpipe.profile.links import LinkTable
from cpipe.profile.schema import Profile
from cpipe.units import Ns

__all__ = ["FLOWS", "copy_reduce_ns", "in_both_directions"]

FLOWS = 2


def in_both_directions(profile: Profile, placement: Sequence[int] | None) -> Profile:
    """Return the profile of both flows: twice the stages, half the microbatches.

    Parameters
    ----------
    profile
        Of one pipeline, valid.
    placement
        Device index of each stage of both flows (length 2S), or None: the profile's own, and its reverse.

    Raises
    ------
    UsageError
        When the microbatches cannot be halved, the data parallelism shards (ZeRO-1), or two copies would stand on one
        device.
    """
    index_of = {device.id: index for index, device in enumerate(profile.devices)}
    size = len(profile.stages)
    if placement is None:
        own = [index_of[stage.device] for stage in profile.stages]
        placement = [*own, *reversed(own)]
    if faults := tuple(_faults(profile, placement)):
        raise UsageError(faults)
    stages = tuple(
        msgspec.structs.replace(profile.stages[index % size], device=profile.devices[device].id)
        for index, device in enumerate(placement)
    )
    return msgspec.structs.replace(profile, stages=stages, microbatches=profile.microbatches // FLOWS)


def copy_reduce_ns(table: LinkTable, first: int, second: int, num_bytes: int) -> Ns:
    """Return the duration [ns] of the all-reduce between two copies of a stage.

    A ring of two over the link between devices `first` and `second`, ``2 alpha + bytes x beta`` (CrossPipe, arXiv
    2507.00217, appendix E), over the slower of its directions; nothing when the profile gives no bytes.
    """
    if num_bytes == 0:
        return Ns(0)
    routes = [table.route(first, second), table.route(second, first)]
    return max(ring_ns(num_bytes, 2, route.latency_ns, route.beta, rounds=2) for route in routes if route is not None)


def _faults(profile: Profile, placement: Sequence[int]) -> Iterator[Diagnostic]:
    """Yield why there is no such pair of flows."""
    size = len(profile.stages)
    if profile.microbatches % FLOWS:
        message = f"two flows need an even number of microbatches, got {profile.microbatches}"
        yield Diagnostic(code="flows-microbatches", message=message, path="$.microbatches")
    job = profile.data_parallel
    if job is not None and job.replicas > 1 and job.mode != "ddp":
        message = f"two flows need data parallelism of mode ddp, got {job.mode}"
        yield Diagnostic(code="flows-data-parallel", message=message, path="$.data_parallel.mode")
    if len(placement) != FLOWS * size:
        message = f"expected a device for each of {FLOWS * size} stages of two flows, got {len(placement)}"
        yield Diagnostic(code="placement-length", message=message)
        return
    for index, stage in enumerate(profile.stages):
        first, second = placement[index], placement[size + index]
        if first == second:
            name = shown(profile.devices[first].id)
            message = f"both copies of {shown(stage.id)} would stand on the device {name}: the flows meet there"
            hint = "two flows in opposite directions need an even number of devices, with one stage each"
            yield Diagnostic(code="flows-placement", message=message, path=f"$.stages[{index}]", hint=hint)
