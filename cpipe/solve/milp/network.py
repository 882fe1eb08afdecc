"""The problem as a network of tasks: what must run, on which resource, after what.

Compute ops, messages that hold a pipe and collectives are all tasks, so that closure, windows and disjunctions treat
them alike. Times are integers in the network's own unit, the greatest common divisor of all durations of the problem
[ns]: a profile in seconds and one in nanoseconds give the same network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cpipe.ir import OpKind, Problem, Schedule, decode_op, encode_op
from cpipe.solve.merging import can_merge

__all__ = ["Edge", "Merge", "Network", "Task", "op_id", "split_dominated"]

TaskKind = Literal["F", "D", "W", "message", "gather", "reduce"]


class Task(NamedTuple):
    """One thing that takes time.

    Attributes
    ----------
    kind
        F, D (also a backward that cannot be split), W, message, gather or reduce.
    stage, microbatch
        Of the op; of a message's producer; microbatch 0 for collectives.
    duration
        Shortest duration [units]; see `Network.merges`.
    owner
        Task whose order on its device is also the order of this one among those of its kind and device: the producer
        of a message, the first F behind a gather. None: the order is free.
    """

    kind: TaskKind
    stage: int
    microbatch: int
    duration: int
    owner: int | None = None


class Edge(NamedTuple):
    """``start(after) >= end(before) + delay``, [units]."""

    before: int
    after: int
    delay: int


class Merge(NamedTuple):
    """Durations of D and W apart and of B instead of both, [units]."""

    input_grad: int
    weight_grad: int
    full: int


@dataclass
class Network:
    """Tasks and the constraints that hold in every schedule.

    Attributes
    ----------
    unit_ns
        Length of a unit [ns].
    tasks
        Compute tasks first.
    edges
        Data dependencies, microbatch order per stage and kind, receive windows.
    resources
        Tasks that never overlap: one entry a device, pipe and data-parallel link.
    compute
        (kind, stage, microbatch) of a compute task -> its index.
    messages
        (kind, stage, microbatch) of a producer -> index of its message, where that is a task.
    collectives
        (kind, stage) -> index, kind ``gather`` or ``reduce``.
    merges
        D task whose stage may run B instead -> durations. B is then a D of B's length with an empty W at its end;
        the shortest durations in `tasks` hold in both cases, for D and for D plus W.
    """

    problem: Problem
    unit_ns: int
    tasks: list[Task] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    resources: list[list[int]] = field(default_factory=list)
    compute: dict[tuple[str, int, int], int] = field(default_factory=dict)
    messages: dict[tuple[str, int, int], int] = field(default_factory=dict)
    collectives: dict[tuple[str, int], int] = field(default_factory=dict)
    merges: dict[int, Merge] = field(default_factory=dict)

    def device(self, task: int) -> int:
        """Return the device that runs the task, or sends it."""
        return self.problem.stages[self.tasks[task].stage].device

    def weight_of(self, task: int) -> int | None:
        """Return the W task of a D task, or None when its stage never runs W."""
        _, stage, microbatch, _, _ = self.tasks[task]
        return self.compute.get(("W", stage, microbatch))

    def serial_length(self) -> int:
        """Return an upper bound on the shortest makespan, met when nothing overlaps [units]."""
        work = sum(task.duration for task in self.tasks) + sum(sum(merge) for merge in self.merges.values())
        return work + sum(edge.delay for edge in self.edges)


def split_dominated(problem: Problem, schedule: Schedule) -> Schedule:
    """Return the schedule with D, W for every B of a stage that can split and gains nothing by B.

    The W of such a stage are named anew in microbatch order; they are alike, and the k-th has k D before it.
    """
    n = problem.microbatches
    split = {index for index, stage in enumerate(problem.stages) if stage.can_split and not can_merge(problem, stage)}
    orders = []
    for order in schedule.orders:
        done = dict.fromkeys(split, 0)
        ops: list[int] = []
        for op in order:
            kind, stage, microbatch = decode_op(op, n)
            if stage not in split or kind is OpKind.F:
                ops.append(op)
                continue
            if kind is not OpKind.W:
                ops.append(encode_op(OpKind.D, stage, microbatch, n))
            if kind is not OpKind.D:
                ops.append(encode_op(OpKind.W, stage, done[stage], n))
                done[stage] += 1
        orders.append(tuple(ops))
    return Schedule(orders=tuple(orders))


def op_id(network: Network, task: int, *, merged: bool = False) -> int:
    """Return the op id of a compute task; `merged` gives the B of a D task."""
    kind, stage, microbatch, _, _ = network.tasks[task]
    splits = network.problem.stages[stage].can_split
    name = "B" if kind == "D" and (merged or not splits) else kind
    return encode_op(OpKind[name], stage, microbatch, network.problem.microbatches)
