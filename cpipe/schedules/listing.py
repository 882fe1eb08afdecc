"""Orders of forwards and full backwards by a list schedule in unit times: who is free takes the best that is there.

For schedules that are told as a rule and a picture, not as a formula. The times are those of the picture, so that
the order depends on the placement and the number of microbatches alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cpipe.ir import OpKind, Schedule
from cpipe.schedules.common import schedule_of

__all__ = ["Listed", "Rule", "list_schedule"]


class Rule(NamedTuple):
    """Which op goes first.

    Attributes
    ----------
    forward_time, backward_time
        Durations of F and B.
    forward_first
        Whether a ready forward goes before a backward.
    entry_limit
        Microbatches of a flow that may be on their way, from the first stage's F to its B.
    device_limit
        Activations that a device may hold, or None.
    backward_key
        Of (position in the flow, microbatch): the least goes first. Forwards: deepest position, then microbatch.
    """

    forward_time: int
    backward_time: int
    forward_first: bool
    entry_limit: int
    device_limit: int | None
    backward_key: Callable[[int, int], tuple[int, int]]


class Listed(NamedTuple):
    """An order and its makespan in the rule's times."""

    makespan: int
    schedule: Schedule


def list_schedule(placement: Sequence[int], flow_length: int, microbatches: int, rule: Rule) -> Listed | None:
    """Return the order that `rule` gives on free links, or None when its limits stop it.

    Parameters
    ----------
    placement
        Device of each stage, flow after flow.
    flow_length
        Number of stages of each flow.
    microbatches
        Of each flow.
    rule
        Which op goes first.
    """
    return _Listing(placement, flow_length, microbatches, rule).run()


class _Listing:
    """State of one list schedule. An op is (kind, stage, microbatch); a stage runs its microbatches in order."""

    def __init__(self, placement: Sequence[int], flow_length: int, microbatches: int, rule: Rule) -> None:
        self.placement, self.flow_length, self.n, self.rule = placement, flow_length, microbatches, rule
        num_devices = max(placement) + 1
        self.stages: list[list[int]] = [[] for _ in range(num_devices)]
        for stage, device in enumerate(placement):
            self.stages[device].append(stage)
        self.next_forward = [0] * len(placement)
        self.next_backward = [0] * len(placement)
        self.inputs: list[list[int]] = [[] for _ in placement]  # arrival of each activation, in microbatch order
        self.gradients: list[list[int]] = [[] for _ in placement]
        for first in range(0, len(placement), flow_length):
            self.inputs[first] = [0] * microbatches
        self.orders: list[list[tuple[OpKind, int, int]]] = [[] for _ in range(num_devices)]
        self.busy_until = [0] * num_devices
        self.level = [0] * num_devices

    def run(self) -> Listed | None:
        agenda = [(0, device) for device in range(len(self.orders))]
        while agenda:
            now, device = heapq.heappop(agenda)
            if now < self.busy_until[device]:
                continue
            op = self._best(device, now)
            if op is None:
                later = [time for time, _ in self._arrivals(device) if time > now]
                if later:
                    heapq.heappush(agenda, (min(later), device))
                continue
            end, fed = self._run(device, op, now)
            heapq.heappush(agenda, (end, device))
            if fed != device and self.busy_until[fed] <= now:
                heapq.heappush(agenda, (now, fed))  # it may have slept without knowing of this arrival
        if sum(map(len, self.orders)) < 2 * self.n * len(self.placement):
            return None
        return Listed(max(self.busy_until), schedule_of(len(self.orders), self.n, enumerate(self.orders)))

    def _arrivals(self, device: int) -> list[tuple[int, tuple[OpKind, int, int]]]:
        """Return the ops of the device whose input is on its way or there, with its arrival."""
        found = []
        full = self.rule.device_limit is not None and self.level[device] >= self.rule.device_limit
        for stage in self.stages[device]:
            forward, backward = self.next_forward[stage], self.next_backward[stage]
            if backward < len(self.gradients[stage]):
                found.append((self.gradients[stage][backward], (OpKind.B, stage, backward)))
            entering = stage % self.flow_length == 0 and forward - backward >= self.rule.entry_limit
            if forward < len(self.inputs[stage]) and not (full or entering):
                found.append((self.inputs[stage][forward], (OpKind.F, stage, forward)))
        return found

    def _best(self, device: int, now: int) -> tuple[OpKind, int, int] | None:
        ready = [op for time, op in self._arrivals(device) if time <= now]
        return min(ready, key=self._key, default=None)

    def _key(self, op: tuple[OpKind, int, int]) -> tuple[int, int, int]:
        kind, stage, microbatch = op
        position = stage % self.flow_length
        if kind is OpKind.B:
            return (int(self.rule.forward_first), *self.rule.backward_key(position, microbatch))
        return int(not self.rule.forward_first), -position, microbatch

    def _run(self, device: int, op: tuple[OpKind, int, int], now: int) -> tuple[int, int]:
        """Run an op; return its end and the device that its output goes to."""
        kind, stage, _ = op
        self.orders[device].append(op)
        position = stage % self.flow_length
        if kind is OpKind.F:
            end = now + self.rule.forward_time
            self.next_forward[stage] += 1
            self.level[device] += 1
            last = position == self.flow_length - 1
            target = stage if last else stage + 1
            (self.gradients if last else self.inputs)[target].append(end)
        else:
            end = now + self.rule.backward_time
            self.next_backward[stage] += 1
            self.level[device] -= 1
            target = stage - 1 if position else stage
            if position:
                self.gradients[target].append(end)
        self.busy_until[device] = end
        return end, self.placement[target]
