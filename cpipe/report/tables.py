"""Plain text tables and numbers with units; nothing is ever cut or wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cpipe.report.terminal import display_width, printable

__all__ = ["byte_unit", "format_bytes", "format_ms", "format_percent", "render_table"]

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


def render_table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: Sequence[Literal["<", ">"]]) -> str:
    """Return aligned columns, two blanks apart, without a trailing newline.

    Parameters
    ----------
    headers, rows
        Cells; every row has as many as `headers`. Control characters are escaped.
    align
        ``<`` or ``>`` per column.
    """
    lines = [[printable(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(_pad(*cell) for cell in zip(line, widths, align, strict=True)).rstrip() for line in lines
    )


def _pad(text: str, width: int, align: str) -> str:
    blanks = " " * (width - display_width(text))
    return text + blanks if align == "<" else blanks + text


def format_ms(nanoseconds: int, decimals: int = 3) -> str:
    """Return a time [ns] in milliseconds, without its unit; more digits when it would read as zero."""
    if nanoseconds and abs(nanoseconds) < 10 ** (6 - decimals):
        decimals = 6
    return f"{nanoseconds / 1e6:.{decimals}f}"


def format_percent(share: float) -> str:
    """Return a share in [0, 1] as a percentage; what is not zero never reads as zero."""
    if 0 < share < 0.0001:
        return "<0.01 %"
    return f"{100 * share:.2f} %"


def byte_unit(largest: int) -> tuple[int, str]:
    """Return divisor and name of the unit in which `largest` [bytes] reads best (decimal: GB = 10^9)."""
    return next((unit for unit in _UNITS if largest >= unit[0]), _UNITS[-1])


def format_bytes(num_bytes: int, unit: tuple[int, str]) -> str:
    """Return `num_bytes` [bytes] in `unit`, without its name."""
    divisor, _ = unit
    return str(num_bytes) if divisor == 1 else f"{num_bytes / divisor:.2f}"
