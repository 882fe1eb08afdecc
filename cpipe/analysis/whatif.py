"""What a change of the job would give: the plan's own order replayed, and the best order that a short search finds.

Every search starts from the plan's order and has the same counted work, the unchanged job (change ``none``) too: what
it finds there comes from searching alone, and is what the others must be compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from cpipe.analysis.change import (
    extended_orders,
    faster_collectives,
    faster_links,
    link_groups,
    more_memory,
    with_capacity,
)
from cpipe.ir import Problem, Schedule
from cpipe.ir.explanation import Change, IdlePart, Segment, WhatIf
from cpipe.ir.ops import KINDS, OpKind
from cpipe.profile.offload import offers_offload, unloaded
from cpipe.sim import DeadlockError, Runs, Simulator, memory_steps, simulate
from cpipe.sim.critical import levels_before
from cpipe.sim.memory import fits
from cpipe.solve.bounds import lower_bound
from cpipe.solve.family import tune_and_apply
from cpipe.solve.search import LocalSearch
from cpipe.units import Ns

__all__ = ["MOST", "Present", "tight_devices", "what_ifs"]

MOST = 4
"""Single links or devices of a kind that are looked at."""

_FAMILY_WORK = 60_000  # op evaluations, at most: a fifth of what `solve` spends
_SEARCH_WORK = 400_000  # op visits of the local search that follows, at most
_ORDERS = 1_000  # orders of a small problem that either looks at, in that work
_QUEUED_COST = 4  # how much dearer a replay is when messages queue for windows, shared pipes or collectives
_SEARCH_OPS = 40_000  # beyond, one replay costs more than a short search gains


class Present(NamedTuple):
    """The plan as it stands.

    Attributes
    ----------
    problem
        What it is replayed on; its receive window is the one that searches must keep, or None.
    schedule, gates
        Its orders, and where its messages are posted (`cpipe.plan.posting_gates`).
    makespan
        Of the replay [ns].
    bound
        Proven lower bound on any makespan of the problem [ns].
    peaks
        Of each device, posted receives included [bytes].
    path, idle
        Critical path and idle times of the replay: they say which links and devices matter.
    """

    problem: Problem
    schedule: Schedule
    gates: Mapping[int, int | tuple[int, ...]]
    makespan: int
    bound: int
    peaks: Sequence[int]
    path: Sequence[Segment]
    idle: Sequence[IdlePart]


class _Case(NamedTuple):
    """A changed job: `easier` when whatever could be done before still can, `replayed` when the order still fits."""

    change: Change
    subject: str | None
    problem: Problem
    easier: bool = True
    replayed: bool = True


def what_ifs(
    present: Present, tight: Sequence[int], progress: Callable[[str], None] = lambda line: None
) -> tuple[WhatIf, ...]:
    """Return what each change would give, the unchanged job first.

    Single links and devices: at most `MOST` of a kind, those first that take most of the critical path or keep devices
    waiting longest. Links whose latency or occupancy is 0 are left out, and so is the memory of devices that are not
    in `tight`: the plan never wants more of it. Where there is more than one, all of them together follow (no subject).
    Jobs of several flows and very large ones are not searched: of them only the plan's own order is told, and only
    where it can be kept.

    Parameters
    ----------
    present
        The plan.
    tight
        Devices on which memory holds some forward back; see `tight_devices`.
    progress
        Called with a line before each search.
    """
    found: list[WhatIf] = []
    for case in _cases(present, tight):
        progress(f"what if: {case.change}{' of ' + case.subject if case.subject else ''}")
        if case.change == "microbatch":
            found.append(_microbatch(present, case))
            continue
        # what a harder job reaches an easier one reaches too: the unchanged, and one link or device where all change
        kinds = ("none", case.change) if case.subject is None else ("none",)
        harder = [
            present.makespan,
            *(one.found_ns for one in found if one.change in kinds and one.found_ns is not None),
        ]
        found.append(_solved(present, case, harder if case.easier else []))
    return tuple(found)


def tight_devices(runs: Runs, rooms: Sequence[int | None]) -> tuple[int, ...]:
    """Return the devices on which some forward that comes later would not fit where the order stands."""
    steps = memory_steps(runs.problem)
    levels = levels_before(runs, steps)
    tight = []
    for device, units in enumerate(runs.of_device):
        room = rooms[device]
        needs = {stage: steps[stage * KINDS + OpKind.F].during for stage in runs.problem.stages_of(device)}
        last = {
            stage: unit
            for unit in units
            for op, stage in zip(runs.units[unit].ops, runs.stages(unit), strict=True)
            if op % KINDS == OpKind.F
        }
        if room is not None and any(
            levels[unit] + needs[stage] > room for stage, until in last.items() for unit in units if unit < until
        ):
            tight.append(device)
    return tuple(tight)


def _cases(present: Present, tight: Sequence[int]) -> Iterator[_Case]:
    problem = present.problem
    yield _Case("none", None, problem)
    yield from _links(present, "latency")
    yield from _links(present, "bandwidth")
    if any(stage.all_gather_ns or stage.reduce_ns for stage in problem.stages) and problem.collectives is not None:
        yield _Case("collectives", None, faster_collectives(problem))
    held = _sums((part.device, part) for part in present.idle if part.cause == "memory")
    for device in sorted(sorted(tight, key=lambda device: -held.get(device, 0))[:MOST]):
        yield _Case("memory", problem.devices[device].name, more_memory(problem, (device,)))
    if len(tight) > 1:
        yield _Case("memory", None, more_memory(problem, range(problem.num_devices)))
    if not _is_searched(problem):
        return  # the plan's own order says nothing of a job that it does not fit
    yield from _leaner(present)
    yield _Case("microbatch", None, replace(problem, microbatches=problem.microbatches + 1), easier=False)


def _links(present: Present, change: Literal["latency", "bandwidth"]) -> Iterator[_Case]:
    """Yield the job with one link faster, for those that matter most, and with all of them."""
    problem, is_latency = present.problem, change == "latency"
    hops = [hop for hop in (*problem.forward_hops, *problem.backward_hops) if hop is not None]
    costs = {hop.pipe for hop in hops if (hop.latency_ns if is_latency else hop.occupancy_ns)}
    links = {name: pipes for name, pipes in link_groups(problem).items() if costs & {*pipes}}
    on_path = _sums((piece.pipe, piece) for piece in present.path if piece.kind == change)
    waited = _sums((part.pipe, part) for part in present.idle if part.cause == "link")

    def weight(name: str) -> tuple[int, int]:
        path = sum(on_path.get(pipe, 0) for pipe in links[name])
        return -path, -sum(waited.get(pipe, 0) for pipe in links[name])

    kept = set(sorted(links, key=weight)[:MOST])
    for name, pipes in links.items():
        if name in kept:
            yield _Case(change, name, faster_links(problem, pipes, latency=is_latency))
    if len(links) > 1:
        yield _Case(change, None, faster_links(problem, costs, latency=is_latency))


def _sums(parts: Iterable[tuple[int | None, Segment | IdlePart]]) -> dict[int | None, int]:
    """Return the total length [ns] of the parts of each key."""
    sums: dict[int | None, int] = {}
    for key, part in parts:
        sums[key] = sums.get(key, 0) + part.length_ns
    return sums


def _leaner(present: Present) -> Iterator[_Case]:
    """Yield the job with a tenth less memory on the fullest device than the plan uses there."""
    problem = present.problem
    if not any(stage.activation_bytes for stage in problem.stages):
        return
    fullest = max(range(problem.num_devices), key=lambda device: present.peaks[device])
    leaner = with_capacity(problem, {fullest: present.peaks[fullest] * 9 // 10})
    fitting = fits(leaner, present.schedule.orders, present.schedule.pairs, present.schedule.offloads)
    yield _Case("less-memory", problem.devices[fullest].name, leaner, easier=False, replayed=fitting)


def _solved(present: Present, case: _Case, known: Sequence[int]) -> WhatIf:
    """Return what a case gives; `known` are makespans [ns] that harder jobs reach."""
    problem, schedule = case.problem, present.schedule
    bound = max(_bound(problem), present.bound if case.change == "none" else 0)
    replayed = _replayed(problem, schedule, present.gates) if case.replayed else None
    best, evaluations = min([*known, *([] if replayed is None else [replayed])], default=None), 0
    if best is None or best > bound:
        starts = [Schedule(orders=schedule.orders)] if case.replayed else []
        best, evaluations = _searched(problem, bound, best, starts)
    return WhatIf(
        change=case.change,
        subject=case.subject,
        microbatches=problem.microbatches,
        replay_ns=replayed,
        found_ns=best,
        bound_ns=min(bound, best) if best is not None else bound,
        evaluations=evaluations,
    )


def _microbatch(present: Present, case: _Case) -> WhatIf:
    """One microbatch more: the plan's order with one period of its steady state run twice, and a search from there."""
    problem = case.problem
    bound = _bound(problem)
    best: int | None = None
    starts: list[Schedule] = []
    for longer in extended_orders(present.problem, present.schedule):
        makespan = _replayed(problem, longer, None) if fits(problem, longer.orders) else None
        if makespan is not None and (best is None or makespan < best):
            best, starts = makespan, [longer]
    replayed, evaluations = best, 0
    if best is None or best > bound:
        best, evaluations = _searched(problem, bound, best, starts)
    return WhatIf(
        change="microbatch",
        microbatches=problem.microbatches,
        replay_ns=replayed,
        found_ns=best,
        bound_ns=bound,
        evaluations=evaluations,
    )


