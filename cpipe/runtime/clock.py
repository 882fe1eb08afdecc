"""When ops run: the host's clock on the CPU, events on the compute stream on CUDA."""

from __future__ import annotations

import time

import torch

from cpipe.runtime.lanes import Ticket

__all__ = ["Clock", "Mark", "Span"]

Mark = float | torch.cuda.Event
Span = tuple[Mark, Mark | Ticket, float]  # start, end, seconds waited before


class Clock:
    """Marks moments of compute, and tells them on CLOCK_MONOTONIC [s] once they have passed.

    On CUDA a moment is an event; it is told relative to one that is set when the step begins (`restart`), which
    waits for what the device still has to do. Only done when something is to be recorded.
    """

    def __init__(self, device: torch.device, record: bool) -> None:
        self._device = device if device.type == "cuda" and record else None
        self._origin: tuple[float, torch.cuda.Event] | None = None

    def restart(self) -> None:
        """Set the moment from which events of the device are counted."""
        if self._device is not None:
            torch.cuda.synchronize(self._device)
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._origin = (time.monotonic(), event)

    def mark(self) -> Mark:
        """Return the moment at which compute gets here."""
        if self._device is None:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def span(self, start: Mark, waited_s: float) -> Span:
        """Return the span from `start` to now."""
        return start, self.mark(), waited_s

    def seconds(self, mark: Mark) -> float:
        """Return a moment that has passed on CLOCK_MONOTONIC [s]."""
        if isinstance(mark, float):
            return mark
        assert self._origin is not None  # noqa: S101 (events are made after a restart only)
        base, event = self._origin
        mark.synchronize()
        return base + float(event.elapsed_time(mark)) / 1e3
