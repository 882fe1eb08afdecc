"""Critical-path local search: move ops that decide the objective, keep what helps.

A move shifts one op, or the ops of one kind and stage for a run of microbatches, by a few places in its device's
order, or exchanges D and W for B where B is cheaper. Order within a stage and memory are checked before anything is
timed; then the heads and tails of the ops that trade places say what the move can at best give, and only a move that
may be accepted is replayed. Acceptance is annealed by counted work, in integers and with a fixed seed, so the result
can be made again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from cpipe.ir import Problem, Schedule
from cpipe.ir.ops import KINDS
from cpipe.sim import Simulator
from cpipe.sim.tables import NO_SLOT
from cpipe.solve.merging import can_merge
from cpipe.solve.moves import Moves
from cpipe.solve.replay import Replays, Timed

__all__ = ["LEAST_SWEPT", "LocalSearch"]

_REACH = 6  # places an op moves at most
_CRITICAL = 0.95  # share of moves that start on the critical path
_RUN = 0.15  # share of moves that shift a run of microbatches
_FUSE = 0.15  # share of moves that exchange D and W for B, where B is cheaper
_DRAW = 20  # what a proposal costs that is not replayed, in op visits
_STALE = 8  # accepted moves for which tails are kept
_WINDOW = 30  # ops a device, in each of the windows that a sweep goes through
LEAST_SWEPT = 2 * _WINDOW
"""Ops a device from which on an order is swept in windows."""
_OPENING = 6  # visits of each op that a window should be worth: opening it takes two
_LOGS = tuple(round(-1024 * math.log((index + 0.5) / 1024)) for index in range(1024))
"""Quantiles of the exponential distribution, in 1024ths: how much longer an order may be, at temperature 1."""


class LocalSearch:
    """Improves one schedule of one problem.

    Parameters
    ----------
    problem, simulator
        The problem and its simulator, whose objective counts.
    target_ns
        Stop as soon as the objective is at most this.
    budget
        Work allowed, in op visits: an op replayed or measured counts one, a move that is not replayed `_DRAW`.
    seed
        Of the random moves.
    heat
        First temperature, in percent of the mean duration of an op: how much longer an accepted order may be.
    sweeps
        How often to go through all windows in time; 0 to move everywhere at once. Windows make replays short, but not
        those of a span, nor where messages queue.
    expired
        Asked before each replay; True ends the search.

    Attributes
    ----------
    evaluations
        Number of replays so far.
    """

    def __init__(
        self,
        problem: Problem,
        simulator: Simulator,
        *,
        target_ns: int,
        budget: int,
        seed: int,
        heat: int = 50,
        sweeps: int = 0,
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        self.evaluations = 0
        self._sweeps = sweeps if simulator.is_direct and simulator.objective == "makespan" else 0
        self._problem = problem
        self._n = problem.microbatches
        self._tables = simulator.tables
        self._pace = simulator.pace
        self._replays = Replays(simulator)
        self._moves = Moves(problem)
        self._target = target_ns
        self._budget = budget
        self._heat = heat
        self._rng = random.Random(seed)
        self._expired = expired
        self._fusible = [can_merge(problem, stage) for stage in problem.stages]
        self._any_fusible = any(self._fusible)
        self._draws = 0
        self._accepted = 0
        self._timed: Timed

    @property
    def work(self) -> int:
        """Op visits spent so far."""
        return self._replays.visits + _DRAW * self._draws

    def improve(self, schedule: Schedule) -> tuple[int, Schedule]:
        """Return the best objective [ns] and schedule found from `schedule`, which must not deadlock."""
        whole = [list(order) for order in schedule.orders]
        self._heat_ns = self._heat * self._mean(whole) // 100
        if self._sweeps and sum(map(len, whole)) >= LEAST_SWEPT * len(whole):
            best, whole = self._sweep(whole)
        else:
            best, whole = self._walk(whole, self._budget)
        return best, Schedule(orders=tuple(map(tuple, whole)))

    def _mean(self, orders: list[list[int]]) -> int:
        """Return the mean duration of an op [ns]."""
        lengths = [self._tables.duration[op] for order in orders for op in order]
        return sum(lengths) // max(1, len(lengths))

    def _sweep(self, whole: list[list[int]]) -> tuple[int, list[list[int]]]:
        """Walk through windows in time, the first first: a replay ends behind the window, as the rest stands."""
        num_ops = sum(map(len, whole))
        affordable = max(1, self._budget // (_OPENING * num_ops))
        num_windows = min(affordable, num_ops // (_WINDOW * len(whole)))
        sweeps = min(self._sweeps, affordable // num_windows)
        best = 0
        for sweep in range(sweeps):
            for number in range(num_windows + sweep % 2):
                self._replays.frontier = None
                timed = self._replays.start(whole)
                assert timed is not None, "local search starts from an order that finishes"
                best = timed.value
                left = (sweeps - sweep) * num_windows - number
                if self.work >= self._budget or best <= self._target or self._expired():
                    return best, whole
                self._replays.measure(whole, timed)
                begin = best * (2 * number - sweep % 2) // (2 * num_windows)
                stop = best * (2 * number + 2 - sweep % 2) // (2 * num_windows)
                frontier = self._replays.cut(whole, timed, begin, stop)
                self._replays.frontier = frontier
                part = [order[:place] for order, place in zip(whole, frontier.stop, strict=True)]
                _, part = self._walk(part, self.work + (self._budget - self.work) // max(1, left))
                for order, place, changed in zip(whole, frontier.stop, part, strict=True):
                    order[:place] = changed
        self._replays.frontier = None
        timed = self._replays.start(whole)
        assert timed is not None
        return timed.value, whole

    def _walk(self, orders: list[list[int]], budget: int) -> tuple[int, list[list[int]]]:
        """Return the best objective [ns] and orders found from `orders` until `budget` is spent."""
        self._orders = orders
        timed = self._replays.start(self._orders)
        assert timed is not None, "local search starts from an order that finishes"
        self._levels = [self._moves.levels(device, order) or [] for device, order in enumerate(self._orders)]
        self._place = [0] * self._tables.size
        for order in self._orders:
            for index, op in enumerate(order):
                self._place[self._tables.slot[op]] = index
        frontier = self._replays.frontier
        self._begin = frontier.begin if frontier is not None else [0] * len(orders)
        self._accepted = 0
        self._settle(timed)
        best, best_orders = timed.value, [order.copy() for order in self._orders]
        while self.work < budget and best > self._target and not self._expired():
            self._draws += 1
            found = self._step()
            if found is not None:
                self._settle(found)
                if found.value < best or (frontier is not None and found.value == best):
                    best, best_orders = found.value, [order.copy() for order in self._orders]
        return best, best_orders

    def _settle(self, timed: Timed) -> None:
        """Make a timed order the current one."""
        if self._accepted % _STALE == 0:
            self._replays.measure(self._orders, timed)
        else:  # tails change slowly, and only sort out what is not worth a replay
            timed.tail, timed.onward = self._timed.tail, self._timed.onward
        self._accepted += 1
        self._timed = timed
        self._critical = self._critical_path()

    def _critical_path(self) -> list[tuple[int, int]]:
        """Return (device, place) of the ops of one chain that ends at the objective; of equals one is drawn."""
        timed, orders, tables = self._timed, self._orders, self._tables
        end, arrival, place = timed.end, timed.arrival, self._place
        devices, per_stage = tables.stage_device, self._n * KINDS
        path: list[tuple[int, int]] = []
        op = self._last_op()
        device = devices[op // per_stage]
        index = place[tables.slot[op]]
        while index >= self._begin[device]:
            path.append((device, index))
            start = end[op] - tables.duration[op]
            if start <= 0:
                return path
            slot = tables.slot[op]
            before = orders[device][index - 1] if index else NO_SLOT
            follows = before != NO_SLOT and end[before] == start
            feeder = NO_SLOT if op & 3 == 2 or (follows and arrival[slot] < start) else self._feeder(slot)
            if feeder == NO_SLOT or (follows and self._rng.random() < 0.5):
                if not follows:
                    return path  # it waits for something that no order changes
                op, index = before, index - 1
                continue
            device, index = devices[feeder // per_stage], place[feeder]
            op, index = self._queue_head(device, index, path)
        return path or [(device, index)]

    def _last_op(self) -> int:
        """Return the op that the objective ends with."""
        timed = self._timed
        ends = [
            (timed.end[order[-1]] + timed.sink[device], -device) for device, order in enumerate(self._orders) if order
        ]
        value, device = max(ends)
        if value < timed.value:
            for op, extra in sorted(timed.extra.items()):
                if timed.end[op] + extra + timed.sink[self._tables.stage_device[op // KINDS // self._n]] == timed.value:
                    return op
            return self._crossing_op() or self._orders[-device][-1]
        return self._orders[-device][-1]

    def _crossing_op(self) -> int | None:
        """Return the op whose message ends with the objective behind the frontier, if it is such a one."""
        timed, tables, frontier = self._timed, self._tables, self._replays.frontier
        for slot in frontier.crossing if frontier is not None else ():
            feeder = self._feeder(slot)
            op = self._orders[tables.stage_device[feeder // KINDS // self._n]][self._place[feeder]]
            hop, arrival = self._pace[op], timed.arrival[slot]
            free = arrival - hop[2] + hop[1] + frontier.link[hop[0]] if frontier is not None and hop is not None else 0
            if frontier is not None and timed.value in (arrival + frontier.tail[slot], free):
                return op
        return None

    def _feeder(self, slot: int) -> int:
        """Return the slot of the op that feeds `slot`, an F or a D; `NO_SLOT` for the first stage's F."""
        per_stage = self._n * KINDS
        stage = slot // per_stage
        if slot & 3 == 0:
            return NO_SLOT if self._problem.previous_stage(stage) is None else slot - per_stage
        return slot - 1 if self._problem.next_stage(stage) is None else slot + per_stage

    def _queue_head(self, device: int, index: int, path: list[tuple[int, int]]) -> tuple[int, int]:
        """Return the op whose message did not wait, of those that left one after another up to that of `index`."""
        timed, pace, order = self._timed, self._pace, self._orders[device]
        op = order[index]
        hop = pace[op]
        if timed.run is None or hop is None or not hop[1]:
            return op, index
        pipe, delay = hop[0], hop[2]
        while timed.arrival[self._tables.target[op]] - delay > timed.end[op]:
            earlier = index - 1
            while earlier >= 0:
                hop = pace[order[earlier]]
                if hop is not None and hop[0] == pipe:
                    break
                earlier -= 1
            if earlier < 0 or hop is None:
                break
            path.append((device, index))
            op, index, delay = order[earlier], earlier, hop[2]
        return op, index

    def _step(self) -> Timed | None:
        """Draw one move; return the times of the changed order, or None when it is not legal or not accepted."""
        draw = self._rng.random
        if draw() < _CRITICAL:
            device, index = self._critical[int(draw() * len(self._critical))]
        else:
            device = int(draw() * len(self._orders))
            places = len(self._orders[device]) - self._begin[device]
            if places <= 0:
                return None
            index = self._begin[device] + int(draw() * places)
        order = self._orders[device]
        shift = 1 + int(draw() * _REACH)
        if draw() < 0.5:
            shift = -shift
        if self._any_fusible and self._fusible[order[index] // KINDS // self._n] and draw() < _FUSE:
            changed = self._moves.exchanged(order, index)
            cut_off = changed is None or len(changed) == len(order)  # the W stands behind the frontier
            return None if cut_off else self._replace(device, changed)
        if draw() < _RUN:
            op = order[index]
            last = (op // KINDS // self._n + 1) * self._n * KINDS
            count = 2 + int(draw() * max(1, self._n // 2 - 1))
            ops = range(op, min(last, op + count * KINDS), KINDS)
            return self._replace(device, self._moves.shifted_run(order, ops, shift))
        return self._shift(device, index, shift)

    def _limit(self) -> int:
        """Draw the longest objective [ns] that is accepted now."""
        temperature = self._heat_ns * max(0, self._budget - self.work) // self._budget
        return self._timed.value + (temperature * _LOGS[int(self._rng.random() * 1024)] >> 10)

    def _shift(self, device: int, index: int, shift: int) -> Timed | None:
        order, levels = self._orders[device], self._levels[device]
        target = self._moves.reach(order, index, shift)
        if target is None or not self._moves.fits_shifted(device, order, levels, index, target):
            return None
        limit = self._limit()
        if self._promise(device, index, target, limit) > limit:
            return None
        order.insert(target, order.pop(index))
        first, last = (index, target) if index < target else (target, index)
        self.evaluations += 1
        timed = self._replays.change(self._orders, self._timed, device, first)
        if timed is None or timed.value > limit:
            order.insert(index, order.pop(target))
            return None
        self._moves.shift_levels(order, levels, first, last)
        slot, place = self._tables.slot, self._place
        for position in range(first, last + 1):
            place[slot[order[position]]] = position
        return timed

    def _promise(self, device: int, index: int, target: int, limit: int) -> int:
        """Return what the objective [ns] is at least, by way of the ops that a shift changes, if all else stands."""
        tables, timed = self._tables, self._timed
        duration, slot, arrival, onward = tables.duration, tables.slot, timed.arrival, timed.onward
        order = self._orders[device]
        if index < target:
            first, ops = index, [*order[index + 1 : target + 1], order[index]]
        else:
            first, ops = target, [order[index], *order[target:index]]
        now = timed.end[order[first - 1]] if first else 0
        ends = []
        for op in ops:
            if op & 3 != 2:
                arrived = arrival[slot[op]]
                if arrived > now:
                    now = arrived
            now += duration[op]
            ends.append(now)
        behind = first + len(ops)
        tail = timed.tail[slot[order[behind]]] if behind < len(order) else timed.sink[device]
        value = 0
        for op, now in zip(reversed(ops), reversed(ends), strict=True):
            way = onward[op]
            if way > tail:
                tail = way
            if now + tail > value:
                value = now + tail
                if value > limit:
                    break
            tail += duration[op]
        return value

    def _replace(self, device: int, changed: list[int] | None) -> Timed | None:
        """Replay with another order on `device`."""
        if changed is None:
            return None
        levels = self._moves.levels(device, changed)
        if levels is None:
            return None
        limit = self._limit()
        kept = self._orders[device]
        first = next((place for place, pair in enumerate(zip(kept, changed, strict=False)) if pair[0] != pair[1]), 0)
        self._orders[device] = changed
        self.evaluations += 1
        timed = self._replays.change(self._orders, self._timed, device, first)
        if timed is None or timed.value > limit:
            self._orders[device] = kept
            return None
        self._levels[device] = levels
        for index, op in enumerate(changed):
            self._place[self._tables.slot[op]] = index
        return timed
