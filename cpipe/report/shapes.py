"""What a static picture is made of: rectangles, lines, texts; where time is on it; its sizes [pixels] and colours."""

from __future__ import annotations

from typing import Literal, NamedTuple

from cpipe.report.terminal import display_width

__all__ = [
    "ALARM",
    "BACK",
    "EDGE",
    "FONT",
    "GAP",
    "GRID",
    "INK",
    "LANE",
    "LANE_BACK",
    "MIDDLE",
    "MUTED",
    "RANK_GAP",
    "SMALL",
    "THIN",
    "TITLE",
    "WIDTH",
    "Drawing",
    "Frame",
    "Item",
    "Rect",
    "Rule",
    "Text",
    "fitted",
    "text_width",
]

WIDTH = 1280
EDGE = 16
LANE, MIDDLE, THIN = 22, 13, 9
GAP, RANK_GAP = 2, 8
FONT, SMALL, TITLE = 12, 9, 16
_CHARACTER = 0.56
"""Width of a character of the fonts used, as a share of their size; a little too wide, so that texts fit."""
_WIDE, _WIDER = "WM@%", 0.4
"""Letters of those fonts that are wider than all others, and by how much."""
INK, MUTED, GRID, BACK, LANE_BACK, ALARM = "#1a1a1a", "#5a5a5a", "#dddddd", "#ffffff", "#f4f4f4", "#b00020"


class Rect(NamedTuple):
    """A filled rectangle; `opacity` in [0, 1]; `outline` is a colour, or empty; `hint` is what it shows, in words."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    opacity: float = 1.0
    outline: str = ""
    hint: str = ""


class Rule(NamedTuple):
    """A straight line; a dashed one is upright."""

    x0: float
    y0: float
    x1: float
    y1: float
    colour: str
    dashed: bool = False


class Text(NamedTuple):
    """A line of text whose baseline is at `y`; `anchor` says which end of it, or its middle, is at `x`."""

    x: float
    y: float
    text: str
    size: int
    colour: str
    anchor: Literal["start", "middle", "end"] = "start"


Item = Rect | Rule | Text


class Drawing(NamedTuple):
    """A picture: `items` are painted in order."""

    width: int
    height: int
    title: str
    items: tuple[Item, ...]


class Frame(NamedTuple):
    """Where time is: `first` to `last` [ns] are drawn from `left` to `right`."""

    left: float
    right: float
    first: int
    last: int

    def x(self, time: int) -> float:
        """Return where `time` [ns] is; what lies outside is at the edge."""
        time = min(max(time, self.first), self.last)
        return self.left + (time - self.first) * (self.right - self.left) / (self.last - self.first)


def text_width(text: str, size: int) -> float:
    """Return how wide a text of `size` is at most [pixels]."""
    return (display_width(text) * _CHARACTER + sum(text.count(letter) for letter in _WIDE) * _WIDER) * size


def fitted(text: str, size: int, room: float) -> str:
    """Return `text`, shortened in its middle where it is wider than `room`; hints have it whole."""
    if text_width(text, size) <= room:
        return text
    keep = max(2, int(room / size / _CHARACTER) - 2)
    return f"{text[: (keep + 1) // 2]}..{text[len(text) - keep // 2 :]}"
