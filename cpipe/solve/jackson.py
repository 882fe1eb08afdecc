"""One-machine bounds: each device alone, its ops with heads and tails, solved by Jackson's preemptive rule.

Every op of a device gets the earliest time it can be ready (head) and the least time that must follow its end
(tail), both from `Chains` and from how far apart messages and ops of one kind must be on their way. The preemptive
one-machine problem with heads and tails is solved exactly by always running the available op with the largest tail
(Jackson 1955; Horn 1974), and its optimum cannot exceed the makespan.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import pairwise

from cpipe.ir import Problem
from cpipe.solve.chains import Chains

__all__ = ["MAX_OPS", "one_machine_bounds", "preemptive_makespan"]

MAX_OPS = 20_000
"""Problems with more ops are not worth the time: their loads dominate."""

Job = tuple[int, int, int]
"""Head, length and tail of an op [ns]."""


def one_machine_bounds(problem: Problem, chains: Chains) -> Iterator[tuple[int, str]]:
    """Yield the preemptive one-machine optimum of each device [ns]; nothing above `MAX_OPS` ops."""
    n = problem.microbatches
    if 3 * n * problem.num_stages > MAX_OPS:
        return
    forward_heads, gradient_heads = _forward_heads(problem, chains), _gradient_heads(problem, chains)
    gradient_tails = _gradient_tails(problem, chains)
    for device, owner in enumerate(problem.devices):
        jobs: list[Job] = []
        for stage in problem.stages_of(device):
            f, g, b = chains.forward[stage], chains.gradient[stage], chains.backward[stage]
            trip = chains.round_trip[stage]
            for mb in range(n):
                ready = max(gradient_heads[stage][mb], forward_heads[stage][mb] + trip)
                after = gradient_tails[stage][mb]
                jobs.append((forward_heads[stage][mb], f, trip - f + g + after))
                jobs.append((ready, g, after))
                jobs.append((ready + g, b - g, chains.reduce[stage]))
        yield preemptive_makespan(jobs), f"one-machine problem of device {owner.name}"


def _forward_heads(problem: Problem, chains: Chains) -> list[list[int]]:
    """Earliest start of F(s, m): when its parameters and its message are there and F(s, m - 1) has run.

    Messages of one hop leave one occupancy apart; what waits for an all-gather meanwhile follows in a row.
    """
    n = problem.microbatches
    heads: list[list[int]] = []
    for stage in range(problem.num_stages):
        f = chains.forward[stage]
        if stage:
            hop = problem.forward_hops[stage - 1]
            occupancy = hop.occupancy_ns if hop else 0
            delay = chains.forward[stage - 1] + (hop.latency_ns if hop else 0) + occupancy
            arrivals = [before + delay for before in heads[-1]]
            for mb in range(1, n):
                arrivals[mb] = max(arrivals[mb], arrivals[mb - 1] + occupancy)
        else:
            arrivals = [0] * n
        own = [max(arrival, chains.gathered[stage]) for arrival in arrivals]
        for mb in range(1, n):
            own[mb] = max(own[mb], own[mb - 1] + f)
        heads.append(own)
    return heads


def _gradient_heads(problem: Problem, chains: Chains) -> list[list[int]]:
    """Earliest start of D(s, m), from the load of the stage itself and of each later stage."""
    n = problem.microbatches
    heads: list[list[int]] = [[] for _ in problem.stages]
    later: list[int] | None = None
    for stage in reversed(range(problem.num_stages)):
        f, g = chains.forward[stage], chains.gradient[stage]
        own = [chains.head[stage] + (mb + 1) * f + mb * g for mb in range(n)]
        if later is not None:
            hop = problem.backward_hops[stage]
            occupancy = hop.occupancy_ns if hop else 0
            delay = chains.gradient[stage + 1] + (hop.latency_ns + occupancy if hop else 0)
            arrivals = [then + delay for then in later]
            for mb in range(1, n):
                arrivals[mb] = max(arrivals[mb], arrivals[mb - 1] + occupancy)
            own = [max(mine, arrival) for mine, arrival in zip(own, arrivals, strict=True)]
            for mb in range(1, n):
                own[mb] = max(own[mb], own[mb - 1] + g)
        heads[stage] = later = own
    return heads


def _gradient_tails(problem: Problem, chains: Chains) -> list[list[int]]:
    """Least time after the end of D(s, m): the way down, behind the messages and ops of later microbatches."""
    n = problem.microbatches
    tails: list[list[int]] = []
    for stage in range(problem.num_stages):
        rest = chains.backward[stage] - chains.gradient[stage] + chains.reduce[stage]
        own = [rest] * n
        if stage:
            hop = problem.backward_hops[stage - 1]
            occupancy = hop.occupancy_ns if hop else 0
            delay = (hop.latency_ns if hop else 0) + occupancy + chains.gradient[stage - 1]
            ways = [delay + below for below in tails[stage - 1]]
            for later, mb in pairwise(range(n - 1, -1, -1)):
                ways[mb] = max(ways[mb], ways[later] + occupancy)
            own = [max(rest, way) for way in ways]
        for later, mb in pairwise(range(n - 1, -1, -1)):
            own[mb] = max(own[mb], own[later] + chains.gradient[stage])
        tails.append(own)
    return tails


def preemptive_makespan(jobs: Iterable[Job]) -> int:
    """Return the shortest makespan on one machine when a job may be interrupted.

    Parameters
    ----------
    jobs
        (head, length, tail) of each: it may start at its head, and takes its tail after it has left the machine.

    Returns
    -------
    int
        The makespan of always running the available job with the longest tail, which is the best that there is.
    """
    jobs = sorted(jobs)
    waiting: list[tuple[int, int]] = []  # (-tail, remaining)
    now, best, index = 0, 0, 0
    while index < len(jobs) or waiting:
        if not waiting:
            now = max(now, jobs[index][0])
        while index < len(jobs) and jobs[index][0] <= now:
            heapq.heappush(waiting, (-jobs[index][2], jobs[index][1]))
            index += 1
        tail, remaining = heapq.heappop(waiting)
        until = jobs[index][0] if index < len(jobs) else now + remaining
        run = min(remaining, until - now)
        now += run
        if run < remaining:
            heapq.heappush(waiting, (tail, remaining - run))
        else:
            best = max(best, now - tail)
    return best
