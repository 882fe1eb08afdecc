"""The disjunctive model: start times, one binary per open pair, one per backward that may be merged.

Each constraint family is one short method that states its inequality. Notation: t start, d duration, x_ab = 1 when a
precedes b, z = 1 when D and W run as one op B, C the objective. Orders that `Precedence` has settled are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cpipe.ir import Objective
from cpipe.sim.memory import memory_rooms
from cpipe.solve.milp.memory import loads, slots_of
from cpipe.solve.milp.network import Network
from cpipe.solve.milp.precedence import Precedence, bits
from cpipe.solve.milp.windows import first_starts, openers

__all__ = ["FAMILIES", "HORIZON", "Affine", "Model"]

HORIZON = 1_000_000
"""Model times stay below this, so that big-M times the solver's tolerance stays below one unit."""


class Affine(NamedTuple):
    """``constant + factor * column``; no column: a constant."""

    constant: float
    factor: float = 0.0
    column: int | None = None


class Model:
    """The MILP of a network within an upper bound.

    Parameters
    ----------
    network, precedence
        What must run and what is settled about its order.
    lower_bound
        Proven lower bound on the objective [units]; a constraint.
    families
        Names of the constraint families to state; all by default (tests leave one out to see that it matters).
    objective
        What to minimise. The span of a device whose first start depends on the order is relaxed: it may start later.

    Attributes
    ----------
    lower_bound, objective
        As given.
    lp
        The `pulp.LpProblem`.
    columns
        Its variables, in the order of creation; all indices below point here.
    rows
        Its constraints: column -> factor, and what their sum may be at most.
    start
        Column of each task's start.
    order
        Pair of tasks, lower first -> column that is 1 when the lower precedes.
    merge
        D task -> column that is 1 when B runs.
    goal
        Column of C.
    opening
        Device -> column of its first start, where the span is minimised and several tasks may be the first.
    scale
        Units per unit of model time: 1 unless the horizon is longer than `HORIZON`.
    """

    def __init__(
        self,
        network: Network,
        precedence: Precedence,
        lower_bound: int,
        families: tuple[str, ...] | None = None,
        objective: Objective = "makespan",
    ) -> None:
        import pulp

        self.network = network
        self.precedence = precedence
        self.lower_bound = lower_bound
        self.objective = objective
        self.scale: float = max(1.0, precedence.upper_bound / HORIZON)
        self.lp: Any = pulp.LpProblem("cpipe", pulp.LpMinimize)
        self.columns: list[Any] = []
        self.rows: list[tuple[dict[int, float], float]] = []
        self._pulp = pulp
        self.start = [self._column(self._time(low), self._time(high)) for low, high in self._windows()]
        self.goal = self._column(self._time(lower_bound), self._time(precedence.upper_bound))
        self.merge = {task: self._column(0, 1, integer=True) for task in network.merges}
        self.order: dict[tuple[int, int], int] = {}
        self._open = precedence.open_pairs()
        for pair in self._open:
            first, second = sorted(precedence.canonical(*pair))
            if (first, second) not in self.order:
                self.order[first, second] = self._column(0, 1, integer=True)
        self.opening = {device: self._column(0, self._time(precedence.upper_bound)) for device in self._undecided()}
        self.lp.setObjective(pulp.LpAffineExpression({self.columns[self.goal]: 1.0}))
        for name, family in FAMILIES.items():
            if families is None or name in families:
                family(self)

    @property
    def num_binaries(self) -> int:
        """Number of binary variables."""
        return len(self.order) + len(self.merge)

    @property
    def num_rows(self) -> int:
        """Number of constraints."""
        return len(self.rows)

    def violation(self, values: Sequence[float]) -> float:
        """Return by how much the worst row, bound or integrality is broken by a value for every column."""
        worst = 0.0
        for column, value in zip(self.columns, values, strict=True):
            worst = max(worst, column.lowBound - value, value - column.upBound)
            if column.cat == self._pulp.LpInteger:
                worst = max(worst, abs(value - round(value)))
        for factors, most in self.rows:
            worst = max(worst, sum(factor * values[column] for column, factor in factors.items()) - most)
        return worst

    def precedes(self, first: int, second: int) -> Affine:
        """Return x of two tasks of one resource: a constant where the order is settled."""
        settled = self.precedence.ordered(first, second)
        if settled is not None:
            return Affine(float(settled))
        first, second = self.precedence.canonical(first, second)
        if first < second:
            return Affine(0.0, 1.0, self.order[first, second])
        return Affine(1.0, -1.0, self.order[second, first])

    def duration(self, task: int) -> Affine:
        """Return d of a task in model time; that of a backward that may be merged depends on z."""
        merge = self.network.merges.get(task)
        if merge is not None:
            return Affine(self._time(merge.input_grad), self._time(merge.full - merge.input_grad), self.merge[task])
        kind, stage, microbatch, length, _ = self.network.tasks[task]
        if kind == "W":
            backward = self.network.compute["D", stage, microbatch]
            merge = self.network.merges.get(backward)
            if merge is not None:
                return Affine(self._time(merge.weight_grad), -self._time(merge.weight_grad), self.merge[backward])
        return Affine(self._time(length))

    def _windows(self) -> list[tuple[int, int]]:
        """Return earliest and latest start of each task; to minimise spans, what opens a device starts when it can."""
        tasks = range(len(self.network.tasks))
        windows = [(self.precedence.head[task], self.precedence.latest_start(task)) for task in tasks]
        if self.objective == "span":
            for device, start in enumerate(first_starts(self.network)):
                if start is not None:
                    windows[openers(self.network, device)[0]] = (start, start)
        return windows

    def _undecided(self) -> list[int]:
        """Return the devices on which several tasks may be the first, if that matters."""
        if self.objective == "makespan":
            return []
        return [index for index in range(self.network.problem.num_devices) if len(openers(self.network, index)) > 1]

    def _time(self, units: float) -> float:
        return units / self.scale

    def _column(self, low: float, high: float, *, integer: bool = False) -> int:
        index = len(self.columns)
        # PuLP sorts its variables by name: padded numbers keep the order of creation
        category = self._pulp.LpInteger if integer else self._pulp.LpContinuous
        self.columns.append(self.lp.add_variable(f"c{index:07d}", low, high, category))
        return index

    def _row(self, terms: list[tuple[float, Affine | int]], most: float) -> None:
        """State ``sum of factor * term <= most``; a bare index is a column."""
        sums: dict[int, float] = {}
        for factor, term in terms:
            constant, weight, column = (0.0, 1.0, term) if isinstance(term, int) else term
            most -= factor * constant
            if column is not None:
                sums[column] = sums.get(column, 0.0) + factor * weight
        sums = {column: factor for column, factor in sums.items() if factor}
        if not sums and most >= 0:
            return
        self.rows.append((sums, most))
        expression = self._pulp.LpAffineExpression({self.columns[column]: factor for column, factor in sums.items()})
        self.lp.addConstraint(self._pulp.LpConstraint(expression, self._pulp.LpConstraintLE, rhs=most))

    def _follow(self, first: int, second: int, delay: float = 0.0) -> None:
        self._row([(1, self.start[first]), (1, self.duration(first)), (-1, self.start[second])], -self._time(delay))

    def _dependencies(self) -> None:
        """Inputs arrive before their op starts: t_b >= t_a + d_a + delay."""
        for before, after, delay in self.network.edges:
            self._follow(before, after, delay)

    def _settled_orders(self) -> None:
        """Settled pairs of a resource keep their order: t_b >= t_a + d_a, unless a third task already says so."""
        stated = {(before, after) for before, after, _ in self.network.edges}
        before, after = self.precedence.before, self.precedence.after
        for tasks in self.network.resources:
            mask = sum(1 << task for task in tasks)
            for first in tasks:
                for second in bits(after[first] & mask):
                    if not after[first] & before[second] and (first, second) not in stated:
                        stated.add((first, second))
                        self._follow(first, second)

    def _no_overlap(self) -> None:
        """Open pairs do not overlap: t_a + d_a <= t_b + M (1 - x_ab), M = latest end of a - earliest start of b."""
        for pair in self._open:
            for first, second in (pair, pair[::-1]):
                slack = self._time(self.precedence.latest_end(first) - self.precedence.head[second])
                self._row(
                    [
                        (1, self.start[first]),
                        (1, self.duration(first)),
                        (-1, self.start[second]),
                        (slack, self.precedes(first, second)),
                    ],
                    slack,
                )

    def _memory(self) -> None:
        """Whatever q allocates fits: sum over a of after_a x_aq + during_q + merged_q z_q <= budget, in order alone."""
        load = loads(self.network)
        for device, budget in enumerate(memory_rooms(self.network.problem)):
            if budget is None:
                continue
            slots = slots_of(self.network, device)
            tasks = [task for slot in slots for task in (slot.forward, slot.backward, slot.weight) if task is not None]
            largest = max([1, *(abs(value) for task in tasks for value in load[task])])
            for task in tasks:
                if not load[task].allocates:
                    continue
                terms: list[tuple[float, Affine | int]] = [
                    (load[other].after / largest, self.precedes(other, task)) for other in tasks if other != task
                ]
                column = self._merge_column(task)
                if column is not None:
                    terms.append((load[task].merged / largest, column))
                self._row(terms, (budget - load[task].during) / largest)

    def _merge_column(self, task: int) -> int | None:
        kind, stage, microbatch, _, _ = self.network.tasks[task]
        return None if kind == "F" else self.merge.get(self.network.compute["D", stage, microbatch])

    def _merged_backwards(self) -> None:
        """B is D directly followed by an empty W: t_W <= t_D + d_D + M (1 - z) and x_aW - x_aD <= 1 - z for all a.

        An earlier W may stand behind that B; where z = 0 it may not: x_vW >= 1 - z for every earlier W v of the stage.
        """
        for backward, column in self.merge.items():
            weight = self.network.weight_of(backward)
            assert weight is not None
            shortest = self.network.merges[backward].input_grad
            slack = self._time(self.precedence.latest_start(weight) - self.precedence.head[backward] - shortest)
            slack = max(0.0, slack)
            self._row(
                [(1, self.start[weight]), (-1, self.start[backward]), (-1, self.duration(backward)), (slack, column)],
                slack,
            )
            for other in self._neighbours(backward):
                if other not in (backward, weight):
                    self._row(
                        [(1, self.precedes(other, weight)), (-1, self.precedes(other, backward)), (1, column)], 1.0
                    )
            for earlier in self._earlier_weights(weight):
                self._row([(-1, self.precedes(earlier, weight)), (-1, column)], -1.0)

    def _earlier_weights(self, weight: int) -> list[int]:
        _, stage, microbatch, _, _ = self.network.tasks[weight]
        return [self.network.compute["W", stage, earlier] for earlier in range(microbatch)]

    def _neighbours(self, task: int) -> list[int]:
        device = self.network.device(task)
        return [other for other in self.network.compute.values() if self.network.device(other) == device]

    def _completion(self) -> None:
        """C is the last end, C >= t_a + d_a for every task that nothing follows; or each device's time, see `_span`."""
        if self.objective == "span":
            for device in range(self.network.problem.num_devices):
                self._span(device)
            return
        for task, after in enumerate(self.precedence.after):
            if not after:
                self._row([(1, self.start[task]), (1, self.duration(task)), (-1, self.goal)], 0.0)

    def _span(self, device: int) -> None:
        """From its first start to its last end: C >= t_a + d_a - s and s <= t_b, b all that may be first."""
        first = openers(self.network, device)
        opening = self.opening.get(device, self.start[first[0]] if first else 0)
        if device in self.opening:
            for task in first:
                self._row([(1, opening), (-1, self.start[task])], 0.0)
        tasks = [
            task
            for task, (kind, *_) in enumerate(self.network.tasks)
            if kind != "message" and self.network.device(task) == device
        ]
        mask = sum(1 << task for task in tasks)
        for task in tasks:
            if not self.precedence.after[task] & mask:
                self._row([(1, self.start[task]), (1, self.duration(task)), (-1, opening), (-1, self.goal)], 0.0)


FAMILIES: dict[str, Callable[[Model], None]] = {
    "dependencies": Model._dependencies,
    "settled-orders": Model._settled_orders,
    "no-overlap": Model._no_overlap,
    "memory": Model._memory,
    "merged-backwards": Model._merged_backwards,
    "completion": Model._completion,
}
"""Name of each constraint family -> the method that states it."""
