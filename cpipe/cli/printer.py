"""Where output goes: the answer to stdout, everything else to stderr, plain text only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

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
            _write(sys.stderr, text)

    def progress(self, text: str) -> None:
        """Write a line on how the work goes to stderr, if verbose."""
        if self._verbose:
            _write_line(text)

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
        from cpipe.errors import UsageError

        # What is still buffered would fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        message = f"standard output cannot be written: {error.strerror or error}"
        raise UsageError(message, code="output-not-writable") from error


def _write_line(text: str) -> None:
    from cpipe.report.terminal import printable

    _write(sys.stderr, printable(text))


def _write(stream: TextIO, text: str) -> None:
    """Write `text` and a newline; what the encoding of `stream` lacks is escaped."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
