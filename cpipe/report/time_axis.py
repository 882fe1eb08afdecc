"""The time axis of every picture: the part of time that is drawn, and where its ticks stand."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TimeWindow", "tick_step", "ticks"]


class TimeWindow(NamedTuple):
    """A part of time [ns]; None leaves that end open."""

    first: int | None = None
    last: int | None = None

    def within(self, horizon: int) -> tuple[int, int]:
        """Return the part of 0..`horizon` [ns] to draw: at least one nanosecond, whatever was asked."""
        first = min(max(0, self.first or 0), max(0, horizon - 1))
        last = horizon if self.last is None else min(self.last, horizon)
        return first, max(first + 1, last)


def tick_step(least: int) -> tuple[int, int]:
    """Return the smallest of 1, 2, 5 x 10^k [ns] that is at least `least` [ns], and the decimals it needs in ms."""
    power = 0
    while True:
        for factor in (1, 2, 5):
            if factor * 10**power >= least:
                return factor * 10**power, max(0, 6 - power)
        power += 1


def ticks(first: int, last: int, most: int) -> list[tuple[int, str]]:
    """Return times [ns] from `first` to `last` and their texts [ms], at most `most` + 1 of them."""
    step, decimals = tick_step(max(1, (last - first) // max(1, most)))
    return [(time, f"{time / 1e6:.{decimals}f}") for time in range(-(-first // step) * step, last + 1, step)]
