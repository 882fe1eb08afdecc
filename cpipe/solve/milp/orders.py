"""Between schedules and the model's columns: a start vector from a replay, orders from a solution."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.ir import OpKind, Schedule, Timeline, decode_op
from cpipe.ir.ops import KINDS
from cpipe.solve.milp.model import Model
from cpipe.solve.milp.network import Network, op_id
from cpipe.solve.milp.windows import openers

__all__ = ["extract_schedule", "replayed", "start_vector"]


def start_vector(model: Model, schedule: Schedule, timeline: Timeline) -> list[float]:
    """Return the value of every column for a replayed schedule.

    Parameters
    ----------
    model
        The model.
    schedule
        An order without any B that the model would not choose (see `split_dominated`).
    timeline
        Its replay.
    """
    network = model.network
    starts, position, merged = replayed(network, schedule, timeline)
    unit = network.unit_ns * model.scale
    values = [0.0] * len(model.columns)
    for task, column in enumerate(model.start):
        values[column] = starts[task] / unit
    values[model.goal] = (timeline.makespan_ns if model.objective == "makespan" else timeline.span_ns) / unit
    for device, column in model.opening.items():
        values[column] = min(values[model.start[task]] for task in openers(network, device))
    for task, column in model.merge.items():
        values[column] = float(task in merged)
    for (first, second), column in model.order.items():
        if {network.tasks[first].kind, network.tasks[second].kind} <= {"F", "D", "W"}:
            values[column] = float(position[first] < position[second])
        else:
            # at one moment, what takes no time comes first
            ranks = [(starts[task], network.tasks[task].duration, position[task]) for task in (first, second)]
            values[column] = float(ranks[0] < ranks[1])
    return values


def replayed(network: Network, schedule: Schedule, timeline: Timeline) -> tuple[list[int], list[int], frozenset[int]]:
    """Return each task's start [ns] and place (in its device's order, or its producer's), and the merged D tasks."""
    n = network.problem.microbatches
    starts = [0] * len(network.tasks)
    position = [0] * len(network.tasks)
    merged = set()
    for order, begins, ends in zip(schedule.orders, timeline.starts, timeline.ends, strict=True):
        for place, (op, begin, end) in enumerate(zip(order, begins, ends, strict=True)):
            kind, stage, microbatch = decode_op(op, n)
            task = network.compute["D" if kind is OpKind.B else kind.name, stage, microbatch]
            starts[task], position[task] = begin, KINDS * place
            weight = network.weight_of(task)
            if kind is OpKind.B and weight is not None:
                merged.add(task)
                starts[weight], position[weight] = end, KINDS * place + 1
    for run in timeline.messages:
        message = network.messages.get(("F" if run.kind == "activation" else "D", run.stage, run.microbatch))
        if message is not None:
            owner = network.tasks[message].owner
            assert owner is not None
            starts[message], position[message] = run.start_ns, position[owner]
    for collective in timeline.collectives:
        kind_name = "gather" if collective.kind == "ALL_GATHER" else "reduce"
        task = network.collectives[kind_name, collective.stage]
        starts[task] = collective.start_ns
        owner = network.tasks[task].owner
        position[task] = position[owner] if owner is not None else KINDS * sum(map(len, schedule.orders))
    return starts, position, frozenset(merged)


def extract_schedule(model: Model, values: Sequence[float]) -> Schedule:
    """Return the orders that a solution means.

    The order variables decide, not the times: those are floats, and ops without duration share them. Where tasks
    without duration contradict each other, the earlier start goes first.
    """
    network = model.network
    merged = {task for task, column in model.merge.items() if values[column] > 0.5}
    devices: list[list[int]] = [[] for _ in network.problem.devices]
    for task in network.compute.values():
        devices[network.device(task)].append(task)
    orders = []
    for tasks in devices:
        ops = []
        for task in _sorted_by_precedence(model, tasks, values):
            kind, stage, microbatch, _, _ = network.tasks[task]
            if kind == "W" and network.compute["D", stage, microbatch] in merged:
                continue
            ops.append(op_id(network, task, merged=task in merged))
        orders.append(tuple(ops))
    return Schedule(orders=tuple(orders))


def _sorted_by_precedence(model: Model, tasks: list[int], values: Sequence[float]) -> list[int]:
    """Return the tasks of one device in order: fewest open predecessors first, then the earlier start."""

    def precedes(first: int, second: int) -> bool:
        constant, factor, column = model.precedes(first, second)
        return constant + (factor * values[column] if column is not None else 0.0) > 0.5

    waits = {task: sum(precedes(other, task) for other in tasks if other != task) for task in tasks}
    left, result = list(tasks), []
    while left:
        settled = [task for task in left if not any(model.precedence.before[task] >> other & 1 for other in left)]
        task = min(settled, key=lambda task: (waits[task], values[model.start[task]], task))
        left.remove(task)
        result.append(task)
        for other in left:
            waits[other] -= precedes(task, other)
    return result
