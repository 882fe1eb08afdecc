"""Interleaved zero bubble: interleaved 1F1B with a shorter warm-up and its weight gradients in the waits."""

from __future__ import annotations

from collections.abc import Iterator

from cpipe.ir import OpKind, Problem, Schedule
from cpipe.schedules.common import loop_chunks, schedule_of
from cpipe.schedules.interleaved import group_sizes, interleaved_order
from cpipe.schedules.squeeze import AS_IT_IS, Policy, squeezed

__all__ = ["interleaved_zb"]


def interleaved_zb(problem: Problem) -> Schedule:
    """Return interleaved 1F1B with split backwards and the warm-up of ZB-H1, so that W fills what a shorter one leaves.

    A device starts with ``p - 1 - rank + (V - 1) N`` forwards, N the size of a group (see `group_sizes`), and never
    holds more than ``p + (V - 1) N`` of its stages' activations, from F to W: with N = p, no more than 1F1B. The W of
    device r trail their D by r to begin with; where times differ they go into the waits.

    Parameters
    ----------
    problem
        V stages on each device, in a loop.

    Raises
    ------
    ValueError
        When the stages are not placed in a loop.
    """
    chunks = loop_chunks(problem.placement)
    p = problem.num_stages // chunks
    sizes = group_sizes(p, problem.microbatches)
    limit = p + (chunks - 1) * sizes[0]

    def order(rank: int) -> Iterator[tuple[OpKind, int, int]]:
        in_flight = min(chunks * problem.microbatches, p - rank - 1 + (chunks - 1) * sizes[0])
        pending: list[tuple[int, int]] = []
        for forward, (chunk, microbatch) in interleaved_order(chunks, sizes, in_flight):
            stage = chunk * p + rank
            if forward:
                yield OpKind.F, stage, microbatch
                continue
            yield OpKind.D, stage, microbatch
            pending.append((stage, microbatch))
            if len(pending) > rank:
                yield OpKind.W, *pending.pop(0)
        for stage, microbatch in pending:
            yield OpKind.W, stage, microbatch

    pattern = schedule_of(
        max(problem.placement) + 1,
        problem.microbatches,
        [(device, order(rank)) for rank, device in enumerate(problem.placement[:p])],
    )
    policies = (AS_IT_IS, Policy(reorder=False, gap=0, patience=1), Policy(reorder=True, gap=4, patience=1))
    return squeezed(problem, [(pattern, [policy]) for policy in policies], [limit] * problem.num_devices)
