"""Pages in headless Chromium for tests: what the page is once its script has run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

__all__ = ["Page", "open_page"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_TIMEOUT_S = 180


class Page(HTMLParser):
    """The document of a page.

    Attributes
    ----------
    root
        Attributes of the outermost element: where the page counts its errors.
    tables
        By ``data-table`` and panel: rows of cells, each the text and its ``data-value`` (None without one).
    charts
        Attributes of each chart.
    facts
        Of the box of details: term -> text.
    text
        All text outside of scripts and styles.
    """

    def __init__(self, document: str) -> None:
        super().__init__()
        self.root: dict[str, str | None] = {}
        self.tables: list[tuple[str | None, list[list[tuple[str, str | None]]]]] = []
        self.charts: list[dict[str, str | None]] = []
        self.facts: dict[str, str] = {}
        self.pressed: dict[str, str | None] = {}
        self.text = ""
        self._stack: list[str] = []
        self._term = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that opens."""
        found = dict(attrs)
        if tag not in ("meta", "link", "br", "img", "input"):
            self._stack.append(tag)
        if tag == "html":
            self.root = found
        elif tag == "table":
            self.tables.append((found.get("data-table"), []))
        elif tag == "tr" and self.tables:
            self.tables[-1][1].append([])
        elif tag == "td":
            self.tables[-1][1][-1].append(("", found.get("data-value")))
        elif tag == "dt":
            self._term = ""
        elif tag == "dd":
            self.facts[self._term] = ""
        elif tag == "button" and found.get("id"):
            self.pressed[str(found["id"])] = found.get("aria-pressed")
        elif "chart" in str(found.get("class")).split():
            self.charts.append(found)

    def handle_endtag(self, tag: str) -> None:
        """Note an element that closes."""
        while self._stack and self._stack.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Note text."""
        if not self._stack or self._stack[-1] in ("script", "style"):
            return
        self.text += data
        if self._stack[-1] == "td":
            text, value = self.tables[-1][1][-1][-1]
            self.tables[-1][1][-1][-1] = text + data, value
        elif self._stack[-1] == "dt":
            self._term += data
        elif self._stack[-1] == "dd":
            self.facts[self._term] += data

    def rows(self, name: str, panel: int = 0) -> list[list[tuple[str, str | None]]]:
        """Return the rows of a table, without its header."""
        return [row for row in [rows for found, rows in self.tables if found == name][panel] if row]


def open_page(path: Path, fragment: str = "", *, size: tuple[int, int] = (1200, 900)) -> Page:
    """Open a file in headless Chromium, with the address after ``#``; skips where there is no Chromium."""
    program = next(_programs(), None)
    if program is None:
        pytest.skip("needs Chromium")
    home = path.parent / f"chromium-{len(list(path.parent.glob('chromium-*')))}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"]
    options += [f"--user-data-dir={home}", f"--window-size={size[0]},{size[1]}", "--virtual-time-budget=4000"]
    address = path.resolve().as_uri() + (f"#{fragment}" if fragment else "")
    done = subprocess.run(
        [program, *options, "--dump-dom", address], capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
    )
    return Page(done.stdout)


def _programs() -> Iterator[str]:
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            yield found
