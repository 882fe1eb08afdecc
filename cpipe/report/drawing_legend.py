"""The legend of a static picture: the kinds that are drawn, and what marks mean."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.report.palette import CARRIES, KINDS
from cpipe.report.shapes import EDGE, FONT, INK, MUTED, WIDTH, Item, Rect, Text, text_width
from cpipe.report.view import PlanView

__all__ = ["add_legend"]


def add_legend(items: list[Item], y: float, views: Sequence[PlanView]) -> float:
    """Add the legend at `y` to `items`; return where it ends."""
    used = {kind for view in views for kind in view.kinds}
    entries: list[tuple[str, str]] = [(row.fill, row.name) for letters, row in KINDS.items() if letters in used]
    carried = {channel.carries for view in views for channel in view.channels}
    entries += [(row.fill, f"{name} on its link") for name, row in CARRIES.items() if name in carried]
    x = float(EDGE)
    for fill, name in entries:
        width = 18 + text_width(name, FONT) + 14
        if x + width > WIDTH - EDGE:
            x, y = float(EDGE), y + 20
        items += (Rect(x, y, 12, 12, fill), Text(x + 18, y + 10, name, FONT, INK))
        x += width
    notes = ["black edge below a bar: it is on the critical path"]
    if carried:
        known = all(view.timeline is not None for view in views)
        notes.append(
            "pale: on its way" if known else "pale: from ready to read, as without a profile nobody knows more"
        )
    notes.append("dashed: lower bound (red), makespan (black)")
    items.append(Text(EDGE, y + 30, "; ".join(notes), FONT - 1, MUTED))
    return y + 36
