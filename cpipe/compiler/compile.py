"""Solve, lower, validate: the best over placements, with as many posted receives as memory allows.

Three choices are made here, because they join the parts: which stage -> device list (`placement`), which stages
recompute, and how many receives may be posted at once when their buffers do not fit in memory (`receive_window`).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import msgspec

import cpipe
from cpipe.compiler.claims import bound_of_delayed, claiming, with_transports
from cpipe.compiler.offload import fitted
from cpipe.compiler.options import OFFLOADS, PLACEMENTS, SolveOptions
from cpipe.compiler.placements import implied_placement, placements
from cpipe.compiler.recompute import Choice, asked_choice, closed_bound, least_bound, rank_choices, worth_it
from cpipe.errors import Diagnostic, InfeasibleError, NoSolutionError, ProfileError, UsageError
from cpipe.ir import Bound, MadeBy, Plan, Problem, Schedule, SolveResult
from cpipe.ir.base import Frozen
from cpipe.plan import lower, plan_digest, validate
from cpipe.plan.lower import certificate
from cpipe.profile import Profile, lightest, normalize
from cpipe.profile.memory import memory_faults
from cpipe.profile.offload import bounded, offers_offload, unloaded
from cpipe.schedules import applicable
from cpipe.sim import memory_peaks
from cpipe.solve import SolveLimits, Stop, TimeLimit, solve
from cpipe.solve.methods import STATIC_METHODS

__all__ = ["Compiled", "compile_profile"]

Progress = Callable[[str], None]

_FULL_SOLVES = 2  # choices of stages that recompute which are searched in full, beside none at all


class _Job(NamedTuple):
    """What every attempt of one compilation shares; the time limit runs for all of them together."""

    options: SolveOptions
    limits: SolveLimits
    progress: Progress | None

    def shared(self, attempts: int) -> _Job:
        """Return the job with its share of the time, `attempts` attempts being still to come."""
        if self.limits.time_limit is None or attempts == 1:
            return self
        share = self.limits.time_limit.share(attempts)
        return self._replace(limits=msgspec.structs.replace(self.limits, time_limit=share))


class Compiled(Frozen, frozen=True, kw_only=True):
    """A solved problem and its plan; `placement` is the pattern that was used."""

    problem: Problem
    result: SolveResult
    plan: Plan
    placement: str


def compile_profile(
    profile: Profile,
    options: SolveOptions | None = None,
    progress: Progress | None = None,
    *,
    stop: Stop | None = None,
) -> Compiled:
    """Solve a profile and lower the best schedule to a validated plan.

    Parameters
    ----------
    profile
        As loaded.
    options
        What the user chose.
    progress
        Called with one short line now and then.
    stop
        Polled; once it is requested, the best so far is lowered, validated and returned, with a warning
        ``interrupted``. Nothing else catches Ctrl-C: without it, that is a `KeyboardInterrupt`.

    Raises
    ------
    UsageError
        When options do not fit the profile.
    ProfileError
        When a placement needs a link that the profile lacks.
    InfeasibleError
        When it is proven that no schedule fits.
    NoSolutionError
        When nothing acceptable was found within the limits.
    """
    options = options or SolveOptions()
    if options.placement not in PLACEMENTS:
        raise UsageError(f"unknown placement {options.placement!r}; known: {', '.join(PLACEMENTS)}")
    limits = SolveLimits(
        max_gap=options.max_gap,
        time_limit=None if options.time_limit is None else TimeLimit(options.time_limit),
        seed=options.seed,
        node_limit=options.node_limit,
        objective=options.objective,
        stop=stop,
    )
    if options.offload not in OFFLOADS:
        raise UsageError(f"unknown offload {options.offload!r}; known: {', '.join(OFFLOADS)}", code="offload-choice")
    job = _Job(options, limits, progress)
    best: Compiled | None = None
    refusals: list[Diagnostic] = []
    failure: InfeasibleError | NoSolutionError | ProfileError | UsageError | None = None
    candidates = list(placements(profile, implied_placement(options)))
    for number, (name, placement) in enumerate(candidates):
        if best is not None and _is_stopped(job):
            break
        try:
            placed = _Placed(profile, name, placement)
            compiled = _compile_placed(placed, job.shared(len(candidates) - number))
        except (InfeasibleError, NoSolutionError, ProfileError, UsageError) as error:
            if options.placement != "auto":
                raise
            failure = failure or error
            message = f"placement {name} was left out: {error.diagnostics[0].message}"
            refusals.append(Diagnostic(code="placement-refused", message=message, severity="warning"))
            continue
        if best is None or compiled.result.objective_ns < best.result.objective_ns:
            best = compiled
    if best is None:
        assert failure is not None, "there is always the profile's own placement"
        raise failure
    if _is_stopped(job):
        best = _interrupted(best)
    result = msgspec.structs.replace(best.result, warnings=(*best.result.warnings, *refusals))
    return msgspec.structs.replace(best, result=result)


class _Placed(NamedTuple):
    """A profile with a placement of its stages: its name and, unless it is the profile's own, the devices."""

    profile: Profile
    name: str
    placement: tuple[int, ...] | None

    @property
    def flows(self) -> int:
        """Number of flows."""
        return 2 if self.name == "bidirectional" else 1

    def problem(self, choice: Choice, *, prove_memory: bool = True) -> Problem:
        """Return the problem in which the stages of `choice` recompute."""
        return normalize(
            self.profile, placement=self.placement, flows=self.flows, recompute=choice, prove_memory=prove_memory
        )


