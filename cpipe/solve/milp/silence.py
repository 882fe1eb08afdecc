"""Nothing of the solver on standard output, which belongs to the plan or the one JSON document."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator

__all__ = ["silenced"]

_FD_LOCK = threading.Lock()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Send file descriptor 1 to nowhere: HiGHS prints a banner there whatever its options say.

    It is the process's descriptor: other threads' output to it is lost meanwhile. One user at a time.
    """
    with _FD_LOCK:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a closed or replaced sys.stdout
            sys.stdout.flush()
        try:
            kept = os.dup(1)
        except OSError:  # no descriptor 1: nothing to protect
            yield
            return
        try:
            with open(os.devnull, "wb") as sink:
                os.dup2(sink.fileno(), 1)
            yield
        finally:
            with contextlib.suppress(OSError, TypeError, AttributeError):  # no C library to ask
                ctypes.CDLL(None).fflush(None)  # what C still buffers must not come out afterwards
            os.dup2(kept, 1)
            os.close(kept)
