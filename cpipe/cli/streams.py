"""Standard streams that the caller closed, or that refuse what is written to them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from cpipe.errors import UsageError

__all__ = ["give_up", "open_standard_streams", "refusal"]

_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def open_standard_streams() -> None:
    """Open each standard stream that was closed when the program began.

    Otherwise the next file that is opened would get its number, and Python would have no stream at all. Reading the
    new standard input and writing the new standard output fail as on the closed ones, once somebody tries; what goes
    to the new standard error is lost, as was asked for.
    """
    for name, flags, mode in _STREAMS:
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            stream = open(descriptor, mode, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
            setattr(sys, name, stream)


def give_up(stream: TextIO) -> None:
    """Send what `stream` still holds, and all that follows, to nowhere: else it would fail again at the very end."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def refusal(error: OSError) -> UsageError:
    """Return what to raise when standard output refused a write; what it still holds is given up."""
    from cpipe.errors import UsageError

    give_up(sys.stdout)
    message = f"standard output cannot be written: {error.strerror or error}"
    return UsageError(message, code="output-not-writable")