def _compile_placed(placed: _Placed, job: _Job) -> Compiled:
    """Compile; where activations may go to host memory, with and without that."""
    asked = asked_choice(placed.profile, job.options.recompute, placed.flows)
    free = placed.problem(asked or (), prove_memory=False)
    if job.options.offload == "none" or not offers_offload(free):
        return _compile_kept(placed, job)
    light = unloaded(free if asked is not None else lightest(free, placed.profile))
    if faults := tuple(memory_faults(light)):
        raise InfeasibleError(faults, hint="raise memory_bytes, or place the stages otherwise")
    bound = closed_bound(light, job.options.objective)
    best: Compiled | None = None
    failure: InfeasibleError | NoSolutionError | None = None
    try:
        best = _compile_kept(placed, job.shared(2))
    except (InfeasibleError, NoSolutionError) as error:
        failure = error
    tried = {problem.recompute: problem for problem in (free, *([best.problem] if best is not None else []))}
    for problem in tried.values():
        if best is not None and (best.result.objective_ns <= bound.value_ns or _is_stopped(job)):
            break
        found, proved = _compile_offloaded(msgspec.structs.replace(problem, receive_window=None), job, placed.name)
        if found is not None and (best is None or found.result.objective_ns < best.result.objective_ns):
            best = found
        if proved is not None and asked is not None and proved.value_ns > bound.value_ns:
            bound = proved
    if best is None:
        assert failure is not None, "a failure is why there is nothing"
        hint = "no order was found that fits with activations in host memory"
        raise NoSolutionError(failure.diagnostics, hint=hint)
    return _claiming(best, bound)


def _compile_offloaded(problem: Problem, job: _Job, placement: str) -> tuple[Compiled | None, Bound | None]:
    """Compile orders made for more memory, made to fit by offloading; also return a bound that holds for all of them.

    The orders are those of jobs in which all, or a share, of what may be offloaded always is.
    """
    jobs = list(dict.fromkeys(unloaded(problem, Fraction(1, parts)) for parts in (1, 2, 4)))
    best: Compiled | None = None
    proved: Bound | None = None
    for number, lighter in enumerate(jobs):
        if number and _is_stopped(job):
            break
        quick = job._replace(limits=msgspec.structs.replace(job.limits, node_limit=0)) if number else job
        try:
            result = _attempt(lighter, quick, attempts=len(jobs) - number)
        except (InfeasibleError, NoSolutionError):
            continue
        if not number:
            proved = bound_of_delayed(lighter, result.bound, job.options.objective)
        orders = [(result.found_by, result.schedule)]
        if not number and job.options.method not in STATIC_METHODS:
            orders += applicable(lighter)
        for found_by, schedule in orders:
            made = msgspec.structs.replace(
                result, schedule=schedule, found_by=found_by, bound=proved or Bound(value_ns=0)
            )
            compiled = _fit_order(problem, made, job.options, placement)
            if compiled is not None and (best is None or compiled.result.objective_ns < best.result.objective_ns):
                best = compiled
    if best is not None:
        faults = validate(best.plan, best.problem)
        assert not faults, "the plan made here is not valid: " + "; ".join(map(str, faults[:5]))
    return best, proved


def _fit_order(problem: Problem, result: SolveResult, options: SolveOptions, placement: str) -> Compiled | None:
    """Return a compilation of the order of `result`, made to fit `problem`; None where that was not managed.

    Receives are posted early where memory allows, else ever fewer at once.
    """
    asked = options.receive_window
    windows = (None, 4, 2, 1) if asked is None else sorted({min(asked, count) for count in (asked, 4, 2, 1)})[::-1]
    for window in windows:
        windowed = msgspec.structs.replace(problem, receive_window=window)
        found = fitted(windowed, result.schedule, options.objective)
        if found is None:
            continue
        made = msgspec.structs.replace(
            result,
            schedule=found.schedule,
            timeline=found.timeline,
            evaluations=result.evaluations + found.evaluations,
        )
        made.verify()
        compiled = _lowered(windowed, made, options, placement)
        if _fits(problem, compiled.plan):
            return compiled
    return None


