"""Fused pairs and several flows without the simulator: random ones, all of them, and a replay of its own.

The replay sweeps over all devices until nothing changes. It covers problems in which a pipe has one sender and nothing
else queues but the reductions over the copies of stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from random import Random

from cpipe.ir import OpKind, Problem, Schedule, decode_op

__all__ = ["draw_paired", "naive_makespan", "pairings"]

Op = tuple[str, int, int]  # kind, stage, microbatch


def pairings(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedule with every choice of fused pairs, no pair first."""
    found = _candidates(problem, schedule)
    for size in range(len(found) + 1):
        for chosen in combinations(found, size):
            yield Schedule(orders=schedule.orders, pairs=chosen)


def draw_paired(draw: Random, problem: Problem, schedule: Schedule) -> Schedule:
    """Return the schedule with random fused pairs under which it can still finish."""
    pairs: tuple[tuple[int, int], ...] = ()
    found = _candidates(problem, schedule)
    for pair in draw.sample(found, len(found)):
        trial = Schedule(orders=schedule.orders, pairs=(*pairs, pair))
        if draw.random() < 0.8 and _finishes(problem, trial):
            pairs = trial.pairs
    return Schedule(orders=schedule.orders, pairs=tuple(pair for pair in found if pair in pairs))


def _candidates(problem: Problem, schedule: Schedule) -> list[tuple[int, int]]:
    """Return every F with a B of another slot right behind it."""
    n = problem.microbatches
    found = []
    for order in schedule.orders:
        for first, second in pairwise(order):
            forward, backward = decode_op(first, n), decode_op(second, n)
            if (forward.kind, backward.kind) == (OpKind.F, OpKind.B) and forward[1:] != backward[1:]:
                found.append((first, second))
    return found


def _finishes(problem: Problem, schedule: Schedule) -> bool:
    return _ends(problem, schedule, timed=False) is not None


def naive_makespan(problem: Problem, schedule: Schedule) -> int | None:
    """Return the makespan of a schedule [ns], None on a deadlock."""
    ends = _ends(problem, schedule, timed=True)
    if ends is None:
        return None
    last = max(ends.values(), default=0)
    if problem.collectives is None:
        return last
    assert problem.collectives.mode == "ddp" and not problem.collectives.pipes
    half = len(problem.stages) // len(problem.flows)
    waiting = []
    for place in range(half):
        copies = range(place, len(problem.stages), half)
        ready = max(end for (kind, stage, _), end in ends.items() if kind in "WB" and stage in copies)
        waiting.append((ready, sorted(problem.stages[copy].device for copy in copies), place))
    free = [0] * len(problem.devices)
    for ready, members, place in sorted(waiting):
        end = max(ready, *(free[member] for member in members)) + problem.stages[place].reduce_ns
        for member in members:
            free[member] = end
    return max([last, *free])


def _ends(problem: Problem, schedule: Schedule, *, timed: bool) -> dict[Op, int] | None:
    """Return when each op ends [ns]; a pair is what `schedule.pairs` says, whatever `Schedule.units` does."""
    n, length = problem.microbatches, len(problem.stages) // len(problem.flows)
    partner = dict(schedule.pairs)
    ends: dict[Op, int] = {}
    arrivals: dict[Op, int] = {("F", first, mb): 0 for first in problem.flows for mb in range(n)}
    position, clock, pipe = [0] * len(schedule.orders), [0] * len(schedule.orders), dict[int, int]()
    moved = True
    while moved:
        moved = False
        for device, order in enumerate(schedule.orders):
            while position[device] < len(order):
                ids = [order[position[device]]]
                if ids[0] in partner:
                    ids.append(partner[ids[0]])
                ops = [(decode_op(op, n).kind.name, *decode_op(op, n)[1:]) for op in ids]
                inputs = [arrivals.get(("D" if kind == "B" else kind, stage, mb)) for kind, stage, mb in ops]
                if None in inputs:
                    break
                start = max([clock[device], *(at for at in inputs if at is not None)])
                clock[device] = start + (_length(problem, ops) if timed else 0)
                position[device] += len(ops)
                moved = True
                for op in ops:
                    ends[op] = clock[device]
                    _deliver(problem, length, op, clock[device], arrivals, pipe)
    done = all(position[device] == len(order) for device, order in enumerate(schedule.orders))
    return ends if done else None


def _length(problem: Problem, ops: list[Op]) -> int:
    single = [
        {
            "F": problem.stages[stage].forward_ns,
            "D": problem.stages[stage].input_grad_ns,
            "W": problem.stages[stage].weight_grad_ns,
            "B": problem.stages[stage].full_backward_ns,
        }[kind]
        for kind, stage, _ in ops
    ]
    fused = problem.stages[ops[0][1]].forward_backward_ns
    if len(ops) == 2 and fused is not None:
        return max(fused, *single)
    return sum(single)


def _deliver(problem: Problem, length: int, op: Op, end: int, arrivals: dict[Op, int], pipe: dict[int, int]) -> None:
    """Note when what an op makes is where it is needed."""
    kind, stage, mb = op
    if kind == "D":
        arrivals["W", stage, mb] = end
    if kind == "F" and stage % length == length - 1:
        arrivals["D", stage, mb] = end
        return
    if kind == "F":
        hop, reader = problem.forward_hops[stage], ("F", stage + 1, mb)
    elif kind in "DB" and stage % length:
        hop, reader = problem.backward_hops[stage - 1], ("D", stage - 1, mb)
    else:
        return
    if hop is not None:
        pipe[hop.pipe] = max(pipe.get(hop.pipe, 0), end) + hop.occupancy_ns
        end = pipe[hop.pipe] + hop.latency_ns
    arrivals[reader] = end
