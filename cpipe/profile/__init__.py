"""Profiles: what the stages of a pipeline cost, read from a file and turned into a scheduling problem.

`load_profile` reports everything that is wrong with a file at once; `normalize` leaves integers and dense
ids, and nothing to look up.
"""

from __future__ import annotations

from cpipe.profile.json_schema import profile_schema
from cpipe.profile.lint import profile_warnings
from cpipe.profile.load import encode_profile, load_profile, parse_profile
from cpipe.profile.normalize import normalize
from cpipe.profile.recompute import lightest
from cpipe.profile.schema import DataParallelSpec, DeviceSpec, LinkSpec, Profile, RecomputeSpec, StageSpec

__all__ = [
    "DataParallelSpec",
    "DeviceSpec",
    "LinkSpec",
    "Profile",
    "RecomputeSpec",
    "StageSpec",
    "encode_profile",
    "lightest",
    "load_profile",
    "normalize",
    "parse_profile",
    "profile_schema",
    "profile_warnings",
]