def _compile_kept(placed: _Placed, job: _Job) -> Compiled:
    """Compile with the stages recomputing that were asked for; where that is left to us, with the best found."""
    asked = asked_choice(placed.profile, job.options.recompute, placed.flows)
    if asked is not None:
        return _compile_problem(placed.problem(asked), job, placed.name)
    free = placed.problem((), prove_memory=False)
    light = lightest(free, placed.profile)
    if faults := tuple(memory_faults(light)):
        raise InfeasibleError(faults, hint="raise memory_bytes, or place the stages otherwise")
    bound = closed_bound(light, job.options.objective)
    stages = worth_it(free, placed.profile)
    done, failures = _solved_choices(placed, job, stages, bound)
    if not done:
        hint = "no choice of stages that recompute was found with which it fits"
        raise NoSolutionError(failures[0].diagnostics, hint=hint)
    best = min(done, key=lambda compiled: compiled.result.objective_ns)
    if best.result.objective_ns > bound.value_ns and not _is_stopped(job):
        known = {compiled.problem.recompute: compiled.result.bound.value_ns for compiled in done}
        least = least_bound(placed.problem, stages, known, job.options.objective)
        if least is not None and least > bound.value_ns:
            return _claiming(best, msgspec.structs.replace(best.result.bound, value_ns=least))
    return _claiming(best, bound)


def _solved_choices(
    placed: _Placed, job: _Job, stages: Choice, bound: Bound
) -> tuple[list[Compiled], list[InfeasibleError | NoSolutionError]]:
    """Compile with no stage recomputing, then with the choices that a quick look likes best; also say why some fail."""
    done: list[Compiled] = []
    failures: list[InfeasibleError | NoSolutionError] = []

    def attempt(choice: Choice, attempts: int, starts: tuple[Schedule, ...] = ()) -> None:
        try:
            done.append(_compile_problem(placed.problem(choice), job.shared(attempts), placed.name, starts))
        except (InfeasibleError, NoSolutionError) as error:
            failures.append(error)

    attempt((), 1 + _FULL_SOLVES)
    if _is_stopped(job) or any(compiled.result.objective_ns <= bound.value_ns for compiled in done):
        return done, failures
    starts = tuple(compiled.result.schedule for compiled in done)
    ranking = [one for one in rank_choices(placed.problem, stages, job.options, job.limits, starts) if one.choice]
    for number, (_, choice, schedule) in enumerate(ranking[:_FULL_SOLVES]):
        if not (done and _is_stopped(job)):
            attempt(choice, _FULL_SOLVES - number, (schedule, *starts))
    return done, failures


def _claiming(compiled: Compiled, bound: Bound) -> Compiled:
    """Return a compilation that claims a bound over all choices of stages that recompute.

    It claims its own closed one where that is smaller: what a plan says that closed forms prove is checked on its own
    problem. (It is no smaller but for the way in which it is searched for.)
    """
    result = compiled.result
    checked = bounded(compiled.problem, bool(result.schedule.offloads))
    own = closed_bound(checked, result.objective)
    if own.value_ns < bound.value_ns and bound.proved_by == own.proved_by:
        bound = own
    proof = certificate(result.objective_ns, bound)
    plan = claiming(compiled.plan, lower_bound_ns=bound.value_ns, proved_by=bound.proved_by, **proof)
    return msgspec.structs.replace(compiled, plan=plan, result=msgspec.structs.replace(result, bound=bound))


def _compile_problem(problem: Problem, job: _Job, placement: str, starts: tuple[Schedule, ...] = ()) -> Compiled:
    """Solve and lower; if the receives that this posts are too many, again with fewer posted at once."""
    problem.verify()
    result = _attempt(problem, job, starts=starts, attempts=2 if _may_need_narrowing(problem, job.options) else 1)
    compiled = _lowered(problem, result, job.options, placement)
    widest = max((channel.window for channel in compiled.plan.channels), default=0)
    allowed = min(widest, job.options.receive_window or widest)
    if allowed < widest or not _fits(problem, compiled.plan):
        narrowed, known = _narrowed(problem, allowed, job, result.schedule)
        again = _attempt(narrowed, job, starts=(known,))
        # The bound without a window holds for every window; one with a window does not hold for the others.
        result = msgspec.structs.replace(again, bound=result.bound)
        compiled = _lowered(narrowed, result, job.options, placement)
    faults = validate(compiled.plan, compiled.problem)
    assert not faults, "the plan made here is not valid: " + "; ".join(map(str, faults[:5]))
    return compiled


