"""The two axes of a picture of points or curves: a field with a grid, linear or logarithmic, and where a value is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from cpipe.report.shapes import FONT, GRID, INK, MUTED, SMALL, Item, Rule, Text

__all__ = ["Axis", "Field", "axis_for", "axis_items", "linear_axis", "log_axis", "number_text"]

_TICK_EVERY = 80  # pixels


class Axis(NamedTuple):
    """One axis: values `first` < `last`, what they are, and where its ticks stand."""

    first: float
    last: float
    name: str
    ticks: tuple[float, ...]
    scale: Literal["linear", "log"] = "linear"

    def share(self, value: float) -> float:
        """Return where `value` is, as a share of the axis; what lies outside is at the edge."""
        if self.scale == "log":
            first, last, value = math.log(self.first), math.log(self.last), math.log(max(value, self.first))
        else:
            first, last = self.first, self.last
        return min(1.0, max(0.0, (value - first) / (last - first)))


class Field(NamedTuple):
    """Where a picture's points are: `across` from `left` to `right`, `up` from `bottom` to `top` [pixels]."""

    left: float
    right: float
    top: float
    bottom: float
    across: Axis
    up: Axis

    def x(self, value: float) -> float:
        """Return where a value of the level axis is."""
        return self.left + self.across.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return where a value of the upright axis is."""
        return self.bottom - self.up.share(value) * (self.bottom - self.top)


def linear_axis(least: float, most: float, name: str, length: float) -> Axis:
    """Return an axis that holds all values from `least` to `most`, with round ends, `length` pixels long."""
    if most - least < 1e-9 * max(most, 1e-3):  # nothing that an eye, or a float, could tell apart
        least, most = min(0.0, least), max(1.0, 2 * most)
    step = _round_step((most - least) / max(1, int(length / _TICK_EVERY)))
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    ticks = tuple(number * step for number in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], name, ticks)


def log_axis(least: float, most: float, name: str) -> Axis:
    """Return an axis whose ticks are powers of two times `least` > 0, up to `most` >= `least`."""
    ticks = [least]
    while ticks[-1] < most * (1 - 1e-9):
        ticks.append(ticks[-1] * 2)
    last = max(most, least * 1.01)
    return Axis(least, last, name, tuple(tick for tick in ticks if tick <= last * (1 + 1e-9)), "log")


def axis_for(least: float, most: float, name: str, length: float) -> Axis:
    """Return an axis for values from `least` to `most`: logarithmic where they differ fourfold or more."""
    if least <= 0 or most < 4 * least:
        return linear_axis(least, most, name, length)
    power = 10.0 ** math.floor(math.log10(least))
    first = max(factor * power for factor in (1, 2, 5) if factor * power <= least * (1 + 1e-9))
    return log_axis(min(first, least), most * 1.02, name)


def axis_items(field: Field) -> Iterator[Item]:
    """Yield grid, ticks and names of both axes."""
    most = max(1, int((field.right - field.left) / 56))
    every = -(-len(field.across.ticks) // most)
    for value in field.across.ticks[::every]:
        x = field.x(value)
        yield Rule(x, field.top, x, field.bottom, GRID)
        yield Text(x, field.bottom + 16, number_text(value), SMALL + 1, MUTED, "middle")
    for value in field.up.ticks:
        y = field.y(value)
        yield Rule(field.left, y, field.right, y, GRID)
        yield Text(field.left - 8, y + 4, number_text(value), SMALL + 1, MUTED, "end")
    yield Text((field.left + field.right) / 2, field.bottom + 38, field.across.name, FONT, INK, "middle")
    yield Text(field.left, field.top - 12, field.up.name, FONT, INK, "start")
    yield Rule(field.left, field.bottom, field.right, field.bottom, MUTED)
    yield Rule(field.left, field.top, field.left, field.bottom, MUTED)


def number_text(value: float) -> str:
    """Return a number with at most six digits, without an exponent where it is short without one."""
    return f"{value:.6g}"


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 x 10^k that is at least `least` > 0."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
