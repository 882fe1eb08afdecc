"""The list-scheduler family: one greedy pass in time order, steered by three knobs per device.

A device that is free at time t takes a ready D before a ready F, unless its backlog of W is above `weight_lag`; an F
only while its activations in flight are below `in_flight` and memory allows; a W fills a wait only if the next known
arrival is at least `patience` of its length away, or if nothing else will come. What matters for the makespan is how
W is spread and how deep the warm-up goes, so those are the knobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from cpipe.ir import OpKind, Problem, Schedule
from cpipe.ir.ops import KINDS
from cpipe.sim.memory import memory_steps, receive_reserve
from cpipe.sim.tables import Tables

__all__ = ["NO_LIMIT", "Knobs", "ListScheduler"]

NO_LIMIT = 1 << 60
_F, _D, _W, _B = OpKind.F, OpKind.D, OpKind.W, OpKind.B


class Knobs(NamedTuple):
    """How one greedy pass behaves.

    Attributes
    ----------
    weight_lag
        Per device: number of pending W above which a W goes first.
    in_flight
        Per device: activations (F without D or B) beyond which no F starts.
    patience
        Share of a W's length, in quarters, that the gap to the next arrival must have for the W to fill it.
    full_backward
        Per stage: run B instead of D and W.
    deep_first
        Between ready ops of several stages on a device: later stage first (else lower microbatch first).
    """

    weight_lag: tuple[int, ...]
    in_flight: tuple[int, ...]
    patience: int
    full_backward: tuple[bool, ...]
    deep_first: bool = True


class ListScheduler:
    """Greedy passes over one problem.

    Parameters
    ----------
    problem
        Any stage -> device list; memory limits are kept, receive windows are left to the replay.
    """

    def __init__(self, problem: Problem, tables: Tables) -> None:
        self.problem = problem
        self.tables = tables
        reserve = receive_reserve(problem)
        self._steps = memory_steps(problem)
        self._capacity = [
            NO_LIMIT
            if device.capacity_bytes is None
            else device.capacity_bytes
            - reserve[index]
            - sum(problem.stages[stage].static_bytes for stage in problem.stages_of(index))
            for index, device in enumerate(problem.devices)
        ]
        self._stages = [problem.stages_of(device) for device in range(problem.num_devices)]
        gathers = problem.collectives is not None and problem.collectives.mode == "zero1"
        self._release = [stage.all_gather_ns if gathers else 0 for stage in problem.stages]

    def run(self, knobs: Knobs) -> Schedule | None:
        """Return the order of one greedy pass, or None when it got stuck on memory."""
        return _Pass(self, knobs).run()


class _Pass:
    """State of one greedy pass."""

    def __init__(self, scheduler: ListScheduler, knobs: Knobs) -> None:
        problem, tables = scheduler.problem, scheduler.tables
        n = problem.microbatches
        self.scheduler = scheduler
        self.knobs = knobs
        self.n = n
        self.arrival = [-1] * tables.size
        self.arrival[0 : n * KINDS : KINDS] = [scheduler._release[0]] * n
        self.next_forward = [0] * problem.num_stages
        self.next_backward = [0] * problem.num_stages
        self.next_weight = [0] * problem.num_stages
        self.level = [0] * problem.num_devices
        self.orders: list[list[int]] = [[] for _ in problem.devices]
        self.free = [0] * len(problem.pipes)
        self.wake = [0] * problem.num_devices  # when the device decides next; -1 when it sleeps
        self.busy_until = [0] * problem.num_devices
        self.agenda = [(0, device) for device in range(problem.num_devices)]

    def run(self) -> Schedule | None:
        agenda, wake = self.agenda, self.wake
        while agenda:
            now, device = heapq.heappop(agenda)
            if wake[device] != now:
                continue
            chosen = self._choose(device, now)
            if chosen is None:
                continue
            op, start = chosen
            if start > now:
                wake[device] = start
                heapq.heappush(agenda, (start, device))
            else:
                self._dispatch(device, op, now)
        total = sum(map(len, self.orders))
        wanted = sum(self.n * (2 if full else 3) for full in self.knobs.full_backward)
        return Schedule(orders=tuple(map(tuple, self.orders))) if total == wanted else None

    def _choose(self, device: int, now: int) -> tuple[int, int] | None:
        """Return the op to run and when (later than `now`: only wait until then), or None to sleep."""
        scheduler, knobs, n = self.scheduler, self.knobs, self.n
        room = scheduler._capacity[device] - self.level[device]
        backlog, in_flight = 0, 0
        weight = backward = forward = (-1, (0, 0))
        soonest = NO_LIMIT
        needed = -1  # activations that the oldest unfinished microbatch still needs here
        stages = scheduler._stages[device]
        if not stages:
            return None
        for stage in stages:
            done_f, done_b, done_w = self.next_forward[stage], self.next_backward[stage], self.next_weight[stage]
            in_flight += done_f - done_b
            base = stage * n * KINDS
            steps = scheduler._steps
            if not knobs.full_backward[stage] and done_w < done_b:
                backlog += done_b - done_w
                key = (done_w, -stage)
                if (weight[0] < 0 or key < weight[1]) and steps[stage * KINDS + _W].during <= room:
                    weight = (base + done_w * KINDS + _W, key)
            if done_b < done_f:
                arrived = self.arrival[base + done_b * KINDS + _D]
                kind = _B if knobs.full_backward[stage] else _D
                if arrived >= 0 and steps[stage * KINDS + kind].during <= room:
                    if arrived > now:
                        soonest = min(soonest, arrived)
                    else:
                        key = (-stage, done_b) if knobs.deep_first else (done_b, -stage)
                        if backward[0] < 0 or key < backward[1]:
                            backward = (base + done_b * KINDS + kind, key)
        if backlog > knobs.weight_lag[device] and weight[0] >= 0:
            return weight[0], now
        if backward[0] >= 0:
            return backward[0], now
        if in_flight < knobs.in_flight[device]:
            oldest = min(self.next_forward[stage] for stage in stages)
            for stage in stages:
                done_f = self.next_forward[stage]
                if done_f == n:
                    continue
                arrived = self.arrival[stage * n * KINDS + done_f * KINDS]
                if arrived < 0:
                    continue
                step = scheduler._steps[stage * KINDS]
                if len(stages) > 1:
                    needed = self._reserve(stages, stage, oldest)
                if step.during > room or step.after + max(needed, 0) > room:
                    continue
                if arrived > now:
                    soonest = min(soonest, arrived)
                    continue
                key = (-stage, done_f) if knobs.deep_first else (done_f, -stage)
                if forward[0] < 0 or key < forward[1]:
                    forward = (stage * n * KINDS + done_f * KINDS, key)
        if forward[0] >= 0:
            return forward[0], now
        if weight[0] >= 0:
            length = scheduler.tables.duration[weight[0]]
            if soonest == NO_LIMIT or 4 * (soonest - now) >= knobs.patience * length:
                return weight[0], now
        if soonest < NO_LIMIT:
            return -1, soonest
        self.wake[device] = -1
        return None

    def _reserve(self, stages: Sequence[int], chosen: int, oldest: int) -> int:
        """Return the memory to keep free after an F of `chosen`, so that the oldest microbatch can pass."""
        steps = self.scheduler._steps
        needed = 0
        for stage in stages:
            if self.next_forward[stage] <= oldest and not (stage == chosen and self.next_forward[stage] == oldest):
                needed += steps[stage * KINDS].after
        return needed

    def _dispatch(self, device: int, op: int, now: int) -> None:
        scheduler = self.scheduler
        tables = scheduler.tables
        end = now + tables.duration[op]
        slot, kind = divmod(op, KINDS)
        stage = slot // self.n
        self.orders[device].append(op)
        self.level[device] += scheduler._steps[stage * KINDS + kind].after
        if kind == _F:
            self.next_forward[stage] += 1
        elif kind == _W:
            self.next_weight[stage] += 1
        else:
            self.next_backward[stage] += 1
        fed = tables.target[op]
        if fed >= 0:
            hop = tables.hop[op]
            if hop is None:
                arrival, receiver = end, device
            else:
                leave = max(end, self.free[hop.pipe])
                self.free[hop.pipe] = leave + hop.occupancy_ns
                arrival, receiver = leave + hop.occupancy_ns + hop.latency_ns, hop.target
            if fed % KINDS == _F:
                arrival = max(arrival, scheduler._release[fed // KINDS // self.n])
            self.arrival[fed] = arrival
            if receiver != device and self.busy_until[receiver] <= now:
                self._wake(receiver, now)  # it idles: what it now knows may change its mind
        self.busy_until[device] = end
        self._wake(device, end)

    def _wake(self, device: int, time: int) -> None:
        self.wake[device] = time
        heapq.heappush(self.agenda, (time, device))
