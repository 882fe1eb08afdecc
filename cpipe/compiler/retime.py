"""A plan timed anew: its program as it stands, with the times and claims that it has on a profile."""

from __future__ import annotations

from msgspec.structs import replace

import cpipe
from cpipe.compiler.claims import claiming, with_transports
from cpipe.ir import Bound, Instruction, MadeBy, Plan, Problem, RankProgram, Timeline
from cpipe.plan import lift, plan_digest, problem_digest, validate
from cpipe.plan.copies import has_offloads
from cpipe.plan.exchange import with_times
from cpipe.plan.lower import certificate, receive_windows
from cpipe.profile.offload import bounded
from cpipe.report.figures import receive_buffers
from cpipe.sim import memory_peaks
from cpipe.solve.bounds import lower_bound, span_bound

__all__ = ["METHOD", "recounted", "retimed"]

METHOD = "simulate"
"""How a plan was made that was timed anew: by no search."""


def recounted(plan: Plan) -> Plan:
    """Return the plan with the receive windows that its programs have; its digest stays as it was."""
    windows = {channel: count for program in plan.ranks for channel, count in receive_windows(program.ops).items()}
    channels = tuple(replace(channel, window=windows.get(channel.id, channel.window)) for channel in plan.channels)
    return replace(plan, channels=channels)


def retimed(plan: Plan, problem: Problem, timeline: Timeline) -> Plan:
    """Return the plan with the times, claims and digests that it has on `problem`.

    A plan that was made for this problem, was never changed and is valid is returned as it is. What a solver proved
    holds for the problem, so that bound is kept where the plan still is what it was; else it is a closed form.

    Parameters
    ----------
    plan
        Can be replayed; its receive windows are right (see `recounted`).
    problem
        What it is to be timed on.
    timeline
        Its replay there.
    """
    intact = plan.digest == plan_digest(plan)
    same_problem = plan.problem.digest == problem_digest(problem)
    least = bounded(problem, has_offloads(plan))
    closed = (span_bound if plan.claims.objective == "span" else lower_bound)(least)
    claimed_at_most = closed.value_ns if plan.claims.proved_by == "bound" else None
    if intact and same_problem and not validate(plan, problem, closed_bound_ns=claimed_at_most):
        return plan
    schedule, _ = lift(plan)
    sizes = problem.largest_messages()
    channels = tuple(
        replace(channel, message_bytes=sizes[channel.source, channel.target, channel.carries])
        for channel in plan.channels
    )
    ranks = tuple(
        RankProgram(rank=program.rank, device=problem.devices[program.rank].name, ops=tuple(map(_untimed, program.ops)))
        for program in sorted(plan.ranks, key=lambda program: program.rank)
    )
    new = replace(
        plan,
        channels=channels,
        ranks=ranks,
        problem=replace(plan.problem, digest=problem_digest(problem), name=problem.name),
    )
    resident = memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads)
    peaks = tuple(peak + receive_buffers(new, problem, device) for device, peak in enumerate(resident))
    new = with_times(replace(new, claims=replace(plan.claims, peak_bytes=peaks)), timeline)
    is_span = plan.claims.objective == "span"
    reached = timeline.span_ns if is_span else timeline.makespan_ns
    bound = _bound(plan, closed, reached, keep=intact and same_problem)
    new = claiming(
        new,
        lower_bound_ns=bound.value_ns,
        proved_by=bound.proved_by,
        span_ns=reached if is_span else None,
        **certificate(reached, bound),
    )
    found_by = plan.made_by.found_by if intact else ""
    made_by = MadeBy(cpipe=cpipe.__version__, method=METHOD, seed=0, limits={}, found_by=found_by)
    return with_transports(replace(new, made_by=made_by))


def _untimed(step: Instruction) -> Instruction:
    """Return a STEP without times: on another problem it may take none."""
    return replace(step, start_ns=None, end_ns=None) if step.op == "STEP" else step


def _bound(plan: Plan, closed: Bound, reached_ns: int, *, keep: bool) -> Bound:
    """Return the lower bound to claim; none where the plan beats it, as it can where memory does not suffice."""
    claims = plan.claims
    if keep and claims.proved_by != "bound" and closed.value_ns < claims.lower_bound_ns <= reached_ns:
        return Bound(value_ns=claims.lower_bound_ns, proved_by=claims.proved_by, reason=claims.reason)
    return closed if closed.value_ns <= reached_ns else Bound(value_ns=0)
