"""The arrows in order: profile -> problem -> schedule -> timeline -> plan, each result verified before the next.

Two choices live here, because they join the parts: which stage -> device list (`placement`), and how many receives may
be posted at once when their buffers do not fit in memory (`receive_window`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

import cpipe
from cpipe.errors import Diagnostic, InfeasibleError, NoSolutionError, PlanError, ProfileError, UsageError
from cpipe.ir import Bound, InvariantError, MadeBy, Plan, Problem, Schedule, SolveResult, Timeline
from cpipe.ir.base import Frozen
from cpipe.plan import late_sends, lift, lower, plan_digest, safe_transports, validate
from cpipe.plan.exchange import TorchTable, plan_of_table, table_warnings, with_times
from cpipe.profile import Profile, normalize
from cpipe.sim import DeadlockError, memory_peaks, simulate
from cpipe.solve import SolveLimits, TimeLimit, solve
from cpipe.solve.bounds import lower_bound

__all__ = [
    "PLACEMENTS",
    "Compiled",
    "SolveOptions",
    "compile_profile",
    "import_table",
    "problem_for_plan",
    "simulate_plan",
]

PLACEMENTS = ("profile", "ud", "loop", "wave", "auto")

Progress = Callable[[str], None]


class SolveOptions(Frozen, frozen=True, kw_only=True):
    """What the user may choose.

    Attributes
    ----------
    method
        A key of `cpipe.solve.methods.METHODS`.
    placement
        ``profile``: as written; ``ud``, ``loop``, ``wave``: stages put on the devices in that pattern; ``auto``: the
        best of those that fit.
    seed
        Of every random choice.
    max_gap
        Accept an order within this share of its bound, in [0, 1).
    time_limit
        Wall-clock limit [s], or None.
    receive_window
        Cap on posted receives per channel, or None: as many as useful, fewer if memory asks for it.
    node_limit
        Branch-and-bound nodes of the MILP; 0 leaves it out, None is the method's default.
    """

    method: str = "auto"
    placement: str = "profile"
    seed: int = 0
    max_gap: float = 0.0
    time_limit: float | None = None
    receive_window: int | None = None
    node_limit: int | None = None


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
    profile: Profile, options: SolveOptions | None = None, progress: Progress | None = None
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
    )
    job = _Job(options, limits, progress)
    best: Compiled | None = None
    refusals: list[Diagnostic] = []
    failure: InfeasibleError | NoSolutionError | ProfileError | UsageError | None = None
    candidates = list(_placements(profile, options.placement))
    for number, (name, placement) in enumerate(candidates):
        try:
            problem = normalize(profile, placement=placement)
            compiled = _compile_problem(problem, job.shared(len(candidates) - number), name)
        except (InfeasibleError, NoSolutionError, ProfileError, UsageError) as error:
            if options.placement != "auto":
                raise
            failure = failure or error
            message = f"placement {name} was left out: {error.diagnostics[0].message}"
            refusals.append(Diagnostic(code="placement-refused", message=message, severity="warning"))
            continue
        if best is None or compiled.result.makespan_ns < best.result.makespan_ns:
            best = compiled
    if best is None:
        assert failure is not None, "there is always the profile's own placement"
        raise failure
    result = msgspec.structs.replace(best.result, warnings=(*best.result.warnings, *refusals))
    return msgspec.structs.replace(best, result=result)


def problem_for_plan(plan: Plan, profile: Profile, receive_window: int | None = None) -> Problem:
    """Return the problem of `profile` under the plan's own placement, whether or not its memory suffices.

    Raises
    ------
    ProfileError
        When numbers of devices, stages or microbatches differ, or its placement needs a link that the profile lacks:
        the plan is not for this job.
    """
    summary = plan.problem
    sizes = (
        ("devices", summary.devices, len(profile.devices)),
        ("stages", summary.stages, len(profile.stages)),
        ("microbatches", summary.microbatches, profile.microbatches),
    )
    faults = [
        Diagnostic(code="different-size", path=f"$.{name}", message=f"the plan has {ours} {name}, the profile {theirs}")
        for name, ours, theirs in sizes
        if ours != theirs
    ]
    if len(summary.placement) != summary.stages:
        faults.append(
            Diagnostic(
                code="different-size", message=f"the plan places {len(summary.placement)} of {summary.stages} stages"
            )
        )
    faults += [
        Diagnostic(
            code="different-size",
            message=f"the plan places stage {stage} on device {device}, the profile has {len(profile.devices)} devices",
        )
        for stage, device in enumerate(summary.placement)
        if not 0 <= device < len(profile.devices)
    ]
    if faults:
        raise ProfileError(faults)
    return normalize(profile, placement=summary.placement, receive_window=receive_window, prove_memory=False)


def simulate_plan(plan: Plan, problem: Problem) -> Timeline:
    """Replay the plan's program on `problem`: its orders, and its messages posted where it posts them.

    Raises
    ------
    PlanError
        When the problem has no costs for the ops of the plan: it does not split a stage that the plan splits, or its
        data parallelism is another.
    cpipe.sim.DeadlockError
        When the program cannot finish.
    """
    if faults := (*_split_faults(plan, problem), *_mode_faults(plan, problem)):
        raise PlanError(faults)
    schedule, receives = lift(plan)
    sends = late_sends(plan)
    gates = {
        slot: tuple(gate[slot] for gate in (receives, sends) if slot in gate) for slot in sorted({*receives, *sends})
    }
    return simulate(problem, schedule, gates)


def _split_faults(plan: Plan, problem: Problem) -> Iterator[Diagnostic]:
    """Yield a fault for each stage that runs D and W in the plan and is whole in the problem."""
    seen: set[int] = set()
    for place, program in enumerate(plan.ranks):
        for index, step in enumerate(program.ops):
            stage = step.stage
            if step.op not in ("D", "W") or stage is None or stage in seen or not 0 <= stage < problem.num_stages:
                continue
            if problem.stages[stage].can_split:
                continue
            seen.add(stage)
            name = problem.stages[stage].name
            message = f"the plan runs D and W of stage {stage}, but the profile gives {name!r} a full backward alone"
            yield Diagnostic(code="cannot-split", message=message, path=f"$.ranks[{place}].ops[{index}]")


_COLLECTIVES = {"ALL_GATHER": "zero1", "REDUCE_SCATTER": "zero1", "ALL_REDUCE": "ddp"}


def _mode_faults(plan: Plan, problem: Problem) -> Iterator[Diagnostic]:
    """Yield a fault when plan and problem differ in their data parallelism."""
    ours = next((_COLLECTIVES[step.op] for rank in plan.ranks for step in rank.ops if step.op in _COLLECTIVES), "none")
    theirs = problem.collectives.mode if problem.collectives is not None else "none"
    if ours != theirs:
        message = f"the plan's data parallelism is {ours}, that of the profile is {theirs}"
        yield Diagnostic(code="different-job", message=message, path="$.groups")


def _placements(profile: Profile, name: str) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Yield (name, device of each stage) of the placements to try, each once; None is the profile's own."""
    num_stages, num_devices = len(profile.stages), len(profile.devices)
    rank = {device.id: index for index, device in enumerate(profile.devices)}
    tried = {tuple(rank[stage.device] for stage in profile.stages)}
    if name in ("profile", "auto"):
        yield "profile", None
    patterns = {"ud": num_stages == num_devices, "loop": num_stages % num_devices == 0}
    patterns["wave"] = patterns["loop"]
    for pattern, applies in patterns.items():
        if name == pattern and not applies:
            rule = "one stage per device" if pattern == "ud" else "a number of stages that the devices divide"
            raise UsageError(
                f"placement {pattern} needs {rule}, got {num_stages} stages on {num_devices} devices",
                code="placement-does-not-apply",
            )
        placement = tuple(_device(pattern, stage, num_devices) for stage in range(num_stages))
        if name == pattern or (name == "auto" and applies and placement not in tried):
            tried.add(placement)
            yield pattern, placement


