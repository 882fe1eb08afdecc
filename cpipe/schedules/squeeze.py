"""A pattern, run on a job's own times: who waits takes a later op of its order, if its activations stay within a limit.

A pattern of the field (ops of a few lengths, repeated for each microbatch) says which order holds how many activations.
Where stages, D and W differ in length or messages take time, devices wait in it. Here each device works through its
order, and when the next forward or input gradient is not there yet it takes a later one, or a weight gradient. Nothing
is taken that would raise the activations, counted from F to W, above the limit at any later point of the order, so the
rest of the order stays feasible whatever was taken.

A device that takes what it can leaves its waits to the end. So an order may also be run from its end to its start,
which fills the end and leaves the waits to the beginning, and then forwards again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cpipe.ir import Hop, OpKind, Problem, Schedule, encode_op
from cpipe.ir.ops import KINDS

__all__ = ["AS_IT_IS", "Policy", "squeezed"]

_LARGE = 30_000  # ops of a problem; beyond that, the pattern stands as it is
_WORK = 64_000  # ops run over all attempts
_NEVER = 1 << 200
_EFFECT = (1, 0, -1)  # activations that F, D and W add

Orders = tuple[tuple[int, ...], ...]


class Policy(NamedTuple):
    """What a device may take when the op that stands first is not there.

    Attributes
    ----------
    reorder
        Another F or D: one whose length, in quarters times `gap`, is over when the first is expected.
    gap
        In quarters; 0 takes it whatever it delays.
    patience
        Of W likewise; 0 is a W at any time nothing else can run.
    from_end
        Run the order in reverse, each W with its D. What comes out may be run on, but is not timed.
    """

    reorder: bool
    gap: int
    patience: int
    from_end: bool = False


AS_IT_IS = None
"""In place of a policy: the pattern's own order."""


def squeezed(
    problem: Problem, patterns: Iterable[tuple[Schedule, Sequence[Policy | None]]], limits: Sequence[int]
) -> Schedule:
    """Return the order that ends first on the problem's times, of those that the patterns and policies give.

    Parameters
    ----------
    problem
        Stages can be split.
    patterns
        Orders of F, D and W within `limits`, with the policies to run each by: every one runs what the one before
        made of it.
    limits
        Per device: activations of its stages that it may hold, from F to W.

    Returns
    -------
    Schedule
        The first pattern as it is when the problem is too large to try them.
    """
    costs = {from_end: _Costs(problem, from_end=from_end) for from_end in (False, True)}
    size = 3 * problem.num_stages * problem.microbatches
    best: tuple[int, Schedule] | None = None
    work = 0
    for pattern, policies in patterns:
        if best is None and size > _LARGE:
            return pattern
        orders = pattern.orders
        for policy in policies:
            if best is not None and work + size > _WORK:
                return best[1]
            work += size
            if policy is not None and policy.from_end:
                turned = _reversed(orders, problem.microbatches)
                _, turned = _Run(problem, costs[True], turned, limits, policy).run()
                orders = _reversed(turned, problem.microbatches)
                continue
            end, orders = _Run(problem, costs[False], orders, limits, policy).run()
            if best is None or end < best[0]:
                best = end, Schedule(orders=orders)
    assert best is not None, "there is at least one pattern"
    return best[1]


def _reversed(orders: Orders, microbatches: int) -> Orders:
    """Return the orders from end to start: what was D, with its W, is F, what was F is D, and the last microbatch is 0.

    There a W of no length follows each D and frees what F holds. Reversed twice, an order is what it was but for the W,
    which follow their D.
    """
    result = []
    for order in orders:
        turned: list[int] = []
        for op in reversed(order):
            rest, kind = divmod(op, KINDS)
            stage, microbatch = divmod(rest, microbatches)
            first = encode_op(OpKind.F, stage, microbatches - 1 - microbatch, microbatches)
            if kind == OpKind.F:
                turned += (first + OpKind.D, first + OpKind.W)
            elif kind == OpKind.D:
                turned.append(first)
        result.append(tuple(turned))
    return tuple(result)


class _Costs:
    """Durations by stage and kind, and what each stage's ops feed; `from_end` those of the reversed order.

    There a W stands before its D and needs no input, so that the two may start that much before the input arrives.
    """

    def __init__(self, problem: Problem, *, from_end: bool) -> None:
        self.device = problem.placement
        self.stages = [problem.stages_of(device) for device in range(problem.num_devices)]
        self.early = [stage.weight_grad_ns if from_end else 0 for stage in problem.stages]
        self.duration = [
            (stage.input_grad_ns + stage.weight_grad_ns, stage.forward_ns, 0)
            if from_end
            else (stage.forward_ns, stage.input_grad_ns, stage.weight_grad_ns)
            for stage in problem.stages
        ]
        down, up = problem.forward_hops, problem.backward_hops
        if from_end:
            down, up = up, down
        self.hops: list[tuple[Hop | None, ...]] = [
            (down[stage] if stage + 1 < problem.num_stages else None, up[stage - 1] if stage else None)
            for stage in range(problem.num_stages)
        ]


