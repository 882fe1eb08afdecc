"""What the CP-SAT search and its solver process say to each other."""

from __future__ import annotations

import msgspec

from cpipe.ir import Objective, Problem

__all__ = ["Answer", "Job", "News", "Orders"]

Orders = tuple[tuple[int, ...], ...]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to solve.

    Attributes
    ----------
    problem
        The problem.
    start
        A schedule's orders that finish, fitting memory if `start_fits`; see `split_dominated`.
    start_fits
        Whether the start bounds the optimum and is given as a hint.
    objective
        What to minimise.
    lower_bound_ns
        Proven bound on the objective [ns].
    work_limit, time_limit, max_gap, seed
        What ends the search: CP-SAT's deterministic time, seconds or None, the gap; and the solver's seed.
    """

    problem: Problem
    start: Orders
    start_fits: bool
    objective: Objective
    lower_bound_ns: int
    work_limit: float
    time_limit: float | None
    seed: int
    max_gap: float = 0.0


class News(msgspec.Struct, frozen=True, kw_only=True):
    """How it goes.

    Attributes
    ----------
    text
        One line for people.
    orders
        Orders of a new incumbent, or None.
    """

    text: str
    orders: Orders | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came out.

    Attributes
    ----------
    status
        CP-SAT's status in lower case; ``infeasible`` (within the start's makespan) without it, too; ``too_large``
        (its numbers would not fit 64 bits) or ``broken`` (it cannot be imported, `detail` says why).
    orders
        Orders of the best solution, or None.
    bound_ns
        Bound that the reductions proved before the solver ran [ns].
    dual_bound_ns
        Bound that the solver claims, rounded up to the next possible value [ns]; 0: none.
    work
        Deterministic time spent.
    booleans
        Boolean variables as stated.
    detail
        One line on what went wrong.
    """

    status: str
    orders: Orders | None = None
    bound_ns: int = 0
    dual_bound_ns: int = 0
    work: float = 0.0
    booleans: int = 0
    detail: str = ""