def _device(pattern: str, stage: int, num_devices: int) -> int:
    turn, step = divmod(stage, num_devices)
    return num_devices - 1 - step if pattern == "wave" and turn % 2 else step


def _compile_problem(problem: Problem, job: _Job, placement: str) -> Compiled:
    """Solve and lower; if the receives that this posts are too many, again with fewer posted at once."""
    problem.verify()
    result = _attempt(problem, job, attempts=2 if _may_need_narrowing(problem, job.options) else 1)
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
        windowed = msgspec.structs.replace(problem, receive_window=window)
        try:
            result = _attempt(windowed, quick, starts=(known,), attempts=len(windows) - number + 1)
        except (InfeasibleError, NoSolutionError) as error:
            failure = failure or error
            continue
        if best is None or result.makespan_ns < best[0]:
            best = result.makespan_ns, windowed, result.schedule
    if best is None:
        assert failure is not None, "a failure is why there is no window"
        raise failure
    return best[1], best[2]


def _attempt(problem: Problem, job: _Job, *, starts: tuple[Schedule, ...] = (), attempts: int = 1) -> SolveResult:
    """Solve with this attempt's share of the user's time, `attempts` of them being still to come."""
    return solve(problem, job.options.method, job.shared(attempts).limits, job.progress, starts=starts)


def _lowered(problem: Problem, result: SolveResult, options: SolveOptions, placement: str) -> Compiled:
    result.schedule.verify(problem)
    result.timeline.verify(result.schedule)
    peaks = memory_peaks(problem, result.schedule.orders)
    made_by = MadeBy(cpipe=cpipe.__version__, method=options.method, seed=options.seed, limits=_limits(options))
    plan = lower(problem, result.schedule, result.timeline, bound=result.bound, resident_peaks=peaks, made_by=made_by)
    return Compiled(problem=problem, result=result, plan=_with_transports(plan), placement=placement)


