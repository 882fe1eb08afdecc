"""The result of a search: an order, its replayed times, and what is proven about them."""

from __future__ import annotations

from typing import Literal

from cpipe.errors import Diagnostic
from cpipe.ir.base import Frozen, InvariantError
from cpipe.ir.schedule import Schedule
from cpipe.ir.timeline import Timeline

__all__ = ["Bound", "Objective", "SolveResult"]

Objective = Literal["makespan", "span"]
"""What a search minimises: the last completion, or the longest span of a device (see `Timeline.span_ns`)."""


class Bound(Frozen, frozen=True, kw_only=True):
    """A proven lower bound on the objective of a problem: its makespan, unless a search minimised another.

    Attributes
    ----------
    value_ns
        No schedule is shorter [ns].
    proved_by
        ``bound`` (closed form) or the solver that proved it (``highs``, ``cpsat``).
    reason
        Which argument gave it, for people (``memory round trip of device 0``).
    """

    value_ns: int
    proved_by: str = "bound"
    reason: str = ""


class SolveResult(Frozen, frozen=True, kw_only=True):
    """What a search returns.

    Attributes
    ----------
    schedule, timeline
        The order and its replay by `cpipe.sim`.
    bound
        The best lower bound that is proven.
    method
        What the user asked for.
    found_by
        The generator or solver whose order this is.
    evaluations
        Number of whole-schedule simulations spent.
    nodes
        Number of nodes that a solver branched on.
    warnings
        What the user should know (a limit was met, a solver is missing).
    objective
        What was minimised; bound and gap are of it.
    """

    schedule: Schedule
    timeline: Timeline
    bound: Bound
    method: str
    found_by: str
    evaluations: int = 0
    nodes: int = 0
    warnings: tuple[Diagnostic, ...] = ()
    objective: Objective = "makespan"

    @property
    def makespan_ns(self) -> int:
        """Makespan of the schedule [ns], the simulator's."""
        return self.timeline.makespan_ns

    @property
    def objective_ns(self) -> int:
        """What was minimised [ns]: makespan or span of the schedule, the simulator's."""
        return self.timeline.span_ns if self.objective == "span" else self.timeline.makespan_ns

    @property
    def status(self) -> Literal["optimal", "feasible"]:
        """``optimal`` when the objective meets the proven bound."""
        return "optimal" if self.objective_ns == self.bound.value_ns else "feasible"

    @property
    def gap(self) -> float:
        """(objective - bound) / objective, in [0, 1]; 0 when both are 0."""
        return (self.objective_ns - self.bound.value_ns) / self.objective_ns if self.objective_ns else 0.0

    def verify(self) -> None:
        """Check that the bound does not exceed the objective.

        Raises
        ------
        InvariantError
            When it does: one of the two is wrong.
        """
        if self.bound.value_ns > self.objective_ns:
            raise InvariantError(f"bound {self.bound.value_ns} ns above {self.objective} {self.objective_ns} ns")
