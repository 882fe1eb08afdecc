"""The exact search inside its process: reduce, announce, state, solve, answer."""

from __future__ import annotations

import time
from math import ceil, isfinite

import msgspec

from cpipe.ir import Schedule, Timeline
from cpipe.sim import simulate
from cpipe.solve.child.worker import Link
from cpipe.solve.milp.backend import Limits, Listener, RawOutcome, run_solver
from cpipe.solve.milp.build import build_network
from cpipe.solve.milp.job import Answer, Job, News
from cpipe.solve.milp.model import Model
from cpipe.solve.milp.network import Network
from cpipe.solve.milp.onemachine import resource_bound
from cpipe.solve.milp.orders import extract_schedule, start_vector
from cpipe.solve.milp.precedence import ContradictionError, Precedence
from cpipe.solve.milp.windows import horizon_of

__all__ = ["bound_ns", "prepare", "work"]

_MARGIN = 0.05
"""Trust in the solver's bound [model time]: 5e-8 of the longest horizon."""
_START_SLIP = 1e-6
_NEWS_EVERY_S = 0.5  # of what is only told to pass the time


def work(request: bytes, link: Link) -> Answer:
    """Solve a `Job`; entry point of the child process."""
    begun = time.monotonic()
    job = msgspec.msgpack.decode(request, type=Job)
    start = Schedule(orders=job.start)
    timeline = simulate(job.problem, start)
    network = build_network(job.problem)
    try:
        precedence = prepare(network, timeline, job)
    except ContradictionError:
        return Answer(status="infeasible")
    binaries = precedence.num_binaries()
    if binaries > job.max_binaries:
        return Answer(status="too_large", binaries=binaries)
    pairs = len(precedence.open_pairs())
    link.tell(News(text=f"milp: {binaries} binaries for {pairs} open pairs of {len(network.tasks)} tasks"))
    lower = -(-job.lower_bound_ns // network.unit_ns)
    if job.objective == "makespan":
        lower = max(lower, resource_bound(precedence))
    model = Model(network, precedence, lower, job.families, job.objective)
    vector = start_vector(model, start, timeline) if job.start_fits else None
    if vector is not None and model.violation(vector) > _START_SLIP:
        vector = None
    expected = None if vector is None else vector[model.goal]
    rest = None if job.time_limit is None else max(0.0, job.time_limit - (time.monotonic() - begun))
    raw = run_solver(
        model.lp,
        model.columns,
        vector,
        _limits(model, job, rest),
        _Reporter(model, link, expected),
        link.stopped.is_set,
    )
    return _answer(model, raw)


def prepare(network: Network, timeline: Timeline, job: Job) -> Precedence:
    """Return what is settled about the order of tasks before any solver runs.

    Raises
    ------
    ContradictionError
        When no schedule within the upper bound exists.
    """
    # an order that does not fit bounds nothing: fall back on what no best schedule exceeds
    if not job.start_fits:
        return Precedence(network, network.serial_length())
    if job.objective == "makespan":
        return Precedence(network, timeline.makespan_ns // network.unit_ns)
    upper, floors = horizon_of(network, timeline.span_ns // network.unit_ns)
    return Precedence(network, upper, floors=floors)


def _limits(model: Model, job: Job, time_limit: float | None) -> Limits:
    """Stop within one unit of the bound, as objectives are whole units; keep big-M slips well below one."""
    gap = max(0.99 / model.scale - _MARGIN, 0.01)
    horizon = max(1.0, model.precedence.upper_bound / model.scale)
    return Limits(job.node_limit, time_limit, gap, job.seed, min(1e-6, max(1e-9, 1e-2 / horizon)))


def _answer(model: Model, raw: RawOutcome) -> Answer:
    schedule = extract_schedule(model, raw.values) if raw.values is not None else None
    return Answer(
        status=raw.status,
        orders=schedule.orders if schedule is not None else None,
        bound_ns=model.lower_bound * model.network.unit_ns,
        dual_bound_ns=bound_ns(raw.dual_bound, model),
        nodes=raw.nodes,
        binaries=model.num_binaries,
        start_accepted=raw.start_accepted,
    )


def bound_ns(dual_bound: float, model: Model) -> int:
    """Return the solver's bound [ns]: less a margin for its arithmetic, then up to the next whole unit.

    Every objective is a whole number of units, so rounding up is safe once the margin is taken off.
    """
    if not isfinite(dual_bound):
        return 0
    return max(0, ceil((dual_bound - _MARGIN) * model.scale) * model.network.unit_ns)


class _Reporter(Listener):
    """Tells the caller of incumbents, at once and with their orders, and now and then of bound and nodes.

    Of the first incumbent it says whether that is the start, whose objective is `expected` [model time].
    """

    def __init__(self, model: Model, link: Link, expected: float | None) -> None:
        self._model, self._link, self._expected = model, link, expected
        self._to_ms = model.scale * model.network.unit_ns / 1e6
        self._told, self._last = time.monotonic(), ""

    def incumbent(self, values: list[float], objective: float, bound: float, nodes: int) -> None:
        """Send the incumbent: it stays the caller's when this process dies."""
        orders = extract_schedule(self._model, values).orders
        text = self._line(objective, bound, nodes)
        if self._expected is not None:
            text += ", start accepted" if abs(objective - self._expected) < _MARGIN else ", start not taken"
            self._expected = None
        self._link.tell(News(text=text, orders=orders))

    def progress(self, objective: float, bound: float, nodes: int) -> None:
        """Send how far the search is, not too often."""
        if time.monotonic() - self._told >= _NEWS_EVERY_S:
            before, text = self._last, self._line(objective, bound, nodes)
            if text != before:
                self._link.tell(News(text=text))

    def _line(self, objective: float, bound: float, nodes: int) -> str:
        self._told = time.monotonic()
        parts = []
        if isfinite(objective):
            parts.append(f"{self._model.objective} {objective * self._to_ms:.6g} ms")
        if isfinite(bound):
            parts.append(f"bound {bound * self._to_ms:.6g} ms")
        if isfinite(objective) and isfinite(bound) and objective > 0:
            parts.append(f"gap {max(0.0, 1 - bound / objective):.1%}")
        self._last = "milp: " + ", ".join([*parts, f"{nodes} nodes"])
        return self._last
