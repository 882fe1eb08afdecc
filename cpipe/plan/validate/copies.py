"""Copies to and from host memory: complete, each once, in their place between a forward and its backward."""

from __future__ import annotations

from itertools import pairwise

from cpipe.ir import Problem
from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.report import Report
from cpipe.plan.validate.turns import check_stretches, collect_units, place_units

__all__ = ["check_copies"]

_PARTS = ("OFFLOAD", "WAIT for the OFFLOAD", "RELOAD", "WAIT for the RELOAD")
_COMPUTE = ("F", "D", "W", "B")

_Trip = dict[str, Step]
"""What is there of one activation's way to the host and back, by `_PARTS`."""


def check_copies(layout: Layout, programs: dict[int, list[Step]], problem: Problem | None, report: Report) -> None:
    """Check the copies of every rank; where the problem is known, that its stages offer them."""
    for rank, steps in programs.items():
        place = layout.programs[rank][0]
        trips = _collect(rank, place, steps, report)
        for (stage, _), trip in trips.items():
            if problem is not None and not problem.stages[stage].offload_bytes:
                step = next(iter(trip.values()))
                message = f"rank {rank}: {step}: the stage has nothing that may be copied to host memory"
                report.step("copy-not-offered", place, step.at, message)
            _check_complete(rank, place, trip, report)
        if trips:
            units = collect_units(steps)
            _check_places(rank, place, units, trips, steps, report)
            check_stretches(rank, place, units, steps, report)


def _collect(rank: int, place: int, steps: list[Step], report: Report) -> dict[tuple[int, int], _Trip]:
    """Return the parts of each trip, by stage and microbatch; report what is there twice."""
    trips: dict[tuple[int, int], _Trip] = {}
    for step in steps:
        part = f"WAIT for the {step.copy}" if step.copy else step.op
        if part not in _PARTS:
            continue
        first = trips.setdefault((step.stage, step.mb), {}).setdefault(part, step)
        if first is not step:
            report.step("duplicate-copy", place, step.at, f"rank {rank}: {step} is at ops[{first.at}] already")
    return trips


def _check_complete(rank: int, place: int, trip: _Trip, report: Report) -> None:
    """All four parts are there, in their order."""
    missing = [part for part in _PARTS if part not in trip]
    if missing:
        step = next(iter(trip.values()))
        report.step("missing-copy", place, step.at, f"rank {rank}: {step} comes without {' and '.join(missing)}")
    there = [trip[part] for part in _PARTS if part in trip]
    for before, after in pairwise(there):
        if after.at < before.at:
            message = f"rank {rank}: {after} comes before {before}, at ops[{before.at}]"
            report.step("copy-order", place, after.at, message)


def _check_places(
    rank: int,
    place: int,
    units: list[list[Step]],
    trips: dict[tuple[int, int], _Trip],
    steps: list[Step],
    report: Report,
) -> None:
    """A copy to the host follows its forward, and the WAIT for the copy back stands before its backward.

    No other compute comes in between: a replay of the orders has them right there.
    """
    since: dict[tuple[str, int, int], int] = {}  # part, stage, mb -> number of units before it
    done: set[int] = set()
    for step in steps:
        if step.op in _COMPUTE:
            done.add(step.at)
        elif step.op == "OFFLOAD" or step.copy == "RELOAD":
            since.setdefault((step.op, step.stage, step.mb), len(done))
    where = place_units(units)
    for (stage, mb), trip in trips.items():
        forward, backward = where.get(("F", stage, mb)), where.get(("B", stage, mb))
        if forward is not None and since.get(("OFFLOAD", stage, mb), forward + 1) != forward + 1:
            step = trip["OFFLOAD"]
            message = f"rank {rank}: {step} does not come right behind {units[forward][0]}, ops[{units[forward][0].at}]"
            report.step("copy-order", place, step.at, message)
        if backward is not None and since.get(("WAIT", stage, mb), backward) != backward:
            step = trip["WAIT for the RELOAD"]
            need = units[backward][0]
            message = f"rank {rank}: {step} does not come right before {need}, ops[{need.at}]"
            report.step("copy-order", place, step.at, message)
