"""The exact search: hand the problem to the solver's process, take nothing from it but an order and a bound."""

from __future__ import annotations

from collections.abc import Callable

from cpipe.errors import Diagnostic, NoSolutionError
from cpipe.ir import Bound, InvariantError, Objective, Problem, Schedule, Timeline
from cpipe.sim import DeadlockError, simulate
from cpipe.sim.memory import fits
from cpipe.solve.child import Ended, StopSignal, run_child, warning_of
from cpipe.solve.milp.backend import solver_problem
from cpipe.solve.milp.build import build_network
from cpipe.solve.milp.job import Answer, Job, News
from cpipe.solve.milp.network import split_dominated
from cpipe.solve.milp.outcome import MilpOutcome
from cpipe.solve.milp.precedence import ContradictionError, Precedence

__all__ = ["DEFAULT_NODE_LIMIT", "MAX_BINARIES", "WORKER", "count_binaries", "solve_milp"]

DEFAULT_NODE_LIMIT = 20_000
MAX_BINARIES = 4_000
"""Above this HiGHS has not been seen to move a bound or a start; the model is not even built."""

WORKER = "cpipe.solve.milp.worker:work"
"""What the solver's process runs."""

_MAX_COUNTED_OPS = 800

Say = Callable[[str], None]


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
        The exact number when the makespan is minimised, about as many for the span; for problems of more than 800
        compute ops an estimate from above, in no time.
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
    objective: Objective = "makespan",
    node_limit: int = DEFAULT_NODE_LIMIT,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Say | None = None,
    max_binaries: int = MAX_BINARIES,
    families: tuple[str, ...] | None = None,
    stop: StopSignal | None = None,
) -> MilpOutcome:
    """Search for the shortest schedule with a mixed-integer program.

    Parameters
    ----------
    problem
        The problem.
    warm_start
        A schedule that can finish; its replayed objective is the upper bound of the model if it fits memory.
    lower_bound
        A proven bound on the objective; the search stops as soon as it is met.
    objective
        What to minimise.
    node_limit
        Counted work after which the search stops; the same on every machine.
    time_limit
        Seconds after which it stops, or None; results then depend on the machine.
    seed
        Of the solver.
    progress
        Receives one line about the size of the model, one per improvement, and one now and then.
    max_binaries
        Do not build a larger model.
    families
        Constraint families to state; see `cpipe.solve.milp.model.FAMILIES`.
    stop
        Polled; once it is requested the best so far comes back.

    Returns
    -------
    MilpOutcome
        Its order is at least as good as `warm_start` in the simulator, whatever happens to the solver.

    Raises
    ------
    NoSolutionError
        When the solver is not installed (code ``solver-missing``).
    KeyboardInterrupt
        On Ctrl-C, where nobody handles it; the solver's process is dead by then.
    """
    reason = solver_problem()
    if reason is not None:
        raise NoSolutionError(reason, code="solver-missing", hint="other methods need no solver")
    search = _Search(
        problem, split_dominated(problem, warm_start), lower_bound, objective, progress or (lambda _: None)
    )
    if search.is_met:
        return search.outcome("not_run")
    if not problem.is_plain:  # the model is another problem's: neither its orders nor its bounds would mean anything
        return search.does_not_apply()
    if _num_ops(problem) > _MAX_COUNTED_OPS:
        return search.too_large(count_binaries(problem, search.upper_ns), max_binaries)
    job = Job(
        problem=problem,
        start=search.start.orders,
        start_fits=search.start_fits,
        objective=objective,
        lower_bound_ns=lower_bound.value_ns,
        node_limit=node_limit,
        time_limit=time_limit,
        seed=seed,
        max_binaries=max_binaries,
        families=families,
    )
    ended = run_child(WORKER, job, Answer, event_type=News, on_event=search.hear, time_limit=time_limit, stop=stop)
    return search.judge(ended, max_binaries)


def _num_ops(problem: Problem) -> int:
    return sum(problem.microbatches * (3 if stage.can_split else 2) for stage in problem.stages)


