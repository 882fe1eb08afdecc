"""CP-SAT itself: whether it can be used, its parameters, one run.

Everything that could make a run depend on the machine is fixed: one worker whatever the cores, the seed, and the work
in CP-SAT's own deterministic time. Only a time limit of the user's adds a clock. One worker also does more with its
time than many that take turns: no large neighbourhoods are searched, which have not been seen to help here.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["INSTALL", "Limits", "RawOutcome", "run_solver", "solver_problem"]

INSTALL = "pip install 'cpipe[cpsat]'"

_LEAST, _BELOW = (9, 15), (9, 16)
_POLL_S = 0.05


class Limits(NamedTuple):
    """How to run: deterministic time, optionally seconds; the seed; the gap that is enough; whether to go by cores.

    With cores the search assumes the objective at its bound and learns why that cannot be: it proves, but finds better
    solutions only by chance, where the search for better solutions leaves the bound where it was.
    """

    work: float
    time_limit: float | None
    seed: int
    max_gap: float = 0.0
    by_cores: bool = False


class RawOutcome(NamedTuple):
    """What CP-SAT said.

    Attributes
    ----------
    status
        Its status in lower case (``optimal``, ``feasible``, ``infeasible``, ``unknown``, ``model_invalid``).
    value
        Value of a variable or expression of the best solution, or None without one.
    bound
        Bound on the objective, or None when there is none.
    work
        Deterministic time spent.
    """

    status: str
    value: Callable[[Any], int] | None
    bound: float | None
    work: float


def solver_problem() -> str | None:
    """Return None when OR-Tools seems usable, otherwise one line that says why not and what to install.

    Its version is read without importing it: that takes long, and is left to the solver's process.
    """
    from importlib import metadata, util

    try:
        found = metadata.version("ortools") if util.find_spec("ortools") is not None else None
    except (metadata.PackageNotFoundError, ValueError):
        found = None
    if found is None:
        return f"OR-Tools is not installed: {INSTALL}"
    version = tuple(map(int, re.findall(r"\d+", found)[:2]))
    if _LEAST <= version < _BELOW:
        return None
    least, below = (".".join(map(str, numbers)) for numbers in (_LEAST, _BELOW))
    return f"OR-Tools {found} does not fit, {least} or later but below {below} is needed: {INSTALL}"


def run_solver(
    model: Any,
    limits: Limits,
    on_solution: Callable[[Callable[[Any], int], float, float], None],
    on_bound: Callable[[float], None],
    stopped: Callable[[], bool],
) -> RawOutcome:
    """Solve a `CpModel`.

    Parameters
    ----------
    model
        The model, with its hints.
    limits
        What ends the run. Without `time_limit` nothing depends on a clock.
    on_solution
        Called with values, objective and bound of each improvement, from a thread of the solver.
    on_bound
        Called with each better bound, from a thread of the solver.
    stopped
        Polled; the run ends soon after it returns True.
    """
    from ortools.sat.python import cp_model

    class Told(cp_model.CpSolverSolutionCallback):
        """Passes improvements on."""

        def on_solution_callback(self) -> None:
            """Tell of a better solution."""
            on_solution(self.value, self.objective_value, self.best_objective_bound)

    solver = cp_model.CpSolver()
    _set_parameters(solver.parameters, limits)
    solver.best_bound_callback = on_bound
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(solver, stopped, done), daemon=True)
    watch.start()
    try:
        status = solver.solve(model, Told())
    finally:
        done.set()
        watch.join()
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bounded = found or status == cp_model.UNKNOWN
    return RawOutcome(
        status=solver.status_name(status).lower(),
        value=solver.value if found else None,
        bound=solver.best_objective_bound if bounded else None,
        work=solver.deterministic_time,
    )


def _set_parameters(parameters: Any, limits: Limits) -> None:
    parameters.num_workers = 1
    parameters.optimize_with_core = limits.by_cores
    if limits.by_cores:
        parameters.linearization_level = 0
    parameters.random_seed = limits.seed
    parameters.max_deterministic_time = limits.work
    parameters.relative_gap_limit = limits.max_gap
    parameters.catch_sigint_signal = False
    parameters.log_search_progress = False
    if limits.time_limit is not None:
        parameters.max_time_in_seconds = limits.time_limit


def _watch(solver: Any, stopped: Callable[[], bool], done: threading.Event) -> None:
    """Stop the solver when that is wished; again and again, as a wish before its start is lost."""
    while not done.wait(_POLL_S):
        if stopped():
            solver.stop_search()
            time.sleep(_POLL_S)
