"""The CP-SAT model: an interval for every task, no overlap on a resource, memory as a profile over time.

The tasks, their edges and what is settled about their order come from the network and its `Precedence`, which the
MILP uses too. A backward that may run as one op B is its D task with B's length; its W is then absent.

CP-SAT lets two intervals of no length, or one of them and the start of another, share a moment in either order. On a
device where that order matters time is refined: a moment has as many ticks as the device has such ops plus one, they
take a tick each, and a longer op starts on the tick that is left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from cpipe.ir import Objective
from cpipe.sim.memory import memory_rooms
from cpipe.solve.cpsat.replay import Replay
from cpipe.solve.milp.memory import loads
from cpipe.solve.milp.network import Merge, Network
from cpipe.solve.milp.precedence import Precedence, bits
from cpipe.solve.milp.windows import first_starts, openers

__all__ = ["Model", "Span"]


class Span(NamedTuple):
    """Start and end of a task: expressions of at most one variable [units, or ticks on a refined device]."""

    start: Any
    end: Any


class Model:
    """Variables of a network within an upper bound, and the constraints on tasks and resources.

    Memory, messages and collectives are added by `cpipe.solve.cpsat.memory` and `cpipe.solve.cpsat.links`.

    Parameters
    ----------
    network, precedence
        What must run, and what is settled about its order.
    lower_bound
        Proven lower bound on the objective [units]; a constraint.
    objective
        What to minimise.

    Attributes
    ----------
    cp
        The `CpModel`.
    start, interval
        Per task: its start variable [units] and its interval, on its device's own clock.
    coarse
        Per task: start and end [units].
    spans
        Per task: start and end on its device's own clock, by which its order is told.
    ticks
        Ticks a unit of each device: 1 unless refined.
    merge
        D task -> literal that is true when B runs.
    goal
        The objective [units].
    variables
        Every variable, with how its value follows from the replay of a schedule.
    """

    def __init__(
        self, network: Network, precedence: Precedence, lower_bound: int, objective: Objective = "makespan"
    ) -> None:
        from ortools.sat.python import cp_model

        self.network, self.precedence = network, precedence
        self.objective: Objective = objective
        self.lower_bound = lower_bound
        self.num_booleans = 0
        self.horizon = precedence.upper_bound
        self.cp: Any = cp_model.CpModel()
        self.variables: list[tuple[Any, Callable[[Replay], int]]] = []
        self.merge = {task: self.boolean(partial(_is_merged, task)) for task in network.merges}
        self.load = loads(network)
        self.rooms = memory_rooms(network.problem)
        self.tied = tied_pairs(precedence)
        self.ticks = self._ticks()
        self.start = [self._start(task) for task in range(len(network.tasks))]
        self.coarse = [self._coarse(task) for task in range(len(network.tasks))]
        self.spans: list[Span] = []
        self.interval: list[Any] = []
        for task in range(len(network.tasks)):
            self._place(task)
        self.goal = self.integer(
            min(lower_bound, self.horizon),
            self.horizon,
            lambda replay: replay.makespan if objective == "makespan" else replay.span,
        )
        self._orders: dict[tuple[int, int], Any] = {}
        self._edges()
        self._resources()
        self._completion()

    # --- what a task is ----------------------------------------------------------------------------------------------

    def merge_of(self, task: int) -> tuple[Merge, Any] | None:
        """Return durations and literal of the backward that a D or W task belongs to, if it may be merged."""
        kind, stage, microbatch, _, _ = self.network.tasks[task]
        if kind not in ("D", "W"):
            return None
        backward = self.network.compute["D", stage, microbatch]
        merge = self.network.merges.get(backward)
        return None if merge is None else (merge, self.merge[backward])

    def absent(self, task: int) -> Any:
        """Return the literal that is true when the task does not run, or None when it always runs."""
        merged = self.merge_of(task)
        return merged[1] if merged is not None and self.network.tasks[task].kind == "W" else None

    def sizes(self, task: int) -> tuple[int, int]:
        """Return the duration of a task apart from, and as part of, a merged backward [units]."""
        merged = self.merge_of(task)
        if merged is None:
            return (self.network.tasks[task].duration,) * 2
        merge, _ = merged
        if self.network.tasks[task].kind == "W":
            return merge.weight_grad, merge.weight_grad
        return merge.input_grad, merge.full

    def follow(self, first: int, second: int, delay: int = 0, literal: Any = None) -> None:
        """State that `first` ends, and `delay` [units] later `second` starts, if both run (and `literal` holds)."""
        device = self.network.device(first)
        compute = {self.network.tasks[task].kind for task in (first, second)} <= {"F", "D", "W"}
        same_clock = compute and device == self.network.device(second) and self.ticks[device] > 1 and not delay
        spans = self.spans if same_clock else self.coarse
        constraint = self.cp.add(spans[second].start >= spans[first].end + delay)
        absences = (self.absent(first), self.absent(second))
        literals = [~absent for absent in absences if absent is not None]
        if literal is not None:
            literals.append(literal)
        if literals:
            constraint.only_enforce_if(literals)

    def precedes(self, first: int, second: int) -> Any:
        """Return 1 or 0 where the order of two tasks of a device is settled, else a literal; neither may be a W."""
        settled = self.precedence.ordered(first, second)
        if settled is not None:
            return int(settled)
        if first > second:
            return ~self.precedes(second, first)
        if (first, second) not in self._orders:
            literal = self.boolean(lambda replay: replay.position[first] < replay.position[second])
            self._orders[first, second] = literal
            self.follow(first, second, literal=literal)
            self.follow(second, first, literal=~literal)
        return self._orders[first, second]

    # --- variables ---------------------------------------------------------------------------------------------------

    def integer(self, low: int, high: int, value: Callable[[Replay], int]) -> Any:
        """Return a new variable; `value` is what it has in the replay of a schedule."""
        variable = self.cp.new_int_var(low, high, "")
        self.variables.append((variable, value))
        return variable

    def boolean(self, value: Callable[[Replay], bool]) -> Any:
        """Return a new literal; `value` is what it is in the replay of a schedule."""
        variable = self.cp.new_bool_var("")
        self.num_booleans += 1
        self.variables.append((variable, value))
        return variable

    def _ticks(self) -> list[int]:
        """Count the ops that may take no time on each device, where their order at one moment matters."""
        network = self.network
        producers = {task for pair in self.tied for task in pair[1]}
        momentary = [0] * len(network.problem.devices)
        matters = [False] * len(network.problem.devices)
        for task in network.compute.values():
            if min(self.sizes(task)) == 0:
                device = network.device(task)
                momentary[device] += 1
                load = self.load[task]
                allocates = self.rooms[device] is not None and (load.allocates or load.after > 0)
                # W that may be absent have no settled order to tell two of them at one moment apart
                matters[device] |= task in producers or allocates or self.absent(task) is not None
        return [count + 1 if needed else 1 for count, needed in zip(momentary, matters, strict=True)]

    def _start(self, task: int) -> Any:
        if self.absent(task) is not None:  # an absent W lies anywhere
            return self.integer(0, self.horizon, lambda replay: replay.starts[task])
        low, high = self.precedence.head[task], self.precedence.latest_start(task)
        return self.integer(low, max(low, high), lambda replay: replay.starts[task])

    def _coarse(self, task: int) -> Span:
        start, (apart, merged) = self.start[task], self.sizes(task)
        if apart == merged:
            return Span(start, start + apart)
        end = self.integer(0, self.horizon, lambda replay: replay.ends[task])
        literal = self.merge[task]
        self.cp.add(end == start + apart + (merged - apart) * literal)
        return Span(start, end)

    def _place(self, task: int) -> None:
        """Give the task its interval on its device's clock."""
        ticks = self.ticks[self.network.device(task)]
        compute = self.network.tasks[task].kind in ("F", "D", "W")
        span = self.coarse[task]
        (apart, merged), absent = self.sizes(task), self.absent(task)
        size = apart if apart == merged else apart + (merged - apart) * self.merge[task]
        if compute and ticks > 1:
            span, size = self._refine(task, ticks)
        if absent is None:
            interval = self.cp.new_interval_var(span.start, size, span.end, "")
        else:
            interval = self.cp.new_optional_interval_var(span.start, size, span.end, ~absent, "")
        self.spans.append(span)
        self.interval.append(interval)

    def _refine(self, task: int, ticks: int) -> tuple[Span, Any]:
        """Return span and size in ticks: from a tick of the first moment to the first one of the last, at least one."""
        offset = self.integer(0, ticks - 1, lambda replay: replay.spans[task][0] - ticks * replay.starts[task])
        start = self.integer(0, (self.horizon + 1) * ticks - 1, lambda replay: replay.spans[task][0])
        self.cp.add(start == self.start[task] * ticks + offset)
        apart, merged = self.sizes(task)
        if apart == merged:
            if apart == 0:
                return Span(start, start + 1), 1
            return Span(start, self.coarse[task].end * ticks), apart * ticks - offset
        end = self.integer(0, (self.horizon + 1) * ticks, lambda replay: replay.spans[task][1])
        longest = max(apart, merged) * ticks
        size = self.integer(1, longest, lambda replay: replay.spans[task][1] - replay.spans[task][0])
        literal = self.merge[task]
        for length, chosen in ((apart, ~literal), (merged, literal)):
            if length:
                self.cp.add(end == (self.start[task] + length) * ticks).only_enforce_if(chosen)
            else:
                self.cp.add(end == start + 1).only_enforce_if(chosen)
        return Span(start, end), size

    # --- constraints -------------------------------------------------------------------------------------------------

    def _edges(self) -> None:
        """Inputs arrive before their op starts; kinds of a stage keep their microbatch order."""
        network = self.network
        for before, after, delay in network.edges:
            self.follow(before, after, delay)
            if network.tasks[after].kind == "reduce" and self.absent(before) is not None:
                _, stage, microbatch, _, _ = network.tasks[before]
                self.follow(network.compute["D", stage, microbatch], after)
        for backward in network.merges:
            weight = network.weight_of(backward)
            assert weight is not None
            _, stage, microbatch, _, _ = network.tasks[weight]
            following = network.compute.get(("W", stage, microbatch + 1))
            if following is not None:
                # absent W stand in the row as well, without length: no pairs of W need to be compared
                device = network.device(weight)
                spans = self.spans if self.ticks[device] > 1 else self.coarse
                self.cp.add(spans[following].start >= spans[weight].start)
                self.follow(weight, following)

    def _resources(self) -> None:
        """One task at a time on each resource; settled pairs keep their order, unless a third task says so."""
        stated = {(before, after) for before, after, _ in self.network.edges}
        before, after = self.precedence.before, self.precedence.after
        for tasks in self.network.resources:
            self.cp.add_no_overlap([self.interval[task] for task in tasks])
            mask = sum(1 << task for task in tasks)
            for first in tasks:
                for second in bits(after[first] & mask):
                    if not after[first] & before[second] and (first, second) not in stated:
                        stated.add((first, second))
                        self.follow(first, second)

    def _completion(self) -> None:
        """Let the goal be the last end, or the longest span of a device."""
        if self.objective == "span":
            for device in range(self.network.problem.num_devices):
                self._span(device)
        else:
            for task, after in enumerate(self.precedence.after):
                if not after:
                    self._last(task, 0)
        self.cp.minimize(self.goal)

    def _span(self, device: int) -> None:
        """From a device's first start, fixed where every order has the same, to its last end.

        Where the order decides what comes first the model may start a device later than a replay would: a relaxation.
        """
        first = openers(self.network, device)
        if not first:
            return
        fixed = first_starts(self.network)[device]
        opening = self.start[first[0]]
        if fixed is not None:
            self.cp.add(opening == fixed)
        elif len(first) > 1:
            opening = self.integer(0, self.horizon, lambda replay: min(replay.starts[task] for task in first))
            for task in first:
                self.cp.add(opening <= self.start[task])
        tasks = [
            task
            for task, (kind, *_) in enumerate(self.network.tasks)
            if kind != "message" and self.network.device(task) == device
        ]
        mask = sum(1 << task for task in tasks)
        for task in tasks:
            if not self.precedence.after[task] & mask:
                self._last(task, opening)

    def _last(self, task: int, since: Any) -> None:
        """State that the goal reaches from `since` to the end of a task, or of the B in its place."""
        constraint = self.cp.add(self.goal >= self.coarse[task].end - since)
        absent = self.absent(task)
        if absent is not None:
            constraint.only_enforce_if(~absent)
            _, stage, microbatch, _, _ = self.network.tasks[task]
            self.cp.add(self.goal >= self.coarse[self.network.compute["D", stage, microbatch]].end - since)


def _is_merged(task: int, replay: Replay) -> bool:
    return task in replay.merged


def tied_pairs(precedence: Precedence) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the open pairs of a resource whose order is that of their owners, with the owners, each once."""
    return [(pair, owners) for pair in precedence.open_pairs() if (owners := precedence.canonical(*pair)) != pair]
