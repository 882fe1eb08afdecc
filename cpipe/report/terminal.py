"""What the terminal can show: colour, width, encoding, and text that is safe to print."""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections.abc import Mapping
from typing import TextIO

__all__ = ["MAX_WIDTH", "can_encode", "display_width", "line_width", "printable", "use_colour"]

_DEFAULT_WIDTH = 100
MAX_WIDTH = 10_000
"""Widest chart [columns]; no screen is wider, and a chart takes memory by the column."""


def use_colour(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Say whether `stream` should get colour.

    ``NO_COLOR`` wins over ``FORCE_COLOR``, which wins over ``TERM=dumb``; empty variables do not count. Otherwise
    colour goes to terminals only.
    """
    environ = os.environ if environ is None else environ
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    return environ.get("TERM") != "dumb" and stream.isatty()


def line_width(stream: TextIO) -> int:
    """Return the number of columns to draw for: ``COLUMNS``, else the terminal's, else 100; at most `MAX_WIDTH`."""
    columns = os.environ.get("COLUMNS", "").lstrip("0")
    if columns.isdecimal():
        return MAX_WIDTH if len(columns) > len(str(MAX_WIDTH)) else min(int(columns), MAX_WIDTH)
    # The system's own answer: shutil would look at COLUMNS again.
    with contextlib.suppress(OSError, ValueError):
        return min(os.get_terminal_size(stream.fileno()).columns or _DEFAULT_WIDTH, MAX_WIDTH)
    return _DEFAULT_WIDTH


def can_encode(stream: TextIO, text: str) -> bool:
    """Say whether the encoding of `stream` has every character of `text`."""
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def printable(text: str) -> str:
    r"""Escape control characters and line breaks, so that a user's name can neither colour nor split a line.

    ``"a\x1b[31m"`` becomes ``"a\\x1b[31m"``; printable text is returned as it is.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def display_width(text: str) -> int:
    """Return how many columns `text` takes on a terminal: wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
