"""The CP-SAT search: send the problem to the solver's process, and take nothing from it but an order and a bound."""

from __future__ import annotations

from collections.abc import Callable

from cpipe.errors import Diagnostic
from cpipe.ir import Bound, Objective, Problem, Schedule
from cpipe.ir.base import InvariantError
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve.child import Ended, StopSignal, run_child, warning_of
from cpipe.solve.cpsat.job import Answer, Job, News, Orders
from cpipe.solve.cpsat.outcome import CpsatOutcome
from cpipe.solve.milp.network import split_dominated

__all__ = ["MAX_OPS", "solve_cpsat"]

MAX_OPS = 4_000
"""Above this the reductions alone take minutes; the model is not built."""

_ENTRY = "cpipe.solve.cpsat.worker:work"


def solve_cpsat(
    problem: Problem,
    warm_start: Schedule,
    *,
    lower_bound: Bound,
    work_limit: float,
    time_limit: float | None = None,
    seed: int = 0,
    max_gap: float = 0.0,
    objective: Objective = "makespan",
    progress: Callable[[str], None] | None = None,
    stop: StopSignal | None = None,
) -> CpsatOutcome:
    """Search for the best schedule with CP-SAT, in a process of its own.

    Parameters
    ----------
    problem
        The problem.
    warm_start
        A schedule that can finish, given as a hint; its replay is the upper bound of the model if it fits memory.
    lower_bound
        A proven bound on the objective; the search stops as soon as it is met.
    work_limit
        Deterministic time after which the search stops, CP-SAT's own unit; the same on every machine.
    time_limit
        Seconds after which it stops, or None; results then depend on the machine.
    seed
        Of the solver.
    max_gap
        Stop within this share of the bound.
    objective
        What to minimise.
    progress
        Receives a line about the size of the model, and one per improvement of the incumbent or the bound.
    stop
        Polled: once it is requested, the best so far is returned.

    Returns
    -------
    CpsatOutcome
        Its order is at least as good as `warm_start` in the simulator.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C, unless `stop` stands for it.
    """
    say = progress or (lambda line: None)
    search = _Search(problem, lower_bound, objective)
    start = split_dominated(problem, warm_start)
    if not search.offer(start.orders):
        search.offer(warm_start.orders)
    status = search.idle_status()
    if status is not None:
        return search.outcome(status)
    job = Job(
        problem=problem,
        start=start.orders,
        start_fits=fits(problem, start.orders),
        objective=objective,
        lower_bound_ns=lower_bound.value_ns,
        work_limit=work_limit,
        time_limit=time_limit,
        seed=seed,
        max_gap=max_gap,
    )

    def hear(news: News) -> None:
        if news.orders is not None:
            search.offer(news.orders)
        say(news.text)

    ended = run_child(_ENTRY, job, Answer, event_type=News, on_event=hear, time_limit=time_limit, stop=stop)
    return search.judge(ended)


class _Search:
    """The incumbent, the bound, and what was said about them."""

    def __init__(self, problem: Problem, lower_bound: Bound, objective: Objective) -> None:
        self._problem, self._simulator = problem, Simulator(problem, objective)
        self._bound = lower_bound.value_ns
        self._best: tuple[int, Schedule] | None = None
        self._warnings: list[Diagnostic] = []

    def offer(self, orders: Orders) -> bool:
        """Keep orders that are whole, fit, finish and are better; return whether they are at least sound."""
        schedule = Schedule(orders=orders)
        try:
            schedule.verify(self._problem)
        except (InvariantError, IndexError, ValueError):
            return False
        if not fits(self._problem, orders):
            return False
        value = self._simulator.value(orders)
        if value is None:
            return False
        if self._best is None or value < self._best[0]:
            self._best = (value, schedule)
        return True

    def idle_status(self) -> str | None:
        """Return why there is nothing to search for, or None."""
        if self._best is not None and self._best[0] <= self._bound:
            return "not_run"
        num_ops = sum(self._problem.microbatches * (3 if stage.can_split else 2) for stage in self._problem.stages)
        if not self._problem.is_plain:  # the model has neither several flows nor fused pairs: its bounds would be wrong
            return "does_not_apply"
        return "too_large" if num_ops > MAX_OPS else None

    def judge(self, ended: Ended[Answer]) -> CpsatOutcome:
        """Turn what the solver's process answered into an order that was replayed and a bound that holds."""
        answer = ended.reply
        warning = warning_of(ended, "CP-SAT")
        if warning is not None:
            self._warnings.append(warning)
        if answer is None:
            return self.outcome("interrupt" if ended.how == "stopped" else ended.how)
        if answer.orders is not None and not self.offer(answer.orders):
            self._warn("solution-refuted", "CP-SAT gave an order that does not fit or cannot finish; it is not used")
        if answer.status == "model_invalid":
            self._warn("solver-failed", "CP-SAT refused the model as invalid; the best order known without it is used")
        for claimed in (answer.bound_ns, answer.dual_bound_ns):
            if self._best is not None and claimed > self._best[0]:
                message = f"CP-SAT claimed that nothing is below {claimed} ns, but an order of {self._best[0]} ns was "
                self._warn("bound-refuted", message + "replayed; its bound is not used")
            else:
                self._bound = max(self._bound, claimed)
        return self.outcome(answer.status, answer)

    def outcome(self, status: str, answer: Answer | None = None) -> CpsatOutcome:
        """Return what is known."""
        return CpsatOutcome(
            schedule=self._best[1] if self._best is not None else None,
            dual_bound_ns=self._bound,
            solver_status=status,
            work=answer.work if answer is not None else 0.0,
            num_booleans=answer.booleans if answer is not None else 0,
            broken=answer.detail if answer is not None and answer.status == "broken" else None,
            warnings=tuple(self._warnings),
        )

    def _warn(self, code: str, message: str) -> None:
        self._warnings.append(Diagnostic(code=code, message=message, severity="warning"))
