"""The problem as a network of tasks: what must run, on which resource, after what.

Compute ops, messages that hold a pipe and collectives are all tasks, so that closure, windows and disjunctions treat
them alike. Times are integers in the network's own unit, the greatest common divisor of all durations of the problem
[ns]: a profile in seconds and one in nanoseconds give the same network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Literal, NamedTuple

from cpipe.ir import OpKind, Problem, Schedule, Stage, decode_op, encode_op

__all__ = ["Edge", "Merge", "Network", "Task", "build_network", "can_merge", "op_id", "split_dominated"]

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


def can_merge(problem: Problem, stage: Stage) -> bool:
    """Return whether B can be better than D and W on a stage that can split.

    B must cost less than D + W; or the device has a memory limit and D holds more than F did, so that B takes less
    memory. Otherwise D directly followed by W is never worse than B.
    """
    if not stage.can_split:
        return False
    limited = problem.devices[stage.device].capacity_bytes is not None
    cheaper = stage.full_backward_ns < stage.input_grad_ns + stage.weight_grad_ns
    return cheaper or (limited and stage.held_bytes > stage.activation_bytes)


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


def build_network(problem: Problem) -> Network:
    """Return the network of a problem: O(S n) tasks and edges."""
    network = Network(problem=problem, unit_ns=_unit_ns(problem))
    _add_compute(network)
    _add_stage_order(network)
    _add_hand_overs(network)
    _add_collectives(network)
    _add_resources(network)
    return network


def _unit_ns(problem: Problem) -> int:
    times: list[int] = []
    for stage in problem.stages:
        times += (stage.forward_ns, *_backward_times(problem, stage))
        if problem.collectives is not None:
            times += (stage.all_gather_ns, stage.reduce_ns)
    for hop in (*problem.forward_hops, *problem.backward_hops):
        if hop is not None:
            times += (hop.latency_ns, hop.occupancy_ns)
    return gcd(*times) or 1


def _backward_times(problem: Problem, stage: Stage) -> tuple[int, ...]:
    if not stage.can_split:
        return (stage.full_backward_ns,)
    parts = (stage.input_grad_ns, stage.weight_grad_ns)
    return (*parts, stage.full_backward_ns) if can_merge(problem, stage) else parts


def _add_compute(network: Network) -> None:
    problem, unit = network.problem, network.unit_ns
    for index, stage in enumerate(problem.stages):
        merge = None
        first, second = stage.input_grad_ns // unit, stage.weight_grad_ns // unit
        if not stage.can_split:
            first = stage.full_backward_ns // unit
        elif can_merge(problem, stage):
            merge = Merge(first, second, stage.full_backward_ns // unit)
            first = min(first, merge.full)
            second = min(second, merge.full - first)
        for microbatch in range(problem.microbatches):
            _add(network, Task("F", index, microbatch, stage.forward_ns // unit))
            backward = _add(network, Task("D", index, microbatch, first))
            if stage.can_split:
                _add(network, Task("W", index, microbatch, second))
            if merge is not None:
                network.merges[backward] = merge


def _add(network: Network, task: Task) -> int:
    index = len(network.tasks)
    network.tasks.append(task)
    if task.kind in ("F", "D", "W"):
        network.compute[task.kind, task.stage, task.microbatch] = index
    return index


def _add_stage_order(network: Network) -> None:
    """Within a stage: F before D before W, and each kind in microbatch order.

    Where B may run, the W keep their order only among those that are not empty; see `Model._merged_backwards`.
    """
    compute = network.compute
    for (kind, stage, microbatch), task in compute.items():
        following = compute.get((kind, stage, microbatch + 1))
        if following is not None and not (kind == "W" and compute["D", stage, microbatch] in network.merges):
            network.edges.append(Edge(task, following, 0))
        if kind != "F":
            network.edges.append(Edge(compute["F" if kind == "D" else "D", stage, microbatch], task, 0))


def _add_hand_overs(network: Network) -> None:
    """Between stages: activations forwards, gradients backwards, as edges or as message tasks."""
    problem = network.problem
    busy = _busy_pipes(problem)
    for boundary, (forward, backward) in enumerate(zip(problem.forward_hops, problem.backward_hops, strict=True)):
        for kind, hop, source, target in (
            ("F", forward, boundary, boundary + 1),
            ("D", backward, boundary + 1, boundary),
        ):
            for microbatch in range(problem.microbatches):
                producer = network.compute[kind, source, microbatch]
                consumer = network.compute[kind, target, microbatch]
                if hop is None or hop.pipe not in busy:
                    delay = hop.latency_ns // network.unit_ns if hop else 0
                    network.edges.append(Edge(producer, consumer, delay))
                    continue
                duration = hop.occupancy_ns // network.unit_ns
                message = _add(network, Task("message", source, microbatch, duration, producer))
                network.messages[kind, source, microbatch] = message
                network.edges.append(Edge(producer, message, 0))
                network.edges.append(Edge(message, consumer, hop.latency_ns // network.unit_ns))
                if microbatch:
                    network.edges.append(Edge(network.messages[kind, source, microbatch - 1], message, 0))
                window = problem.receive_window
                if window is not None and microbatch >= window:
                    # also right, if not all, when several stages share the channel: other messages only come between
                    reader = network.compute[kind, target, microbatch - window]
                    network.edges.append(Edge(reader, message, 0))


def _busy_pipes(problem: Problem) -> frozenset[int]:
    """Return the pipes on which a message may have to wait; on the others it is a mere delay."""
    hops = [hop for hop in (*problem.forward_hops, *problem.backward_hops) if hop is not None]
    if problem.receive_window is not None:
        return frozenset(hop.pipe for hop in hops)
    busy = {hop.pipe for hop in hops if hop.occupancy_ns}
    if problem.collectives is not None:
        busy.update(problem.collectives.pipes)
    return frozenset(busy)


def _add_collectives(network: Network) -> None:
    """Around a stage: the gather before its first F, the reduce after its last W or B."""
    problem, unit = network.problem, network.unit_ns
    if problem.collectives is None:
        return
    for index, stage in enumerate(problem.stages):
        if problem.collectives.mode == "zero1":
            first = network.compute["F", index, 0]
            gather = _add(network, Task("gather", index, 0, stage.all_gather_ns // unit, first))
            network.collectives["gather", index] = gather
            network.edges.append(Edge(gather, first, 0))
        reduce = _add(network, Task("reduce", index, 0, stage.reduce_ns // unit))
        network.collectives["reduce", index] = reduce
        final = "W" if stage.can_split else "D"
        network.edges += (
            Edge(network.compute[final, index, microbatch], reduce, 0) for microbatch in range(problem.microbatches)
        )


def _add_resources(network: Network) -> None:
    """One op at a time on a device, one message on a pipe, one collective on a data-parallel link."""
    problem = network.problem
    devices: list[list[int]] = [[] for _ in problem.devices]
    pipes: list[list[int]] = [[] for _ in problem.pipes]
    links: list[list[int]] = [[] for _ in problem.devices]
    for index, task in enumerate(network.tasks):
        if task.kind == "message":
            pipes[_pipe_of(network, task)].append(index)
        elif task.kind in ("gather", "reduce"):
            links[network.device(index)].append(index)
            for pipe in problem.collectives.pipes if problem.collectives else ():
                pipes[pipe].append(index)
        else:
            devices[network.device(index)].append(index)
    network.resources = [tasks for tasks in (*devices, *pipes, *links) if len(tasks) > 1]


def _pipe_of(network: Network, message: Task) -> int:
    assert message.owner is not None
    forward = network.tasks[message.owner].kind == "F"
    problem = network.problem
    hop = problem.forward_hops[message.stage] if forward else problem.backward_hops[message.stage - 1]
    assert hop is not None
    return hop.pipe


def op_id(network: Network, task: int, *, merged: bool = False) -> int:
    """Return the op id of a compute task; `merged` gives the B of a D task."""
    kind, stage, microbatch, _, _ = network.tasks[task]
    splits = network.problem.stages[stage].can_split
    name = "B" if kind == "D" and (merged or not splits) else kind
    return encode_op(OpKind[name], stage, microbatch, network.problem.microbatches)