def _may_need_narrowing(problem: Problem, options: SolveOptions) -> bool:
    """Whether posted receives may have to be fewer than the best order would like."""
    limited = any(device.capacity_bytes is not None for device in problem.devices)
    return options.receive_window is not None or (limited and any(problem.largest_messages().values()))


def _narrowed(problem: Problem, allowed: int, job: _Job, known: Schedule) -> tuple[Problem, Schedule]:
    """Return the problem with the receive window, at most `allowed`, of which quick searches make the most.

    Few posted receives leave memory to activations but hold messages back; nobody can say beforehand which counts.
    The order that was found goes along.
    """
    quick = job._replace(limits=msgspec.structs.replace(job.limits, node_limit=0))
    windows = sorted({min(count, allowed) for count in (1, 2, 4, allowed)})
    best: tuple[int, Problem, Schedule] | None = None
    failure: InfeasibleError | NoSolutionError | None = None
    for number, window in enumerate(windows):
        if best is not None and _is_stopped(job):
            break
        windowed = msgspec.structs.replace(problem, receive_window=window)
        try:
            result = _attempt(windowed, quick, starts=(known,), attempts=len(windows) - number + 1)
        except (InfeasibleError, NoSolutionError) as error:
            failure = failure or error
            continue
        if best is None or result.objective_ns < best[0]:
            best = result.objective_ns, windowed, result.schedule
    if best is None:
        assert failure is not None, "a failure is why there is no window"
        raise failure
    return best[1], best[2]


def _attempt(problem: Problem, job: _Job, *, starts: tuple[Schedule, ...] = (), attempts: int = 1) -> SolveResult:
    """Solve with this attempt's share of the user's time, `attempts` of them being still to come."""
    limits, group_size = job.shared(attempts).limits, job.options.group_size
    return solve(problem, job.options.method, limits, job.progress, starts=starts, group_size=group_size)


def _is_stopped(job: _Job) -> bool:
    return job.limits.stop is not None and job.limits.stop.requested


def _interrupted(best: Compiled) -> Compiled:
    """Return the best so far with a warning, and its plan marked: the same call makes another when it is let finish."""
    warnings = best.result.warnings
    if all(warning.code != "interrupted" for warning in warnings):
        message = "interrupted: the best placement so far is used"
        warnings = (*warnings, Diagnostic(code="interrupted", message=message, severity="warning"))
    made_by = best.plan.made_by
    marked = msgspec.structs.replace(made_by, limits={**made_by.limits, "interrupted": "yes"})
    plan = msgspec.structs.replace(best.plan, made_by=marked)
    plan = msgspec.structs.replace(plan, digest=plan_digest(plan))
    return msgspec.structs.replace(best, plan=plan, result=msgspec.structs.replace(best.result, warnings=warnings))


def _lowered(problem: Problem, result: SolveResult, options: SolveOptions, placement: str) -> Compiled:
    result.schedule.verify(problem)
    result.timeline.verify(result.schedule)
    schedule = result.schedule
    peaks = memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads)
    made_by = MadeBy(
        cpipe=cpipe.__version__,
        method=options.method,
        seed=options.seed,
        limits=_limits(options),
        found_by=result.found_by,
        evaluations=result.evaluations,
        solver_nodes=result.nodes,
    )
    plan = lower(
        problem,
        result.schedule,
        result.timeline,
        bound=result.bound,
        resident_peaks=peaks,
        made_by=made_by,
        objective=options.objective,
    )
    return Compiled(problem=problem, result=result, plan=with_transports(plan), placement=placement)


def _limits(options: SolveOptions) -> dict[str, float | int | str]:
    """Return the limits that differ from their defaults: what it takes to make the plan again."""
    chosen = {
        "max_gap": options.max_gap or None,
        "time_limit": options.time_limit,
        "receive_window": options.receive_window,
        "node_limit": options.node_limit,
        "placement": None if options.placement == "profile" else options.placement,
        "objective": None if options.objective == "makespan" else options.objective,
        "group_size": options.group_size,
        "recompute": None if options.recompute == "auto" else options.recompute,
        "offload": None if options.offload == "auto" else options.offload,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _fits(problem: Problem, plan: Plan) -> bool:
    return all(
        device.capacity_bytes is None or peak <= device.capacity_bytes
        for device, peak in zip(problem.devices, plan.claims.peak_bytes, strict=True)
    )