class _Run:
    """One pass over a pattern."""

    def __init__(
        self,
        problem: Problem,
        costs: _Costs,
        orders: Orders,
        limits: Sequence[int],
        policy: Policy | None,
    ) -> None:
        self.n, self.num_stages = problem.microbatches, problem.num_stages
        self.costs, self.orders, self.limits = costs, orders, limits
        self.policy = policy or Policy(reorder=False, gap=0, patience=0)
        self.fixed = policy is None
        size = problem.num_stages * self.n * KINDS
        self.arrival = [-1] * size
        self.arrival[0 : self.n * KINDS : KINDS] = [0] * self.n
        self.place = [0] * size
        for order in orders:
            for index, op in enumerate(order):
                self.place[op] = index
        self.taken = bytearray(size)
        self.head = [0] * len(orders)
        self.done = [[0] * problem.num_stages for _ in range(3)]  # F, D and W of each stage
        self.level = [0] * len(orders)
        self.clock = [0] * len(orders)
        self.free = [0] * len(problem.pipes)
        self.result: list[list[int]] = [[] for _ in orders]
        self.agenda = [(0, device) for device in range(len(orders))]

    def run(self) -> tuple[int, Orders]:
        agenda, clock = self.agenda, self.clock
        while agenda:
            now, device = heapq.heappop(agenda)
            if now < clock[device]:
                continue
            op, later = self._first(device, now) if self.fixed else self._best(device, now)
            if op >= 0:
                self._take(device, op, now)
            elif later < _NEVER:
                heapq.heappush(agenda, (later, device))
        assert sum(map(len, self.result)) == sum(map(len, self.orders)), "what a device takes keeps the rest feasible"
        return max(clock), tuple(map(tuple, self.result))

    def _first(self, device: int, now: int) -> tuple[int, int]:
        """Return the op that stands first if it can start, and when it can otherwise; -1 and never if unknown."""
        order, head = self.orders[device], self.head[device]
        if head == len(order):
            return -1, _NEVER
        arrived = now if order[head] % KINDS == OpKind.W else self.arrival[order[head]]
        if arrived < 0:
            return -1, _NEVER
        return (order[head], now) if arrived <= now else (-1, arrived)

    def _best(self, device: int, now: int) -> tuple[int, int]:
        """Return the op to run, or -1, and when the next input arrives that is known of."""
        policy, duration, per_stage = self.policy, self.costs.duration, self.n * KINDS
        soonest = _NEVER
        for op in self._candidates(device):
            arrived = self.arrival[op]
            if arrived >= 0 and (op % KINDS or self._has_room(device, self.place[op])):
                if arrived > now:
                    soonest = min(soonest, arrived)
                elif 4 * (soonest - now) >= policy.gap * duration[op // per_stage][op % KINDS]:
                    return op, now
            if not policy.reorder:
                break
        weight = self._weight(device)
        if weight >= 0 and 4 * (soonest - now) >= policy.patience * duration[weight // per_stage][OpKind.W]:
            return weight, now
        return -1, soonest

    def _candidates(self, device: int) -> list[int]:
        """Return the next F and the next D of each stage of the device, in the order of the pattern."""
        n = self.n
        found = [
            (stage * n + self.done[kind][stage]) * KINDS + kind
            for stage in self.costs.stages[device]
            for kind in (OpKind.F, OpKind.D)
            if self.done[kind][stage] < n
        ]
        found.sort(key=self.place.__getitem__)
        return found

    def _weight(self, device: int) -> int:
        """Return the W whose D is done that stands first, or -1."""
        ready = [
            (stage * self.n + self.done[OpKind.W][stage]) * KINDS + OpKind.W
            for stage in self.costs.stages[device]
            if self.done[OpKind.W][stage] < self.done[OpKind.D][stage]
        ]
        return min(ready, key=self.place.__getitem__, default=-1)

    def _has_room(self, device: int, place: int) -> bool:
        """Return whether one activation more fits from now until `place` in the order."""
        order, taken, level, limit = self.orders[device], self.taken, self.level[device] + 1, self.limits[device]
        if level > limit:
            return False
        for op in order[self.head[device] : place]:
            if not taken[op]:
                level += _EFFECT[op % KINDS]
                if level > limit:
                    return False
        return True

    def _take(self, device: int, op: int, now: int) -> None:
        kind, stage = op % KINDS, op // KINDS // self.n
        end = now + self.costs.duration[stage][kind]
        self.result[device].append(op)
        self.taken[op] = 1
        self.done[kind][stage] += 1
        self.level[device] += _EFFECT[kind]
        self.clock[device] = end
        order, head = self.orders[device], self.head[device]
        while head < len(order) and self.taken[order[head]]:
            head += 1
        self.head[device] = head
        heapq.heappush(self.agenda, (end, device))
        if kind != OpKind.W:
            self._send(op, end, now)

    def _send(self, op: int, end: int, now: int) -> None:
        """Hand the output over; an idle receiver decides anew, since what it now knows may change its mind."""
        kind, stage, step = op % KINDS, op // KINDS // self.n, self.n * KINDS
        if kind == OpKind.D and stage == 0:
            return
        turns = kind == OpKind.F and stage == self.num_stages - 1
        target = op + OpKind.D if turns else op + (step if kind == OpKind.F else -step)
        hop, early = self.costs.hops[stage][kind], self.costs.early[stage + 1] if target % KINDS == OpKind.F else 0
        if hop is None:
            self.arrival[target] = max(0, end - early)
            return
        leave = max(end, self.free[hop.pipe])
        self.free[hop.pipe] = leave + hop.occupancy_ns
        self.arrival[target] = max(0, leave + hop.occupancy_ns + hop.latency_ns - early)
        receiver = self.costs.device[target // KINDS // self.n]
        if self.clock[receiver] <= now:
            heapq.heappush(self.agenda, (now, receiver))
