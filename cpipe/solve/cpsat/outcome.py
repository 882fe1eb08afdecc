"""What the CP-SAT search returns."""

from __future__ import annotations

from cpipe.errors import Diagnostic
from cpipe.ir import Schedule
from cpipe.ir.base import Frozen

__all__ = ["CpsatOutcome"]


class CpsatOutcome(Frozen, frozen=True, kw_only=True):
    """What the CP-SAT search found.

    Attributes
    ----------
    schedule
        The best order found, the warm start included; None when there is none within memory.
    dual_bound_ns
        No schedule is better [ns]; at least the bound that was given.
    solver_status
        CP-SAT's own status (``optimal``, ``feasible``, ``infeasible``, ``unknown``, ``model_invalid``), or
        ``not_run`` (the start meets the bound), ``too_large`` or ``does_not_apply`` (not built), ``broken`` (OR-Tools
        cannot be imported), ``interrupt``, or how its process ended without an answer (see `cpipe.solve.child.Ended`).
    work
        Deterministic time that CP-SAT counted [its own unit, about a second of a fast core].
    num_booleans
        Boolean variables of the model as stated.
    broken
        Why OR-Tools cannot be used although it is installed, or None.
    warnings
        What the user should know.
    """

    schedule: Schedule | None
    dual_bound_ns: int
    solver_status: str
    work: float = 0.0
    num_booleans: int = 0
    broken: str | None = None
    warnings: tuple[Diagnostic, ...] = ()
