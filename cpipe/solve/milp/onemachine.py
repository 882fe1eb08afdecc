"""Jackson's preemptive bound on one resource: what its heads, durations and tails already cost."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from cpipe.solve.milp.precedence import Precedence

__all__ = ["preemptive_makespan", "resource_bound"]


def resource_bound(precedence: Precedence) -> int:
    """Return a lower bound on the makespan of every schedule within the upper bound [units]."""
    tasks = precedence.network.tasks
    jobs = [
        (head, task.duration, tail) for head, task, tail in zip(precedence.head, tasks, precedence.tail, strict=True)
    ]
    longest = max(map(sum, jobs))
    return max(
        [longest, *(preemptive_makespan(jobs[task] for task in tasks) for tasks in precedence.network.resources)]
    )


def preemptive_makespan(jobs: Iterable[tuple[int, int, int]]) -> int:
    """Return the shortest makespan on one machine when a job may be interrupted (Jackson 1955, Carlier 1982).

    Parameters
    ----------
    jobs
        (head, duration, tail) of each: it may start at its head, and takes its tail after it has left the machine.

    Returns
    -------
    int
        The makespan of always running the released job with the longest tail, which is the best that there is.
    """
    waiting = sorted(jobs)
    ready: list[tuple[int, int]] = []  # (-tail, work left)
    now = makespan = index = 0
    while ready or index < len(waiting):
        if not ready:
            now = max(now, waiting[index][0])
        while index < len(waiting) and waiting[index][0] <= now:
            _, duration, tail = waiting[index]
            heapq.heappush(ready, (-tail, duration))
            index += 1
        tail, left = heapq.heappop(ready)
        until = waiting[index][0] if index < len(waiting) else now + left
        run = min(left, until - now)
        now += run
        if run < left:
            heapq.heappush(ready, (tail, left - run))
        else:
            makespan = max(makespan, now - tail)
    return makespan
