"""HiGHS through PuLP: options that are checked, a start that is used, a status that is read from the solver itself.

PuLP alone drops unknown options, drops a start, calls a time limit optimal and fills the variables with zeros when
there is no solution; so its HiGHS class is subclassed and nothing of its status is believed. It runs in a process of
its own (`cpipe.solve.child`), which keeps what it prints, its memory and its crashes to itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

__all__ = ["Limits", "Listener", "RawOutcome", "run_solver", "solver_problem"]

_NEEDED = {"pulp": (3, 3), "highspy": (1, 16)}
_FEASIBLE = 2  # HiGHS's SolutionStatus


class Limits(NamedTuple):
    """What ends a run: counted nodes, optionally seconds, and an absolute gap [model time]."""

    nodes: int
    time_limit: float | None
    absolute_gap: float
    seed: int
    tolerance: float


class RawOutcome(NamedTuple):
    """What HiGHS said.

    Attributes
    ----------
    status
        Its model status in snake case (``optimal``, ``time_limit``, ``node_limit``, ``interrupt``, ...).
    values
        Value of each column, or None without an incumbent.
    dual_bound
        Bound on the objective; -inf when there is none.
    nodes
        Branch and bound nodes.
    start_accepted
        Whether the start vector became the first incumbent.
    """

    status: str
    values: list[float] | None
    dual_bound: float
    nodes: int
    start_accepted: bool


class Listener:
    """Hears how a run goes; called from the solver, so it should be quick."""

    def incumbent(self, values: list[float], objective: float, bound: float, nodes: int) -> None:
        """Hear of a better solution: the value of each column, its objective, the bound, the nodes so far."""

    def progress(self, objective: float, bound: float, nodes: int) -> None:
        """Hear now and then how far it is; inf and -inf where there is no solution and no bound."""


def solver_problem() -> str | None:
    """Return None when PuLP and HiGHS are there, otherwise one line that says why not and what to install.

    Neither is imported: that takes longer than many a search.
    """
    command = "pip install 'pulp>=3.3,<4' 'highspy>=1.16,<2'"
    for name, least in _NEEDED.items():
        try:
            found = _version(name)
        except (ImportError, ValueError):
            return f"{name} is not installed: {command}"
        if found < least:
            wanted, got = (".".join(map(str, version)) for version in (least, found))
            return f"{name} {got} is too old, {wanted} or later is needed: {command}"
    return None


def _version(name: str) -> tuple[int, ...]:
    if find_spec(name) is None:
        raise ModuleNotFoundError(name)
    numbers = re.findall(r"\d+", metadata.version(name))
    return tuple(map(int, numbers[:2]))


def run_solver(
    lp: Any,
    columns: Sequence[Any],
    start: Sequence[float] | None,
    limits: Limits,
    listener: Listener | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RawOutcome:
    """Solve a PuLP problem with HiGHS, one thread, fixed seed.

    Parameters
    ----------
    lp
        The `pulp.LpProblem`.
    columns
        Its variables; `start` and the values returned follow this order.
    start
        A full vector that satisfies every row, or None.
    limits
        What ends the run. Without `time_limit` nothing depends on a clock.
    listener
        Hears of improvements and progress.
    stopped
        Asked again and again; True ends the run with what there is.
    """
    import pulp

    session = _Session(columns, limits, listener, stopped)

    class Highs(pulp.HiGHS):  # type: ignore[misc]
        """PuLP's HiGHS with what it leaves out."""

        def callSolver(self, lp: Any) -> None:
            """Set checked options, start and callbacks, then run."""
            session.run(lp.solverModel, start)

        def findSolutionValues(self, lp: Any) -> tuple[int, int]:
            """Fill nothing and claim nothing: `_Session.read` looks at the solver itself."""
            return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound

    Highs(msg=False).actualSolve(lp)
    return session.read(lp.solverModel)


