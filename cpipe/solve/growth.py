"""Orders of many microbatches from those of few: searched for where that is cheap, then made longer.

Once a pipeline is full its order repeats. So a stretch of time is chosen in which every stage sees to some number of
consecutive microbatches, and what they do is done again for as many more, before everything that comes later. All that
ends by a point in time needs nothing later, so no such order deadlocks; whether it fits in memory is asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from cpipe.ir import OpKind, Problem, Schedule
from cpipe.ir.ops import KINDS
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve.greedy import Knobs, ListScheduler
from cpipe.solve.replay import Replays
from cpipe.solve.search import LocalSearch

__all__ = ["grown", "lengthened"]

_FEW = 4  # microbatches a device that are searched first
_CUTS = 24  # points in time at which an order is tried to be made longer
_FIRST_WORK = 1_500_000  # op visits of the local search on few microbatches
_STEP_WORK = 400_000  # of that after each step
_LAST_WORK = 1_500_000
_SWEEPS = 4

Order = tuple[tuple[int, ...], ...]


def lengthened(orders: Order, places: Sequence[int], microbatches: int, added: int, period: int) -> Order | None:
    """Return `orders` with `added` more microbatches, which do as the next `period` ones behind `places`.

    Parameters
    ----------
    orders
        By device, of `microbatches` microbatches.
    places
        By device; what stands before them must need nothing that stands behind.
    microbatches, added, period
        Numbers of microbatches.

    Returns
    -------
    tuple
        The orders of ``microbatches + added`` microbatches, or None when some stage has fewer than `period` left, or
        some of them would be done both in one op and in two.
    """
    longer = []
    for order, place in zip(orders, places, strict=True):
        ops = [(op // KINDS // microbatches, op // KINDS % microbatches, op % KINDS) for op in order]
        wide = microbatches + added
        first: dict[tuple[int, int], int] = {}
        rest = []
        for stage, number, kind in ops[place:]:
            start = first.setdefault((stage, OpKind.D if kind == OpKind.B else kind), number)
            rest.append((stage, number, kind, number - start))
        stages = {stage for stage, _, _ in ops}
        starts = [(stage, kind) for stage in stages for kind in (OpKind.F, OpKind.D)]
        if any(microbatches - first.get(start, microbatches) < period for start in starts):
            return None
        changed = [(stage * wide + number) * KINDS + kind for stage, number, kind in ops[:place]]
        for done in range(0, added, period):
            size = min(period, added - done)
            changed += [
                (stage * wide + number + done) * KINDS + kind for stage, number, kind, nth in rest if nth < size
            ]
        changed += [(stage * wide + number + added) * KINDS + kind for stage, number, kind, _ in rest]
        if any(kind == OpKind.B for _, _, kind in ops) and not _is_whole(changed, wide, len(stages)):
            return None
        longer.append(tuple(changed))
    return tuple(longer)


def _is_whole(order: Sequence[int], microbatches: int, num_stages: int) -> bool:
    """Return whether every slot of every stage is there once: F, D or B, and W where there is no B."""
    done = set(order)
    backward = {op // KINDS for op in order if op % KINDS == OpKind.D}
    weight = {op // KINDS for op in order if op % KINDS == OpKind.W}
    full = {op // KINDS for op in order if op % KINDS == OpKind.B}
    total = num_stages * microbatches
    return (
        len(done) == len(order) == total + 2 * len(backward) + len(full)
        and backward == weight
        and not backward & full
        and len(backward) + len(full) == total
    )


def grown(
    problem: Problem,
    knobs: Sequence[Knobs],
    target_ns: int,
    seed: int,
    expired: Callable[[], bool],
    counted: Callable[[int], None] = lambda number: None,
) -> Schedule | None:
    """Improve the order of a few microbatches and make it longer step by step.

    Parameters
    ----------
    problem
        The problem; its objective is the makespan, and its messages do not queue.
    knobs
        Of the greedy passes that may start it.
    target_ns
        The last search ends as soon as the makespan is at most this.
    seed
        Of the random moves.
    expired
        Asked before each replay; True ends the search.
    counted
        Told how many orders were timed, search by search.

    Returns
    -------
    Schedule
        It fits and finishes. None when the problem is too small for this, no pass is of use or time is up.
    """
    current = replace(problem, microbatches=min(problem.microbatches, _FEW * problem.num_devices))
    orders = _first(current, knobs)
    if orders is None or 2 * problem.microbatches < 3 * current.microbatches:
        return None
    orders = _improved(current, orders, _FIRST_WORK, 0, seed, expired, counted)
    step = max(2, problem.num_devices // 2)
    while current.microbatches < problem.microbatches:
        longer = None
        added = min(step, problem.microbatches - current.microbatches)
        if not expired():
            longer = _longer(problem, current, orders, added)
        if longer is None:
            return None
        current = replace(problem, microbatches=current.microbatches + added)
        last = current.microbatches == problem.microbatches
        work, target = (_LAST_WORK, target_ns) if last else (_STEP_WORK, 0)
        orders = _improved(current, longer, work, target, seed, expired, counted)
    return Schedule(orders=orders)


def _first(problem: Problem, knobs: Sequence[Knobs]) -> Order | None:
    """Return the shortest order that a greedy pass makes, or None."""
    simulator = Simulator(problem)
    scheduler = ListScheduler(problem, simulator.tables)
    best: tuple[int, Order] | None = None
    for chosen in knobs:
        schedule = scheduler.run(chosen)
        if schedule is not None and fits(problem, schedule.orders):
            value = simulator.value(schedule.orders)
            if value is not None and (best is None or value < best[0]):
                best = (value, schedule.orders)
    return best[1] if best is not None else None


def _improved(
    problem: Problem,
    orders: Order,
    work: int,
    target_ns: int,
    seed: int,
    expired: Callable[[], bool],
    counted: Callable[[int], None],
) -> Order:
    search = LocalSearch(
        problem,
        Simulator(problem),
        target_ns=target_ns,
        budget=work,
        seed=seed,
        heat=0,
        sweeps=_SWEEPS,
        expired=expired,
    )
    improved = search.improve(Schedule(orders=orders))[1].orders
    counted(search.evaluations)
    return improved


def _longer(problem: Problem, current: Problem, orders: Order, added: int) -> Order | None:
    """Return the shortest of the orders with `added` more microbatches; None if none fits."""
    wide = replace(problem, microbatches=current.microbatches + added)
    simulator = Simulator(wide)
    timed = Replays(Simulator(current)).start(orders)
    assert timed is not None, "an order that local search returns finishes"
    best: tuple[int, Order] | None = None
    for cut in range(1, _CUTS):
        moment = timed.value * cut // _CUTS
        places = [bisect_right(order, moment, key=timed.end.__getitem__) for order in orders]
        longer = lengthened(orders, places, current.microbatches, added, added)
        if longer is None or not fits(wide, longer):
            continue
        value = simulator.value(longer)
        if value is not None and (best is None or value < best[0]):
            best = (value, longer)
    return best[1] if best is not None else None
