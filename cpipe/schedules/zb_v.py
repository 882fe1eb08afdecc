"""Zero-bubble schedules on a V of two stages a device: ZB-V, and V-Half and V-Min for less memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.ir import OpKind, Problem, Schedule
from cpipe.schedules.building_block import Strides, block_schedule, fitting_gaps
from cpipe.schedules.common import schedule_of, wave_chunks
from cpipe.schedules.squeeze import AS_IT_IS, Policy, squeezed

__all__ = ["v_half", "v_min", "zb_v"]

Policies = Sequence[Policy | None]

_IN_ORDER = Policy(reorder=False, gap=0, patience=1)
_PATIENT = Policy(reorder=False, gap=0, patience=4)
_EAGER = Policy(reorder=True, gap=0, patience=1)
_HALF_EAGER = Policy(reorder=True, gap=2, patience=1)
_CAREFUL = Policy(reorder=True, gap=4, patience=1)
_WAITING = Policy(reorder=True, gap=0, patience=4)
_TO_AND_FRO = (
    (
        Policy(reorder=True, gap=5, patience=1, from_end=True),
        _CAREFUL,
        Policy(reorder=True, gap=1, patience=1, from_end=True),
        _CAREFUL,
    ),
    (
        Policy(reorder=True, gap=4, patience=1, from_end=True),
        _CAREFUL,
        Policy(reorder=False, gap=0, patience=1, from_end=True),
        Policy(reorder=False, gap=0, patience=2),
    ),
)
"""Policies of V-Half from end to start and back, twice; by trial the best on 8 and on 16 devices."""


def zb_v(problem: Problem) -> Schedule:
    """Return ZB-V (Qi et al., 2023): no bubble but the fill when F = D = W, at 1F1B's memory.

    Two devices, two microbatches in equal times::

        device 0   0F0 0F1 3F0 3D0 3W0 3F1 3D1 3W1 0D0 0W0 0D1 0W1
        device 1   1F0 2F0 1F1 2F1 2D0 2W0 1D0 2D1 1D1 1W0 1W1 2W1

    Where times differ, devices fill their waits with the weight gradients and later ops of the pattern; a device
    never holds more than ``2 p`` of its stages' activations, from F to W.

    Parameters
    ----------
    problem
        Two stages on each device, in a V.

    Raises
    ------
    ValueError
        When the stages are not placed in a V.
    """
    wave_chunks(problem.placement, 2)
    p = _num_devices(problem)
    orders = [(problem.placement[rank], _phases(p, rank, problem.microbatches)) for rank in range(p)]
    pattern = schedule_of(problem.num_devices, problem.microbatches, orders)
    policies = (AS_IT_IS, _IN_ORDER, _PATIENT, _CAREFUL, _EAGER)
    return squeezed(problem, [(pattern, [policy]) for policy in policies], [2 * p] * problem.num_devices)


def _phases(p: int, rank: int, microbatches: int) -> Iterator[tuple[OpKind, int, int]]:
    """Yield what a device of ZB-V runs: (kind, stage, microbatch).

    Forwards down the V until the first comes back up, forwards both ways, the turn to backwards, six ops in turn while
    there are forwards, and what is left, the input gradients first.
    """
    down, up = rank, 2 * p - 1 - rank
    done = {kind: {down: 0, up: 0} for kind in (OpKind.F, OpKind.D, OpKind.W)}
    before = {OpKind.D: OpKind.F, OpKind.W: OpKind.D}

    def run(*ops: tuple[OpKind, int]) -> Iterator[tuple[OpKind, int, int]]:
        for kind, stage in ops:
            microbatch = done[kind][stage]
            if microbatch < (done[before[kind]][stage] if kind in before else microbatches):
                done[kind][stage] += 1
                yield kind, stage, microbatch

    turn = ((OpKind.F, up), (OpKind.D, up), (OpKind.W, up))
    yield from run(*[(OpKind.F, down)] * (2 * (p - rank) - 1))
    yield from run(*[(OpKind.F, up), (OpKind.F, down)] * rank)
    yield from run(*turn * (p - rank))
    while done[OpKind.F][up] < microbatches:
        yield from run((OpKind.F, down), (OpKind.D, down), (OpKind.W, down), *turn)
    yield from run(*[(OpKind.D, down), (OpKind.D, up)] * rank)
    yield from run(*[(OpKind.D, down), (OpKind.W, down)] * microbatches)
    yield from run(*[(OpKind.W, up), (OpKind.W, down)] * microbatches)


def v_half(problem: Problem) -> Schedule:
    """Return V-Half (Qi et al., 2024): half of 1F1B's memory, for half of 1F1B's bubble.

    A device holds at most ``2 (p // 2 + 1)`` of its stages' activations, from F to W. Waits at either end are filled
    by running the order from its end and forwards again.

    Parameters
    ----------
    problem
        Two stages on each device, in a V.

    Raises
    ------
    ValueError
        When the stages are not placed in a V.
    """
    strides = [Strides(1, 2, 1, 2), Strides(2, 2, 2, 2), Strides(5, 1, 1, 1)]
    policies = [(each, _PATIENT) for each in (_CAREFUL, _HALF_EAGER, _EAGER)]
    limit = 2 * (_num_devices(problem) // 2 + 1)
    return _on_a_v(problem, strides, limit, (AS_IT_IS, _PATIENT), policies, _TO_AND_FRO)


def v_min(problem: Problem) -> Schedule:
    """Return V-Min (Qi et al., 2024): a third of 1F1B's memory, for two thirds of 1F1B's bubble.

    A device holds at most ``2 ((p + 1) // 3 + 1)`` of its stages' activations, from F to W.

    Parameters
    ----------
    problem
        Two stages on each device, in a V.

    Raises
    ------
    ValueError
        When the stages are not placed in a V.
    """
    limit = 2 * ((_num_devices(problem) + 1) // 3 + 1)
    policies = [(each,) for each in (_CAREFUL, _WAITING, _EAGER)]
    return _on_a_v(problem, [Strides(1, 1, 1, 1)], limit, (AS_IT_IS,), policies, ())


def _num_devices(problem: Problem) -> int:
    return len(set(problem.placement))


def _on_a_v(
    problem: Problem,
    strides: Sequence[Strides],
    limit: int,
    first: Policies,
    then: Sequence[Policies],
    of_first_block: Sequence[Policies],
) -> Schedule:
    """Return the best of the patterns with at most `limit` activations.

    Each is run by the policies `first`, the first of them `of_first_block`, and each by what is `then` to be tried.
    """
    wave_chunks(problem.placement, 2)

    def patterns() -> Iterator[tuple[Schedule, Policies]]:
        blocks = []
        for each in strides:
            gaps = fitting_gaps(_num_devices(problem), each, limit)
            if gaps is not None:
                blocks.append(block_schedule(problem.placement, problem.microbatches, each, gaps))
                yield blocks[-1], first
        for policies in of_first_block:
            yield blocks[0], policies
        for policies in then:
            for block in blocks:
                yield block, policies

    return squeezed(problem, patterns(), [limit] * problem.num_devices)