class _Session:
    """One run: what it may spend, who hears of it, and how it is read afterwards."""

    def __init__(
        self, columns: Sequence[Any], limits: Limits, listener: Listener | None, stopped: Callable[[], bool]
    ) -> None:
        self._columns, self._limits, self._listener, self._stopped = columns, limits, listener, stopped
        self._deadline = None if limits.time_limit is None else time.monotonic() + limits.time_limit
        self._late = False
        self._accepted = False

    def run(self, model: Any, start: Sequence[float] | None) -> None:
        """Run HiGHS on its model."""
        _set_options(model, self._limits)
        self._accepted = start is not None and _set_start(model, self._columns, start)
        model.cbMipInterrupt.subscribe(self.interrupt)
        if self._listener is not None:
            model.cbMipImprovingSolution.subscribe(self._improved)
            model.cbMipLogging.subscribe(self._logged)
        model.run()

    def interrupt(self, event: Any) -> None:
        """Answer HiGHS, which asks again and again whether it may go on."""
        # it looks at its own time limit less often than it asks
        self._late |= self._deadline is not None and time.monotonic() > self._deadline
        if self._late or self._stopped():
            event.data_in.user_interrupt = True

    def _improved(self, event: Any) -> None:
        assert self._listener is not None
        data = event.data_out
        found = list(data.mip_solution)
        self._listener.incumbent(
            _in_order(self._columns, found), data.objective_function_value, data.mip_dual_bound, _nodes(data)
        )

    def _logged(self, event: Any) -> None:
        assert self._listener is not None
        data = event.data_out
        self._listener.progress(data.mip_primal_bound, data.mip_dual_bound, _nodes(data))

    def read(self, model: Any) -> RawOutcome:
        """Return what HiGHS knows after a run."""
        info = model.getInfo()
        values = None
        if info.primal_solution_status == _FEASIBLE:
            values = _in_order(self._columns, list(model.getSolution().col_value))
        status = _status_name(model.getModelStatus().name)
        integer = any(column.cat == "Integer" for column in self._columns)
        # without integers it is a linear program, which has no bound of its own but the optimum
        bound = float("-inf")
        if integer:
            bound = info.mip_dual_bound
        elif status == "optimal":
            bound = info.objective_function_value
        return RawOutcome(
            status="time_limit" if status == "interrupt" and self._late else status,
            values=values,
            dual_bound=float(bound),
            nodes=_nodes(info),
            start_accepted=self._accepted and values is not None,
        )


def _nodes(data: Any) -> int:
    return max(0, int(data.mip_node_count))


def _in_order(columns: Sequence[Any], found: Sequence[float]) -> list[float]:
    """Return HiGHS's values in the order of `columns`; one in no row and not in the objective has none."""
    return [found[column.index] if hasattr(column, "index") else 0.0 for column in columns]


def _set_options(model: Any, limits: Limits) -> None:
    import highspy

    options: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "random_seed": limits.seed,
        "mip_max_nodes": limits.nodes,
        "mip_abs_gap": limits.absolute_gap,
        "mip_rel_gap": 0.0,
        "mip_feasibility_tolerance": limits.tolerance,
    }
    if limits.time_limit is not None:
        options["time_limit"] = float(limits.time_limit)
    for name, value in options.items():
        if model.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise RuntimeError(f"HiGHS refuses option {name} = {value}")


def _set_start(model: Any, columns: Sequence[Any], start: Sequence[float]) -> bool:
    """Give HiGHS the start vector, its first incumbent if feasible; return whether it was taken."""
    import highspy

    values = [0.0] * model.getNumCol()
    for column, value in zip(columns, start, strict=True):
        index = getattr(column, "index", None)
        if index is not None:
            values[index] = value
    solution = highspy.HighsSolution()
    solution.col_value = values
    return bool(model.setSolution(solution) == highspy.HighsStatus.kOk)


def _status_name(name: str) -> str:
    if name == "kSolutionLimit":  # also what HiGHS calls its node limit, the only one set here
        return "node_limit"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name.removeprefix("k")).lower()
