"""HiGHS through PuLP: options that are checked, a start that is used, a status that is read from the solver itself.

PuLP alone drops unknown options, drops a start, calls a time limit optimal and fills the variables with zeros when
there is no solution; so its HiGHS class is subclassed and nothing of its status is believed. The solver runs in a
thread of its own: Ctrl-C reaches the caller at once, and a solver that ignores its time limit is left behind.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cpipe.solve.milp.silence import silenced

__all__ = ["Limits", "RawOutcome", "run_solver", "solver_problem"]

_NEEDED = {"pulp": (3, 3), "highspy": (1, 16)}
_GRACE_S = 5.0
_POLL_S = 0.1


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
        Its model status in snake case (``optimal``, ``time_limit``, ``node_limit``, ...), or ``not_answering``
        when it went on past its time limit and was left behind.
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


def solver_problem() -> str | None:
    """Return None when PuLP and HiGHS can be used, otherwise one line that says why not and what to install."""
    command = "pip install 'pulp>=3.3,<4' 'highspy>=1.16,<2'"
    for name, least in _NEEDED.items():
        try:
            found = _version(name)
        except ImportError:
            return f"{name} is not installed: {command}"
        if found < least:
            wanted, got = (".".join(map(str, version)) for version in (least, found))
            return f"{name} {got} is too old, {wanted} or later is needed: {command}"
    return None


def _version(name: str) -> tuple[int, ...]:
    from importlib import import_module, metadata

    import_module(name)
    numbers = re.findall(r"\d+", metadata.version(name))
    return tuple(map(int, numbers[:2]))


class _Session:
    """State that the solver's thread and the caller's share."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.late = False
        self.stop = threading.Event()
        self.done = threading.Event()
        self.outcome: RawOutcome | None = None
        self.error: BaseException | None = None

    def interrupt(self, event: Any) -> None:
        """Answer HiGHS, which asks again and again whether it may go on."""
        self.late |= self.deadline is not None and time.monotonic() > self.deadline
        if self.late or self.stop.is_set():
            event.data_in.user_interrupt = True


def run_solver(
    lp: Any,
    columns: Sequence[Any],
    start: Sequence[float] | None,
    limits: Limits,
    on_incumbent: Callable[[float, float], None] | None = None,
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
    on_incumbent
        Called with objective and dual bound of each improvement, from the solver's thread.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C, after the solver has been told to stop.
    """
    deadline = None if limits.time_limit is None else time.monotonic() + limits.time_limit
    session = _Session(deadline)

    def work() -> None:
        try:
            session.outcome = _solve(lp, columns, start, limits, session, on_incumbent)
        except BaseException as error:  # handed to the caller's thread, whatever it is
            session.error = error
        finally:
            session.done.set()

    with silenced():
        try:  # around the start as well: an interrupt may come while it waits for the thread
            threading.Thread(target=work, name="highs", daemon=True).start()
            _wait(session, limits.time_limit)
        except KeyboardInterrupt:
            session.stop.set()
            session.done.wait(_GRACE_S)
            raise
    if session.error is not None:
        raise session.error
    return session.outcome or RawOutcome("not_answering", None, float("-inf"), 0, False)


def _wait(session: _Session, time_limit: float | None) -> None:
    """Wait for the solver, at most twice its time limit; then leave it behind."""
    latest = None if time_limit is None else time.monotonic() + 2 * time_limit + _GRACE_S
    while not session.done.wait(_POLL_S):  # short waits let signals in
        if latest is not None and time.monotonic() > latest:
            session.stop.set()
            return


def _solve(
    lp: Any,
    columns: Sequence[Any],
    start: Sequence[float] | None,
    limits: Limits,
    session: _Session,
    on_incumbent: Callable[[float, float], None] | None,
) -> RawOutcome:
    import pulp

    accepted = False

    class Highs(pulp.HiGHS):  # type: ignore[misc]
        """PuLP's HiGHS with what it leaves out."""

        def callSolver(self, lp: Any) -> None:
            """Set checked options, start and callbacks, then run."""
            nonlocal accepted
            model = lp.solverModel
            _set_options(model, limits)
            accepted = start is not None and _set_start(model, columns, start)
            model.cbMipInterrupt.subscribe(session.interrupt)
            if on_incumbent is not None:
                model.cbMipImprovingSolution.subscribe(
                    lambda event: on_incumbent(event.data_out.objective_function_value, event.data_out.mip_dual_bound)
                )
            model.run()

        def findSolutionValues(self, lp: Any) -> tuple[int, int]:
            """Fill nothing and claim nothing: `_read` looks at the solver itself."""
            return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound

    Highs(msg=False).actualSolve(lp)
    outcome = _read(lp.solverModel, columns, accepted)
    # HiGHS looks at its own time limit less often than it asks whether to go on
    return outcome._replace(status="time_limit") if outcome.status == "interrupt" and session.late else outcome


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
        index = getattr(column, "index", None)  # a variable in no row and not in the objective has none
        if index is not None:
            values[index] = value
    solution = highspy.HighsSolution()
    solution.col_value = values
    return bool(model.setSolution(solution) == highspy.HighsStatus.kOk)


def _read(model: Any, columns: Sequence[Any], accepted: bool) -> RawOutcome:
    info = model.getInfo()
    values = None
    if info.primal_solution_status == 2:  # feasible
        found = list(model.getSolution().col_value)
        values = [found[column.index] if hasattr(column, "index") else 0.0 for column in columns]
    status = _status_name(model.getModelStatus().name)
    integer = any(column.cat == "Integer" for column in columns)
    # without integers it is a linear program, which has no bound of its own but the optimum
    bound = info.mip_dual_bound if integer else info.objective_function_value if status == "optimal" else float("-inf")
    return RawOutcome(
        status=status,
        values=values,
        dual_bound=float(bound),
        nodes=max(0, int(info.mip_node_count)),
        start_accepted=accepted and values is not None,
    )


def _status_name(name: str) -> str:
    if name == "kSolutionLimit":  # also what HiGHS calls its node limit, the only one set here
        return "node_limit"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name.removeprefix("k")).lower()
