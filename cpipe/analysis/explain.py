"""Plan (and problem) -> explanation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from cpipe.analysis.stated import stated_replay
from cpipe.analysis.whatif import Present, tight_devices, what_ifs
from cpipe.ir import Bound, Objective, Plan, Problem, Timeline
from cpipe.ir.explanation import Explanation
from cpipe.plan import lift, posting_gates, problem_digest
from cpipe.profile.offload import offers_offload, unloaded
from cpipe.report.figures import receive_buffers
from cpipe.sim import Runs, critical_path, idle_parts, memory_peaks
from cpipe.solve.bounds import lower_bound

__all__ = ["explain_plan", "explain_stated"]


def explain_stated(plan: Plan) -> Explanation:
    """Explain a valid plan by its own times; what it cannot say (costs of links, memory, what-ifs) is left out.

    Raises
    ------
    cpipe.ir.InvariantError
        When the plan has no times.
    """
    problem, schedule, timeline = stated_replay(plan)
    runs = Runs(problem, schedule, timeline, {})
    path = tuple(replace(piece, kind="transfer") if piece.kind == "latency" else piece for piece in critical_path(runs))
    objective, reached, bound = _proof(plan, None, timeline)
    return Explanation(
        makespan_ns=runs.makespan,
        objective=objective,
        reached_ns=reached,
        bound=bound,
        pipes=problem.pipes,
        path=path,
        idle=idle_parts(runs),
    )


def explain_plan(
    plan: Plan, problem: Problem, timeline: Timeline, progress: Callable[[str], None] = lambda line: None
) -> Explanation:
    """Explain a plan on a problem.

    Parameters
    ----------
    plan
        A valid plan.
    problem
        What it is replayed on, under the plan's own placement.
    timeline
        Its replay there; see `cpipe.compiler.simulate_plan`.
    progress
        Called with one short line now and then.
    """
    schedule, gates = lift(plan)[0], posting_gates(plan)
    runs = Runs(problem, schedule, timeline, gates)
    buffers = [receive_buffers(plan, problem, device) for device in range(problem.num_devices)]
    rooms = _rooms(problem, buffers)
    objective, reached, bound = _proof(plan, problem, timeline)
    path, idle = critical_path(runs, rooms), idle_parts(runs, rooms)
    peaks = memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads)
    present = Present(
        problem=replace(problem, receive_window=_window(plan, problem)),
        schedule=schedule,
        gates=gates,
        makespan=timeline.makespan_ns,
        bound=bound.value_ns if objective == "makespan" else 0,
        peaks=[peak + extra for peak, extra in zip(peaks, buffers, strict=True)],
        path=path,
        idle=idle,
    )
    return Explanation(
        makespan_ns=timeline.makespan_ns,
        objective=objective,
        reached_ns=reached,
        bound=bound,
        pipes=problem.pipes,
        path=path,
        idle=idle,
        what_ifs=what_ifs(present, tight_devices(runs, rooms), progress),
    )


def _rooms(problem: Problem, buffers: Sequence[int]) -> list[int | None]:
    """Return what each device has left for activations and transients [bytes], None without a limit."""
    static = [sum(problem.stages[stage].static_bytes for stage in problem.stages_of(d)) for d in range(len(buffers))]
    return [
        None if owner.capacity_bytes is None else owner.capacity_bytes - held - extra
        for owner, held, extra in zip(problem.devices, static, buffers, strict=True)
    ]


def _window(plan: Plan, problem: Problem) -> int | None:
    """Return the receive window that other orders must keep: the plan's own, where receives cost scarce memory."""
    asked = plan.made_by.limits.get("receive_window")
    if isinstance(asked, int) and asked >= 1:
        return asked
    limited = any(device.capacity_bytes is not None for device in problem.devices)
    if limited and any(problem.largest_messages().values()):
        return max((channel.window for channel in plan.channels), default=None)
    return None


def _proof(plan: Plan, problem: Problem | None, timeline: Timeline) -> tuple[Objective, int, Bound]:
    """Return the objective, what the plan reaches of it [ns], and the best bound on it that is known.

    The plan's own proof counts where it is of this problem, or where there is none; closed forms count always.
    """
    claims = plan.claims
    own = Bound(value_ns=claims.lower_bound_ns, proved_by=claims.proved_by, reason=claims.reason)
    if problem is not None and plan.problem.digest != problem_digest(problem):
        own = Bound(value_ns=0)
        objective: Objective = "makespan"
    else:
        objective = claims.objective
    reached = timeline.span_ns if objective == "span" else timeline.makespan_ns
    if problem is not None and objective == "makespan":
        closed = lower_bound(unloaded(problem) if offers_offload(problem) else problem)
        if closed.value_ns > own.value_ns or (closed.value_ns == own.value_ns and not own.reason):
            own = closed
    if own.value_ns > reached:  # a plan that needs more memory than there is may beat what holds for all that fit
        own = Bound(value_ns=0, reason="as the plan takes more than the job has")
    return objective, reached, replace(own, value_ns=max(0, own.value_ns))
