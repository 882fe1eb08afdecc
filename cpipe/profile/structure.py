"""A JSON tree against the types of `cpipe.profile.schema`: every fault of a single field, none twice."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec import inspect as mi

from cpipe.errors import Diagnostic
from cpipe.jsontext import Builder
from cpipe.profile.schema import DataParallelSpec, DeviceSpec, LinkSpec, Profile, StageSpec

__all__ = ["build_profile"]

_HOMES: tuple[tuple[type[Struct], str], ...] = (
    (Profile, "at the top of the profile"),
    (DeviceSpec, "inside an entry of `devices`"),
    (StageSpec, "inside an entry of `stages`"),
    (LinkSpec, "inside an entry of `links`"),
    (DataParallelSpec, "inside `data_parallel`"),
)
_PER_MICROBATCH = "it reduces gradients in every microbatch, which is not modelled"
_UNSUPPORTED = {"zero2": _PER_MICROBATCH, "zero3": _PER_MICROBATCH, "fsdp": _PER_MICROBATCH}


def build_profile(tree: Any, file: str) -> tuple[Profile, list[Diagnostic]]:
    """Return the profile in `tree`, with neutral values for wrong fields, and the fault of each of these."""
    builder = Builder(file, homes=_HOMES, reasons=_UNSUPPORTED)
    profile: Profile = builder.build(mi.type_info(Profile), tree, "$")
    return profile, builder.faults
