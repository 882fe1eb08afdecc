"""The CP-SAT search inside its process: reduce, announce, state, solve, answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil, isfinite
from typing import Any

import msgspec

from cpipe.ir import Schedule, Timeline
from cpipe.sim import simulate
from cpipe.solve.child.worker import Link
from cpipe.solve.cpsat.backend import INSTALL, Limits, run_solver
from cpipe.solve.cpsat.job import Answer, Job, News, Orders
from cpipe.solve.cpsat.links import add_links
from cpipe.solve.cpsat.memory import add_memory
from cpipe.solve.cpsat.model import Model
from cpipe.solve.cpsat.orders import extract_schedule
from cpipe.solve.cpsat.replay import Replay
from cpipe.solve.milp.build import build_network
from cpipe.solve.milp.network import Network
from cpipe.solve.milp.onemachine import resource_bound
from cpipe.solve.milp.precedence import ContradictionError, Precedence
from cpipe.solve.milp.windows import horizon_of

__all__ = ["build", "work"]

_MAX_MOMENT = 1 << 45
"""Times above this leave CP-SAT's 64-bit sums no room [units or ticks]."""
_SLACK = 1e-6
_ROUNDS = ((0.4, True), (0.5, False), (1.0, True))
"""Share of what is left of the work, and whether by cores: to prove, to find, to prove with what was found."""


def work(request: bytes, link: Link) -> Answer:
    """Solve a `Job`; entry point of the child process."""
    begun = time.monotonic()
    job = msgspec.msgpack.decode(request, type=Job)
    try:
        from ortools.sat.python import cp_model  # noqa: F401
    except Exception as error:  # a broken installation may fail in any way
        return Answer(status="broken", detail=f"OR-Tools cannot be imported ({error}): {INSTALL}")
    start = Schedule(orders=job.start)
    timeline = simulate(job.problem, start)
    try:
        model = build(job, timeline)
    except ContradictionError:
        return Answer(status="infeasible")
    if model is None:
        return Answer(status="too_large")
    link.tell(News(text=f"cpsat: {len(model.network.tasks)} intervals, {model.num_booleans} booleans"))
    hunt = _Hunt(model, link)
    if job.start_fits:
        replay = Replay(model.network, start, timeline, model.ticks)
        hunt.hint(lambda variable, value: int(value(replay)))
    deadline = None if job.time_limit is None else begun + job.time_limit
    for share, by_cores in _ROUNDS:
        rest = None if deadline is None else max(0.01, share * (deadline - time.monotonic()))
        if hunt.run(Limits((job.work_limit - hunt.spent) * share, rest, job.seed, job.max_gap, by_cores)):
            break
    return hunt.answer()


def build(job: Job, timeline: Timeline) -> Model | None:
    """Return the model of a job, or None when its numbers are too large for the solver.

    Parameters
    ----------
    job
        The job.
    timeline
        The replay of its start.

    Raises
    ------
    ContradictionError
        When no schedule within the upper bound exists.
    """
    network = build_network(job.problem)
    precedence = _settle(network, timeline, job)
    lower = -(-job.lower_bound_ns // network.unit_ns)
    if job.objective == "makespan":
        lower = max(lower, resource_bound(precedence))
    # every device's ops may take no time, each then a tick of each moment
    if (precedence.upper_bound + 1) * (len(network.compute) + 1) > _MAX_MOMENT:
        return None
    model = Model(network, precedence, lower, job.objective)
    add_memory(model)
    add_links(model)
    return model


def _settle(network: Network, timeline: Timeline, job: Job) -> Precedence:
    # an order that does not fit bounds nothing: fall back on what no best schedule exceeds
    if not job.start_fits:
        return Precedence(network, network.serial_length())
    if job.objective == "makespan":
        return Precedence(network, timeline.makespan_ns // network.unit_ns)
    upper, floors = horizon_of(network, timeline.span_ns // network.unit_ns)
    return Precedence(network, upper, floors=floors)


class _Hunt:
    """Several runs on one model, each with the solution and the bound of those before it."""

    def __init__(self, model: Model, link: Link) -> None:
        self._model, self._link = model, link
        self._reporter = _Reporter(model, link)
        self._status = "unknown"
        self._orders: Orders | None = None
        self._below = model.lower_bound
        self.spent = 0.0

    def hint(self, value: Callable[[Any, Callable[[Replay], int]], int]) -> None:
        """Hint every variable; `value` is given the variable and how it follows from a replay."""
        self._model.cp.clear_hints()
        for variable, of_replay in self._model.variables:
            self._model.cp.add_hint(variable, value(variable, of_replay))

    def run(self, limits: Limits) -> bool:
        """Run the solver once; return whether nothing is left to do."""
        model = self._model
        raw = run_solver(model.cp, limits, self._reporter.solution, self._reporter.bound, self._link.stopped.is_set)
        self.spent += raw.work
        found = raw.value
        if found is not None:
            self._orders = extract_schedule(model, found).orders
            self.hint(lambda variable, _: found(variable))
        if self._orders is None or raw.status != "unknown":  # no news does not undo an earlier solution
            self._status = raw.status
        if raw.bound is not None and isfinite(raw.bound):
            # the objective is a whole number, so what is just above one is the next
            self._below = max(self._below, ceil(raw.bound - _SLACK))
            model.cp.add(model.goal >= min(self._below, model.horizon))
        return raw.status not in ("feasible", "unknown") or self._link.stopped.is_set()

    def answer(self) -> Answer:
        """Return what all runs together found."""
        unit = self._model.network.unit_ns
        return Answer(
            status=self._status,
            orders=self._orders,
            bound_ns=self._model.lower_bound * unit,
            dual_bound_ns=max(0, self._below) * unit,
            work=self.spent,
            booleans=self._model.num_booleans,
        )


class _Reporter:
    """Tells the caller of solutions, with their orders, and of bounds."""

    def __init__(self, model: Model, link: Link) -> None:
        self._model, self._link = model, link
        self._best: float | None = None
        self._below = 0.0

    def solution(self, value: Any, objective: float, bound: float) -> None:
        """Send a better solution: it stays the caller's when this process dies."""
        self._best, self._below = objective, max(self._below, bound)
        self._link.tell(News(text=self._line(), orders=extract_schedule(self._model, value).orders))

    def bound(self, bound: float) -> None:
        """Send a better bound."""
        if bound > self._below:
            self._below = bound
            self._link.tell(News(text=self._line()))

    def _line(self) -> str:
        to_ms = self._model.network.unit_ns / 1e6
        parts = [] if self._best is None else [f"{self._model.objective} {self._best * to_ms:.6g} ms"]
        parts.append(f"bound {self._below * to_ms:.6g} ms")
        if self._best:
            parts.append(f"gap {max(0.0, 1 - self._below / self._best):.1%}")
        return "cpsat: " + ", ".join(parts)
