"""How each kind of op is named and drawn, in every picture: one row a kind.

The fills are those of Okabe and Ito ("Color Universal Design", 2008), which people with any colour vision can tell
apart; no picture tells kinds apart by colour alone.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CARRIES", "KINDS", "Kind"]


class Kind(NamedTuple):
    """One kind of op.

    Attributes
    ----------
    mark
        One character that stands for it where there is no room for its name.
    name
        In words.
    stroke, ascii_stroke
        What fills its bar in a terminal.
    sgr
        Colour of a terminal (parameters of the escape sequence SGR).
    fill, ink
        Colour of its bar, and of the text on it.
    """

    mark: str
    name: str
    stroke: str
    ascii_stroke: str
    sgr: str
    fill: str
    ink: str


KINDS = {
    "F": Kind("F", "forward", "─", "-", "97;44", "#0072b2", "#ffffff"),
    "D": Kind("D", "input gradient", "═", "=", "30;43", "#e69f00", "#000000"),
    "W": Kind("W", "weight gradient", "┄", "~", "30;42", "#009e73", "#000000"),
    "B": Kind("B", "full backward", "━", "#", "97;45", "#cc79a7", "#000000"),
    "FB": Kind("X", "forward and backward", "╌", "%", "30;47", "#f0e442", "#000000"),
    "G": Kind("G", "all-gather", "▸", ">", "30;46", "#b3b3b3", "#000000"),
    "R": Kind("R", "reduce-scatter", "◂", "<", "30;46", "#999999", "#000000"),
    "A": Kind("A", "all-reduce", "◆", "*", "30;46", "#808080", "#000000"),
}
"""By the letters of a bar (`cpipe.report.lanes.Bar`), in the order of the legend."""

CARRIES = {
    "activation": Kind("a", "activation", "", "", "", "#56b4e9", "#000000"),
    "gradient": Kind("g", "gradient", "", "", "", "#d55e00", "#000000"),
}
"""Messages, by what they carry."""
