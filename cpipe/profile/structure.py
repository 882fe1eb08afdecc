"""A JSON tree against the types of `cpipe.profile.schema`: every fault of a single field, none twice."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec import inspect as mi

from cpipe.errors import Diagnostic
from cpipe.jsontext import Builder
from cpipe.profile.schema import (
    DataParallelSpec,
    DeviceSpec,
    LinkSpec,
    OffloadSpec,
    Profile,
    RecomputeSpec,
    StageSpec,
)

__all__ = ["build_profile"]

_HOMES: tuple[tuple[type[Struct], str], ...] = (
    (Profile, "at the top of the profile"),
    (DeviceSpec, "inside an entry of `devices`"),
    (StageSpec, "inside an entry of `stages`"),
    (RecomputeSpec, "inside `recompute` of a stage"),
    (OffloadSpec, "inside `offload` of a stage"),
    (LinkSpec, "inside an entry of `links`"),
    (DataParallelSpec, "inside `data_parallel`"),
)
_PER_MICROBATCH = "it reduces gradients in every microbatch, which is not modelled"
_GATHERS = "it gathers parameters and reduces gradients in every microbatch, which is not modelled"
_TIED = (
    "weights that two stages share are not modelled: their gradients must be summed over both stages before any "
    "data-parallel reduction, most of all with zero1, which would scatter partial sums"
)
_REASONS = {
    **dict.fromkeys(("zero2", "zero-2"), _PER_MICROBATCH),
    **dict.fromkeys(("zero3", "zero-3", "fsdp", "fsdp2", "hsdp"), _GATHERS),
    **dict.fromkeys(("tied_weights", "tied_embeddings", "tied_stages"), _TIED),
    "zero_stage": 'expected `"mode": "ddp"` or `"mode": "zero1"`; stages 2 and 3 are not modelled',
    "compute_slowdown": "compute that collectives slow down is not modelled: measure the stages while they run",
}


def build_profile(tree: Any, file: str) -> tuple[Profile, list[Diagnostic]]:
    """Return the profile in `tree`, with neutral values for wrong fields, and the fault of each of these."""
    builder = Builder(file, homes=_HOMES, reasons=_REASONS)
    profile: Profile = builder.build(mi.type_info(Profile), tree, "$")
    return profile, builder.faults
