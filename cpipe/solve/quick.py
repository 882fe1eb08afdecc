"""A quick look at a problem: the best order of the field's schedules and a few greedy passes, without any bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cpipe.ir import Objective, Problem, Schedule
from cpipe.schedules import applicable, static_schedule
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve.crosspipe import crosspipe_greedy
from cpipe.solve.family import tune_and_apply
from cpipe.solve.methods import STATIC_METHODS
from cpipe.solve.replay import QUEUED_COST
from cpipe.solve.serial import serial_schedule

__all__ = ["quick_order"]

_WORK = 15_000  # op evaluations of the family: about a tenth of a second


def quick_order(
    problem: Problem,
    method: str,
    objective: Objective,
    *,
    starts: Sequence[Schedule] = (),
    seed: int = 0,
    group_size: int | None = None,
    expired: Callable[[], bool] = lambda: False,
) -> tuple[int, Schedule] | None:
    """Return the objective [ns] and the order that a short search finds, for comparing like problems.

    Parameters
    ----------
    problem
        The problem.
    method
        A static schedule is taken as it is; every other method is stood for by the same few greedy passes.
    objective
        What counts.
    starts
        Orders known from a like problem.
    seed, group_size
        As in `cpipe.solve.solve`.
    expired
        True ends the search.

    Returns
    -------
    tuple of int and Schedule, or None
        None when nothing was found that fits and finishes.
    """
    simulator = Simulator(problem, objective)
    if method in STATIC_METHODS:
        try:
            candidates = [static_schedule(method, problem, group_size=group_size)]
        except ValueError:
            return None
    else:
        candidates = [serial_schedule(problem), *starts, *(schedule for _, schedule in applicable(problem))]
        greedy = crosspipe_greedy(problem, simulator.tables)
        if greedy is not None:
            candidates.append(greedy)
        work = _WORK if simulator.is_direct else _WORK // QUEUED_COST
        search = tune_and_apply(problem, simulator, 0, work, seed, expired)
        candidates += [candidate.schedule for candidate in search.ranking[:1]]
    best: tuple[int, Schedule] | None = None
    for schedule in candidates:
        if not fits(problem, schedule.orders, schedule.pairs):
            continue
        value = simulator.value(schedule.orders, schedule.pairs)
        if value is not None and (best is None or value < best[0]):
            best = value, schedule
    return best
