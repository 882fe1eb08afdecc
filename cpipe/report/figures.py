"""Figures per device: how busy it is, how full, and how many microbatches it holds.

Everything is counted from a plan's program or from a timeline; nothing is looked up in a solver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cpipe.ir import OpKind, Plan, Problem, Schedule, Timeline, decode_op
from cpipe.ir.base import Frozen

__all__ = ["COMPUTE", "DeviceFigures", "plan_figures", "receive_buffers", "replay_figures"]

COMPUTE = frozenset({"F", "D", "W", "B", "FB"})


class DeviceFigures(Frozen, frozen=True, kw_only=True):
    """One device over one iteration.

    Attributes
    ----------
    name
        The user's id.
    stages
        Stages that stand on it, in flow order.
    busy_ns
        Time spent in F, D, W and B [ns].
    makespan_ns
        Of the whole pipeline [ns].
    in_flight
        Most microbatches (of each of its stages) whose forward has started and whose D or B has not ended.
    peak_bytes
        Peak memory, posted receive buffers included [bytes].
    static_bytes, capacity_bytes
        Of the profile [bytes]; None when there is no profile, or no limit.
    """

    name: str
    stages: tuple[int, ...]
    busy_ns: int
    makespan_ns: int
    in_flight: int
    peak_bytes: int
    static_bytes: int | None = None
    capacity_bytes: int | None = None

    @property
    def bubble(self) -> float:
        """Idle share of the makespan, in [0, 1]."""
        return max(0.0, 1 - self.busy_ns / self.makespan_ns) if self.makespan_ns > 0 else 0.0


def plan_figures(plan: Plan, problem: Problem | None = None) -> tuple[DeviceFigures, ...]:
    """Return the figures that a plan itself states, one per rank.

    Parameters
    ----------
    plan
        Any plan that can be read.
    problem
        Adds static bytes and capacity of the ranks that it has.
    """
    peaks = plan.claims.peak_bytes
    figures = []
    for program in plan.ranks:
        rank = program.rank
        known = problem if problem is not None and 0 <= rank < problem.num_devices else None
        figures.append(
            DeviceFigures(
                name=program.device,
                stages=tuple(stage for stage, home in enumerate(plan.problem.placement) if home == rank),
                busy_ns=sum(max(0, (op.end_ns or 0) - (op.start_ns or 0)) for op in program.ops if op.op in COMPUTE),
                makespan_ns=plan.claims.makespan_ns,
                in_flight=_in_flight(op.op for op in program.ops),
                peak_bytes=peaks[rank] if 0 <= rank < len(peaks) else 0,
                static_bytes=None if known is None else _static_bytes(known, rank),
                capacity_bytes=None if known is None else known.devices[rank].capacity_bytes,
            )
        )
    return tuple(figures)


def replay_figures(
    plan: Plan, problem: Problem, schedule: Schedule, timeline: Timeline, resident: Sequence[int]
) -> tuple[DeviceFigures, ...]:
    """Return the figures of a plan replayed on `problem`, one per device.

    Parameters
    ----------
    plan
        Gives the receive windows.
    problem
        The problem it is replayed on; same devices, stages and microbatches.
    schedule
        The plan's orders.
    timeline
        Their replay.
    resident
        Peak of static and activation bytes per device, receive buffers not included [bytes].
    """
    names = [OpKind(kind).name for kind in range(len(OpKind))]
    return tuple(
        DeviceFigures(
            name=problem.devices[device].name,
            stages=problem.stages_of(device),
            busy_ns=_busy_ns(schedule, timeline, device),
            makespan_ns=timeline.makespan_ns,
            in_flight=_in_flight(names[decode_op(op, problem.microbatches).kind] for op in order),
            peak_bytes=resident[device] + receive_buffers(plan, problem, device),
            static_bytes=_static_bytes(problem, device),
            capacity_bytes=problem.devices[device].capacity_bytes,
        )
        for device, order in enumerate(schedule.orders)
    )


def _in_flight(kinds: Iterable[str]) -> int:
    level = most = 0
    for kind in kinds:
        if kind in ("F", "FB"):  # of an FB the forward starts before the backward has ended
            level += 1
            most = max(most, level)
        if kind in ("D", "B", "FB"):
            level -= 1
    return most


def _busy_ns(schedule: Schedule, timeline: Timeline, device: int) -> int:
    """Return the time [ns] that a device computes; a fused pair counts once."""
    fused = {second for _, second in schedule.pairs}
    times = zip(schedule.orders[device], timeline.starts[device], timeline.ends[device], strict=True)
    return sum(end - start for op, start, end in times if op not in fused)


def _static_bytes(problem: Problem, device: int) -> int:
    return sum(problem.stages[stage].static_bytes for stage in problem.stages_of(device))


def receive_buffers(plan: Plan, problem: Problem, device: int) -> int:
    """Sum over the device's incoming channels: window times the largest message it carries on `problem`."""
    largest = problem.largest_messages()
    return sum(
        channel.window * largest.get((channel.source, channel.target, channel.carries), 0)
        for channel in plan.channels
        if channel.target == device
    )
