"""Memory of each device over time, drawn from its order; without sizes, the microbatches that it holds."""

from __future__ import annotations

from typing import NamedTuple

from cpipe.ir.ops import OpKind
from cpipe.report.figures import receive_buffers
from cpipe.report.view import OpView, PlanView
from cpipe.sim import memory_steps

__all__ = ["Level", "memory_levels"]


class Level(NamedTuple):
    """A curve of steps: from `points[i][0]` [ns] on the level is `points[i][1]`.

    `unit` is ``bytes``, or ``microbatches`` where sizes are not known; `capacity` is the limit [bytes], or None.
    """

    unit: str
    points: tuple[tuple[int, int], ...]
    capacity: int | None

    @property
    def peak(self) -> int:
        """The highest level."""
        return max((level for _, level in self.points), default=0)


def memory_levels(view: PlanView) -> tuple[Level, ...]:
    """Return one curve per rank of the view.

    With a problem: static bytes, posted receive buffers (the windows of the plan, always counted) and what the ops
    hold, transients while they run. Without: microbatches whose forward has started and whose D or B has not ended.
    """
    if view.problem is None or len(view.problem.devices) != view.plan.problem.devices:
        return tuple(_in_flight(view, rank) for rank in range(len(view.ranks)))
    return tuple(_bytes(view, rank) for rank in range(len(view.ranks)))


def _bytes(view: PlanView, rank: int) -> Level:
    problem = view.problem
    device = view.ranks[rank].rank
    if problem is None or not 0 <= device < problem.num_devices:
        return _in_flight(view, rank)
    steps = memory_steps(problem)
    level: int = sum(problem.stages[stage].static_bytes for stage in problem.stages_of(device))
    level += receive_buffers(view.plan, problem, device)
    points = [(0, level)]
    for index in view.ranks[rank].ops:
        op = view.ops[index]
        kinds = _halves(op)
        if any(not 0 <= stage < problem.num_stages for _, stage in kinds):
            return _in_flight(view, rank)
        found = [steps[stage * len(OpKind) + OpKind[kind]] for kind, stage in kinds]
        points.append((op.start, level + sum(step.during for step in found)))
        level += sum(step.after for step in found)
        points.append((op.end, level))
    return Level("bytes", _joined(points), problem.devices[device].capacity_bytes)


def _in_flight(view: PlanView, rank: int) -> Level:
    level, points = 0, [(0, 0)]
    for index in view.ranks[rank].ops:
        op = view.ops[index]
        kinds = [kind for kind, _ in _halves(op)]
        if "F" in kinds:
            level += 1
            points.append((op.start, level))
        if "D" in kinds or "B" in kinds:
            level -= 1
            points.append((op.end, level))
    return Level("microbatches", _joined(points), None)


def _halves(op: OpView) -> tuple[tuple[str, int], ...]:
    """Return kind and stage of what an op does: of a pair, a forward and a full backward (unless it is not stated)."""
    if op.backward is not None:
        return ("F", op.stage), ("B", op.backward[0])
    return (("F" if op.kind == "FB" else op.kind, op.stage),)


def _joined(points: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the points that change the level; of several at one time all stay, as a peak may be that short."""
    kept = points[:1]
    for point in points[1:]:
        if point[1] != kept[-1][1]:
            kept.append(point)
    return tuple(kept)
