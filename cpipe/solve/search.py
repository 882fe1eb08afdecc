"""Critical-path local search: move ops that decide the makespan, keep what helps.

A move shifts one op, or the ops of one kind and stage for a run of microbatches, by a few places in its device's
order, or exchanges D and W for B where B is cheaper. Microbatch order, F before D before W and memory are kept before
anything is timed. Acceptance is annealed by counted evaluations with a fixed seed, so the result can be made again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from cpipe.ir import OpKind, Problem, Schedule
from cpipe.ir.ops import KINDS
from cpipe.sim import Simulator
from cpipe.sim.memory import memory_rooms, memory_steps
from cpipe.sim.tables import NO_SLOT, slot_of
from cpipe.solve.merging import can_merge

__all__ = ["LocalSearch"]

_REACH = 6  # places an op moves at most
_CRITICAL = 0.85  # share of moves that start on the critical path
_RUN = 0.25  # share of moves that shift a run of microbatches
_FUSE = 0.15  # share of moves that exchange D and W for B, where B is cheaper


class LocalSearch:
    """Improves one schedule of one problem.

    Parameters
    ----------
    problem, simulator
        The problem and its simulator.
    target_ns
        Stop as soon as the makespan is at most this.
    budget
        Number of evaluations allowed.
    seed
        Of the random moves.
    heat
        First temperature, as a share of the makespan: how much longer an accepted order may be.
    expired
        Asked before each evaluation; True ends the search.
    """

    def __init__(
        self,
        problem: Problem,
        simulator: Simulator,
        *,
        target_ns: int,
        budget: int,
        seed: int,
        heat: float = 0.0015,
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        self.evaluations = 0
        self._n = problem.microbatches
        self._simulator = simulator
        self._target = target_ns
        self._budget = budget
        self._heat = heat
        self._rng = random.Random(seed)
        self._expired = expired
        self._steps = memory_steps(problem)
        self._fusible = [can_merge(problem, stage) for stage in problem.stages]
        self._rooms = memory_rooms(problem)

    def improve(self, schedule: Schedule) -> tuple[int, Schedule]:
        """Return the best makespan [ns] and schedule found from `schedule`, which must not deadlock."""
        orders = [list(order) for order in schedule.orders]
        makespan, ends, _ = self._simulator.replay(orders)
        assert makespan is not None, "local search starts from an order that finishes"
        best, best_orders = makespan, [list(order) for order in orders]
        critical = self._critical_path(orders, ends)
        heat = self._heat * makespan
        while self.evaluations < self._budget and best > self._target and not self._expired():
            self.evaluations += 1
            move = self._propose(orders, critical)
            if move is None:
                continue
            device, changed = move
            kept, orders[device] = orders[device], changed
            value, new_ends, _ = self._simulator.replay(orders)
            temperature = heat * (1 - self.evaluations / self._budget) + 1e-9
            if value is None or (value > makespan and self._rng.random() >= math.exp((makespan - value) / temperature)):
                orders[device] = kept
                continue
            makespan = value
            critical = self._critical_path(orders, new_ends)
            if value < best:
                best, best_orders = value, [list(order) for order in orders]
        return best, Schedule(orders=tuple(map(tuple, best_orders)))

    def _critical_path(self, orders: Sequence[Sequence[int]], ends: Sequence[int]) -> list[tuple[int, int]]:
        """Return (device, place) of the ops of one chain that ends at the makespan."""
        tables = self._simulator.tables
        place = {op: (device, index) for device, order in enumerate(orders) for index, op in enumerate(order)}
        producer = {tables.target[op]: op for order in orders for op in order if tables.target[op] != NO_SLOT}
        path = []
        op = max((order[-1] for order in orders if order), key=lambda last: ends[last])
        while True:
            device, index = place[op]
            path.append((device, index))
            start = ends[op] - tables.duration[op]
            if start <= 0:
                return path
            before = orders[device][index - 1] if index else NO_SLOT
            if before != NO_SLOT and ends[before] == start:
                op = before
            elif slot_of(op) in producer:
                op = producer[slot_of(op)]
            elif before != NO_SLOT:
                op = before
            else:
                return path

    def _propose(
        self, orders: Sequence[list[int]], critical: Sequence[tuple[int, int]]
    ) -> tuple[int, list[int]] | None:
        """Return a device and its changed order, or None when the drawn move breaks a rule."""
        rng = self._rng
        if rng.random() < _CRITICAL:
            device, index = critical[rng.randrange(len(critical))]
        else:
            device = rng.randrange(len(orders))
            if not orders[device]:
                return None
            index = rng.randrange(len(orders[device]))
        order = orders[device]
        shift = rng.randint(1, _REACH) * (1 if rng.random() < 0.5 else -1)
        changed: list[int] | None
        if self._fusible[order[index] // KINDS // self._n] and rng.random() < _FUSE:
            changed = self._exchanged(order, index)
        elif rng.random() < _RUN:
            changed = self._shift_run(order, index, shift)
        else:
            changed = self._shifted(order, index, shift)
        if changed is None or not self._fits(device, changed):
            return None
        return device, changed

    def _shift_run(self, order: list[int], index: int, shift: int) -> list[int] | None:
        """Shift the op at `index` and the same op of the following microbatches of a run, each by `shift` places."""
        op = order[index]
        last = (op // KINDS // self._n + 1) * self._n * KINDS
        count = self._rng.randint(2, max(2, self._n // 2))
        ops = [other for other in range(op, min(last, op + count * KINDS), KINDS)]
        changed: list[int] | None = order
        for other in ops if shift < 0 else reversed(ops):
            if changed is None or other not in changed:
                return None
            changed = self._shifted(changed, changed.index(other), shift)
        return changed

    def _shifted(self, order: list[int], index: int, shift: int) -> list[int] | None:
        """Return `order` with the op at `index` moved by `shift` places; None beyond the ends or past a relative.

        On its own stage an op passes neither its own kind (microbatch order; D and B are one kind) nor the other ops
        of its microbatch (F before D before W).
        """
        target = index + shift
        if not 0 <= target < len(order):
            return None
        slot, kind = divmod(order[index], KINDS)
        stage, microbatch = divmod(slot, self._n)
        for other in order[target:index] if shift < 0 else order[index + 1 : target + 1]:
            other_slot, other_kind = divmod(other, KINDS)
            other_stage, other_microbatch = divmod(other_slot, self._n)
            same_kind = other_kind == kind or other_kind + kind == OpKind.D + OpKind.B
            if other_stage == stage and (same_kind or other_microbatch == microbatch):
                return None
        changed = order.copy()
        changed.insert(target, changed.pop(index))
        return changed

    def _exchanged(self, order: list[int], index: int) -> list[int] | None:
        """Return `order` with the D of the op at `index` and its W replaced by B, or its B by D and W; None for F.

        Apart, W stands right after D, unless a W of an earlier microbatch is still to come.
        """
        slot, kind = divmod(order[index], KINDS)
        base = slot * KINDS
        if kind == OpKind.F:
            return None
        if kind == OpKind.B:
            first = slot // self._n * self._n * KINDS
            if any(first <= later < base and later % KINDS == OpKind.W for later in order[index:]):
                return None
            return [*order[:index], base + OpKind.D, base + OpKind.W, *order[index + 1 :]]
        changed = [op for op in order if op != base + OpKind.W]
        changed[changed.index(base + OpKind.D)] = base + OpKind.B
        return changed

    def _fits(self, device: int, order: Sequence[int]) -> bool:
        room = self._rooms[device]
        if room is None:
            return True
        steps, per_stage, level = self._steps, self._n * KINDS, 0
        for op in order:
            during, after = steps[op // per_stage * KINDS + op % KINDS]
            if level + during > room:
                return False
            level += after
        return True