def _bound(problem: Problem) -> int:
    """Return what closed forms prove [ns], however many receives are posted and activations are in host memory."""
    problem = replace(problem, receive_window=None)
    return lower_bound(unloaded(problem) if offers_offload(problem) else problem).value_ns


def _replayed(problem: Problem, schedule: Schedule, gates: Mapping[int, int | tuple[int, ...]] | None) -> int | None:
    try:
        return simulate(problem, schedule, gates).makespan_ns
    except DeadlockError:
        return None


def _is_searched(problem: Problem) -> bool:
    """Whether other orders are looked at: not those of several flows, nor where that would take too long."""
    return len(problem.flows) == 1 and 3 * problem.num_stages * problem.microbatches <= _SEARCH_OPS


def _searched(problem: Problem, target: int, best: int | None, starts: Iterable[Schedule]) -> tuple[int | None, int]:
    """Return the best makespan of a short search, `best` included, and how many orders were timed.

    A list-scheduler family, then local search from the best order known that fits.
    """
    num_ops = 3 * problem.num_stages * problem.microbatches
    if not _is_searched(problem):
        return best, 0
    step = problem.step_ns  # behind every order alike: searches do without
    problem, target = replace(problem, step_ns=Ns(0)), target - step
    best = None if best is None else best - step
    simulator = Simulator(problem)
    cost = 1 if simulator.is_direct else _QUEUED_COST
    work = min(_FAMILY_WORK, _ORDERS * num_ops) // cost
    family = tune_and_apply(problem, simulator, target, work, 0, lambda: False)
    evaluations = family.evaluations
    orders = [schedule for schedule in starts if fits(problem, schedule.orders)]
    orders += [family.best.schedule] if family.best is not None else []
    timed = [(makespan, order) for order in orders if (makespan := simulator.makespan(order.orders)) is not None]
    for makespan, order in sorted(timed, key=lambda entry: entry[0])[:1]:
        if makespan > target:
            work = min(_SEARCH_WORK, _ORDERS * num_ops) // cost
            search = LocalSearch(problem, simulator, target_ns=target, budget=work, seed=0)
            makespan = search.improve(order)[0]
            evaluations += search.evaluations
        best = makespan if best is None else min(best, makespan)
    return (None if best is None else best + step), evaluations
