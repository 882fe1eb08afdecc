"""The child's side: do one job, tell how it goes, end with the caller."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from importlib import import_module
from typing import BinaryIO, NoReturn

import msgspec

from cpipe.solve.child.frames import ERROR, EVENT, REPLY, STOP, FrameError, frame, read_frame

__all__ = ["Link", "serve"]

_ORPHANED = 3


class Link:
    """What a worker has of its caller.

    Attributes
    ----------
    stopped
        Set when the caller wants the answer now, as good as it is.
    """

    def __init__(self, replies: BinaryIO) -> None:
        self.stopped = threading.Event()
        self._replies = replies
        self._lock = threading.Lock()

    def tell(self, event: msgspec.Struct) -> None:
        """Send an event, from any thread."""
        self.send(EVENT, msgspec.msgpack.encode(event))

    def send(self, kind: bytes, payload: bytes) -> None:
        """Send a frame; ends the process when nobody reads any more."""
        try:
            with self._lock:
                self._replies.write(frame(kind, payload))
                self._replies.flush()
        except OSError:
            os._exit(_ORPHANED)


def serve(requests: BinaryIO, replies: BinaryIO, entry: str, memory_bytes: int) -> NoReturn:
    """Read one job, run it and send its reply, then end the process at once.

    Parameters
    ----------
    requests, replies
        Frames from and to the caller.
    entry
        ``module:function``; it is called with the request's bytes and a `Link`, and returns a struct.
    memory_bytes
        Address space that the process may use [bytes]; 0: no limit.
    """
    _stay_small(memory_bytes)
    link = Link(replies)
    try:
        job = read_frame(requests)
        if job is None:
            os._exit(_ORPHANED)
        threading.Thread(target=_listen, args=(requests, link), daemon=True).start()
        module, _, name = entry.partition(":")
        reply = getattr(import_module(module), name)(job.payload, link)
        link.send(REPLY, msgspec.msgpack.encode(reply))
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        link.send(ERROR, " ".join(f"{type(error).__name__}: {error}".split()).encode())
    os._exit(0)


def _listen(requests: BinaryIO, link: Link) -> None:
    """Wait for the wish to stop; end the process when the caller has ended."""
    with contextlib.suppress(OSError, FrameError):
        while (message := read_frame(requests)) is not None:
            if message.kind == STOP:
                link.stopped.set()
    os._exit(_ORPHANED)


def _stay_small(memory_bytes: int) -> None:
    """Bound the memory, and volunteer to be ended first when the system runs out of it; where the system can."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a solver's crash leaves no file behind
        if memory_bytes:
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            least = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
            resource.setrlimit(resource.RLIMIT_AS, (least, most))
