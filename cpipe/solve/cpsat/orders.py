"""From a solution to an order: by starts on each device's own clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpipe.ir import Schedule
from cpipe.solve.cpsat.model import Model
from cpipe.solve.milp.network import op_id

__all__ = ["extract_schedule"]


def extract_schedule(model: Model, value: Callable[[Any], int]) -> Schedule:
    """Return the orders that a solution means.

    Parameters
    ----------
    model
        The model.
    value
        Value of a variable, literal or expression.
    """
    network = model.network
    devices: list[list[tuple[tuple[int, int, int, int], int]]] = [[] for _ in network.problem.devices]
    for task in network.compute.values():
        absent = model.absent(task)
        if absent is not None and value(absent):
            continue
        merged = task in model.merge and bool(value(model.merge[task]))
        start, end = value(model.spans[task].start), value(model.spans[task].end)
        # at one moment, what takes no time goes first, and among that what must
        place = (start, int(end > start), model.precedence.before[task].bit_count(), task)
        devices[network.device(task)].append((place, op_id(network, task, merged=merged)))
    return Schedule(orders=tuple(tuple(op for _, op in sorted(ops)) for ops in devices))
