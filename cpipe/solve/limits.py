"""When a search stops."""

from __future__ import annotations

import time

from cpipe.errors import Diagnostic, UsageError
from cpipe.ir import Objective
from cpipe.ir.base import Frozen

__all__ = ["SolveLimits", "Stop", "TimeLimit"]


class TimeLimit:
    """The user's wall-clock limit, running from its creation; the only clock that can change a result.

    Parameters
    ----------
    seconds
        Time allowed [s], for all that it is handed to together.
    asked
        What the user asked for [s], where this is only a share of it.

    Attributes
    ----------
    asked
        For messages.
    """

    def __init__(self, seconds: float, asked: float | None = None) -> None:
        self.asked = seconds if asked is None else asked
        self._deadline = time.monotonic() + seconds

    @property
    def remaining_s(self) -> float:
        """Time left [s], never negative."""
        return max(0.0, self._deadline - time.monotonic())

    def share(self, attempts: int) -> TimeLimit:
        """Return the limit of the next of `attempts` attempts that have the same time each."""
        return TimeLimit(self.remaining_s / attempts, self.asked)


class Stop:
    """The wish to end a search now with the best that it has, as Ctrl-C expresses it; every search polls it.

    It may be made from a signal handler or another thread. A library caller hands one to
    `cpipe.compiler.compile_profile`; without one, Ctrl-C is a `KeyboardInterrupt` like everywhere.

    Attributes
    ----------
    requested
        Whether the search should end.
    has_incumbent
        Whether a search has had an answer since the object was made: only then is there something to stop with.
    """

    def __init__(self) -> None:
        self.requested = False
        self.has_incumbent = False

    def request(self) -> None:
        """Ask for the end."""
        self.requested = True


class SolveLimits(Frozen, frozen=True, kw_only=True):
    """When a search stops.

    Attributes
    ----------
    max_gap
        Accept an order within this share of the bound: (objective - bound) / objective.
    time_limit
        The user's wall-clock limit, or None: results then do not depend on the machine.
    seed
        Of every random choice.
    node_limit
        Branch-and-bound nodes of the MILP; 0 leaves it out, None is the method's default.
    objective
        What to minimise: ``makespan``, the last completion; ``span``, the longest span of a device.
    stop
        Polled: once it is requested, the best so far is the result.
    """

    max_gap: float = 0.0
    time_limit: TimeLimit | None = None
    seed: int = 0
    node_limit: int | None = None
    objective: Objective = "makespan"
    stop: Stop | None = None

    def verify(self) -> None:
        """Check the ranges.

        Raises
        ------
        UsageError
            Naming every limit that is out of its range.
        """
        seconds = 0.0 if self.time_limit is None else self.time_limit.asked
        faults = [
            Diagnostic(code="bad-limit", message=f"expected {rule}, got {value}")
            for rule, value, holds in (
                ("a max_gap in [0, 1)", self.max_gap, 0 <= self.max_gap < 1),
                ("a time limit >= 0 s", seconds, seconds >= 0),
                ("a seed in 0 .. 2^31 - 1", self.seed, 0 <= self.seed < 1 << 31),
                ("a node limit in 0 .. 2^31 - 1", self.node_limit, 0 <= (self.node_limit or 0) < 1 << 31),
            )
            if not holds
        ]
        if self.objective not in ("makespan", "span"):
            message = f"expected the objective makespan or span, got {self.objective!r}"
            faults.append(Diagnostic(code="bad-limit", message=message))
        if faults:
            raise UsageError(faults)
