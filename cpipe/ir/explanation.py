"""Why a plan takes as long as it does: a critical path, idle time by cause, and what a change of the job would give."""

from __future__ import annotations

from typing import Literal

from cpipe.ir.base import Frozen
from cpipe.ir.result import Bound, Objective

__all__ = ["Change", "Explanation", "Follows", "IdleCause", "IdlePart", "Segment", "SegmentKind", "WhatIf"]

SegmentKind = Literal["compute", "bandwidth", "latency", "transfer", "collective", "copy", "step", "unknown"]
"""What a piece of the critical path is.

``bandwidth``: a message holds its pipe; ``latency``: it is under way behind that; ``transfer``: both, and whatever
else lies between its producer and its reader, where a plan alone does not tell them apart; ``copy``: an activation
moves to host memory or back; ``step``: what all devices
do together behind everything else; ``unknown``: the times of
the plan do not say what was waited for.
"""

Follows = Literal["start", "order", "memory", "input", "queue", "window", "send", "gather"]
"""Why a piece of the critical path begins when it does.

``start``: at 0; ``order``: the device was busy with the op before it; ``memory``: likewise, and it is a forward that
would not have fitted before that op, though its input was there; ``input``: what it needs was made or arrived;
``queue``: its pipe was busy; ``window``: the op behind which its receive is posted ended; ``send``: the op behind which
it is sent ended; ``gather``: its parameters were gathered.
"""

IdleCause = Literal["warm-up", "upstream", "link", "memory", "data-parallel", "copy", "other", "tail", "step"]
"""Why a device does nothing.

``warm-up``: its first op has not begun; ``upstream``: the message that it waits for is not made yet; ``link``: that
message is made and has not arrived; ``memory``: meanwhile a forward whose input is there does not fit;
``data-parallel``: only collectives of its own are running or awaited; ``copy``: all else is there, and an activation is
on its way to or from host memory; ``other``: the times do not say; ``tail``: it has
finished and others have not; ``step``: what all devices do together at the end is under way.
"""

Change = Literal["none", "latency", "bandwidth", "collectives", "memory", "less-memory", "microbatch"]
"""What is different in a what-if; see `cpipe.analysis.whatif`."""


class Segment(Frozen, frozen=True, kw_only=True):
    """One piece of the critical path; times [ns].

    Attributes
    ----------
    kind, follows
        What it is, and why it begins when it does.
    start_ns, end_ns
        When.
    label
        The op (``2F0``), the op that made the message, or the collective (``ALL_REDUCE of stage 2``).
    device
        That it is on; of a message, the sender.
    carries
        Of a message.
    pipe
        Of a message that holds a pipe or is under way on it.
    """

    kind: SegmentKind
    follows: Follows
    start_ns: int
    end_ns: int
    label: str
    device: int
    carries: Literal["activation", "gradient"] | None = None
    pipe: int | None = None

    @property
    def length_ns(self) -> int:
        """How long it takes [ns]."""
        return self.end_ns - self.start_ns


class IdlePart(Frozen, frozen=True, kw_only=True):
    """A time [ns] in which a device does nothing, with the cause; `carries` and `pipe` are of the message awaited."""

    device: int
    cause: IdleCause
    start_ns: int
    end_ns: int
    carries: Literal["activation", "gradient"] | None = None
    pipe: int | None = None

    @property
    def length_ns(self) -> int:
        """How long it lasts [ns]."""
        return self.end_ns - self.start_ns


class WhatIf(Frozen, frozen=True, kw_only=True):
    """What a change of the job would give; times [ns].

    Attributes
    ----------
    change
        What is different.
    subject
        Name of the link or device that changes; None for all of them.
    microbatches
        Number of microbatches of the changed job.
    replay_ns
        Makespan of the plan's own order; None where it has no meaning or does not fit.
    found_ns
        Best makespan known: of that order and those of a short search. None where nothing was found. When the job only
        gets easier it is never longer than the plan's, since whoever has more need not use it.
    bound_ns
        No order is shorter.
    evaluations
        Whole orders timed by the search.
    """

    change: Change
    subject: str | None = None
    microbatches: int
    replay_ns: int | None = None
    found_ns: int | None = None
    bound_ns: int = 0
    evaluations: int = 0


class Explanation(Frozen, frozen=True, kw_only=True):
    """All that is known about why a plan takes as long as it does.

    Attributes
    ----------
    makespan_ns
        Of the replay, or the plan's own claim without a profile [ns].
    objective, reached_ns
        What the bound is of, and how much of it the plan takes [ns].
    bound
        Lower bound on the objective.
    pipes
        Names of the pipes that segments and idle parts point to.
    path
        The critical path: one piece begins where the one before it ends, from 0 to the makespan.
    idle
        By device, in order of time; with the busy times they fill the makespan.
    what_ifs
        Empty without a profile.
    """

    makespan_ns: int
    objective: Objective = "makespan"
    reached_ns: int
    bound: Bound
    pipes: tuple[str, ...] = ()
    path: tuple[Segment, ...] = ()
    idle: tuple[IdlePart, ...] = ()
    what_ifs: tuple[WhatIf, ...] = ()

    @property
    def status(self) -> Literal["optimal", "feasible"]:
        """``optimal`` when the objective meets the bound."""
        return "optimal" if self.reached_ns == self.bound.value_ns else "feasible"

    @property
    def gap(self) -> float:
        """(objective - bound) / objective, in [0, 1]; 0 when both are 0."""
        return max(0.0, (self.reached_ns - self.bound.value_ns) / self.reached_ns) if self.reached_ns > 0 else 0.0
