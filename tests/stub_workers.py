"""Workers for child processes that behave in every way a solver can, and the honest one run in this process."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from cpipe.solve.child import Ended, StopSignal
from cpipe.solve.milp.job import Answer, Job, News

__all__ = ["Number", "run_here"]


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A request, an event and a reply."""

    value: int
    text: str = ""


def echo(request: bytes, link: Any) -> Number:
    """Make noise everywhere, tell the number, reply one more."""
    sys.stdout.write("a banner\n")
    sys.stdout.flush()
    os.write(1, b"a banner of C\n")
    os.write(2, b"a note\n")
    number = msgspec.msgpack.decode(request, type=Number)
    link.tell(number)
    return Number(value=number.value + 1, text=number.text)


def where(request: bytes, link: Any) -> Number:
    """Reply with the places of two modules and the working directory's part in the path."""
    import random

    import cpipe

    return Number(value=int("" in sys.path or os.getcwd() in sys.path), text=f"{cpipe.__file__}|{random.__file__}")


def fail(request: bytes, link: Any) -> Number:
    """Raise."""
    raise ValueError("no licence\nfor this")


def crash(request: bytes, link: Any) -> Number:
    """Touch memory that is not there."""
    ctypes.string_at(0)
    raise AssertionError


def be_killed(request: bytes, link: Any) -> Number:
    """End as the system ends what takes too much memory."""
    os.kill(os.getpid(), 9)
    raise AssertionError


def leave(request: bytes, link: Any) -> Number:
    """End without a reply, with last words."""
    os.write(2, b"licence expired\n\n")
    os._exit(7)


def leak(request: bytes, link: Any) -> Number:
    """Ask for more memory than allowed."""
    return Number(value=len(bytearray(1 << 45)))


def babble(request: bytes, link: Any) -> Number:
    """Write what is no frame."""
    link._replies.write(b"Running HiGHS 99.9, all rights reserved\n")
    link._replies.flush()
    time.sleep(60)
    raise AssertionError


def break_off(request: bytes, link: Any) -> Number:
    """End within a frame."""
    from cpipe.solve.child.frames import REPLY, frame

    link._replies.write(frame(REPLY, b"x" * 100)[:50])
    link._replies.flush()
    os._exit(0)


def answer_else(request: bytes, link: Any) -> News:
    """Reply with something of another type."""
    return News(text="hello")


def hang(request: bytes, link: Any) -> Number:
    """Never come to an end, and do not listen."""
    time.sleep(60)
    raise AssertionError


def chatter(request: bytes, link: Any) -> Number:
    """Tell events without end."""
    while True:
        link.tell(Number(value=0))


def obey(request: bytes, link: Any) -> Number:
    """Work until asked to stop."""
    link.tell(Number(value=os.getpid()))
    link.stopped.wait(60)
    return Number(value=int(link.stopped.is_set()))


def deaf(request: bytes, link: Any) -> Answer:
    """Say who it is and when it was asked to stop, and go on nevertheless."""
    link.tell(News(text=f"milp: process {os.getpid()}"))
    link.stopped.wait(60)
    link.tell(News(text="milp: asked to stop"))
    time.sleep(60)
    raise AssertionError


def find_then_die(request: bytes, link: Any) -> Answer:
    """Tell the best order of a real search, then end as if killed."""
    from cpipe.solve.milp.worker import work

    answer = work(request, link)
    link.tell(News(text="milp: found", orders=answer.orders))
    os.kill(os.getpid(), 9)
    raise AssertionError


def boast(request: bytes, link: Any) -> Answer:
    """Claim what a replay refutes: orders that cannot run, and a bound above the start."""
    job = msgspec.msgpack.decode(request, type=Job)
    backwards = tuple(tuple(reversed(order)) for order in job.start)
    return Answer(status="optimal", orders=backwards, dual_bound_ns=10**12, nodes=1, start_accepted=True)


def invent(request: bytes, link: Any) -> Answer:
    """Reply with ops that do not exist."""
    job = msgspec.msgpack.decode(request, type=Job)
    return Answer(status="optimal", orders=((10**6, -5),) * len(job.start), start_accepted=True)


def refuse_start(request: bytes, link: Any) -> Answer:
    """Reply that the start was not taken and nothing was found."""
    return Answer(status="node_limit", nodes=10)


class _Here:
    """Stands for a child's link in this process."""

    def __init__(self, hear: Callable[[Any], None] | None, stop: StopSignal | None) -> None:
        self._hear, self._stop = hear, stop
        self.stopped = self

    def is_set(self) -> bool:
        """Return whether the caller wants the answer now."""
        return self._stop is not None and self._stop.requested

    def tell(self, event: Any) -> None:
        """Pass an event on, over the wire's encoding."""
        if self._hear is not None:
            self._hear(msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=type(event)))


def run_here(
    entry: str,
    request: msgspec.Struct,
    reply_type: type[Any],
    *,
    event_type: type[Any] | None = None,
    on_event: Callable[[Any], None] | None = None,
    time_limit: float | None = None,
    stop: StopSignal | None = None,
    memory_bytes: int | None = None,
) -> Ended[Any]:
    """Do what `run_child` does in this process: for tests of what is searched, where a start-up each costs too much."""
    module, _, name = entry.partition(":")
    reply = getattr(import_module(module), name)(msgspec.msgpack.encode(request), _Here(on_event, stop))
    return Ended("answered", msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=reply_type))
