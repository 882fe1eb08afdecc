"""What the user may choose of a compilation."""

from __future__ import annotations

from cpipe.ir import Objective
from cpipe.ir.base import Frozen

__all__ = ["OFFLOADS", "PLACEMENTS", "SolveOptions"]

OFFLOADS = ("auto", "none")
PLACEMENTS = ("profile", "ud", "loop", "wave", "bidirectional", "auto")


class SolveOptions(Frozen, frozen=True, kw_only=True):
    """What the user may choose.

    Attributes
    ----------
    method
        A key of `cpipe.solve.methods.METHODS`.
    placement
        ``profile``: as written; ``ud``, ``loop``, ``wave``: stages put on the devices in that pattern (``ud``: adjacent
        stages share a device when there are more of them, loads as even as they can be);
        ``bidirectional``: two flows in opposite directions, with two copies of all weights (see
        `cpipe.profile.flows`); ``auto``: the best of those that fit, with one copy.
    seed
        Of every random choice.
    max_gap
        Accept an order within this share of its bound, in [0, 1).
    time_limit
        Wall-clock limit [s], or None.
    receive_window
        Cap on posted receives per channel, or None: as many as useful, fewer if memory asks for it.
    node_limit
        Branch-and-bound nodes of the MILP; 0 leaves it out, None is the method's default.
    objective
        What to minimise: ``makespan`` or ``span``.
    group_size
        Consecutive microbatches through one stage of a device, of the method ``interleaved-1f1b``; None: its own.
    recompute
        Which stages recompute, of those that offer it: ``auto`` (searched), ``none``, ``all``, or numbers of the
        profile's stages apart by commas.
    offload
        Whether activations may go to host memory where stages offer it: ``auto`` (where that is better), ``none``.
    """

    method: str = "auto"
    placement: str = "profile"
    seed: int = 0
    max_gap: float = 0.0
    time_limit: float | None = None
    receive_window: int | None = None
    node_limit: int | None = None
    objective: Objective = "makespan"
    group_size: int | None = None
    recompute: str = "auto"
    offload: str = "auto"
