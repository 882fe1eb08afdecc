"""When a search stops."""

from __future__ import annotations

import time

from cpipe.ir.base import Frozen

__all__ = ["SolveLimits", "TimeLimit"]


class TimeLimit:
    """The user's wall-clock limit, running from its creation; the only clock that can change a result.

    Parameters
    ----------
    seconds
        Time allowed [s], for all that it is handed to together.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds

    @property
    def remaining_s(self) -> float:
        """Time left [s], never negative."""
        return max(0.0, self._deadline - time.monotonic())


class SolveLimits(Frozen, frozen=True, kw_only=True):
    """When a search stops.

    Attributes
    ----------
    max_gap
        Accept an order within this share of the bound: (makespan - bound) / makespan.
    time_limit
        The user's wall-clock limit, or None: results then do not depend on the machine.
    seed
        Of every random choice.
    node_limit
        Branch-and-bound nodes of the MILP; 0 leaves it out, None is the method's default.
    """

    max_gap: float = 0.0
    time_limit: TimeLimit | None = None
    seed: int = 0
    node_limit: int | None = None
