"""Tests of cpipe.report.tables: alignment and numbers with units."""

from __future__ import annotations

import pytest

from cpipe.report.tables import byte_unit, format_bytes, format_ms, format_percent, render_table


def test_columns_are_aligned() -> None:
    """Columns are as wide as their widest cell, wide characters count twice, and no line has trailing blanks."""
    table = render_table(["name", "ms"], [["a", "1.5"], ["ノード", "10"], ["long name", "2"]], ["<", ">"])
    assert table.splitlines() == [
        "name        ms",
        "a          1.5",
        "ノード      10",
        "long name    2",
    ]


def test_names_cannot_break_the_table() -> None:
    """Line breaks and escapes in a user's name stay inside their cell."""
    table = render_table(["name"], [["a\nb\x1b[2J"], ["[red]c"]], ["<"])
    assert table.splitlines() == ["name", "a\\nb\\x1b[2J", "[red]c"]


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [(0, "0.000"), (38_700_000, "38.700"), (1_234_567, "1.235"), (7, "0.000007"), (-4_000_000, "-4.000")],
)
def test_format_ms(nanoseconds: int, expected: str) -> None:
    """Times have three decimals of a millisecond, six when three would read as zero."""
    assert format_ms(nanoseconds) == expected


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, "0.00 %"), (0.00001, "<0.01 %"), (0.125, "12.50 %"), (1.0, "100.00 %")]
)
def test_format_percent(share: float, expected: str) -> None:
    """A share that is not zero never reads as zero."""
    assert format_percent(share) == expected


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (67_108_864, "67.11 MB"),
        (96 * 10**9, "96.00 GB"),
        (3 * 10**12, "3000.00 GB"),
    ],
)
def test_bytes_are_decimal(num_bytes: int, expected: str) -> None:
    """Units are decimal (GB = 10^9) and chosen by the largest number."""
    unit = byte_unit(num_bytes)
    assert f"{format_bytes(num_bytes, unit)} {unit[1]}" == expected
