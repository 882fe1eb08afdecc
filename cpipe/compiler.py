"""The arrows in order: profile -> problem -> schedule -> timeline -> plan, each result verified before the next.

Two choices live here, because they join the parts: which stage -> device list (`placement`), and how many receives may
be posted at once when their buffers do not fit in memory (`receive_window`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

import cpipe
from cpipe.errors import Diagnostic, InfeasibleError, NoSolutionError, ProfileError, UsageError
from cpipe.ir import MadeBy, Plan, Problem, SolveResult, Timeline
from cpipe.ir.base import Frozen
from cpipe.plan import lift, lower, validate
from cpipe.profile import Profile, normalize
from cpipe.sim import memory_peaks, simulate
from cpipe.solve import SolveLimits, solve

__all__ = ["PLACEMENTS", "Compiled", "SolveOptions", "compile_profile", "problem_for_plan", "simulate_plan"]

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
    best: Compiled | None = None
    refusals: list[Diagnostic] = []
    failure: InfeasibleError | NoSolutionError | ProfileError | UsageError | None = None
    for name, placement in _placements(profile, options.placement):
        try:
            problem = normalize(profile, placement=placement, receive_window=options.receive_window)
            compiled = _compile_problem(problem, options, name, progress)
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
    """Return the problem of `profile` under the plan's own placement.

    Raises
    ------
    ProfileError
        When numbers of devices, stages or microbatches differ: the plan is not for this kind of job.
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
    if faults:
        raise ProfileError(faults)
    return normalize(profile, placement=summary.placement, receive_window=receive_window)


def simulate_plan(plan: Plan, problem: Problem) -> Timeline:
    """Replay the plan's program on `problem`: its orders, and its receives posted where it posts them.

    Raises
    ------
    cpipe.sim.DeadlockError
        When the program cannot finish.
    """
    schedule, gates = lift(plan)
    return simulate(problem, schedule, gates)


def _placements(profile: Profile, name: str) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Yield (name, device of each stage) of the placements to try; None is the profile's own."""
    if name in ("profile", "auto"):
        yield "profile", None
    num_stages, num_devices = len(profile.stages), len(profile.devices)
    patterns = {"ud": num_stages == num_devices, "loop": num_stages % num_devices == 0}
    patterns["wave"] = patterns["loop"]
    for pattern, applies in patterns.items():
        if name == pattern and not applies:
            rule = "one stage per device" if pattern == "ud" else "a number of stages that the devices divide"
            raise UsageError(
                f"placement {pattern} needs {rule}, got {num_stages} stages on {num_devices} devices",
                code="placement-does-not-apply",
            )
        if name == pattern or (name == "auto" and applies):
            yield pattern, tuple(_device(pattern, stage, num_devices) for stage in range(num_stages))


def _device(pattern: str, stage: int, num_devices: int) -> int:
    turn, step = divmod(stage, num_devices)
    return num_devices - 1 - step if pattern == "wave" and turn % 2 else step


def _compile_problem(problem: Problem, options: SolveOptions, placement: str, progress: Progress | None) -> Compiled:
    """Solve and lower; if the receive buffers do not fit, again with fewer receives posted at once."""
    problem.verify()
    result = _solve(problem, options, progress)
    compiled = _lowered(problem, result, options, placement)
    if problem.receive_window is None and not _fits(problem, compiled.plan):
        widest = max(channel.window for channel in compiled.plan.channels)
        problem = _narrowed(problem, widest, options, progress)
        # The bound without a window is the one that holds for every window.
        result = msgspec.structs.replace(_solve(problem, options, progress), bound=result.bound)
        compiled = _lowered(problem, result, options, placement)
    faults = validate(compiled.plan, compiled.problem)
    assert not faults, "the plan made here is not valid: " + "; ".join(map(str, faults[:5]))
    return compiled


def _narrowed(problem: Problem, widest: int, options: SolveOptions, progress: Progress | None) -> Problem:
    """Return the problem with the receive window of which quick searches make the most.

    Few posted receives leave memory to activations but hold messages back; nobody can say beforehand which counts.
    """
    quick = msgspec.structs.replace(options, node_limit=0)
    best: tuple[int, Problem] | None = None
    failure: InfeasibleError | NoSolutionError | None = None
    for window in sorted({1, 2, min(4, widest), widest}):
        windowed = msgspec.structs.replace(problem, receive_window=window)
        try:
            makespan = _solve(windowed, quick, progress).makespan_ns
        except (InfeasibleError, NoSolutionError) as error:
            failure = failure or error
            continue
        if best is None or makespan < best[0]:
            best = makespan, windowed
    if best is None:
        assert failure is not None, "a failure is why there is no window"
        raise failure
    return best[1]


def _solve(problem: Problem, options: SolveOptions, progress: Progress | None) -> SolveResult:
    limits = SolveLimits(
        max_gap=options.max_gap,
        time_limit_s=options.time_limit,
        seed=options.seed,
        node_limit=options.node_limit,
    )
    return solve(problem, options.method, limits, progress)


def _lowered(problem: Problem, result: SolveResult, options: SolveOptions, placement: str) -> Compiled:
    result.schedule.verify(problem)
    result.timeline.verify(result.schedule)
    peaks = memory_peaks(problem, result.schedule.orders)
    made_by = MadeBy(cpipe=cpipe.__version__, method=options.method, seed=options.seed, limits=_limits(options))
    plan = lower(problem, result.schedule, result.timeline, bound=result.bound, resident_peaks=peaks, made_by=made_by)
    return Compiled(problem=problem, result=result, plan=plan, placement=placement)


def _limits(options: SolveOptions) -> dict[str, float | int]:
    """Return the limits that differ from their defaults: what it takes to make the plan again."""
    chosen = {
        "max_gap": options.max_gap or None,
        "time_limit": options.time_limit,
        "receive_window": options.receive_window,
        "node_limit": options.node_limit,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _fits(problem: Problem, plan: Plan) -> bool:
    return all(
        device.capacity_bytes is None or peak <= device.capacity_bytes
        for device, peak in zip(problem.devices, plan.claims.peak_bytes, strict=True)
    )
