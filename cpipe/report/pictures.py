"""A drawing in the formats that options ask for."""

from __future__ import annotations

from collections.abc import Collection

from cpipe.report.png import render_png
from cpipe.report.shapes import Drawing
from cpipe.report.svg import render_svg

__all__ = ["pictures"]


def pictures(drawing: Drawing, options: Collection[str]) -> dict[str, bytes]:
    """Return the drawing as each of ``--svg`` and ``--png`` that is among `options` wants it."""
    found: dict[str, bytes] = {}
    if "--svg" in options:
        found["--svg"] = render_svg(drawing)
    if "--png" in options:
        found["--png"] = render_png(drawing)
    return found
