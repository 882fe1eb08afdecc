"""One entry for every method: candidates are collected, the shortest replayed order wins, the best bound proves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from cpipe.errors import Diagnostic, InfeasibleError, NoSolutionError, UsageError
from cpipe.ir import Bound, Problem, Schedule, SolveResult
from cpipe.schedules import applicable, static_schedule
from cpipe.sim import Simulator, memory_peaks, simulate
from cpipe.sim.memory import fits, receive_reserve
from cpipe.solve.bounds import lower_bound, span_bound
from cpipe.solve.crosspipe import crosspipe_greedy
from cpipe.solve.family import tune_and_apply
from cpipe.solve.greedy import Knobs
from cpipe.solve.growth import grown
from cpipe.solve.limits import SolveLimits
from cpipe.solve.methods import METHODS, STATIC_METHODS
from cpipe.solve.multistart import MultiStart
from cpipe.solve.refute import tightened_bound
from cpipe.solve.replay import QUEUED_COST
from cpipe.solve.serial import serial_schedule
from cpipe.units import Ns

__all__ = ["solve"]

_FAMILY_WORK = 300_000  # op evaluations of the family: about a second
_SMALL_FAMILY_WORK = 100_000  # where local search does the same faster
_SMALL_OPS = 800
_LARGE_OPS = 2_000  # beyond, an order of fewer microbatches is searched for and made longer, if they are many
_SEARCH_OPS = 40_000  # beyond, one evaluation costs more than local search gains
_AUTO_BINARIES = 600  # MILP size up to which it finds or proves something within its node limit
_AUTO_NODES = 300
_SHAVING_WORK = 450_000  # of `tightened_bound`: up to a second, but only where makespans are coarse
# CP-SAT finds or proves something up to this size within its work. The shipped plans are all of larger problems, so
# their bytes do not depend on whether OR-Tools is installed; a test holds that.
_AUTO_CPSAT_OPS = 200
_AUTO_CPSAT_WORK = 1.5  # CP-SAT's deterministic time: one to two seconds
_ASKED_CPSAT_WORK = 40.0
_ASKED_NODES = 20_000

_EXACT = {"milp": "the MILP", "cpsat": "CP-SAT"}  # methods that need a model of the problem

Progress = Callable[[str], None]


def solve(
    problem: Problem,
    method: str = "auto",
    limits: SolveLimits | None = None,
    progress: Progress | None = None,
    *,
    starts: Sequence[Schedule] = (),
    group_size: int | None = None,
) -> SolveResult:
    """Return the best schedule that `method` finds, with its replay and the best proven bound.

    Parameters
    ----------
    problem
        The problem.
    method
        A key of `cpipe.solve.methods.METHODS`.
    limits
        When to stop.
    progress
        Called with one short line now and then.
    starts
        Orders known from a like problem; those that fit and finish are candidates of the searching methods.
    group_size
        Consecutive microbatches through one stage of a device, of static schedules that run in groups.

    Raises
    ------
    UsageError
        When the method does not exist or has no groups, or a static schedule does not exist for this problem.
    InfeasibleError
        When not even one microbatch at a time fits in memory: proven infeasible.
    NoSolutionError
        When the schedule that was asked for does not fit in memory or cannot run.
    """
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}; known: {', '.join(METHODS)}", code="unknown-method")
    if method in _EXACT and not problem.is_plain:
        raise UsageError(
            f"{_EXACT[method]} has no model of {_beyond(problem)}",
            code="no-exact-model",
            hint="--method auto searches without it",
        )
    if group_size is not None and method not in STATIC_METHODS:
        raise UsageError(f"{method} chooses its order itself: a group size is for interleaved-1f1b", code="group-size")
    limits = limits or SolveLimits()
    limits.verify()
    result = _Solve(problem, method, limits, progress or (lambda line: None)).run(starts, group_size)
    return _with_step(problem, result) if problem.step_ns else result


class _Solve:
    """One call of `solve`: the incumbent, the bound and what was spent.

    The step behind everything is as long for every order, so it is left out of the search: what it adds is only told.
    """

    def __init__(self, problem: Problem, method: str, limits: SolveLimits, progress: Progress) -> None:
        self._step = problem.step_ns if limits.objective == "makespan" else 0
        problem = replace(problem, step_ns=Ns(0))
        self.problem, self.method, self.limits, self.progress = problem, method, limits, progress
        self.simulator = Simulator(problem, limits.objective)
        self._num_ops = 3 * problem.num_stages * problem.microbatches
        self._cost = 1 if self.simulator.is_direct else QUEUED_COST
        self.bound = lower_bound(problem) if limits.objective == "makespan" else span_bound(problem)
        self.best: tuple[int, Schedule, str] | None = None
        self._pool = MultiStart(problem, self.simulator, limits.seed, self._expired)
        self._knobs: tuple[Knobs, ...] = ()
        self.evaluations = 0
        self.nodes = 0
        self.warnings: list[Diagnostic] = []
        self._out_of_time = False

    def run(self, starts: Sequence[Schedule], group_size: int | None) -> SolveResult:
        serial = serial_schedule(self.problem)
        if not fits(self.problem, serial.orders):
            raise InfeasibleError(self._shortfalls(serial))
        if self.method in STATIC_METHODS:
            self._only(self.method, group_size)
        else:
            self._search((serial, *starts))
        return self._result()

    def _shortfalls(self, schedule: Schedule, name: str | None = None) -> list[Diagnostic]:
        """Return one fault for each device that `schedule` does not fit; without a name it is the least there is."""
        peaks, reserve = memory_peaks(self.problem, schedule.orders, schedule.pairs), receive_reserve(self.problem)
        what = f"{name} does not fit in memory: device" if name else "device"
        job = "it" if name else "one microbatch"
        return [
            Diagnostic(
                code="schedule-does-not-fit" if name else "memory-too-small",
                message=f"{what} {owner.name!r} needs {peak} bytes for {job} and {extra} for posted receives, "
                f"and has {owner.capacity_bytes}: short by {peak + extra - owner.capacity_bytes}",
            )
            for owner, peak, extra in zip(self.problem.devices, peaks, reserve, strict=True)
            if owner.capacity_bytes is not None and peak + extra > owner.capacity_bytes
        ]

    def _search(self, starts: Sequence[Schedule]) -> None:
        for name, schedule in applicable(self.problem):
            self._offer(schedule, name)
        for number, start in enumerate(starts):
            self._offer(start, "greedy" if number else "serial")
        before = self.best
        if self.method == "greedy-crosspipe":
            self._crosspipe()
            self._say_if_static_won(before)
            return
        if self.method != "greedy" and not self._good_enough() and self._num_ops <= _SEARCH_OPS:
            self._crosspipe()  # one pass, which is often the best where one link is slow
        searched = not self._good_enough()
        if searched:
            self._family()
        if self.method == "greedy":
            if searched:
                self._say_if_static_won(before)
            return
        if not self._good_enough():
            self._local_search()
        if not self._good_enough() and self.method == "auto":
            self._tighten()
        if not self._good_enough() and self.method in ("auto", "cpsat"):
            self._cpsat()
        if not self._good_enough() and self.method != "cpsat":
            self._milp()

    @property
    def target_ns(self) -> int:
        """The largest objective [ns] that ends the search."""
        bound = self.bound.value_ns + self._step
        return (int(bound / (1 - self.limits.max_gap)) if self.limits.max_gap else bound) - self._step

    def _expired(self) -> bool:
        if self.limits.time_limit is not None and self.limits.time_limit.remaining_s == 0:
            self._out_of_time = True
        return self._out_of_time or self._stopped

    @property
    def _stopped(self) -> bool:
        return self.limits.stop is not None and self.limits.stop.requested

    def _good_enough(self) -> bool:
        return (self.best is not None and self.best[0] <= self.target_ns) or self._expired()

    def _offer(self, schedule: Schedule, found_by: str) -> bool:
        """Keep `schedule` if it is shorter than the incumbent; return whether it fits and finishes."""
        if not fits(self.problem, schedule.orders, schedule.pairs):
            return False
        self.evaluations += 1
        value = self.simulator.value(schedule.orders, schedule.pairs)
        if value is not None and not schedule.pairs:
            self._pool.add(schedule.orders, value)
        if value is not None and (self.best is None or value < self.best[0]):
            self.best = (value, schedule, found_by)
            if self.limits.stop is not None:
                self.limits.stop.has_incumbent = True
            found, bound = value + self._step, self.bound.value_ns + self._step
            self.progress(f"{found_by}: {found / 1e6:.3f} ms, bound {bound / 1e6:.3f} ms")
        return value is not None

    def _only(self, name: str, group_size: int | None) -> None:
        try:
            schedule = static_schedule(name, self.problem, group_size=group_size)
        except ValueError as error:
            raise UsageError(f"{name} {error}", code="schedule-does-not-apply") from error
        self._offer(schedule, name)
        if self.best is None:
            faults = self._shortfalls(schedule, name) or [
                Diagnostic(code="schedule-does-not-fit", message=f"{name} cannot finish with these receive windows")
            ]
            raise NoSolutionError(faults, hint="--method auto finds an order that fits")

    def _say_if_static_won(self, before: tuple[int, Schedule, str] | None) -> None:
        if self.best is before and self.best is not None:
            message = f"{self.method} found nothing better than {self.best[2]}, whose order is used"
            self.warnings.append(Diagnostic(code="static-was-better", message=message, severity="warning"))

    def _crosspipe(self) -> None:
        schedule = crosspipe_greedy(self.problem, self.simulator.tables)
        if schedule is not None:
            self._offer(schedule, "greedy-crosspipe")

    def _family(self) -> None:
        self.progress("greedy family")
        work = self._family_work() // self._cost
        search = tune_and_apply(self.problem, self.simulator, self.target_ns, work, self.limits.seed, self._expired)
        self.evaluations += search.evaluations
        self._knobs = tuple(candidate.knobs for candidate in search.ranking)
        for candidate in search.ranking:
            self._offer(candidate.schedule, "greedy")

    def _family_work(self) -> int:
        if self.method == "greedy" or self._num_ops > _SMALL_OPS:  # nothing, or nothing as good, comes after it
            return _FAMILY_WORK
        return _SMALL_FAMILY_WORK

    def _local_search(self) -> None:
        """Anneal from the orders that were found, until one is good enough."""
        if self.best is None or self._num_ops > _SEARCH_OPS:
            return
        self.progress("local search")
        if self._num_ops > _LARGE_OPS and self.simulator.is_direct and self.limits.objective == "makespan":
            longer = grown(self.problem, self._knobs, self.target_ns, self.limits.seed, self._expired, self._count)
            if longer is not None:
                self._offer(longer, "local-search")
            if self.best[1] is longer or self._good_enough():
                return
        before = self._pool.evaluations
        for schedule in self._pool.rounds(self.target_ns):
            self.evaluations += self._pool.evaluations - before
            before = self._pool.evaluations
            self._offer(schedule, "local-search")
            if self._good_enough():
                return

    def _count(self, evaluations: int) -> None:
        self.evaluations += evaluations

    def _tighten(self) -> None:
        """Raise the bound by shaving, up to the incumbent: often all that is missing to a proof."""
        if self.limits.objective == "makespan" and self.best is not None:
            self.bound = tightened_bound(self.problem, self.bound, self.best[0], _SHAVING_WORK)

    def _cpsat(self) -> None:
        asked = self.method == "cpsat"
        if not self.problem.is_plain:
            return
        if not asked and (self._num_ops > _AUTO_CPSAT_OPS or self.limits.node_limit == 0):
            return
        from cpipe.solve.cpsat import solve_cpsat, solver_problem

        assert self.best is not None
        missing = solver_problem()
        if missing is None:
            clock = self.limits.time_limit
            outcome = solve_cpsat(
                self.problem,
                self.best[1],
                lower_bound=self.bound,
                objective=self.limits.objective,
                work_limit=_AUTO_CPSAT_WORK if not asked else _ASKED_CPSAT_WORK if clock is None else math.inf,
                time_limit=None if clock is None else max(0.1, clock.remaining_s),
                seed=self.limits.seed,
                max_gap=self.limits.max_gap,
                progress=self.progress,
                stop=self.limits.stop,
            )
            missing = outcome.broken
            self.warnings += outcome.warnings
            if outcome.schedule is not None:
                self._offer(outcome.schedule, "cpsat")
            if outcome.dual_bound_ns > self.bound.value_ns:
                reason = f"CP-SAT with {outcome.num_booleans} order variables"
                self.bound = Bound(value_ns=outcome.dual_bound_ns, proved_by="cpsat", reason=reason)
        if missing is not None:
            if asked:
                raise NoSolutionError(missing, code="solver-missing", hint="--method auto needs no OR-Tools")
            message = f"the gap that is left may close with CP-SAT; {missing}"
            self.warnings.append(Diagnostic(code="solver-missing", message=message, severity="warning"))

    def _milp(self) -> None:
        asked = self.method == "milp"
        if not self.problem.is_plain:
            return
        nodes = self.limits.node_limit
        if nodes is None:
            nodes = _ASKED_NODES if asked else _AUTO_NODES
        if nodes == 0:
            return
        from cpipe.solve.milp import count_binaries, solve_milp, solver_problem

        assert self.best is not None
        missing = solver_problem()
        if missing is not None:
            if asked:
                raise NoSolutionError(missing, code="solver-missing", hint="--method greedy needs no solver")
            self.warnings.append(
                Diagnostic(code="solver-missing", message=f"{missing}; the MILP was skipped", severity="warning")
            )
            return
        if not asked and count_binaries(self.problem, self.best[0]) > _AUTO_BINARIES:
            return
        clock = self.limits.time_limit
        outcome = solve_milp(
            self.problem,
            self.best[1],
            lower_bound=self.bound,
            objective=self.limits.objective,
            node_limit=nodes,
            time_limit=None if clock is None else max(0.1, clock.remaining_s),
            seed=self.limits.seed,
            progress=self.progress,
            stop=self.limits.stop,
        )
        self.nodes += outcome.nodes
        self.warnings += outcome.warnings
        if outcome.schedule is not None:
            self._offer(outcome.schedule, "milp")
        if outcome.dual_bound_ns > self.bound.value_ns:
            reason = f"MILP with {outcome.binaries} binaries"
            self.bound = Bound(value_ns=outcome.dual_bound_ns, proved_by="highs", reason=reason)

    def _result(self) -> SolveResult:
        if self.best is None:
            raise NoSolutionError("no order was found within the limits", code="no-order")
        value, schedule, found_by = self.best
        if self._out_of_time and value > self.bound.value_ns:
            assert self.limits.time_limit is not None
            message = f"the time limit of {self.limits.time_limit.asked:g} s cut the search short"
            self.warnings.append(Diagnostic(code="time-limit", message=message, severity="warning"))
        if self._stopped:
            message = "interrupted: the best order so far is used"
            self.progress(message)
            self.warnings.append(Diagnostic(code="interrupted", message=message, severity="warning"))
        result = SolveResult(
            schedule=schedule,
            timeline=simulate(self.problem, schedule),
            bound=self.bound,
            method=self.method,
            found_by=found_by,
            evaluations=self.evaluations,
            nodes=self.nodes,
            warnings=tuple(self.warnings),
            objective=self.limits.objective,
        )
        result.verify()
        return result


def _with_step(problem: Problem, result: SolveResult) -> SolveResult:
    """Return the result of a search that left out the step of `problem`, with it; no span contains it."""
    added = problem.step_ns if result.objective == "makespan" else 0
    bound = replace(result.bound, value_ns=result.bound.value_ns + added)
    result = replace(result, timeline=simulate(problem, result.schedule), bound=bound)
    result.verify()
    return result


def _beyond(problem: Problem) -> str:
    """Return what the exact models leave out of `problem`."""
    return "bidirectional pipelines" if len(problem.flows) > 1 else "fused pairs that are shorter than their parts"
