"""Tests of cpipe.report.terminal: colour, width and safe text."""

from __future__ import annotations

import io

import pytest

from cpipe.report.terminal import can_encode, display_width, line_width, printable, use_colour


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say yes."""
        return True


@pytest.mark.parametrize(
    ("environ", "on_terminal", "in_pipe"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),  # an empty variable does not count
        ({"TERM": "dumb"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),  # forcing beats the kind of terminal
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),  # and refusing beats forcing
    ],
)
def test_colour_policy(environ: dict[str, str], on_terminal: bool, in_pipe: bool) -> None:
    """Colour goes to terminals only, and the environment may force or refuse it."""
    assert use_colour(Terminal(), environ) is on_terminal
    assert use_colour(io.StringIO(), environ) is in_pipe


def test_width_honours_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS sets the width; at most 10 000; without it what is no terminal has 100; nonsense does not count."""
    monkeypatch.setenv("COLUMNS", "57")
    assert line_width(io.StringIO()) == 57
    for huge in ("10001", "9" * 5000):
        monkeypatch.setenv("COLUMNS", huge)
        assert line_width(io.StringIO()) == 10_000
    for nonsense in ("", "0", "-3", "wide"):
        monkeypatch.setenv("COLUMNS", nonsense)
        assert line_width(io.StringIO()) == 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g0 [bold]x[/bold]", "g0 [bold]x[/bold]"),  # brackets are no markup
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("two\nlines\t\x00", "two\\nlines\\t\\x00"),
        ("gpu-é-ノード", "gpu-é-ノード"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\udcff", "\\udcff"),  # an undecodable byte of a file name
    ],
)
def test_printable(text: str, expected: str) -> None:
    """Control characters are escaped, everything printable is kept."""
    assert printable(text) == expected


def test_display_width() -> None:
    """Wide characters take two columns, combining ones none."""
    assert [display_width(text) for text in ("abc", "ノー", "e\u0301")] == [3, 4, 1]


def test_can_encode() -> None:
    """A stream that cannot write a character says so, whatever its encoding is called."""
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert not can_encode(ascii_stream, "─")
    assert can_encode(ascii_stream, "-")
    assert can_encode(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), "─")
