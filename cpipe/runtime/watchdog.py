"""How long an op may take before the run is ended: from the plan's own expected times."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Watchdog"]


@dataclass(frozen=True, kw_only=True)
class Watchdog:
    """Limits on waiting; all in seconds of wall time.

    Attributes
    ----------
    factor, floor_s
        An op is late when more than ``max(floor_s, factor * expected)`` went by since the rank's previous progress;
        `expected` is the plan's own time from the end of the previous op of that rank to the end of this one.
    first_step_s
        The floor in the first step, which compiles, allocates and connects.
    startup_s
        How long the ranks look for each other before the first step.
    between_steps_s
        How long a rank may stay between two steps (to load data, to save) while others wait for it.
    heartbeat_s, silence_s
        Every rank gives a sign of life this often; one that gives none for so long is taken for dead.
    """

    factor: float = 20.0
    floor_s: float = 30.0
    first_step_s: float = 120.0
    startup_s: float = 120.0
    between_steps_s: float = 600.0
    heartbeat_s: float = 1.0
    silence_s: float = 15.0
