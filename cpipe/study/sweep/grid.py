"""The points of a sweep: every combination of the values of its axes, in one fixed order."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Literal

import msgspec

import cpipe
from cpipe.errors import UsageError
from cpipe.ir.base import Frozen
from cpipe.profile import Profile

__all__ = [
    "CHUNKED",
    "MAX_POINTS",
    "Axes",
    "BandwidthUnit",
    "Entry",
    "LatencyUnit",
    "Point",
    "Settings",
    "grid_points",
    "point_key",
    "profile_digest",
]

MAX_POINTS = 100_000
"""Largest grid."""
CHUNKED = ("loop", "wave")
"""Placements in which each device holds several stages."""

LatencyUnit = Literal["ms", "factor", "tf"]
BandwidthUnit = Literal["gbit_s", "factor", "tf"]


class Entry(Frozen, frozen=True, kw_only=True):
    """A method; with a placement of its own, it is tried on no other."""

    method: str
    placement: str | None = None


class Axes(Frozen, frozen=True, kw_only=True):
    """The values of each axis; a grid is their product. An axis without values leaves the profile as it is.

    Attributes
    ----------
    microbatches
        Numbers of them.
    memory_factors
        Of every device's capacity.
    methods
        With or without a placement.
    placements
        Of methods that do not name their own.
    chunks
        Stages of each device in placements `CHUNKED`; other placements take the profile's stages as they are.
    latencies, bandwidths
        Of the links that vary, in the units of `Settings`.
    """

    microbatches: tuple[int, ...]
    memory_factors: tuple[float, ...] = (1.0,)
    methods: tuple[Entry, ...] = (Entry(method="auto"),)
    placements: tuple[str, ...] = ("profile",)
    chunks: tuple[int, ...] = ()
    latencies: tuple[float, ...] = ()
    bandwidths: tuple[float, ...] = ()


class Settings(Frozen, frozen=True, kw_only=True):
    """What all points share.

    Attributes
    ----------
    links
        Indices of the profile's links that vary.
    latency_unit, bandwidth_unit
        ``ms``, ``factor`` (times the profile's) or ``tf`` (of T_F, see `cpipe.study.sweep.vary.forward_ms`);
        ``gbit_s``, ``factor`` or ``tf`` (how long the largest message holds the link, of T_F).
    seed, max_gap, time_limit
        Of every search; the limit is in [s].
    """

    links: tuple[int, ...] = ()
    latency_unit: LatencyUnit = "ms"
    bandwidth_unit: BandwidthUnit = "gbit_s"
    seed: int = 0
    max_gap: float = 0.0
    time_limit: float | None = None


class Point(Frozen, frozen=True, kw_only=True):
    """The parameters of one point; see `Axes`. None leaves the profile as it is."""

    microbatches: int
    memory_factor: float = 1.0
    method: str = "auto"
    placement: str = "profile"
    chunks: int | None = None
    latency: float | None = None
    bandwidth: float | None = None


def grid_points(axes: Axes) -> tuple[Point, ...]:
    """Return the points of a grid; the last axis, the bandwidth, varies fastest.

    Raises
    ------
    UsageError
        When there are more than `MAX_POINTS`.
    """
    panels = list(_panels(axes))
    latencies: Sequence[float | None] = axes.latencies or (None,)
    bandwidths: Sequence[float | None] = axes.bandwidths or (None,)
    each = (axes.microbatches, axes.memory_factors, panels, latencies, bandwidths)
    size = 1
    for values in each:
        size *= len(values)
    if size > MAX_POINTS:
        raise UsageError(f"the grid has {size} points, more than the {MAX_POINTS} allowed", code="sweep-too-large")
    return tuple(
        Point(
            microbatches=microbatches,
            memory_factor=factor,
            method=method,
            placement=placement,
            chunks=chunks,
            latency=latency,
            bandwidth=bandwidth,
        )
        for microbatches, factor, (method, placement, chunks), latency, bandwidth in itertools.product(*each)
    )


def _panels(axes: Axes) -> list[tuple[str, str, int | None]]:
    """Return the combinations of method, placement and chunks, each once."""
    found: dict[tuple[str, str, int | None], None] = {}
    for entry in axes.methods:
        for placement in axes.placements if entry.placement is None else (entry.placement,):
            chunks: Sequence[int | None] = axes.chunks if placement in CHUNKED and axes.chunks else (None,)
            found.update({(entry.method, placement, number): None for number in chunks})
    return list(found)


def profile_digest(profile: Profile) -> str:
    """Return the digest of a profile's content, however its file is laid out."""
    text = json.dumps(msgspec.to_builtins(profile), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def point_key(digest: str, links: Sequence[str], settings: Settings, point: Point) -> str:
    """Return a short name for all that decides the result of a point.

    Parameters
    ----------
    digest
        Of the profile.
    links
        Ends of the links that vary.
    settings, point
        The rest. Units of axes that the point has no value on do not count.
    """
    parts = [
        cpipe.__version__,
        digest,
        list(links) if point.latency is not None or point.bandwidth is not None else [],
        settings.latency_unit if point.latency is not None else None,
        settings.bandwidth_unit if point.bandwidth is not None else None,
        [settings.seed, settings.max_gap, settings.time_limit],
        msgspec.to_builtins(point),
    ]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]
