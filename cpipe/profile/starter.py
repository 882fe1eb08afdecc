"""A profile to begin with: right as it is, with a number in every place that most jobs need."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.profile.schema import DeviceSpec, LinkSpec, Profile, StageSpec

__all__ = ["starter_profile"]

_MEMORY = 80 * 10**9
_STATIC = 40 * 10**9
_ACTIVATIONS = 20 * 10**9


def starter_profile(devices: Sequence[DeviceSpec], placement: Sequence[int], microbatches: int) -> Profile:
    """Return a profile of stages that cost the same, but for the first, which has no input gradient.

    A device gets 80 GB, of which its stages take 40 GB and the activations that 1F1B keeps at most 20 GB; every two
    sites get a link.

    Parameters
    ----------
    devices
        In rank order; their memory is set.
    placement
        Device index of each stage.
    microbatches
        Of an iteration.
    """
    most = max(placement.count(index) for index in range(len(devices)))
    sites = list(dict.fromkeys(device.site for device in devices if device.site is not None))
    pairs = [(first, second) for index, first in enumerate(sites) for second in sites[index + 1 :]]
    return Profile(
        format="cpipe.profile",
        version=1,
        name="starter",
        microbatches=microbatches,
        devices=tuple(DeviceSpec(id=device.id, site=device.site, memory_bytes=_MEMORY) for device in devices),
        stages=tuple(
            StageSpec(
                id=f"s{stage}",
                device=devices[index].id,
                forward_ms=10.0,
                input_grad_ms=0.0 if stage == 0 else 10.0,
                weight_grad_ms=20.0 if stage == 0 else 10.0,
                full_backward_ms=20.0,
                activation_bytes=_ACTIVATIONS // len(placement) // most,
                held_for_weight_grad_bytes=_ACTIVATIONS // len(placement) // most // (1 if stage == 0 else 2),
                static_bytes=_STATIC // most,
                output_bytes=64 * 2**20,
            )
            for stage, index in enumerate(placement)
        ),
        links=tuple(LinkSpec(between=pair, latency_ms=5.0, bandwidth_gbit_s=100.0) for pair in pairs),
    )
