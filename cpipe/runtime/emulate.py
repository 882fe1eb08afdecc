"""Slow links on one machine: messages are handed to compute as late as the modelled link would deliver them.

The receiver holds a message back; nothing is delayed at the sender and nothing is slept in the transport. Each message
carries the time at which its sender posted it (CLOCK_MONOTONIC, which processes of one machine share), so a receiver
that looks late adds nothing to the delay. Limits of the emulation:

* What the real transport costs comes before: a message is never handed over earlier than it arrived.
* A receive that is posted late delays its sender here only as long as the local transport does, not by the latency that
  the ready note would travel.
* A pipe that serves several ranks is modelled for each receiving rank apart; channels of one rank share it.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Literal

__all__ = ["Emulation", "HopDelay"]

_KEPT_WINDOWS = 1024
"""Past windows of a pipe that are remembered; an older one no longer bars any message."""


@dataclass(frozen=True, kw_only=True)
class HopDelay:
    """What one message over one stage boundary costs.

    Attributes
    ----------
    carries, stage
        ``activation`` or ``gradient``, and the stage that consumes it: together they name the hop.
    latency_s
        From the end of its window on the pipe to its arrival [s], >= 0.
    occupancy_s
        How long it holds the pipe [s], >= 0.
    pipe
        The pipe; hops of one pipe take turns.
    """

    carries: Literal["activation", "gradient"]
    stage: int
    latency_s: float
    occupancy_s: float = 0.0
    pipe: int = 0


class Emulation:
    """The links of a job as one rank's receivers see them.

    Parameters
    ----------
    delays
        One entry per hop; a hop that is not named costs nothing.

    Raises
    ------
    ValueError
        When a hop is named twice or a time is negative.
    """

    def __init__(self, delays: Iterable[HopDelay]) -> None:
        self._delays: dict[tuple[str, int], HopDelay] = {}
        for delay in delays:
            key = (delay.carries, delay.stage)
            if key in self._delays:
                raise ValueError(f"the {delay.carries} hop into stage {delay.stage} is given twice")
            if min(delay.latency_s, delay.occupancy_s) < 0:
                raise ValueError(f"the {delay.carries} hop into stage {delay.stage} has a negative time")
            self._delays[key] = delay
        self._pipes: defaultdict[int, _Pipe] = defaultdict(_Pipe)
        self._last_end: dict[tuple[int, int, str], float] = {}
        self._lock = Lock()  # each channel has a thread of its own

    @classmethod
    def from_builtins(cls, document: Iterable[Mapping[str, Any]]) -> Emulation:
        """Return the emulation that `to_builtins` described, as it comes out of a JSON file."""
        return cls(HopDelay(**entry) for entry in document)

    def to_builtins(self) -> list[dict[str, Any]]:
        """Return the delays as plain lists, dicts and numbers."""
        return [asdict(delay) for delay in self._delays.values()]

    def hold(self, channel: tuple[int, int, str], stage: int, sent_s: float, received_s: float) -> float:
        """Return when a message may be handed to compute; call it once a message, in the channel's order.

        Parameters
        ----------
        channel
            Source rank, target rank and what the channel carries.
        stage
            The stage that consumes the message.
        sent_s
            When its sender posted it, CLOCK_MONOTONIC [s].
        received_s
            When it was seen at the receiver, same clock [s].

        Returns
        -------
        float
            Same clock [s]; no earlier than `received_s`. The message takes the first free window of its pipe after
            it was sent, but never one before the message ahead of it on its channel.
        """
        delay = self._delays.get((channel[2], stage))
        if delay is None:
            return received_s
        with self._lock:
            ready = max(sent_s, self._last_end.get(channel, sent_s))
            end = self._pipes[delay.pipe].take(ready, delay.occupancy_s)
            self._last_end[channel] = end
        return max(received_s, end + delay.latency_s)


class _Pipe:
    """Windows in which a pipe is taken, sorted; messages of different channels may ask out of the order of time."""

    def __init__(self) -> None:
        self._windows: deque[tuple[float, float]] = deque()

    def take(self, ready: float, length: float) -> float:
        """Take the first gap of `length` [s] at or after `ready` [s]; return its end [s]."""
        start = ready
        for first, last in self._windows:
            if first >= start + length:
                break
            start = max(start, last)
        if length > 0:
            insort(self._windows, (start, start + length))
            if len(self._windows) > _KEPT_WINDOWS:
                self._windows.popleft()
        return start + length
