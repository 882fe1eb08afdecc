"""ZB-H2: twice 1F1B's memory for forwards enough to fill every bubble after the first."""

from __future__ import annotations

from collections.abc import Iterator

from cpipe.ir import OpKind, Problem, Schedule
from cpipe.schedules.common import Step, line_blocks, per_stage_schedule
from cpipe.schedules.squeeze import AS_IT_IS, Policy, squeezed

__all__ = ["zb_h2"]


def zb_h2(problem: Problem) -> Schedule:
    """Return ZB-H2 (Qi et al., 2023): stage s starts with ``2 (p - s) - 1`` forwards, then runs D, W and F in turn.

    Three stages, four microbatches in equal times::

        device 0   0F0 0F1 0F2 0F3 0D0 0W0 0D1 0W1 0D2 0W2 0D3 0W3
        device 1   1F0 1F1 1F2 1D0 1F3 1D1 1W0 1D2 1W1 1D3 1W2 1W3
        device 2   2F0 2D0 2F1 2D1 2F2 2D2 2F3 2D3 2W0 2W1 2W2 2W3

    Weight gradients and, where stages differ or messages take time, forwards fill the waits; a device never holds
    more than 2 p activations, from F to W. With F = D = W = 1 and free links the makespan is ``3 n + p - 1`` for
    n >= p, and no device waits between its first op and its last for n >= 2 p - 1.

    Parameters
    ----------
    problem
        One stage on each device, or one run of adjacent stages.

    Raises
    ------
    ValueError
        When a device holds stages that do not follow each other.
    """
    n, blocks = problem.microbatches, line_blocks(problem.placement)
    p = len(blocks)

    def steps(position: int) -> Iterator[Step]:
        in_flight = min(n, 2 * (p - position) - 1)
        for microbatch in range(in_flight):
            yield OpKind.F, microbatch
        for microbatch in range(n):
            yield OpKind.D, microbatch
            yield OpKind.W, microbatch
            if in_flight + microbatch < n:
                yield OpKind.F, in_flight + microbatch

    pattern = per_stage_schedule(problem.num_stages, n, problem.placement, steps)
    limits = [2 * p * len(problem.stages_of(device)) for device in range(problem.num_devices)]
    policies = (AS_IT_IS, Policy(reorder=False, gap=0, patience=1), Policy(reorder=True, gap=2, patience=1))
    return squeezed(problem, [(pattern, [policy]) for policy in policies], limits)
