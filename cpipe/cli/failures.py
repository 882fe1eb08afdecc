"""From an exception to what the user sees: exit code, status, one line per fault and a hint."""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple

import typer

from cpipe.cli.exit_codes import BROKEN_PIPE, INTERNAL_ERROR, INTERRUPTED, USAGE
from cpipe.errors import CpipeError, Diagnostic

__all__ = ["Failure", "failure_of"]


class Failure(NamedTuple):
    """How a command ended that did not end well; see `cpipe.cli.exit_codes`."""

    exit_code: int
    status: str
    diagnostics: tuple[Diagnostic, ...]
    hint: str | None = None


def failure_of(error: BaseException, command: str | None) -> Failure:
    """Return what `error`, raised by `command` (None: before any), means to the user."""
    if isinstance(error, CpipeError):
        hints = [error.hint, *(diagnostic.hint for diagnostic in error.diagnostics)]
        hint = next((hint for hint in hints if hint), None)
        return Failure(error.exit_code, error.status, error.diagnostics, hint)
    if isinstance(error, BrokenPipeError):
        return Failure(BROKEN_PIPE, "error", ())
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return Failure(INTERRUPTED, "error", (Diagnostic(code="interrupted", message="interrupted"),))
    if isinstance(error, _TYPER_ERROR):
        return _usage(error, command)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    diagnostic = Diagnostic(code="internal-error", message=f"internal error: {text}")
    return Failure(INTERNAL_ERROR, "error", (diagnostic,), "run again with --traceback and report what it shows")


# typer has no public name for the root of its usage errors, only for this leaf of it.
_TYPER_ERROR = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def _usage(error: BaseException, command: str | None) -> Failure:
    """Return a usage error in our own form: the message without typer's guesses, the best guess as the hint."""
    text = " ".join(str(getattr(error, "format_message", error.__str__)()).split()).rstrip(".")
    guesses = getattr(error, "possibilities", None)
    if guesses:
        text = str(getattr(error, "message", text))
        meant = get_close_matches(str(getattr(error, "option_name", "")), guesses, n=1, cutoff=0)[0]
    else:
        text, _, suggestion = text.partition(". Did you mean ")
        meant = suggestion.rstrip("?")
    help_of = f"cpipe {command} --help" if command else "cpipe --help"
    hint = f"did you mean {meant}?" if meant else f"see '{help_of}'"
    message = text[:1].lower() + text[1:]
    return Failure(USAGE, "error", (Diagnostic(code="usage", message=message),), hint)
