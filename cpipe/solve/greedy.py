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

from cpipe.ir import Hop, OpKind, Problem, Schedule
from cpipe.ir.ops import KINDS
from cpipe.sim.memory import memory_rooms, memory_steps
from cpipe.sim.tables import Tables
from cpipe.solve.chains import gathered_times

__all__ = ["NO_LIMIT", "Knobs", "ListScheduler"]

NO_LIMIT = 1 << 60
"""A knob that limits nothing."""

_F, _D, _W, _B = OpKind.F, OpKind.D, OpKind.W, OpKind.B
_NEVER = 1 << 200  # beyond every time and every size


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
        Any stage -> device list. Memory limits and receive windows are kept; pipes with several senders are taken
        in the order in which their messages are made.
    tables
        Of the same problem.
    """

    def __init__(self, problem: Problem, tables: Tables) -> None:
        self.problem = problem
        self.tables = tables
        self.steps = memory_steps(problem)
        self.rooms = [_NEVER if room is None else room for room in memory_rooms(problem)]
        self.stages = [problem.stages_of(device) for device in range(problem.num_devices)]
        self.release = gathered_times(problem)

    def run(self, knobs: Knobs) -> Schedule | None:
        """Return the order of one greedy pass, or None when it got stuck on memory or on receive windows."""
        return _Pass(self, knobs).run()


class _Channel:
    """Messages of one channel under a receive window: what was made, and how far its receiver has read."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int, Hop]] = []  # (slot that it feeds, ready, hop), in the sender's order
        self.left = 0
        self.read = 0  # of the first messages, how many are consumed without a gap
        self.read_until = 0  # when the last of those was


