"""Small sweeps for tests, and what their processes call instead of solving: functions that die."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from command_line import profile_document

from cpipe.profile import Profile
from cpipe.profile.load import parse_profile
from cpipe.report.sweep import SweepPoint
from cpipe.study.sweep import Axes, Entry, Point, Settings, Sweep, make_sweep
from cpipe.study.sweep.run import Runner
from cpipe.study.sweep.solve_point import Outcome
from cpipe.study.sweep.workers import Task, solve_in_processes

__all__ = [
    "DEADLY",
    "dies",
    "ends_with_7",
    "in_processes",
    "known",
    "sample_point",
    "small_sweep",
    "tasks_of",
    "two_sites",
    "two_sites_document",
    "waits",
]

DEADLY = 3
"""Microbatches of the points at which the functions below die."""


def two_sites_document(**changes: object) -> dict[str, Any]:
    """Return a valid profile of two devices in two sites, F 2 ms, messages of 1 MB, a link of 1 ms and 8 Gbit/s."""
    document = profile_document()
    for device, site in zip(document["devices"], ("east", "west"), strict=True):
        device["site"] = site
    document["links"] = [{"between": ["east", "west"], "latency_ms": 1, "bandwidth_gbit_s": 8}]
    return document | changes


def two_sites(**changes: object) -> Profile:
    """Return that profile, read."""
    import json

    return parse_profile(json.dumps(two_sites_document(**changes)).encode(), "profile.json")


def small_sweep(**axes: Any) -> Sweep:
    """Return a sweep of that profile over latencies in T_F, by 1F1B unless `axes` say otherwise."""
    values = {"microbatches": (2, 4), "methods": (Entry(method="1f1b"),), "latencies": (0.0, 2.0), **axes}
    return make_sweep(two_sites(), Axes(**values), Settings(latency_unit="tf"))


def tasks_of(*microbatches: int) -> list[Task]:
    """Return tasks that differ in their microbatches."""
    return [Task(place, Point(microbatches=number, method="1f1b")) for place, number in enumerate(microbatches)]


def in_processes(jobs: int) -> Runner:
    """Return what solves points in processes of this machine."""
    return lambda tasks, data, settings: solve_in_processes(tasks, data, settings, jobs)


def known(data: bytes, point: Point, settings: Settings) -> Outcome:
    """Return an outcome that tells the point."""
    return Outcome(status="feasible", makespan_ms=float(point.microbatches))


def dies(data: bytes, point: Point, settings: Settings) -> Outcome:
    """Be killed at the deadly point, as by a system without memory."""
    if point.microbatches == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    return known(data, point, settings)


def ends_with_7(data: bytes, point: Point, settings: Settings) -> Outcome:
    """End at the deadly point, as a library may that gives up."""
    if point.microbatches == DEADLY:
        os._exit(7)
    return known(data, point, settings)


def waits(data: bytes, point: Point, settings: Settings) -> Outcome:
    """Never finish the deadly point."""
    if point.microbatches == DEADLY:
        time.sleep(3600)
    return known(data, point, settings)


def sample_point(**changes: Any) -> SweepPoint:
    """Return a point that was solved, `changes` made."""
    fields: dict[str, Any] = {
        "key": "0123456789abcdef",
        "microbatches": 8,
        "memory_factor": 1.0,
        "method": "greedy",
        "placement": "ud",
        "chunks": None,
        "latency": 0.5,
        "bandwidth": None,
        "status": "feasible",
        "makespan_ms": 100.25,
        "lower_bound_ms": 90.125,
        "gap": 0.1,
        "bubble": 0.25,
        "peak_bytes": (10, 20),
        "found_by": "zb-h1",
        "proved_by": "bound",
    }
    return SweepPoint(**(fields | changes))
