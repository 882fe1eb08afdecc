"""Changed jobs: a problem with faster links, more memory or one more microbatch, and the orders to start from."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from cpipe.ir import Hop, InvariantError, OpKind, Problem, Schedule, Stage, decode_op, encode_op
from cpipe.units import Bytes, Ns

__all__ = [
    "extended_orders",
    "faster_collectives",
    "faster_links",
    "link_groups",
    "more_memory",
    "with_capacity",
]


def link_groups(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Return the links that messages use: display name -> its pipes, both directions of it together."""
    group = list(range(len(problem.pipes)))
    used: set[int] = set()
    for forward, backward in zip(problem.forward_hops, problem.backward_hops, strict=True):
        if forward is not None and backward is not None:
            used |= {forward.pipe, backward.pipe}
            kept, other = sorted((group[forward.pipe], group[backward.pipe]))
            group = [kept if entry == other else entry for entry in group]
    members: dict[int, list[int]] = {}
    for pipe in sorted(used):
        members.setdefault(group[pipe], []).append(pipe)
    return {_link_name([problem.pipes[pipe] for pipe in pipes]): tuple(pipes) for pipes in members.values()}


def _link_name(names: list[str]) -> str:
    """Return ``a<->b`` for ``a->b`` and ``b->a``, else the names side by side."""
    if len(names) == 2:
        first, arrow, second = names[0].partition("->")
        if arrow and names[1] == f"{second}->{first}":
            return f"{first}<->{second}"
    return " + ".join(names)


def faster_links(problem: Problem, pipes: Collection[int], *, latency: bool) -> Problem:
    """Return the problem with 10 % less latency, or 10 % more bandwidth, on some pipes; rounded down to whole ns."""

    def changed(hop: Hop | None) -> Hop | None:
        if hop is None or hop.pipe not in pipes:
            return hop
        if latency:
            return replace(hop, latency_ns=Ns(hop.latency_ns * 9 // 10))
        return replace(hop, occupancy_ns=Ns(hop.occupancy_ns * 10 // 11))

    return replace(
        problem,
        forward_hops=tuple(map(changed, problem.forward_hops)),
        backward_hops=tuple(map(changed, problem.backward_hops)),
    )


def faster_collectives(problem: Problem) -> Problem:
    """Return the problem with data-parallel collectives that are 10 % faster."""

    def changed(stage: Stage) -> Stage:
        return replace(
            stage,
            all_gather_ns=Ns(stage.all_gather_ns * 10 // 11),
            reduce_ns=Ns(stage.reduce_ns * 10 // 11),
        )

    return replace(problem, stages=tuple(map(changed, problem.stages)))


def more_memory(problem: Problem, devices: Collection[int]) -> Problem:
    """Return the problem with 10 % more memory on some devices."""
    limits = {index: problem.devices[index].capacity_bytes for index in devices}
    return with_capacity(problem, {index: limit * 11 // 10 for index, limit in limits.items() if limit is not None})


def with_capacity(problem: Problem, limits: dict[int, int]) -> Problem:
    """Return the problem with other memory limits [bytes] on some devices."""
    devices = tuple(
        replace(device, capacity_bytes=Bytes(limits[index])) if index in limits else device
        for index, device in enumerate(problem.devices)
    )
    return replace(problem, devices=devices)


def extended_orders(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """Yield orders for one microbatch more: one period of the steady state of each device is run twice.

    A period is a stretch of a device's order with one forward and one whole backward of each of its stages. `problem`
    is the one that `schedule` is for; what is yielded is for ``microbatches + 1``.
    """
    n = problem.microbatches
    periods = [_periods(problem, device, order) for device, order in enumerate(schedule.orders)]
    if schedule.pairs or not all(periods):
        return
    larger = replace(problem, microbatches=n + 1)
    seen: set[Schedule] = set()
    for microbatch in range(n):
        orders = []
        for order, choices in zip(schedule.orders, periods, strict=True):
            begin, stop = min(choices.items(), key=lambda entry: (abs(entry[0] - microbatch), entry[0]))[1]
            kept = [_renumbered(op, n, 0) for op in order[:stop]]
            orders.append((*kept, *(_renumbered(op, n, 1) for op in order[begin:])))
        found = Schedule(orders=tuple(orders))
        if found in seen:
            continue
        seen.add(found)
        try:
            found.verify(larger)
        except InvariantError:
            continue
        yield found


def _periods(problem: Problem, device: int, order: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Return the periods of an order, by microbatch of their first op: where each begins and stops."""
    n, stages = problem.microbatches, problem.stages_of(device)
    if not stages:
        return {0: (0, 0)}
    ops = [decode_op(op, n) for op in order]
    whole = sorted((stage, kind) for stage in stages for kind in ("F", "backward", "weight"))
    periods: dict[int, tuple[int, int]] = {}
    for begin, op in enumerate(ops):
        if op.kind is not OpKind.F or op.stage != stages[0]:
            continue
        done: list[tuple[int, str]] = []
        for stop in range(begin, len(ops)):
            done += _parts(ops[stop].stage, ops[stop].kind)
            if len(done) >= len(whole):
                if sorted(done) == whole:
                    periods[op.microbatch] = begin, stop + 1
                break
    return periods


def _parts(stage: int, kind: OpKind) -> list[tuple[int, str]]:
    if kind is OpKind.F:
        return [(stage, "F")]
    both = [(stage, "backward"), (stage, "weight")]
    return both if kind is OpKind.B else both[:1] if kind is OpKind.D else both[1:]


def _renumbered(op: int, n: int, shift: int) -> int:
    """Return the id of an op among one microbatch more, its own number raised by `shift`."""
    kind, stage, microbatch = decode_op(op, n)
    return encode_op(kind, stage, microbatch + shift, n + 1)
