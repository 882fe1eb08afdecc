"""What the exact search and its solver process say to each other."""

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
        Whether the start bounds the optimum and may be an incumbent.
    objective
        What to minimise.
    lower_bound_ns
        Proven bound on the objective [ns].
    node_limit, time_limit, seed
        What ends the search: nodes, seconds or None; and the solver's seed.
    max_binaries
        Do not build a larger model.
    families
        Constraint families to state, or None for all.
    """

    problem: Problem
    start: Orders
    start_fits: bool
    objective: Objective
    lower_bound_ns: int
    node_limit: int
    time_limit: float | None
    seed: int
    max_binaries: int
    families: tuple[str, ...] | None = None


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
        HiGHS's model status in snake case; ``too_large`` or ``infeasible`` (within the start's makespan) without it.
    orders
        Orders of the incumbent, or None.
    bound_ns
        Bound that the reductions proved before the solver ran [ns].
    dual_bound_ns
        Bound that the solver claims, rounded up to the next possible value [ns]; 0: none.
    nodes, binaries
        Branch and bound nodes; binary variables of the model.
    start_accepted
        Whether the start became the first incumbent.
    """

    status: str
    orders: Orders | None = None
    bound_ns: int = 0
    dual_bound_ns: int = 0
    nodes: int = 0
    binaries: int = 0
    start_accepted: bool = False
