"""A job over two sites, as the profile of its pipeline and of what a site alone would run."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from cpipe.errors import UsageError
from cpipe.ir import Problem
from cpipe.profile import DeviceSpec, LinkSpec, Profile, StageSpec, normalize
from cpipe.schedules.placements import wave_placement
from cpipe.units import Ns, beta_ns_per_byte, ms_to_ns, occupancy_ns

__all__ = ["ModelJob", "TwoSites", "job_of_model", "job_of_profile"]


class ModelJob(NamedTuple):
    """A transformer on two sites, as few numbers describe it.

    Attributes
    ----------
    parameters
        N, of the whole model.
    hidden, sequence, microbatch_size
        d, s and b: a message between stages has b x s x d elements of each replica.
    microbatches
        n, of each replica.
    num_devices
        p: ranks of the pipeline, half of them in each site.
    replicas
        r: pipelines side by side, whose messages share the link.
    forward_ms, input_grad_ms, weight_grad_ms
        Of one microbatch on one rank [ms].
    latency_ms
        alpha of the link, each way [ms].
    bytes_per_element
        Of activations and gradients alike.
    memory_factor
        Activations that a rank may hold, in units of 1F1B's p.
    """

    parameters: int
    hidden: int
    sequence: int
    microbatch_size: int
    microbatches: int
    num_devices: int
    replicas: int
    forward_ms: float
    input_grad_ms: float
    weight_grad_ms: float
    latency_ms: float
    bytes_per_element: int = 2
    memory_factor: float = 1.0

    @property
    def message_bytes(self) -> int:
        """Of all replicas together [bytes]."""
        elements = self.microbatch_size * self.sequence * self.hidden
        return elements * self.bytes_per_element * self.replicas


class TwoSites(NamedTuple):
    """One placement of a job.

    Attributes
    ----------
    profile
        Of the pipeline across both sites, its link as fast as light travels.
    links
        Which entries of its `links` join the sites.
    latency_ns
        Of the link, each way [ns]; that of the slower direction.
    stage_gradient_bytes
        What an all-reduce of each stage adds up [bytes].
    half_duplex
        Whether both directions of the link take turns.
    """

    profile: Profile
    links: tuple[int, ...]
    latency_ns: int
    stage_gradient_bytes: tuple[int, ...]
    half_duplex: bool = False

    @property
    def name(self) -> str:
        """Of the profile."""
        return self.profile.name

    @property
    def message_bytes(self) -> int:
        """Size of the largest message that crosses the link [bytes]."""
        site = {device.id: device.site for device in self.profile.devices}
        stages = self.profile.stages
        crossing = [
            first.output_bytes for first, second in pairwise(stages) if site[first.device] != site[second.device]
        ]
        return max(crossing, default=0)

    @property
    def gradient_bytes(self) -> int:
        """What the all-reduces of all stages add up [bytes]."""
        return sum(self.stage_gradient_bytes)

    def pipeline_problem(self, gbit_s: float) -> Problem:
        """Return the pipeline across both sites, `gbit_s` [10^9 bit/s] each way between them."""
        return normalize(self._linked(gbit_s, None))

    def local_problem(self) -> Problem:
        """Return the pipeline as a single site would run it: nothing is between the halves."""
        return normalize(self._linked(None, 0.0))

    def reduce_ns(self, gbit_s: float, num_bytes: int) -> Ns:
        """Return how long the all-reduce of `num_bytes` [bytes] between two sites holds the link [ns].

        A ring of two sends each half twice, once each way: ``bytes x beta`` (CrossPipe, appendix E), twice that where
        directions take turns. Its latency, ``2 alpha``, comes on top and holds nothing.
        """
        return occupancy_ns(num_bytes, beta_ns_per_byte(gbit_s) * (2 if self.half_duplex else 1))

    def _linked(self, gbit_s: float | None, latency_ms: float | None) -> Profile:
        links = [*self.profile.links]
        for index in self.links:
            changed = replace(links[index], bandwidth_gbit_s=gbit_s, beta_ns_per_byte=None)
            links[index] = changed if latency_ms is None else replace(changed, latency_ms=latency_ms)
        return replace(self.profile, links=tuple(links))


def job_of_model(job: ModelJob, *, wave: bool = False) -> TwoSites:
    """Return a model on two sites: one stage a rank in line, or two in a V with half of the work each.

    A device holds at most `memory_factor` x p activations of a whole rank beside one message on each of its channels.
    The device that ends a V keeps the activations inside.
    """
    chunks = 2 if wave else 1
    num_stages, p = chunks * job.num_devices, job.num_devices
    placement: Sequence[int] = wave_placement(num_stages, p) if wave else range(p)
    unit = 4 * max(1, job.message_bytes)  # of a stage; any even number does, as only its multiples count
    channels = 2 * chunks
    memory = int(Fraction(str(job.memory_factor)) * p * chunks * unit) + channels * job.message_bytes
    devices = tuple(
        DeviceSpec(id=f"g{rank}", site="a" if rank < p // 2 else "b", memory_bytes=memory) for rank in range(p)
    )
    share = [
        job.parameters * (stage + 1) // num_stages - job.parameters * stage // num_stages for stage in range(num_stages)
    ]
    stages = tuple(
        StageSpec(
            id=f"s{stage}",
            device=f"g{device}",
            forward_ms=_part(job.forward_ms, chunks),
            input_grad_ms=_part(job.input_grad_ms, chunks),
            weight_grad_ms=_part(job.weight_grad_ms, chunks),
            activation_bytes=unit,
            held_for_weight_grad_bytes=unit // 2,
            output_bytes=job.message_bytes if stage + 1 < num_stages else 0,
        )
        for stage, device in enumerate(placement)
    )
    link = LinkSpec(between=("a", "b"), latency_ms=job.latency_ms)
    profile = Profile(
        format="cpipe.profile",
        version=1,
        microbatches=job.microbatches,
        devices=devices,
        stages=stages,
        links=(link,),
    )
    gradients = tuple(job.bytes_per_element * parameters for parameters in share)
    return TwoSites(profile, (0,), ms_to_ns(job.latency_ms), gradients)


def job_of_profile(profile: Profile, *, parameters: int | None = None, latency_ms: float | None = None) -> TwoSites:
    """Return the job of a profile whose devices stand in two sites.

    Parameters
    ----------
    profile
        As loaded. Its data parallelism is left out: on both sides it would be the same.
    parameters
        N, of the whole model, two bytes each; None: the gradient bytes of its stages.
    latency_ms
        Of the link between the sites, in place of the profile's [ms].

    Raises
    ------
    UsageError
        When there are not two sites that exchange messages, or nobody says how large the gradients are.
    ProfileError
        When the profile lacks a link.
    """
    sites = list(dict.fromkeys(device.site or "" for device in profile.devices))
    if len(sites) != 2:
        raise UsageError(f"expected devices in two sites, got {len(sites)}", code="not-two-sites")
    normalize(profile, prove_memory=False)  # its own faults first
    crossing = _between(profile)
    site = {device.id: device.site for device in profile.devices}
    if len({site[stage.device] for stage in profile.stages}) != 2:
        raise UsageError("no stage boundary crosses the sites", code="not-two-sites")
    if latency_ms is not None:
        links = [
            replace(link, latency_ms=latency_ms) if index in crossing else link
            for index, link in enumerate(profile.links)
        ]
        profile = replace(profile, links=tuple(links))
    gradients = _gradients(profile, parameters)
    return TwoSites(
        replace(profile, data_parallel=None),
        crossing,
        max(ms_to_ns(profile.links[index].latency_ms) for index in crossing),
        gradients,
        any(profile.links[index].duplex == "half" for index in crossing),
    )


def _part(milliseconds: float, chunks: int) -> float:
    """Return what a chunk takes [ms], to the nanosecond."""
    return float(round(Fraction(str(milliseconds)) / chunks, 6))


def _between(profile: Profile) -> tuple[int, ...]:
    """Return the entries of `links` that join different sites."""
    site = {device.id: device.site or "" for device in profile.devices}

    def ends(link: LinkSpec) -> tuple[str, str]:
        first, second = link.between or (link.source or "", link.target or "")
        return site.get(first, first), site.get(second, second)

    return tuple(index for index, link in enumerate(profile.links) if len({*ends(link)}) == 2)


def _gradients(profile: Profile, parameters: int | None) -> tuple[int, ...]:
    num_stages = len(profile.stages)
    if parameters is not None:
        return tuple(
            2 * (parameters * (stage + 1) // num_stages - parameters * stage // num_stages)
            for stage in range(num_stages)
        )
    sizes = tuple(stage.gradient_bytes for stage in profile.stages)
    if not any(sizes):
        raise UsageError(
            "the profile has no gradient_bytes, so the size of the all-reduce is not known",
            code="no-gradients",
            hint="give --parameters",
        )
    return sizes
