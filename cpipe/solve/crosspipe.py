"""CrossPipe's greedy: Algorithm 1 with sub-blocks (ATC'25, section 4.2 and the released rules).

Every op is cut into `parts` equal sub-blocks. The device that can go on earliest places one sub-block of its best ready
op: in turn after a whole F a D and after a D an F, W only where it fills a wait, frees memory or nothing else is left.
A D may come between two sub-blocks of an F. Afterwards sub-blocks are gathered again into whole ops. Times inside are
in sub-blocks, so that cutting needs no rounding.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from cpipe.ir import OpKind, Problem, Schedule
from cpipe.ir.ops import KINDS
from cpipe.sim.memory import MemoryStep, memory_rooms, memory_steps
from cpipe.sim.tables import NO_SLOT, Tables
from cpipe.solve.chains import gathered_times

__all__ = ["SUB_BLOCKS", "crosspipe_greedy"]

SUB_BLOCKS = 4
"""Sub-blocks per op in all released experiments."""

_F, _D, _W, _B = OpKind.F, OpKind.D, OpKind.W, OpKind.B


class _Choice(NamedTuple):
    """What a device would do next: when, and which op."""

    start: int
    op: int


class _Device:
    """One device: its clock, memory, and the ready ops of each (stage, kind) in microbatch order."""

    def __init__(self, room: int | None, num_forwards: int) -> None:
        self.room = room  # room and level in bytes x sub-blocks
        self.level = 0
        self.now = 0
        self.queues: dict[tuple[int, int], deque[tuple[int, int]]] = {}  # of (op, when its input is there)
        self.started: dict[int, int] = {}  # op -> sub-blocks placed
        self.last: int = _D  # kind of the last whole F or D
        self.forwards_left = num_forwards
        self.finished: list[int] = []  # whole ops, in order of their last sub-block


def crosspipe_greedy(problem: Problem, tables: Tables, parts: int = SUB_BLOCKS) -> Schedule | None:
    """Return the order of one pass, or None when it gets stuck on memory (several stages on a device).

    Parameters
    ----------
    problem
        Any placement; the paper's has one stage per device. Stages that cannot be split run B for D and W.
    tables
        Of the same problem.
    parts
        n_sub, the number of sub-blocks of each op.
    """
    return _Greedy(problem, tables, parts).run()


class _Greedy:
    def __init__(self, problem: Problem, tables: Tables, parts: int) -> None:
        self.problem, self.tables, self.parts = problem, tables, parts
        self.n = problem.microbatches
        self.steps = memory_steps(problem)
        self.devices = [
            _Device(None if room is None else room * parts, len(problem.stages_of(index)) * self.n)
            for index, room in enumerate(memory_rooms(problem))
        ]
        self.free = [0] * len(problem.pipes)
        self.release = [time * parts for time in gathered_times(problem)]
        self.choices: list[_Choice | None] = [None] * len(self.devices)
        for first in problem.flows:
            for microbatch in range(self.n):
                slot = (first * self.n + microbatch) * KINDS
                self._make_ready(problem.stages[first].device, slot, self.release[first])

    def run(self) -> Schedule | None:
        while True:
            ready = [(choice.start, index) for index, choice in enumerate(self.choices) if choice is not None]
            if not ready:
                break
            index = min(ready)[1]
            self._place(index)
            self.choices[index] = self._choose(self.devices[index])
        if any(queue for device in self.devices for queue in device.queues.values()):
            return None
        orders = [self._gathered(device) for device in self.devices]
        return Schedule(orders=tuple(orders))

    def _gathered(self, device: _Device) -> tuple[int, ...]:
        """Return the device's whole ops in order of their last sub-blocks; W comes forward where memory needs it.

        Sub-blocks free memory bit by bit, whole ops do not: an F that no longer fits lets waiting W go first.
        """
        if device.room is None:
            return tuple(device.finished)
        room, level = device.room // self.parts, 0
        gathered: list[int] = []
        pending = deque(op for op in device.finished if op % KINDS == _W)
        done: set[int] = set()
        for op in device.finished:
            if op in done:
                continue
            step = self._step(op // KINDS // self.n, op % KINDS)
            while level + step.during > room:
                early = next((later for later in pending if later not in done and later - 1 in done), None)
                if early is None or op % KINDS == _W:
                    break
                done.add(early)
                gathered.append(early)
                level += self._step(early // KINDS // self.n, _W).after
            done.add(op)
            gathered.append(op)
            level += step.after
            while pending and pending[0] in done:
                pending.popleft()
        return tuple(gathered)

    def _choose(self, device: _Device) -> _Choice | None:
        """Return the best ready op of the device: of what fits now, else of what fits soonest."""
        fitting = [
            (available, op)
            for queue in device.queues.values()
            if queue
            for op, available in (queue[0],)
            if self._fits(device, op)
        ]
        if not fitting:
            return None
        start = max(device.now, min(fitting)[0])
        rank = self._ranks(device)
        best = min((rank[op % KINDS], op // KINDS % self.n, -op) for available, op in fitting if available <= start)
        return _Choice(start, -best[2])

    def _ranks(self, device: _Device) -> dict[int, int]:
        """Return the priority of each kind (lower goes first), by the released rules."""
        forward_fits, backward_fits = self._kind_fits(device, _F), self._kind_fits(device, _D)
        if not (forward_fits or backward_fits):
            order = (_W, _D, _F)
        elif device.forwards_left == 0:
            order = (_D, _W, _F)
        elif device.last == _F:
            order = (_D, _F, _W) if backward_fits else (_W, _F, _D)
        elif forward_fits:
            order = (_F, _D, _W)
        else:
            order = (_D, _W, _F) if self._release_rate(device, _D) > self._release_rate(device, _W) else (_W, _D, _F)
        ranks = {int(kind): rank for rank, kind in enumerate(order)}
        return {**ranks, int(_B): ranks[_D]}

    def _kind_fits(self, device: _Device, kind: OpKind) -> bool:
        """Whether memory allows an op of this kind on any stage of the device, ready or not."""
        stages = {stage for stage, _ in device.queues}
        return device.room is None or any(
            device.level + self._step(stage, kind).during <= device.room for stage in stages
        )

    def _release_rate(self, device: _Device, kind: OpKind) -> float:
        """Bytes that an op of this kind frees per unit of time, of the first stage with one ready."""
        for (stage, queued), queue in sorted(device.queues.items()):
            if queue and (queued == kind or (kind == _D and queued == _B)):
                return -self._step(stage, queued).after / max(1, self.tables.duration[queue[0][0]])
        return 0.0

    def _step(self, stage: int, kind: int) -> MemoryStep:
        return self.steps[stage * KINDS + kind]

    def _fits(self, device: _Device, op: int) -> bool:
        if device.room is None:
            return True
        return device.level + self._step(op // KINDS // self.n, op % KINDS).during <= device.room

    def _place(self, index: int) -> None:
        """Place one sub-block of the device's choice; with the last one, its consequences."""
        choice = self.choices[index]
        assert choice is not None
        device, op = self.devices[index], choice.op
        stage, kind = op // KINDS // self.n, op % KINDS
        device.level += self._step(stage, kind).after
        device.started[op] = device.started.get(op, 0) + 1
        device.now = choice.start + self.tables.duration[op]
        if device.started[op] < self.parts:
            return
        del device.started[op]
        device.queues[stage, kind].popleft()
        device.finished.append(op)
        if kind == _F:
            device.forwards_left -= 1
        if kind != _W:
            device.last = _D if kind == _B else kind
        if kind == _D:
            self._make_ready(index, op + 1, device.now)
        self._release_next(index, op, device.now)

    def _release_next(self, index: int, op: int, end: int) -> None:
        fed = self.tables.target[op]
        if fed == NO_SLOT:
            return
        hop = self.tables.hop[op]
        receiver, arrival = index, end
        if hop is not None:
            self.free[hop.pipe] = max(end, self.free[hop.pipe]) + hop.occupancy_ns * self.parts
            receiver, arrival = hop.target, self.free[hop.pipe] + hop.latency_ns * self.parts
        stage = fed // KINDS // self.n
        if fed % KINDS == _F:
            arrival = max(arrival, self.release[stage])
        elif not self.problem.stages[stage].can_split:
            fed += _B - _D
        self._make_ready(receiver, fed, arrival)

    def _make_ready(self, index: int, op: int, available: int) -> None:
        device = self.devices[index]
        device.queues.setdefault((op // KINDS // self.n, op % KINDS), deque()).append((op, available))
        self.choices[index] = self._choose(device)
