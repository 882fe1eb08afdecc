"""The board on which the processes of a run leave notes for each other: a key-value store beside the communicators."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import distributed_c10d

from cpipe.runtime.faults import RuntimeFault

__all__ = ["Bulletin"]

_FAULT = "fault"
_POLL_S = 0.01
_serial = itertools.count()


class Bulletin:
    """Notes of one run; nothing here waits without a limit. Every method raises `RuntimeFault` when the store is gone.

    The store is that of the default process group, which torch hands out only by a private function.

    The n-th board that a process opens is the n-th of every other process: all open them in the same order.

    Attributes
    ----------
    me, size
        Rank in, and size of, the default process group.
    """

    def __init__(self) -> None:
        store = distributed_c10d._get_default_store()
        self._store = distributed_c10d.PrefixStore(f"cpipe/{next(_serial)}", store)
        self.me = dist.get_rank()
        self.size = dist.get_world_size()

    def put(self, key: str, value: str) -> None:
        """Leave a note, over an older one of that key."""
        with _told():
            self._store.set(key, value)

    def peek(self, key: str) -> str | None:
        """Return a note, or None when there is none yet."""
        with _told():
            return self._store.get(key).decode() if self._store.check([key]) else None

    def exchange(self, topic: str, note: str, limit_s: float) -> list[str | None]:
        """Leave a note and collect those of all processes, None for who left none within `limit_s` [s]."""
        self.put(f"{topic}/{self.me}", note)
        deadline = time.monotonic() + limit_s
        notes: list[str | None] = [None] * self.size
        while True:
            for process in range(self.size):
                if notes[process] is None:
                    notes[process] = self.peek(f"{topic}/{process}")
            if None not in notes or time.monotonic() > deadline:
                return notes
            time.sleep(_POLL_S)

    def post_fault(self, note: str) -> str:
        """Report that the run has failed; return the report that came first, which is the one that counts."""
        with _told():
            return self._store.compare_set(_FAULT, "", note).decode()

    def fault(self) -> str | None:
        """Return the first report of a failure, or None."""
        return self.peek(_FAULT)

    def beat(self, note: str) -> None:
        """Leave a sign of life."""
        self.put(f"beat/{self.me}", note)

    def beats(self) -> list[str | None]:
        """Return the last sign of life of every process."""
        return [self.peek(f"beat/{process}") for process in range(self.size)]


@contextmanager
def _told() -> Iterator[None]:
    """Tell an error of the store as a fault."""
    try:
        yield
    except RuntimeError as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        message = "lost the store that joins the ranks: the process that serves it, often rank 0, is gone"
        raise RuntimeFault(f"{message} ({first})", code="store-lost") from error