class _Search:
    """The caller's side of one search: its incumbent, replayed, and what it believes of the answer."""

    def __init__(self, problem: Problem, start: Schedule, lower_bound: Bound, objective: Objective, say: Say) -> None:
        self.problem, self.start = problem, start
        self._bound, self._objective, self._say = lower_bound, objective, say
        self.upper_ns = self._value(simulate(problem, start))
        self.start_fits = fits(problem, start.orders)
        self.best = (self.upper_ns, start) if self.start_fits else None
        self.warnings: list[Diagnostic] = []

    @property
    def is_met(self) -> bool:
        """Whether the start is as good as anything can be."""
        return self.best is not None and self.best[0] <= self._bound.value_ns

    def hear(self, news: News) -> None:
        """Pass a line on, and keep an incumbent: it must survive the solver's process."""
        self._say(news.text)
        if news.orders is not None:
            self._offer(Schedule(orders=news.orders))

    def judge(self, ended: Ended[Answer], max_binaries: int) -> MilpOutcome:
        """Turn what the process left into an order that was replayed and a bound that holds."""
        warning = warning_of(ended, "HiGHS")
        if warning is not None:
            self.warnings.append(warning)
        answer = ended.reply
        if answer is None:
            return self.outcome(ended.how)
        if answer.status == "too_large":
            return self.too_large(answer.binaries, max_binaries)
        if self.start_fits and not answer.start_accepted and answer.status != "infeasible":
            self._warn("start-refused", "HiGHS did not take the warm start")
        if answer.orders is not None:
            self._offer(Schedule(orders=answer.orders))
        bound = self._believed(answer.dual_bound_ns, self._believed(answer.bound_ns, self._bound.value_ns))
        return self.outcome(answer.status, bound, answer)

    def does_not_apply(self) -> MilpOutcome:
        """Return the start untouched: the model would leave out what may be best."""
        self._warn("milp-does-not-apply", "the MILP has neither fused pairs nor several flows; it was left out")
        return self.outcome("not_run")

    def too_large(self, binaries: int, most: int) -> MilpOutcome:
        """Return the start untouched: the model is too large to be built, let alone solved."""
        self._say(f"milp: {binaries} binaries are too many (at most {most})")
        self._warn("milp-too-large", f"the model would have {binaries} binaries, at most {most}")
        return self.outcome("too_large", answer=Answer(status="too_large", binaries=binaries))

    def outcome(self, status: str, bound_ns: int | None = None, answer: Answer | None = None) -> MilpOutcome:
        """Return the best order and the given bound, or the one known before."""
        answer = answer or Answer(status=status)
        return MilpOutcome(
            schedule=self.best[1] if self.best else None,
            dual_bound_ns=self._bound.value_ns if bound_ns is None else bound_ns,
            solver_status=status,
            nodes=answer.nodes,
            binaries=answer.binaries,
            warm_start_accepted=answer.start_accepted,
            warnings=tuple(self.warnings),
        )

    def _offer(self, schedule: Schedule) -> None:
        """Keep a schedule of the solver's that is complete, fits, finishes and is shorter."""
        try:
            schedule.verify(self.problem)
            value = self._value(simulate(self.problem, schedule))
        except (InvariantError, DeadlockError, ValueError, IndexError) as error:
            self._warn("order-refuted", f"HiGHS's order cannot be run and is not used: {error}")
            return
        if not fits(self.problem, schedule.orders):
            self._warn("order-refuted", "HiGHS's order does not fit in memory and is not used")
        elif self.best is None or value < self.best[0]:
            self.best = value, schedule

    def _believed(self, claimed_ns: int, bound_ns: int) -> int:
        """Return the better bound; a claim that a replay refutes is none."""
        if self.best is None or claimed_ns <= self.best[0]:
            return max(claimed_ns, bound_ns)
        message = f"HiGHS claimed that nothing is shorter than {claimed_ns} ns, but an order of {self.best[0]} ns"
        self._warn("bound-refuted", f"{message} was replayed; its bound is not used")
        return bound_ns

    def _value(self, timeline: Timeline) -> int:
        return timeline.makespan_ns if self._objective == "makespan" else timeline.span_ns

    def _warn(self, code: str, message: str) -> None:
        self.warnings.append(Diagnostic(code=code, message=message, severity="warning"))
