"""Shortest ways through the pipeline for one microbatch: the heads and tails that bounds and searches use."""

from __future__ import annotations

from cpipe.ir import Hop, Problem

__all__ = ["Chains", "gathered_times"]


class Chains:
    """Unavoidable times of a problem, all [ns], all lists of length S.

    An op's cheapest form counts: a gradient leaves a stage after min(D, B), and a stage's whole backward takes
    min(D + W, B). Latency and occupancy of a hop both lie on the way of its message.

    Attributes
    ----------
    forward, gradient, backward
        F, the shortest way to the gradient, and the shortest whole backward of each stage.
    gather, reduce
        The all-gather before a stage's first F and the reduce after its last W or B, where there are any.
    gathered
        When the stage's parameters are there at the earliest: see `gathered_times`.
    head
        Earliest start of the first F: the way from the first stage of its flow, its own all-gather included.
    round_trip
        From the start of an F to the earliest start of its own D or B.
    tail
        From the start of the last D or B of a stage to the end of everything that must follow it.
    """

    def __init__(self, problem: Problem) -> None:
        stages = problem.stages
        self.forward: list[int] = [stage.forward_ns for stage in stages]
        self.gradient = [
            min(stage.input_grad_ns, stage.full_backward_ns) if stage.can_split else stage.full_backward_ns
            for stage in stages
        ]
        self.backward = [
            min(stage.input_grad_ns + stage.weight_grad_ns, stage.full_backward_ns)
            if stage.can_split
            else stage.full_backward_ns
            for stage in stages
        ]
        collectives = problem.collectives
        gather = [stage.all_gather_ns if collectives and collectives.mode == "zero1" else 0 for stage in stages]
        reduce = [stage.reduce_ns if collectives else 0 for stage in stages]
        self.gathered = gathered_times(problem)
        self.head, self.round_trip, self.tail = [0] * len(stages), [0] * len(stages), [0] * len(stages)
        for index in range(len(stages)):
            if problem.previous_stage(index) is not None:
                arrival = self.head[index - 1] + self.forward[index - 1] + _cost(problem.forward_hops[index - 1])
                self.tail[index] = self.gradient[index] + _cost(problem.backward_hops[index - 1]) + self.tail[index - 1]
                self.head[index] = max(self.gathered[index], arrival)
            else:
                self.head[index] = self.gathered[index]
            self.tail[index] = max(self.tail[index], self.backward[index] + reduce[index])
        for index in reversed(range(len(stages))):
            self.round_trip[index] = self.forward[index]
            if problem.next_stage(index) is not None:
                self.round_trip[index] += (
                    _cost(problem.forward_hops[index])
                    + self.round_trip[index + 1]
                    + self.gradient[index + 1]
                    + _cost(problem.backward_hops[index])
                )
        self.gather, self.reduce = gather, reduce


def gathered_times(problem: Problem) -> list[int]:
    """Return when each stage's first F may start for its all-gather, at the earliest [ns]; 0 without all-gathers.

    A device gathers one stage after the other, and the first F of a stage comes after those of its earlier stages: so
    behind all their all-gathers, in whatever order these run.
    """
    if problem.collectives is None or problem.collectives.mode != "zero1":
        return [0] * problem.num_stages
    times, taken = [], [0] * problem.num_devices
    for stage in problem.stages:
        taken[stage.device] += stage.all_gather_ns
        times.append(taken[stage.device])
    return times


def _cost(hop: Hop | None) -> int:
    return hop.latency_ns + hop.occupancy_ns if hop is not None else 0
