"""Where output goes: the answer to stdout, everything else to stderr, plain text only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from cpipe.cli.streams import give_up, refusal

if TYPE_CHECKING:
    from cpipe.errors import Diagnostic
    from cpipe.report.document import Report

__all__ = ["Printer"]


class Printer:
    """Writes what a command has to say.

    Parameters
    ----------
    quiet
        Leave out notes and warnings; never errors, never the answer.
    verbose
        Also show progress.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._quiet = quiet
        self._verbose = verbose

    @property
    def to_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return sys.stdout.isatty()

    def answer(self, text: str) -> None:
        """Write text to stdout."""
        with _refusals_reported():
            _write(sys.stdout, text)

    def artefact(self, data: bytes) -> None:
        """Write bytes to stdout as they are."""
        with _refusals_reported():
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def document(self, report: Report) -> None:
        """Write the one JSON document of ``--json`` to stdout."""
        from cpipe.report.document import encode_report

        self.artefact(encode_report(report))

    def note(self, text: str) -> None:
        """Write text to stderr, unless quiet."""
        if not self._quiet:
            _tell(text)

    def progress(self, text: str) -> None:
        """Write a line on how the work goes to stderr, if verbose."""
        if self._verbose:
            _write_line(text)

    @contextlib.contextmanager
    def working(self, doing: str = "searching") -> Iterator[Callable[[str], None]]:
        """Give a function that shows how the work goes; `doing` is what it is before that is called.

        If verbose, each text is a line. Else, when stderr is a terminal that can, the last text stands in one line
        there while the block runs, and nothing of it stays; unless quiet.
        """
        if self._quiet or self._verbose or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            yield self.progress
            return
        from rich.console import Console
        from rich.text import Text

        from cpipe.report.terminal import printable

        def line(text: str) -> Text:
            return Text(printable(text), no_wrap=True, overflow="ellipsis")

        console = Console(stderr=True, markup=False, highlight=False)
        with console.status(line(doing)) as status:
            yield lambda text: status.update(line(text))

    def warnings(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Write one line per warning to stderr, unless quiet."""
        if not self._quiet:
            self.errors(diagnostics)

    def errors(self, diagnostics: Iterable[Diagnostic], hint: str | None = None) -> None:
        """Write one line per diagnostic to stderr, then the hint."""
        for diagnostic in diagnostics:
            _write_line(str(diagnostic))
        if hint is not None:
            _write_line(f"hint: {hint}")


@contextlib.contextmanager
def _refusals_reported() -> Iterator[None]:
    """Turn a refused write to stdout (a full disk) into an error of ours; a closed pipe is none."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise refusal(error) from error


def _write_line(text: str) -> None:
    from cpipe.report.terminal import printable

    _tell(printable(text))


def _tell(text: str) -> None:
    """Write `text` to stderr; when that cannot be written there is nowhere left to say so."""
    try:
        _write(sys.stderr, text)
    except OSError:
        give_up(sys.stderr)


def _write(stream: TextIO, text: str) -> None:
    """Write `text` and a newline; what the encoding of `stream` lacks is escaped."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
