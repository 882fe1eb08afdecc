"""How communication runs beside compute: threads that wait on the CPU, streams that wait on a GPU.

A lane is one communicator end. `start` posts work and returns at once; `join` makes *compute* wait for it: on the CPU
the host waits, on CUDA the compute stream does (the stream that is current when the step is called).
The CUDA side follows the rules of torch's streams and has not been run on a GPU by the tests.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.monitor import Monitor

__all__ = ["HostLane", "Lane", "StreamLane", "Ticket", "make_lane"]

# the monitor ends waits long before; this only keeps the transport's own, shorter default out of the way
_NEVER = timedelta(days=7)
_JOIN_S = 10.0
_FAILED_JOIN_S = 0.1
_POLL_S = 0.001

Works = Sequence[Any]
Issue = Callable[[], Works]
Mark = torch.cuda.Event | None


class Ticket:
    """Work under way.

    Attributes
    ----------
    posted_s, done_s
        On CLOCK_MONOTONIC [s]; `done_s` is 0 until it is known to be done.
    usable_s
        Not handed to compute before that moment [s].
    """

    def __init__(self, works: Works, keep: object, on_done: Callable[[Ticket], None] | None) -> None:
        self.works = works
        self.keep = keep  # tensors that must live until it is done
        self.on_done = on_done
        self.posted_s = time.monotonic()
        self.done_s = 0.0
        self.usable_s = 0.0
        self.error: BaseException | None = None


OnDone = Callable[[Ticket], None]


class Lane(ABC):
    """One end of a communicator, serving what is posted in order.

    Parameters
    ----------
    name
        For messages and threads.
    peer, peer_rank
        Whom to name when the connection is lost.
    """

    def __init__(self, name: str, peer: str, monitor: Monitor, peer_rank: int | None = None) -> None:
        self.name = name
        self.peer = peer
        self.peer_rank = peer_rank
        self.monitor = monitor

    @abstractmethod
    def start(self, issue: Issue, keep: object = None, on_done: OnDone | None = None, after: Mark = None) -> Ticket:
        """Post the work of `issue` without blocking compute; it begins after what `after` marks.

        `keep` lives until it is done; then `on_done` is called, from a thread of the lane on the CPU.
        """

    @abstractmethod
    def mark(self) -> Mark:
        """Return a mark behind what compute has been given so far."""

    @abstractmethod
    def join(self, ticket: Ticket) -> None:
        """Make compute wait until the work is done and usable.

        Raises
        ------
        RuntimeFault
            When the transport or the run fails.
        """

    @abstractmethod
    def drain(self) -> None:
        """Wait on the host until everything posted is done."""

    def close(self) -> None:
        """End what the lane runs; nothing, unless it has threads."""
        return None

    def _lost(self, error: BaseException) -> RuntimeFault:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        message = f"{self.peer} is gone: lost the connection of {self.name} ({first})"
        return RuntimeFault(message, code="peer-lost", rank=self.peer_rank)


class HostLane(Lane):
    """A thread waits for the work in the order posted, so that the moment of arrival is known to the millisecond."""

    def __init__(self, name: str, peer: str, monitor: Monitor, peer_rank: int | None = None) -> None:
        super().__init__(name, peer, monitor, peer_rank)
        self._tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._last: Ticket | None = None
        self._thread = threading.Thread(target=self._run, name=f"cpipe-{name}", daemon=True)
        self._thread.start()

    def start(self, issue: Issue, keep: object = None, on_done: OnDone | None = None, after: Mark = None) -> Ticket:
        """Post the work and hand the waiting to the thread."""
        try:
            works = issue()
        except RuntimeError as error:
            self.monitor.raise_fault(self._lost(error), derived=True)
        ticket = self._last = Ticket(works, keep, on_done)
        self._tickets.put(ticket)
        return ticket

    def mark(self) -> Mark:
        """Return nothing: on the CPU compute is done when it returns."""
        return None

    def join(self, ticket: Ticket) -> None:
        """Block the host."""
        self.monitor.wait(lambda: ticket.done_s > 0.0 or ticket.error is not None)
        if isinstance(ticket.error, RuntimeError):  # what back ends raise
            self.monitor.raise_fault(self._lost(ticket.error), derived=True)
        if ticket.error is not None:
            raise ticket.error
        self.monitor.sleep_until(ticket.usable_s)

    def drain(self) -> None:
        """Wait for the last that was posted: the thread takes them in order."""
        if self._last is not None:
            self.join(self._last)

    def close(self) -> None:
        """Let the thread end once it has nothing to wait for, and wait for that.

        A thread that is still in the back end when the interpreter ends would abort the process. After a failure it
        may wait for a lost peer and never return.
        """
        self._tickets.put(None)
        self._thread.join(_FAILED_JOIN_S if self.monitor.failed else _JOIN_S)

    def _run(self) -> None:
        while (ticket := self._tickets.get()) is not None:
            try:
                for work in ticket.works:
                    work.wait(_NEVER)
                done = time.monotonic()
                if ticket.on_done is not None:
                    ticket.on_done(ticket)
            except BaseException as error:
                ticket.error = error
                done = 0.0
            with self.monitor.condition:
                ticket.done_s = done
                ticket.works = ()
                ticket.keep = None
                self.monitor.condition.notify_all()


class StreamLane(Lane):
    """A stream of its own carries the work; compute waits for it by events, the host does not."""

    def __init__(
        self, name: str, peer: str, monitor: Monitor, device: torch.device, peer_rank: int | None = None
    ) -> None:
        super().__init__(name, peer, monitor, peer_rank)
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pending: list[Ticket] = []

    def start(self, issue: Issue, keep: object = None, on_done: OnDone | None = None, after: Mark = None) -> Ticket:
        """Post the work on the lane's stream."""
        self._prune()
        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            works = issue()
        ticket = Ticket(works, keep, on_done)
        self._pending.append(ticket)
        return ticket

    def mark(self) -> Mark:
        """Return an event on the compute stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def join(self, ticket: Ticket) -> None:
        """Make the compute stream wait."""
        for work in ticket.works:
            work.wait()

    def drain(self) -> None:
        """Ask until done: a call that blocks could not be ended."""
        while self._pending:
            self._prune()
            self.monitor.check()
            time.sleep(_POLL_S)

    def _prune(self) -> None:
        """Let go of the tensors of what is done."""
        left = []
        for ticket in self._pending:
            if all(work.is_completed() for work in ticket.works):
                ticket.done_s = time.monotonic()
                ticket.keep = None
                if ticket.on_done is not None:
                    ticket.on_done(ticket)
            else:
                left.append(ticket)
        self._pending = left


def make_lane(name: str, peer: str, monitor: Monitor, device: torch.device, peer_rank: int | None = None) -> Lane:
    """Return the lane for tensors of `device`."""
    if device.type == "cuda":
        return StreamLane(name, peer, monitor, device, peer_rank)
    return HostLane(name, peer, monitor, peer_rank)
