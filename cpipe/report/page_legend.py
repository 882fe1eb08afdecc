"""The legend of the page, and the colours that it explains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cpipe.report.palette import CARRIES, KINDS, Kind
from cpipe.report.view import PlanView

__all__ = ["legend", "swatches"]


def _colours() -> Iterable[tuple[str, Kind]]:
    yield from KINDS.items()
    yield from CARRIES.items()


def swatches() -> str:
    """Return the style of the legend: one class a colour."""
    return "".join(f".swatch-{name} {{ background: {row.fill}; }}\n" for name, row in _colours())


def legend(views: Sequence[PlanView]) -> str:
    """Return the legend of what the views have."""
    used = {kind for view in views for kind in view.kinds}
    used |= {channel.carries for view in views for channel in view.channels}
    return "\n".join(
        f'<span><i class="swatch swatch-{name}"></i>{name if name in KINDS else "message:"} {row.name}</span>'
        for name, row in _colours()
        if name in used
    )
