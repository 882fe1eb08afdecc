"""From a problem to its network: compute, hand-overs, collectives, and what they share."""

from __future__ import annotations

from math import gcd

from cpipe.ir import Problem, Stage
from cpipe.solve.merging import can_merge
from cpipe.solve.milp.network import Edge, Merge, Network, Task

__all__ = ["build_network"]


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
