"""What the exact search returns."""

from __future__ import annotations

from cpipe.errors import Diagnostic
from cpipe.ir import Schedule
from cpipe.ir.base import Frozen

__all__ = ["MilpOutcome"]


class MilpOutcome(Frozen, frozen=True):
    """What the exact search found.

    Attributes
    ----------
    schedule
        The best order found, the warm start included; None when there is none within memory.
    dual_bound_ns
        No schedule has a smaller objective [ns]; at least the bound that was given.
    solver_status
        HiGHS's own model status (``optimal``, ``time_limit``, ``node_limit``, ``interrupt``, ...), or ``not_run``
        (the start meets the bound), ``too_large`` (not built), or how its process ended without an answer
        (`cpipe.solve.child.Ended.how`).
    nodes
        Branch and bound nodes.
    binaries
        Binary variables of the model.
    warm_start_accepted
        Whether the start became the solver's first incumbent.
    warnings
        What the user should know.
    """

    schedule: Schedule | None
    dual_bound_ns: int
    solver_status: str
    nodes: int = 0
    binaries: int = 0
    warm_start_accepted: bool = False
    warnings: tuple[Diagnostic, ...] = ()
