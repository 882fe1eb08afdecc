"""Memory of a device as a cumulative profile: what is resident from one op to another, and what an op needs itself.

One op runs at a time, so the profile at a moment is the prefix of the device's order up to the op that runs then:
levels over time and levels over the order are the same. Both ends matter: an op allocates at its start, and frees at
its end, where the next op may take what it freed.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

from cpipe.solve.cpsat.model import Model

__all__ = ["add_memory"]

_MAX_ENERGY = 1 << 61
"""CP-SAT adds products of demand and length in 64 bits."""


class _Demand(NamedTuple):
    """`base` bytes, and `extra` more if `literal`, unless `absent`.

    From the start of task `first`, or its end if `after`, to the end of task `last`.
    """

    first: int
    last: int
    base: int
    after: bool = False
    extra: int = 0
    literal: Any = None
    absent: Any = None


def add_memory(model: Model) -> None:
    """State that every device's activations and transients fit the room that it has for them."""
    for device, room in enumerate(model.rooms):
        if room is None:
            continue
        demands = [demand for demand in _demands(model, device) if demand.base or demand.extra]
        if sum(max(demand.base, demand.base + demand.extra) for demand in demands) > room:
            _state(model, demands, room, model.ticks[device])


def _demands(model: Model, device: int) -> list[_Demand]:
    network = model.network
    demands: list[_Demand] = []
    for stage in network.problem.stages_of(device):
        costs = network.problem.stages[stage]
        for microbatch in range(network.problem.microbatches):
            forward, backward = (network.compute[kind, stage, microbatch] for kind in ("F", "D"))
            weight = network.compute.get(("W", stage, microbatch))
            demands.append(_own(model, forward, costs.forward_transient_bytes))
            both = costs.whole_transient_bytes
            literal = model.merge.get(backward)
            if weight is None:
                demands += (_Demand(forward, backward, costs.activation_bytes), _own(model, backward, both))
                continue
            apart = max(0, costs.held_bytes - costs.activation_bytes) + costs.input_grad_transient_bytes
            demands.append(_own(model, backward, apart, both - apart if literal is not None else 0, literal))
            demands.append(_own(model, weight, costs.weight_grad_transient_bytes))
            if literal is None and costs.held_bytes == costs.activation_bytes:
                demands.append(_Demand(forward, weight, costs.activation_bytes))
            else:
                demands.append(_Demand(forward, backward, costs.activation_bytes))
                demands.append(_Demand(backward, weight, costs.held_bytes, after=True, absent=literal))
    return demands


def _own(model: Model, task: int, base: int, extra: int = 0, literal: Any = None) -> _Demand:
    """Return what a task needs while it runs."""
    return _Demand(task, task, base, extra=extra, literal=literal, absent=model.absent(task))


def _state(model: Model, demands: list[_Demand], room: int, ticks: int) -> None:
    unit = gcd(*(value for demand in demands for value in (demand.base, demand.extra)))
    length = (model.horizon + 1) * ticks
    energy = sum(max(demand.base, demand.base + demand.extra) for demand in demands) // unit * length
    if max(energy, room // unit * length) < _MAX_ENERGY:
        _as_cumulative(model, demands, room // unit, unit, length)
    else:
        _as_reservoir(model, demands, room // unit, unit)


def _as_cumulative(model: Model, demands: list[_Demand], room: int, unit: int, length: int) -> None:
    intervals, heights = [], []
    for demand in demands:
        intervals.append(_interval(model, demand, length))
        height = demand.base // unit
        heights.append(height if demand.literal is None else height + demand.extra // unit * demand.literal)
    model.cp.add_cumulative(intervals, heights, room)


def _interval(model: Model, demand: _Demand, length: int) -> Any:
    first, last, after = demand.first, demand.last, demand.after
    if first == last:
        return model.interval[first]
    absent = demand.absent
    size = model.integer(
        0, length, lambda replay: max(0, replay.spans[last][1] - replay.spans[first][after]) if replay.runs(last) else 0
    )
    start, end = model.spans[first][after], model.spans[last].end
    if absent is None:
        return model.cp.new_interval_var(start, size, end, "")
    return model.cp.new_optional_interval_var(start, size, end, ~absent, "")


def _as_reservoir(model: Model, demands: list[_Demand], room: int, unit: int) -> None:
    """State the same by level changes, whose sums stay small where lengths times bytes do not."""
    times: list[Any] = []
    changes: list[int] = []
    actives: list[Any] = []
    for demand in demands:
        always = model.cp.new_constant(1) if demand.absent is None else ~demand.absent
        variants = [(demand.base, always)]
        if demand.literal is not None:
            variants = [(demand.base, ~demand.literal), (demand.base + demand.extra, demand.literal)]
        for value, active in variants:
            if value:
                times += (model.spans[demand.first][demand.after], model.spans[demand.last].end)
                changes += (value // unit, -(value // unit))
                actives += (active, active)
    # changes at one moment count together, so what an op frees at its end is there for the next
    model.cp.add_reservoir_constraint_with_active(times, changes, actives, 0, room)