def _with_transports(plan: Plan) -> Plan:
    """Return the plan with the transports stated under which it is right."""
    return _claiming(plan, transports=safe_transports(plan))


def _claiming(plan: Plan, **claims: object) -> Plan:
    """Return the plan with some of its claims changed, signed again."""
    plan = msgspec.structs.replace(plan, claims=msgspec.structs.replace(plan.claims, **claims))
    return msgspec.structs.replace(plan, digest=plan_digest(plan))


def _limits(options: SolveOptions) -> dict[str, float | int | str]:
    """Return the limits that differ from their defaults: what it takes to make the plan again."""
    chosen = {
        "max_gap": options.max_gap or None,
        "time_limit": options.time_limit,
        "receive_window": options.receive_window,
        "node_limit": options.node_limit,
        "placement": None if options.placement == "profile" else options.placement,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _fits(problem: Problem, plan: Plan) -> bool:
    return all(
        device.capacity_bytes is None or peak <= device.capacity_bytes
        for device, peak in zip(problem.devices, plan.claims.peak_bytes, strict=True)
    )


def import_table(
    table: TorchTable, profile: Profile, *, file: str | None = None, transport: str | None = None
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """Make a plan of somebody else's schedule, as it is, and say what is wrong with it.

    Parameters
    ----------
    table
        Torch's table. Its own placement counts, not the profile's. With messages they stay where they are; without,
        they are placed as for a schedule of our own.
    profile
        What the ops cost.
    file
        Name of the table for the messages.
    transport
        Queue model that it must be right for; None is ``gloo`` for a table with messages, as torch puts them all on
        one group, else ``channels``.

    Returns
    -------
    tuple
        The plan; its faults, and warnings of what only torch would see. A plan with a fault of structure has no times.

    Raises
    ------
    PlanError
        When no plan can hold the table, or it is for another number of ranks or microbatches.
    """
    rows = [*table.rows]
    while len(rows) > len(profile.devices) and not rows[-1]:
        rows.pop()
    table = table._replace(rows=tuple(rows))
    _check_size(table, profile, file)
    own = normalize(profile, prove_memory=False)
    problem = normalize(profile, placement=table.placement(own.placement), prove_memory=False)
    made_by = MadeBy(cpipe=cpipe.__version__, method="torch-csv", seed=0, limits={})
    plan = plan_of_table(table, problem, made_by, file=file)
    faults = validate(plan)
    if not faults:
        plan = _timed(plan, problem, keep_messages=table.has_messages)
        faults = validate(plan, problem, transport=transport or ("gloo" if table.has_messages else "channels"))
    return plan, (*table_warnings(table, file=file), *faults)


def _timed(draft: Plan, problem: Problem, *, keep_messages: bool) -> Plan:
    """Return the plan with times and claims, as far as the problem allows the schedule.

    Receives stay where they are to `keep_messages`, else they are posted as for a schedule of our own.
    """
    schedule, _ = lift(draft)
    try:
        schedule.verify(problem)
    except InvariantError:
        return draft
    peaks = memory_peaks(problem, schedule.orders)
    buffers = [0] * problem.num_devices
    for channel in draft.channels:
        buffers[channel.target] += channel.window * channel.message_bytes
    plan = _claiming(draft, peak_bytes=tuple(map(sum, zip(peaks, buffers, strict=True))))
    try:
        timeline = simulate_plan(draft, problem) if keep_messages else simulate(problem, schedule)
    except (DeadlockError, PlanError):
        return plan
    bound = lower_bound(problem)
    if bound.value_ns > timeline.makespan_ns:  # a schedule that breaks the memory limit may beat it
        bound = Bound(value_ns=0)
    if keep_messages:
        plan = _claiming(plan, lower_bound_ns=bound.value_ns, proved_by=bound.proved_by)
        return _with_transports(with_times(plan, timeline))
    plan = lower(problem, schedule, timeline, bound=bound, resident_peaks=peaks, made_by=draft.made_by)
    return _with_transports(plan)


def _check_size(table: TorchTable, profile: Profile, file: str | None) -> None:
    """Refuse a table that is whole, but for another job."""
    counts = [(f"{len(table.rows)} ranks", f"{len(profile.devices)} devices", len(table.rows) != len(profile.devices))]
    found = {(cell.stage, cell.mb) for cell in table.cells() if cell.action == "F"}
    stages = {stage for stage, _ in found}
    counts.append((f"{len(stages)} stages", f"{len(profile.stages)}", len(stages) > len(profile.stages)))
    most = 1 + max((mb for _, mb in found), default=-1)
    whole = len(found) == most * len(stages)
    counts.append((f"{most} microbatches", f"{profile.microbatches}", whole and most != profile.microbatches))
    faults = [
        Diagnostic(code="different-size", message=f"the table has {ours}, the profile {theirs}", file=file)
        for ours, theirs, differ in counts
        if differ
    ]
    if faults:
        raise PlanError(faults)
