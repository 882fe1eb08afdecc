"""Jackson's preemptive bound on one resource: what its heads, durations and tails already cost."""

from __future__ import annotations

from cpipe.solve.jackson import preemptive_makespan
from cpipe.solve.milp.precedence import Precedence

__all__ = ["resource_bound"]


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
