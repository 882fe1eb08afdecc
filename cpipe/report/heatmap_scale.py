"""Colours for numbers: from light to dark with the logarithm, and ink that can be read on them.

Lightness falls all the way, so that the order is seen in any colour vision, and in print.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from cpipe.report.shapes import INK

__all__ = ["Scale"]

_STOPS = ((255, 250, 220), (186, 222, 190), (94, 174, 190), (45, 106, 160), (28, 42, 96))
"""Red, green and blue of the colours that the scale goes through, at equal distances."""
_WHITE = "#ffffff"
_DARK = 0.5
"""Relative luminance below which ink is white."""


class Scale(NamedTuple):
    """Colours of the numbers from `least` to `most`, both >= 0."""

    least: float
    most: float

    def colours(self, value: float) -> tuple[str, str]:
        """Return the fill for `value`, and the colour of text on it."""
        red, green, blue = _mixed(self._share(value))
        luminance = (0.299 * red + 0.587 * green + 0.114 * blue) / 255
        return f"#{red:02x}{green:02x}{blue:02x}", _WHITE if luminance < _DARK else INK

    def at(self, share: float) -> float:
        """Return the number at a share of the scale, in [0, 1]."""
        if self.least <= 0:
            return self.least + share * (self.most - self.least)
        return self.least * math.exp(share * math.log(self.most / self.least))

    def _share(self, value: float) -> float:
        if self.most <= self.least:
            return 0.0
        if self.least <= 0:
            return (value - self.least) / (self.most - self.least)
        return math.log(value / self.least) / math.log(self.most / self.least)


def _mixed(share: float) -> tuple[int, int, int]:
    """Return the colour at a share of the scale; shares outside [0, 1] are at its ends."""
    place = min(max(share, 0.0), 1.0) * (len(_STOPS) - 1)
    index = min(int(place), len(_STOPS) - 2)
    part = place - index
    red, green, blue = (
        round(low + part * (high - low)) for low, high in zip(_STOPS[index], _STOPS[index + 1], strict=True)
    )
    return red, green, blue