class _Pass:
    """State of one greedy pass."""

    def __init__(self, scheduler: ListScheduler, knobs: Knobs) -> None:
        problem, tables = scheduler.problem, scheduler.tables
        n = problem.microbatches
        self.scheduler, self.knobs, self.n = scheduler, knobs, n
        self.window = problem.receive_window
        self.arrival = [-1] * tables.size
        for first in problem.flows:
            begin = first * n * KINDS
            self.arrival[begin : begin + n * KINDS : KINDS] = [scheduler.release[first]] * n
        self.next_forward = [0] * problem.num_stages
        self.next_backward = [0] * problem.num_stages
        self.next_weight = [0] * problem.num_stages
        self.in_flight = [0] * problem.num_devices
        self.level = [0] * problem.num_devices
        self.orders: list[list[int]] = [[] for _ in problem.devices]
        self.free = [0] * len(problem.pipes)
        self.channels: dict[tuple[int, int, bool], _Channel] = {}
        self.consumed: dict[int, int] = {}  # slot -> end of the op that read it
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
                wake[device] = -1
            elif chosen[1] > now:
                self._wake(device, chosen[1])
            else:
                self._dispatch(device, chosen[0], now)
        total = sum(map(len, self.orders))
        wanted = sum(self.n * (2 if full else 3) for full in self.knobs.full_backward)
        return Schedule(orders=tuple(map(tuple, self.orders))) if total == wanted else None

    def _choose(self, device: int, now: int) -> tuple[int, int] | None:
        """Return the op to run and when (later than `now`: only wait until then), or None to sleep."""
        stages = self.scheduler.stages[device]
        room = self.scheduler.rooms[device] - self.level[device]
        weight, backlog = self._ready_weight(stages, room)
        if weight >= 0 and backlog > self.knobs.weight_lag[device]:
            return weight, now
        op, soonest = self._ready_backward(stages, room, now)
        if op < 0 and self.in_flight[device] < self.knobs.in_flight[device]:
            op, arrival = self._ready_forward(stages, room, now)
            soonest = min(soonest, arrival)
        if op >= 0:
            return op, now
        if weight >= 0:
            length = self.scheduler.tables.duration[weight]
            if 4 * (soonest - now) >= self.knobs.patience * length:
                return weight, now
        return (-1, soonest) if soonest < _NEVER else None

    def _ready_weight(self, stages: Sequence[int], room: int) -> tuple[int, int]:
        """Return the oldest W that fits, or -1, and how many W are pending."""
        best, best_key, backlog = -1, (0, 0), 0
        for stage in stages:
            done = self.next_weight[stage]
            pending = 0 if self.knobs.full_backward[stage] else self.next_backward[stage] - done
            if pending:
                backlog += pending
                key = (done, -stage)
                if (best < 0 or key < best_key) and self.scheduler.steps[stage * KINDS + _W].during <= room:
                    best, best_key = (stage * self.n + done) * KINDS + _W, key
        return best, backlog

    def _ready_backward(self, stages: Sequence[int], room: int, now: int) -> tuple[int, int]:
        """Return the best D or B that can start now, or -1, and when the next one arrives that fits."""
        best, best_key, soonest = -1, (0, 0), _NEVER
        for stage in stages:
            done = self.next_backward[stage]
            if done == self.next_forward[stage]:
                continue
            slot = (stage * self.n + done) * KINDS
            kind = _B if self.knobs.full_backward[stage] else _D
            arrived = self.arrival[slot + _D]
            if arrived < 0 or self.scheduler.steps[stage * KINDS + kind].during > room:
                continue
            if arrived > now:
                soonest = min(soonest, arrived)
                continue
            key = (-stage, done) if self.knobs.deep_first else (done, -stage)
            if best < 0 or key < best_key:
                best, best_key = slot + kind, key
        return best, soonest

    def _ready_forward(self, stages: Sequence[int], room: int, now: int) -> tuple[int, int]:
        """Return the best F that can start now, or -1, and when the next one arrives that fits."""
        best, best_key, soonest = -1, (0, 0), _NEVER
        oldest = min((self.next_forward[stage] for stage in stages), default=0)
        for stage in stages:
            done = self.next_forward[stage]
            if done == self.n:
                continue
            slot = (stage * self.n + done) * KINDS
            arrived = self.arrival[slot]
            if arrived < 0:
                continue
            step = self.scheduler.steps[stage * KINDS]
            reserve = self._reserve(stages, stage, oldest) if len(stages) > 1 else 0
            if step.during > room or step.after + reserve > room:
                continue
            if arrived > now:
                soonest = min(soonest, arrived)
                continue
            key = (-stage, done) if self.knobs.deep_first else (done, -stage)
            if best < 0 or key < best_key:
                best, best_key = slot, key
        return best, soonest

    def _reserve(self, stages: Sequence[int], chosen: int, oldest: int) -> int:
        """Return the memory to keep free after an F of `chosen`, so that the oldest microbatch can pass."""
        needed = 0
        for stage in stages:
            done = self.next_forward[stage]
            if done <= oldest and not (stage == chosen and done == oldest):
                needed += self.scheduler.steps[stage * KINDS].after
        return needed

    def _dispatch(self, device: int, op: int, now: int) -> None:
        tables = self.scheduler.tables
        end = now + tables.duration[op]
        slot, kind = divmod(op, KINDS)
        stage = slot // self.n
        self.orders[device].append(op)
        self.level[device] += self.scheduler.steps[stage * KINDS + kind].after
        if kind == _F:
            self.next_forward[stage] += 1
            self.in_flight[device] += 1
        elif kind == _W:
            self.next_weight[stage] += 1
        else:
            self.next_backward[stage] += 1
            self.in_flight[device] -= 1
        self.busy_until[device] = end
        if self.window is not None:
            self._consume(tables.slot[op], end)
        fed, hop = tables.target[op], tables.hop[op]
        if hop is None:
            if fed >= 0:
                self.arrival[fed] = max(end, self._released(fed))
        elif self.window is None:
            self._leave(fed, hop, end, now)
        else:
            channel = self.channels.setdefault((hop.source, hop.target, kind == _F), _Channel())
            channel.made.append((fed, end, hop))
            self._serve(channel, now)
        self._wake(device, end)

    def _consume(self, slot: int, end: int) -> None:
        """Note that an input was read; on every channel whose next message waited for that, let it go."""
        self.consumed[slot] = end
        for channel in self.channels.values():
            if channel.left < len(channel.made):
                self._serve(channel, end)

    def _serve(self, channel: _Channel, now: int) -> None:
        """Let the messages of a channel leave that its receive window allows."""
        assert self.window is not None
        while channel.left < len(channel.made):
            while channel.read <= channel.left - self.window:
                end = self.consumed.get(channel.made[channel.read][0])
                if end is None:
                    return
                channel.read += 1
                channel.read_until = max(channel.read_until, end)
            fed, ready, hop = channel.made[channel.left]
            channel.left += 1
            self._leave(fed, hop, max(ready, channel.read_until), now)

    def _leave(self, fed: int, hop: Hop, ready: int, now: int) -> None:
        """Send a message; an idle receiver decides anew, since what it now knows may change its mind."""
        leave = max(ready, self.free[hop.pipe])
        self.free[hop.pipe] = leave + hop.occupancy_ns
        self.arrival[fed] = max(leave + hop.occupancy_ns + hop.latency_ns, self._released(fed))
        if self.busy_until[hop.target] <= now:
            self._wake(hop.target, now)

    def _released(self, fed: int) -> int:
        """Return when the stage's parameters are there, for an F."""
        return self.scheduler.release[fed // KINDS // self.n] if fed % KINDS == _F else 0

    def _wake(self, device: int, time: int) -> None:
        self.wake[device] = time
        heapq.heappush(self.agenda, (time, device))
