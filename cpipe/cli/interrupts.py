"""Ctrl-C during a search: the first one asks for the best plan so far, the second one ends the program.

Only the command line installs this handler; in a library call Ctrl-C is a `KeyboardInterrupt`, unless the caller
hands a `cpipe.solve.Stop` of its own to `cpipe.compiler.compile_profile` and requests it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpipe.solve.limits import Stop

__all__ = ["EndedEarly", "stoppable"]


class EndedEarly(Exception):
    """The answer was delivered, but Ctrl-C ended the search for a better one: the exit code says so."""


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """Give a `Stop` that the first Ctrl-C within the block requests, as soon as there is an answer to stop with.

    Before that, and from the second one on, Ctrl-C is a `KeyboardInterrupt` as ever. A caller who has had Ctrl-C
    ignored or handled keeps that; so does every thread but the main one, as no other can handle signals.
    """
    from cpipe.solve.limits import Stop

    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.requested or not stop.has_incumbent:
            raise KeyboardInterrupt
        stop.request()

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield stop
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
