"""From the texts of `sweep`'s options to the values of its axes, every fault told at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeVar

from cpipe.errors import Diagnostic, UsageError
from cpipe.profile.schema import MAX_MICROBATCHES, MAX_MS

if TYPE_CHECKING:
    from cpipe.study.sweep import Axes, Entry
    from cpipe.study.sweep.grid import BandwidthUnit, LatencyUnit

__all__ = ["BANDWIDTHS", "LATENCIES", "read_axes", "read_unit"]

LATENCIES: Mapping[LatencyUnit, str] = {
    "ms": "--latency-ms",
    "factor": "--latency-factor",
    "tf": "--latency-tf",
}
"""Unit of a latency -> its option."""
BANDWIDTHS: Mapping[BandwidthUnit, str] = {
    "gbit_s": "--bandwidth-gbit-s",
    "factor": "--bandwidth-factor",
    "tf": "--bandwidth-tf",
}
"""Unit of a bandwidth -> its option."""
_Unit = TypeVar("_Unit", bound=str)
_Value = TypeVar("_Value")
_Read = Callable[[str, str], _Value]
"""From an option and one of its values in text."""
_MAX_CHUNKS = 1024
_MAX_FACTOR = 1e9


def read_axes(
    texts: Mapping[str, str | None],
    microbatches: int,
    methods: Collection[str],
    placements: Collection[str],
) -> Axes:
    """Return the axes that the options give.

    Parameters
    ----------
    texts
        Option -> comma-separated values, None where it was not given.
    microbatches
        The profile's, where the option was not given.
    methods, placements
        Names that exist.

    Raises
    ------
    UsageError
        With every fault.
    """
    from cpipe.study.sweep import Axes, Entry

    faults: list[Diagnostic] = []

    def values(option: str, read: _Read[_Value], default: tuple[_Value, ...] = ()) -> tuple[_Value, ...]:
        text = texts.get(option)
        if text is None:
            return default
        try:
            return _values(option, text, read)
        except UsageError as error:
            faults.extend(error.diagnostics)
            return default

    latency = next((option for option in LATENCIES.values() if texts.get(option) is not None), "")
    bandwidth = next((option for option in BANDWIDTHS.values() if texts.get(option) is not None), "")
    factor = _number(lambda value: 0 < value <= _MAX_FACTOR, f"numbers in (0, {_MAX_FACTOR:g}]")
    latencies = _number(lambda value: 0 <= value <= MAX_MS, f"numbers in [0, {MAX_MS:g}]")
    axes = Axes(
        microbatches=values("--microbatches", _whole(MAX_MICROBATCHES), (microbatches,)),
        memory_factors=values("--memory-factor", factor, (1.0,)),
        methods=values("--method", _entry(methods, placements), (Entry(method="auto"),)),
        placements=values("--placement", _name(placements), ("profile",)),
        chunks=values("--chunks", _whole(_MAX_CHUNKS)),
        latencies=values(latency, latencies),
        bandwidths=values(bandwidth, latencies if bandwidth == "--bandwidth-tf" else factor),
    )
    if faults:
        raise UsageError(faults)
    return axes


def read_unit(options: Mapping[_Unit, str], texts: Mapping[_Unit, str | None]) -> _Unit:
    """Return in which unit an axis is given; the first where it is not.

    Parameters
    ----------
    options
        Unit -> its option.
    texts
        Unit -> what that option was given.

    Raises
    ------
    UsageError
        When it is given in two units.
    """
    units = [unit for unit in options if texts[unit] is not None]
    if len(units) > 1:
        raise UsageError(f"{options[units[0]]} and {options[units[1]]} exclude each other", code="sweep-two-units")
    return units[0] if units else next(iter(options))


def _values(option: str, text: str, read: _Read[_Value]) -> tuple[_Value, ...]:
    found: list[_Value] = []
    for part in text.split(","):
        value = read(option, part.strip())
        if value in found:
            raise UsageError(f"{option}: {part.strip()} is given twice", code="sweep-values")
        found.append(value)
    return tuple(found)


def _number(fits: Callable[[float], bool], expected: str) -> _Read[float]:
    def read(option: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not fits(value):  # nothing fits that is not a number
            raise UsageError(f"{option}: expected {expected}, got {text!r}", code="sweep-values")
        return value + 0.0  # no negative zero

    return read


def _whole(most: int) -> _Read[int]:
    def read(option: str, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
            raise UsageError(f"{option}: expected whole numbers in [1, {most}], got {text!r}", code="sweep-values")
        return int(text)

    return read


def _name(known: Collection[str]) -> _Read[str]:
    def read(option: str, text: str) -> str:
        from cpipe.cli.options import check_choice

        check_choice(option, text, known)
        return text

    return read


def _entry(methods: Collection[str], placements: Collection[str]) -> _Read[Entry]:
    def read(option: str, text: str) -> Entry:
        from cpipe.study.sweep import Entry

        method, colon, placement = text.partition(":")
        _name(methods)(option, method)
        return Entry(method=method, placement=_name(placements)(option, placement) if colon else None)

    return read
