"""The profile as it stands in the file (format `cpipe.profile`, version 1), in users' units.

The types are the one source of the format: the loader checks files against them, the JSON schema is made
from them. Every number has its unit in brackets and its bounds in its type; rules that join several
fields stand in `cpipe.profile.rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from cpipe.ir.base import Frozen

__all__ = [
    "MAX_BYTES",
    "MAX_MICROBATCHES",
    "MAX_MS",
    "PROFILE_FORMAT",
    "PROFILE_VERSION",
    "DataParallelSpec",
    "DeviceSpec",
    "LinkSpec",
    "OffloadSpec",
    "Profile",
    "RecomputeSpec",
    "StageSpec",
]

PROFILE_FORMAT = "cpipe.profile"
PROFILE_VERSION = 1

MAX_MS = 10**12
"""Longest duration of one op or latency [ms], about 31 years."""
MAX_BYTES = 2**62
"""Largest size [bytes]; twice as much still fits a signed 64-bit integer."""
MAX_MICROBATCHES = 65_536
"""Most microbatches of one iteration."""

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern="^[^\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]*$")]
Milliseconds = Annotated[float, Meta(ge=0, le=MAX_MS)]
Size = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Bandwidth = Annotated[float, Meta(gt=0, le=10**12, description="Bandwidth, default infinite [Gbit/s = 10^9 bit/s].")]
InverseBandwidth = Annotated[
    float, Meta(ge=0, le=10**12, description="Inverse bandwidth, in place of bandwidth_gbit_s [ns/byte].")
]


class _Spec(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the on-disk types: a field that has its default is not written."""


class DeviceSpec(_Spec, frozen=True, kw_only=True):
    """One pipeline rank."""

    id: Annotated[Name, Meta(description="Unique name of the device.")]
    site: Annotated[Name, Meta(description="Where it stands; devices without a site share one.")] | None = None
    memory_bytes: Annotated[Size, Meta(description="Memory, default no limit [bytes].")] | None = None


class RecomputeSpec(_Spec, frozen=True, kw_only=True):
    """What a stage may do to save memory: keep part of its activation, and make the rest again in the backward."""

    activation_bytes: Annotated[Size, Meta(description="What F keeps until the backward ends [bytes].")]
    extra_ms: Annotated[Milliseconds, Meta(description="Longer that the backward takes for it [ms].")]


class OffloadSpec(_Spec, frozen=True, kw_only=True):
    """What a stage may move to host memory between F and its backward, and the way there."""

    num_bytes: Annotated[
        int, Meta(ge=1, le=MAX_BYTES, description="Part of one microbatch's activation that is moved [bytes].")
    ] = field(name="bytes")
    bandwidth_gbit_s: Bandwidth | None = None
    latency_ms: Annotated[Milliseconds, Meta(description="Fixed time of one copy, either way [ms].")] = 0.0


class StageSpec(_Spec, frozen=True, kw_only=True):
    """Costs of one stage for one microbatch; stages are listed in flow order."""

    id: Annotated[Name, Meta(description="Unique name of the stage.")]
    device: Annotated[Name, Meta(description="Id of the device that holds it.")]
    forward_ms: Annotated[Milliseconds, Meta(description="Duration of the forward F [ms].")]
    input_grad_ms: Annotated[Milliseconds, Meta(description="Duration of the input gradient D [ms].")] | None = None
    weight_grad_ms: Annotated[Milliseconds, Meta(description="Duration of the weight gradient W [ms].")] | None = None
    full_backward_ms: (
        Annotated[
            Milliseconds,
            Meta(description="Duration of D and W as one op B, default their sum; alone: cannot be split [ms]."),
        ]
        | None
    ) = None
    forward_backward_ms: (
        Annotated[
            Milliseconds,
            Meta(description="Duration of F fused with a B of the same device, default both in turn [ms]."),
        ]
        | None
    ) = None
    activation_bytes: Annotated[Size, Meta(description="Allocated by F until the backward ends [bytes].")] = 0
    held_for_weight_grad_bytes: (
        Annotated[Size, Meta(description="The part still held between D and W, default none [bytes].")] | None
    ) = None
    recompute: (
        Annotated[RecomputeSpec, Meta(description="Activation checkpointing: a choice of the search.")] | None
    ) = None
    offload: (
        Annotated[OffloadSpec, Meta(description="Copies to host memory and back: a choice of the search.")] | None
    ) = None
    static_bytes: Annotated[Size, Meta(description="Parameters, gradients and optimizer state [bytes].")] = 0
    forward_transient_bytes: Annotated[Size, Meta(description="Extra while F runs [bytes].")] = 0
    input_grad_transient_bytes: Annotated[Size, Meta(description="Extra while D runs [bytes].")] = 0
    weight_grad_transient_bytes: Annotated[Size, Meta(description="Extra while W runs [bytes].")] = 0
    output_bytes: Annotated[
        Size, Meta(description="Activation sent to the next stage, and the gradient that comes back [bytes].")
    ] = 0
    parameter_bytes: Annotated[Size, Meta(description="What an all-gather collects [bytes].")] = 0
    gradient_bytes: Annotated[Size, Meta(description="What a gradient reduction adds up [bytes].")] = 0
    all_gather_ms: (
        Annotated[Milliseconds, Meta(description="Measured all-gather, in place of the ring formula [ms].")] | None
    ) = None
    reduce_scatter_ms: (
        Annotated[Milliseconds, Meta(description="Measured reduce-scatter, in place of the ring formula [ms].")] | None
    ) = None
    all_reduce_ms: (
        Annotated[Milliseconds, Meta(description="Measured all-reduce, in place of the ring formula [ms].")] | None
    ) = None


