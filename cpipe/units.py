"""Units: integer nanoseconds and bytes, and the only conversions to and from what users write."""

from __future__ import annotations

from fractions import Fraction
from typing import NewType

__all__ = ["Bytes", "Ns", "beta_ns_per_byte", "ms_to_ns", "ns_to_ms", "occupancy_ns"]

Ns = NewType("Ns", int)
Bytes = NewType("Bytes", int)

_NS_PER_MS = 1_000_000


def ms_to_ns(milliseconds: float) -> Ns:
    """Round a duration in milliseconds to whole nanoseconds.

    Parameters
    ----------
    milliseconds
        A finite duration [ms].

    Returns
    -------
    Ns
        The nearest integer number of nanoseconds; the decimal digits the user wrote are taken
        exactly (``38.7`` is 38 700 000 ns, whatever its binary float), ties go to even.
    """
    return Ns(round(Fraction(str(milliseconds)) * _NS_PER_MS))


def ns_to_ms(nanoseconds: int) -> float:
    """Convert integer nanoseconds to milliseconds [ms], for display and reports only."""
    return nanoseconds / _NS_PER_MS


def beta_ns_per_byte(bandwidth_gbit_s: float) -> Fraction:
    """Return the inverse bandwidth [ns/byte] of a link of `bandwidth_gbit_s` [10^9 bit/s], exactly."""
    return 8 / Fraction(str(bandwidth_gbit_s))


def occupancy_ns(num_bytes: int, beta: Fraction) -> Ns:
    """Return how long a message of `num_bytes` [bytes] holds a link of inverse bandwidth `beta` [ns/byte]."""
    return Ns(round(num_bytes * beta))
