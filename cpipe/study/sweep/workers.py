"""Points solved by processes of this machine, one point at a time each; a process that dies costs its point alone."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from cpipe.study.sweep.grid import Point, Settings
from cpipe.study.sweep.solve_point import Outcome, failed, point_outcome

__all__ = ["Solve", "Task", "solve_in_processes"]

_ORPHANED = 3

Solve = Callable[[bytes, Point, Settings], Outcome]


class Task(NamedTuple):
    """A point of the grid, and its place there."""

    place: int
    point: Point


def solve_in_processes(
    tasks: Sequence[Task], data: bytes, settings: Settings, jobs: int, solve: Solve = point_outcome
) -> Generator[tuple[int, Outcome], None, None]:
    """Yield the place and the outcome of every task, as they are finished.

    Closing the iterator ends the processes at once.

    Parameters
    ----------
    tasks
        Handed out in this order.
    data, settings
        See `point_outcome`.
    jobs
        Processes at once, >= 1. They are started anew (no fork), so that they share nothing with the caller.
    solve
        What they call; a function that can be imported.
    """
    waiting = iter(tasks)
    busy: dict[Any, tuple[_Worker, Task]] = {}
    try:
        for task in itertools.islice(waiting, jobs):
            worker = _Worker(data, settings, solve)
            busy[worker.connection] = worker, task
            worker.take(task.point)
        while busy:
            for connection in wait(list(busy)):
                worker, task = busy[connection]
                outcome = worker.outcome()
                del busy[connection]
                following = next(waiting, None)
                if following is None or worker.is_dead:
                    worker.end()
                if following is not None:
                    if worker.is_dead:
                        worker = _Worker(data, settings, solve)
                    busy[worker.connection] = worker, following
                    worker.take(following.point)
                yield task.place, outcome
    finally:
        for worker, _ in busy.values():
            worker.end()


class _Worker:
    """A process that solves points one after the other."""

    def __init__(self, data: bytes, settings: Settings, solve: Solve) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, data, settings, solve), daemon=True)
        with _interrupts_held_back():
            self._process.start()
        theirs.close()
        self.is_dead = False

    def take(self, point: Point) -> None:
        """Hand it a point; when it is dead already, `outcome` says so."""
        with contextlib.suppress(OSError):
            self.connection.send(point)

    def outcome(self) -> Outcome:
        """Return what became of its point."""
        try:
            outcome: Outcome = self.connection.recv()
            return outcome
        except (EOFError, OSError):
            self.is_dead = True
            self._process.join()
            return failed(f"the process that solved it {_ending(self._process.exitcode)}")

    def end(self) -> None:
        """End the process, whatever it does."""
        self.connection.close()
        self._process.kill()
        self._process.join()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Have a process that is started here begin with Ctrl-C held back: it is the caller who decides what that means."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, data: bytes, settings: Settings, solve: Solve) -> None:
    """Solve what comes until the caller hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_caller, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            point: Any = connection.recv()
            connection.send(solve(data, point, settings))


def _end_with_caller() -> None:
    """End this process once the one that started it has ended, however that was."""
    caller = multiprocessing.parent_process()
    if caller is not None:
        wait([caller.sentinel])
        os._exit(_ORPHANED)
