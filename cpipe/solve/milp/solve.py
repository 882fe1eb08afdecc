"""The exact search: reduce, state, solve, and take nothing from the solver but an order and a bound."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite

from cpipe.errors import Diagnostic, NoSolutionError
from cpipe.ir import Bound, Problem, Schedule
from cpipe.sim import DeadlockError, simulate
from cpipe.sim.memory import fits
from cpipe.solve.milp.backend import Limits, RawOutcome, run_solver, solver_problem
from cpipe.solve.milp.build import build_network
from cpipe.solve.milp.model import Model
from cpipe.solve.milp.network import split_dominated
from cpipe.solve.milp.onemachine import resource_bound
from cpipe.solve.milp.orders import extract_schedule, start_vector
from cpipe.solve.milp.outcome import MilpOutcome
from cpipe.solve.milp.precedence import ContradictionError, Precedence

__all__ = ["DEFAULT_NODE_LIMIT", "MAX_BINARIES", "count_binaries", "solve_milp"]

DEFAULT_NODE_LIMIT = 20_000
MAX_BINARIES = 4_000
"""Above this HiGHS has not been seen to move a bound or a start; the model is not even built."""

_MAX_COUNTED_OPS = 800
_MARGIN = 0.05
"""Trust in the solver's bound [model time]: 5e-8 of the longest horizon."""
_START_SLIP = 1e-6