Ends = tuple[Name, Name]


class LinkSpec(_Spec, frozen=True, kw_only=True):
    """A link: `between` two ends in both directions, or `from` one `to` another. Ends are device or site ids."""

    between: Annotated[Ends, Meta(description="Both ends; the link works in both directions.")] | None = None
    source: Annotated[Name, Meta(description="Sending end of a one-direction link.")] | None = field(
        name="from", default=None
    )
    target: Annotated[Name, Meta(description="Receiving end of a one-direction link.")] | None = field(
        name="to", default=None
    )
    latency_ms: Annotated[Milliseconds, Meta(description="alpha: from leaving to arrival [ms].")] = 0.0
    bandwidth_gbit_s: Bandwidth | None = None
    beta_ns_per_byte: InverseBandwidth | None = None
    duplex: Annotated[Literal["full", "half"], Meta(description="half: both directions take turns on one pipe.")] = (
        "full"
    )


class DataParallelSpec(_Spec, frozen=True, kw_only=True):
    """Data parallelism of the job; its network is apart from the pipeline's unless `contends_with` says so."""

    mode: Annotated[
        Literal["ddp", "zero1"],
        Meta(description="ddp: all-reduce gradients; zero1: all-gather parameters, reduce-scatter gradients."),
    ]
    replicas: Annotated[int, Meta(ge=1, le=1_000_000, description="Replicas of the pipeline [count].")]
    latency_ms: Annotated[Milliseconds, Meta(description="alpha of one step of a ring [ms].")] = 0.0
    bandwidth_gbit_s: Bandwidth | None = None
    beta_ns_per_byte: InverseBandwidth | None = None
    contends_with: (
        Annotated[Ends, Meta(description="Ends of the link that the collectives share with the pipeline.")] | None
    ) = None


class Profile(_Spec, frozen=True, kw_only=True):
    """What the stages of one pipeline cost, what memory allows and what the links are like."""

    format: Annotated[Literal["cpipe.profile"], Meta(description="Name of the format.")]
    version: Annotated[Literal[1], Meta(description="Version of the format.")]
    name: Annotated[
        str, Meta(max_length=200, pattern="^[^\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]*$", description="For people.")
    ] = ""
    microbatches: Annotated[int, Meta(ge=1, le=MAX_MICROBATCHES, description="Microbatches of an iteration [count].")]
    devices: Annotated[tuple[DeviceSpec, ...], Meta(min_length=1, description="In rank order.")]
    stages: Annotated[tuple[StageSpec, ...], Meta(min_length=1, description="In flow order.")]
    links: Annotated[tuple[LinkSpec, ...], Meta(description="What connects devices and sites.")] = ()
    data_parallel: DataParallelSpec | None = None
    step_ms: Annotated[
        Milliseconds, Meta(description="Global reduction and optimizer step, after the last op of every device [ms].")
    ] = 0.0
    extensions: Annotated[dict[str, Any], Meta(description="The user's own; kept, never read.")] | None = None
