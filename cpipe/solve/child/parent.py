"""Run a job in a process of its own, so that nothing a solver does can take cpipe down or appear in its output.

The child is a fresh interpreter, started by path and not by forking: callers need no ``if __name__ == "__main__"``.
It is never trusted: it may be killed, hang, print, leak or answer rubbish, and each of these comes back as what it is.
The child ends with its caller, as its standard input then does.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

import cpipe
from cpipe.errors import Diagnostic
from cpipe.solve.child.frames import ERROR, EVENT, JOB, REPLY, STOP, Frame, FrameError, frame, read_frame

__all__ = ["Ended", "StopSignal", "run_child", "warning_of"]

CEILING_S = 3600.0
"""How long a child may run when only counted work limits it [s]; longer, and it is taken for hung."""

_GRACE_S = 5.0  # beyond twice a time limit: the interpreter's start and the model's building
_STOP_GRACE_S = 3.0  # from the wish to stop to the end by force
_POLL_S = 0.05  # how soon a wish to stop and a passed limit are seen
_JOIN_S = 1.0
_LEAST_MEMORY = 8 << 30  # address space is dearer than memory: threads and libraries reserve much more than they use
_TAIL = 4096  # bytes of the child's standard error that are kept

_NOTHING = Frame(b"", b"")  # nothing arrived yet

ReplyT = TypeVar("ReplyT")
EventT = TypeVar("EventT")
How = Literal["answered", "stopped", "failed", "killed", "rubbish", "not_answering", "not_started"]


class StopSignal(Protocol):
    """Something that can say that the answer is wanted now (`cpipe.solve.limits.Stop`)."""

    @property
    def requested(self) -> bool:
        """Whether it is."""


class Ended(NamedTuple, Generic[ReplyT]):
    """How a child ended.

    Attributes
    ----------
    how
        ``answered``: `reply` is there. Without one: ``stopped``, as was asked for; ``failed``, by an exception;
        ``killed`` or died; ``rubbish``, what came back was no reply; ``not_answering``, past its limit and killed;
        ``not_started``.
    reply
        The reply, decoded and otherwise unchecked.
    detail
        One line on what happened, for people; empty when it answered.
    """

    how: How
    reply: ReplyT | None = None
    detail: str = ""


def run_child(
    entry: str,
    request: msgspec.Struct,
    reply_type: type[ReplyT],
    *,
    event_type: type[EventT] | None = None,
    on_event: Callable[[EventT], None] | None = None,
    time_limit: float | None = None,
    stop: StopSignal | None = None,
    memory_bytes: int | None = None,
) -> Ended[ReplyT]:
    """Run a job in a child process and wait for its end; the child never outlives this call.

    Parameters
    ----------
    entry
        ``module:function``: called in the child with the request's MessagePack and a `cpipe.solve.child.worker.Link`;
        what it returns is the reply.
    request
        What to do.
    reply_type
        What the reply must be.
    event_type, on_event
        What the child may tell meanwhile, and who hears it, in this thread. The latest event may hold a result that
        must survive the child's death: keep it.
    time_limit
        Seconds that the job itself was given; the child is killed somewhat after twice as many. None: counted work
        alone limits it, and `CEILING_S` ends what seems hung.
    stop
        Polled; once it is requested the child is asked to answer, and soon killed.
    memory_bytes
        Address space of the child [bytes]; None: the machine's memory, 0: no limit.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C, unless somebody else handles it; the child is dead by then.
    """
    memory = _memory_of_machine() if memory_bytes is None else memory_bytes
    header = {
        "package": str(Path(cpipe.__file__).absolute().parent),
        "path": _import_places(),
        "entry": entry,
        "memory": memory,
    }
    job = json.dumps(header).encode() + b"\n" + frame(JOB, msgspec.msgpack.encode(request))
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).absolute().with_name("boot.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
    except (OSError, ValueError, TypeError) as error:  # also: this interpreter does not know its own path
        return Ended("not_started", detail=f"no process could be started: {error}")
    child = _Child(process)
    try:
        child.start(job)
        return child.wait(reply_type, event_type, on_event, _limit_of(time_limit), stop)
    finally:
        child.end()


def warning_of(ended: Ended[ReplyT], solver: str) -> Diagnostic | None:
    """Return what to tell the user of a child that gave no reply; None when it did, or was stopped on request."""
    if ended.how in ("answered", "stopped"):
        return None
    message = f"{solver}: {ended.detail}; the best order known without it is used"
    if ended.how == "killed":
        return Diagnostic(code="solver-died", message=message, severity="warning")
    if ended.how == "not_answering":
        return Diagnostic(code="solver-not-answering", message=message, severity="warning")
    return Diagnostic(code="solver-failed", message=message, severity="warning")


def _limit_of(time_limit: float | None) -> float:
    return CEILING_S if time_limit is None else 2 * time_limit + _GRACE_S


def _import_places() -> list[str]:
    """Return where this process imports from, absolutely, except the working directory."""
    return [os.path.abspath(place) for place in sys.path if place and os.path.exists(place)]


def _memory_of_machine() -> int:
    try:
        return max(_LEAST_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not on this system
        return 0


def _decoded(message: Frame, reply_type: type[ReplyT]) -> Ended[ReplyT]:
    try:
        return Ended("answered", msgspec.msgpack.decode(message.payload, type=reply_type))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Ended("rubbish", detail=f"the answer cannot be read: {error}")


class _Child:
    """A running child and the threads that serve its pipes, so that none of them can block the caller."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._arrived: queue.SimpleQueue[Frame | FrameError | None] = queue.SimpleQueue()
        self._tail = b""
        self._writing = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, job: bytes) -> None:
        """Send the job and listen, in threads; whatever interrupts this, `end` ends the child."""
        for work, *arguments in ((self._send, job), (self._read,), (self._read_errors,)):
            self._start(work, *arguments)

    def _start(self, work: Callable[..., None], *arguments: bytes) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):  # a child that does not listen is seen to end
            while data:
                data = data[self._process.stdin.write(data) :]

    def _read(self) -> None:
        assert self._process.stdout is not None
        end: FrameError | None = None
        try:
            with open(self._process.stdout.fileno(), "rb", closefd=False) as stream:
                while (message := read_frame(stream)) is not None:
                    self._arrived.put(message)
        except FrameError as error:
            end = error
        except (OSError, ValueError):  # closed under us, at the end
            pass
        self._arrived.put(end)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while chunk := self._process.stderr.read(_TAIL):
                self._tail = (self._tail + chunk)[-_TAIL:]

    def wait(
        self,
        reply_type: type[ReplyT],
        event_type: type[EventT] | None,
        on_event: Callable[[EventT], None] | None,
        limit_s: float,
        stop: StopSignal | None,
    ) -> Ended[ReplyT]:
        """Wait for the reply, at most `limit_s` seconds; see `run_child`."""
        latest = time.monotonic() + limit_s
        stopping = False
        while True:
            if stop is not None and stop.requested and not stopping:
                stopping = True
                latest = min(latest, time.monotonic() + _STOP_GRACE_S)
                self._start(self._send, frame(STOP))
            try:
                message = self._arrived.get(timeout=_POLL_S)
            except queue.Empty:
                message = _NOTHING
            if isinstance(message, Frame) and message.kind == REPLY:
                return _decoded(message, reply_type)
            if time.monotonic() > latest:  # also when it never ceases to tell events
                if stopping:
                    return Ended("stopped", detail="it did not answer when it was asked to stop")
                return Ended("not_answering", detail=f"no answer within {limit_s:g} s")
            if message is None:  # asked again: a Ctrl-C that came just now may be what ended it
                stopping |= stop is not None and stop.requested
                return Ended("stopped" if stopping else "killed", detail=self._last_words())
            if isinstance(message, FrameError):
                return Ended("rubbish", detail=f"the answer cannot be read: {message}")
            if message.kind == ERROR:
                return Ended("failed", detail=message.payload.decode(errors="replace"))
            if message.kind == EVENT and event_type is not None and on_event is not None:
                try:
                    event = msgspec.msgpack.decode(message.payload, type=event_type)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    return Ended("rubbish", detail=f"the answer cannot be read: {error}")
                on_event(event)

    def _last_words(self) -> str:
        """Say how a child ended that did not answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_JOIN_S)
        code = self._process.poll()
        if code is None:
            return "it closed its output"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        self._threads[2].join(_JOIN_S)
        lines = self._tail.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"ended with exit code {code}" + (f": {last}" if last else "")

    def end(self) -> None:
        """Kill the child if it still runs, and let go of its pipes."""
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(_JOIN_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