def count_binaries(problem: Problem, upper_bound_ns: int) -> int:
    """Return how many binary variables the model of a problem would have, to decide whether to build it.

    Parameters
    ----------
    problem
        The problem.
    upper_bound_ns
        Makespan of a known schedule [ns].

    Returns
    -------
    int
        The exact number; for problems of more than 800 compute ops an estimate from above, in no time.
    """
    if _num_ops(problem) > _MAX_COUNTED_OPS:
        counts = [0] * problem.num_devices
        for stage in problem.stages:
            counts[stage.device] += problem.microbatches * (3 if stage.can_split else 2)
        return sum(count * (count - 1) // 2 for count in counts)
    network = build_network(problem)
    try:
        return Precedence(network, upper_bound_ns // network.unit_ns).num_binaries()
    except ContradictionError:
        return 0


def solve_milp(
    problem: Problem,
    warm_start: Schedule,
    *,
    lower_bound: Bound,
    node_limit: int = DEFAULT_NODE_LIMIT,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    max_binaries: int = MAX_BINARIES,
    families: tuple[str, ...] | None = None,
) -> MilpOutcome:
    """Search for the shortest schedule with a mixed-integer program.

    Parameters
    ----------
    problem
        The problem.
    warm_start
        A schedule that can finish; its replayed makespan is the upper bound of the model if it fits memory.
    lower_bound
        A proven bound; the search stops as soon as it is met.
    node_limit
        Counted work after which the search stops; the same on every machine.
    time_limit
        Seconds after which it stops, or None; results then depend on the machine.
    seed
        Of the solver.
    progress
        Receives one line about the size of the model and one per improvement.
    max_binaries
        Do not build a larger model.
    families
        Constraint families to state; see `cpipe.solve.milp.model.FAMILIES`.

    Returns
    -------
    MilpOutcome
        Its order is at least as good as `warm_start` in the simulator.

    Raises
    ------
    NoSolutionError
        When the solver is not installed (code ``solver-missing``).
    KeyboardInterrupt
        On Ctrl-C.
    """
    reason = solver_problem()
    if reason is not None:
        raise NoSolutionError(reason, code="solver-missing", hint="other methods need no solver")
    say = progress or (lambda line: None)
    network = build_network(problem)
    start = split_dominated(problem, warm_start)
    usable = fits(problem, start.orders)
    timeline = simulate(problem, start)
    if usable and timeline.makespan_ns <= lower_bound.value_ns:
        return MilpOutcome(schedule=start, dual_bound_ns=lower_bound.value_ns, solver_status="not_run")
    kept = start if usable else None
    if _num_ops(problem) > _MAX_COUNTED_OPS:
        return _too_large(kept, lower_bound, count_binaries(problem, timeline.makespan_ns), max_binaries, say)
    # an order that does not fit bounds nothing: fall back on what no best schedule exceeds
    upper = timeline.makespan_ns // network.unit_ns if usable else network.serial_length()
    lower = -(-lower_bound.value_ns // network.unit_ns)
    given = MilpOutcome(schedule=kept, dual_bound_ns=lower_bound.value_ns, solver_status="infeasible")
    try:
        precedence = Precedence(network, upper)
    except ContradictionError:
        return given
    binaries = precedence.num_binaries()
    if binaries > max_binaries:
        return _too_large(kept, lower_bound, binaries, max_binaries, say)
    lower = max(lower, resource_bound(precedence))
    model = Model(network, precedence, lower, families)
    say(f"milp: {binaries} binaries, {model.num_rows} rows")
    limits = _limits(model, node_limit, time_limit, seed)
    vector = start_vector(model, start, timeline) if usable else None
    if vector is not None and model.violation(vector) > _START_SLIP:
        vector = None
    raw = run_solver(model.lp, model.columns, vector, limits, _reporter(say, model))
    return _judge(problem, model, raw, kept, lower_bound)


def _num_ops(problem: Problem) -> int:
    return sum(problem.microbatches * (3 if stage.can_split else 2) for stage in problem.stages)


def _too_large(
    kept: Schedule | None, lower_bound: Bound, binaries: int, most: int, say: Callable[[str], None]
) -> MilpOutcome:
    """Return the start untouched: the model is too large to be built, let alone solved."""
    say(f"milp: {binaries} binaries are too many (at most {most})")
    warning = _warning("milp-too-large", f"the model would have {binaries} binaries, at most {most}")
    return MilpOutcome(
        schedule=kept,
        dual_bound_ns=lower_bound.value_ns,
        solver_status="too_large",
        binaries=binaries,
        warnings=(warning,),
    )


def _limits(model: Model, node_limit: int, time_limit: float | None, seed: int) -> Limits:
    """Stop within one unit of the bound, as makespans are whole units; keep big-M slips well below one."""
    gap = max(0.9 / model.scale - _MARGIN, 0.01)
    horizon = max(1.0, model.precedence.upper_bound / model.scale)
    return Limits(node_limit, time_limit, gap, seed, min(1e-6, max(1e-9, 1e-2 / horizon)))


def _reporter(say: Callable[[str], None], model: Model) -> Callable[[float, float], None]:
    to_ms = model.scale * model.network.unit_ns / 1e6

    def report(objective: float, bound: float) -> None:
        below = f", bound {bound * to_ms:.6g} ms" if isfinite(bound) else ""
        say(f"milp: makespan {objective * to_ms:.6g} ms{below}")

    return report


def _judge(
    problem: Problem,
    model: Model,
    raw: RawOutcome,
    kept: Schedule | None,
    lower_bound: Bound,
) -> MilpOutcome:
    """Turn the solver's answer into an order that was replayed and a bound that holds."""
    warnings = []
    found = _replayed(problem, extract_schedule(model, raw.values)) if raw.values is not None else None
    best = min((item for item in (_replayed(problem, kept), found) if item is not None), default=None, key=_makespan)
    if kept is not None and not raw.start_accepted and raw.status != "not_answering":
        warnings.append(_warning("start-refused", "HiGHS did not take the warm start"))
    if raw.status == "not_answering":
        warnings.append(_warning("solver-not-answering", "HiGHS ignored its time limit and was left behind"))
    bound = max(model.lower_bound * model.network.unit_ns, lower_bound.value_ns)
    claimed = _bound_ns(raw.dual_bound, model)
    if best is not None and claimed > best[0]:
        message = f"HiGHS claimed that nothing is shorter than {claimed} ns, but an order of {best[0]} ns was replayed"
        warnings.append(_warning("bound-refuted", f"{message}; its bound is not used"))
    else:
        bound = max(bound, claimed)
    return MilpOutcome(
        schedule=best[1] if best else None,
        dual_bound_ns=bound,
        solver_status=raw.status,
        nodes=raw.nodes,
        binaries=model.num_binaries,
        warm_start_accepted=raw.start_accepted,
        warnings=tuple(warnings),
    )


def _bound_ns(dual_bound: float, model: Model) -> int:
    """Return the solver's bound [ns]: less a margin for its arithmetic, then up to the next whole unit.

    Every makespan is a whole number of units, so rounding up is safe once the margin is taken off.
    """
    if not isfinite(dual_bound):
        return 0
    return ceil((dual_bound - _MARGIN) * model.scale) * model.network.unit_ns


def _replayed(problem: Problem, schedule: Schedule | None) -> tuple[int, Schedule] | None:
    """Return makespan and schedule when it finishes within memory."""
    if schedule is None or not fits(problem, schedule.orders):
        return None
    try:
        return simulate(problem, schedule).makespan_ns, schedule
    except DeadlockError:
        return None


def _makespan(item: tuple[int, Schedule]) -> int:
    return item[0]


def _warning(code: str, message: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, severity="warning")
