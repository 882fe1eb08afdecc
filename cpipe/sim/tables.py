"""Flat tables of a problem: what the engine looks up for an op, indexed by op id."""

from __future__ import annotations

from typing import NamedTuple

from cpipe.ir import Hop, OpKind, Problem, encode_op
from cpipe.ir.ops import KINDS

__all__ = ["NO_SLOT", "Lane", "Tables", "slot_of"]

NO_SLOT = -1


class Lane(NamedTuple):
    """One sender's queue on one pipe."""

    pipe: int
    device: int


class Tables:
    """Lookup lists of one problem, all indexed by op id (length 4 S n) unless said otherwise.

    A *slot* is where an op's input arrives: an F's own id, the id of D for D and B, a W's own id.

    Attributes
    ----------
    duration
        [ns].
    slot
        The slot whose arrival lets the op start.
    target
        The slot that the op's end feeds on another stage (or its own D, on the last stage of a flow), or `NO_SLOT`.
    hop
        The hop to `target`, or None when `target` is on the same device.
    stage_device
        Device per stage (length S).
    lanes, lane_of
        Every (pipe, sender) queue, and the index of the queue of a (pipe, sender).
    contended
        Per pipe: whether several devices send on it, or a collective occupies it.
    """

    def __init__(self, problem: Problem) -> None:
        n, num_stages = problem.microbatches, problem.num_stages
        self.problem = problem
        self.microbatches = n
        size = num_stages * n * KINDS
        self.size = size
        self.stage_device = list(problem.placement)
        self.duration = [0] * size
        self.slot = list(range(size))
        self.target = [NO_SLOT] * size
        self.hop: list[Hop | None] = [None] * size
        for stage, costs in enumerate(problem.stages):
            times = (costs.forward_ns, costs.input_grad_ns, costs.weight_grad_ns, costs.full_backward_ns)
            last, first = problem.next_stage(stage) is None, problem.previous_stage(stage) is None
            for microbatch in range(n):
                base = encode_op(OpKind.F, stage, microbatch, n)
                backward, full = base + OpKind.D, base + OpKind.B
                self.duration[base : base + KINDS] = times
                self.slot[full] = backward
                self.target[base] = backward if last else base + n * KINDS
                self.hop[base] = None if last else problem.forward_hops[stage]
                if not first:
                    self.target[backward] = self.target[full] = backward - n * KINDS
                    self.hop[backward] = self.hop[full] = problem.backward_hops[stage - 1]
        self._queues(problem)

    def opened(self) -> list[int]:
        """Return arrivals by slot [ns] before anything has run: the inputs of each flow are there, the rest is -1."""
        arrival = [-1] * self.size
        per_stage = self.microbatches * KINDS
        for stage in self.problem.flows:
            arrival[stage * per_stage : (stage + 1) * per_stage : KINDS] = [0] * self.microbatches
        return arrival

    def _queues(self, problem: Problem) -> None:
        hops = [hop for hop in (*problem.forward_hops, *problem.backward_hops) if hop is not None]
        self.lanes = sorted({Lane(hop.pipe, hop.source) for hop in hops})
        self.lane_of = {lane: index for index, lane in enumerate(self.lanes)}
        senders = [0] * len(problem.pipes)
        for lane in self.lanes:
            senders[lane.pipe] += 1
        for pipe in problem.collectives.pipes if problem.collectives else ():
            senders[pipe] += 2
        self.contended = [count > 1 for count in senders]


def slot_of(op: int) -> int:
    """Return the slot of the op id `op`: the id of D for a B, the op itself otherwise."""
    return op - 2 if op % KINDS == OpKind.B else op
