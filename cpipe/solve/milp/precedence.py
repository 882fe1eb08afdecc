"""Which of two tasks must come first: closure of the data dependencies, memory, and time windows.

Every pair that is decided here is a binary less in the model. Three arguments, until none adds anything: the order of
messages is the order of their producers; a release must precede an allocation that would not fit without it; a pair
whose one order cannot end by the upper bound has the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.sim.memory import memory_rooms
from cpipe.solve.milp.memory import Slot, loads, slots_of
from cpipe.solve.milp.network import Network

__all__ = ["ContradictionError", "Precedence", "bits"]

_MAX_ROUNDS = 12


class ContradictionError(ValueError):
    """No schedule within the upper bound exists: two tasks would each have to come first."""


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Precedence:
    """Transitive precedences between the tasks of a network, and the time windows that follow.

    Parameters
    ----------
    network
        The tasks.
    upper_bound
        Only schedules whose makespan is at most this are kept [units].
    use_memory
        Whether memory may imply precedences.
    floors
        Per task a least tail known otherwise [units], or None.

    Attributes
    ----------
    before, after
        Per task: bit masks of the tasks that end before it starts, and that start after its end.
    head, tail
        Per task: earliest start, and least time from its shortest end to the makespan [units].
    """

    def __init__(
        self, network: Network, upper_bound: int, *, use_memory: bool = True, floors: Sequence[int] | None = None
    ) -> None:
        self.network = network
        self.upper_bound = upper_bound
        size = len(network.tasks)
        self._floors = floors or [0] * size
        self.before = [0] * size
        self.after = [0] * size
        self.head = [0] * size
        self.tail = [0] * size
        self._resources_of: list[list[int]] = [[] for _ in range(size)]
        for tasks in network.resources:
            mask = sum(1 << task for task in tasks)
            for task in tasks:
                self._resources_of[task].append(mask)
        self._into: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        self._out: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        for before, after, delay in network.edges:
            self._into[after].append((before, delay))
            self._out[before].append((after, delay))
            self.add(before, after)
        self._tied = [pair for tasks in network.resources for pair in self._tied_pairs(tasks)]
        self._settle(use_memory)

    def add(self, first: int, second: int) -> bool:
        """Make `first` precede `second`, with all that follows; return whether that is new."""
        if self.before[second] >> first & 1:
            return False
        if first == second or self.before[first] >> second & 1:
            raise ContradictionError(f"task {second} must both follow and precede task {first}")
        ancestors = self.before[first] | 1 << first
        descendants = self.after[second] | 1 << second
        for task in bits(descendants):
            self.before[task] |= ancestors
        for task in bits(ancestors):
            self.after[task] |= descendants
        return True

    def ordered(self, first: int, second: int) -> bool | None:
        """Return whether `first` precedes `second` (True), follows it (False) or either (None)."""
        if self.before[second] >> first & 1:
            return True
        return False if self.after[second] >> first & 1 else None

    def canonical(self, first: int, second: int) -> tuple[int, int]:
        """Return the pair whose order decides the order of this one: the producers of two messages."""
        tasks = self.network.tasks
        owners = tasks[first].owner, tasks[second].owner
        same_queue = tasks[first].kind == tasks[second].kind and self.network.device(first) == self.network.device(
            second
        )
        if same_queue and owners[0] is not None and owners[1] is not None:
            return owners[0], owners[1]
        return first, second

    def open_pairs(self) -> list[tuple[int, int]]:
        """Return the pairs that share a resource and have no order yet, each once, lower task first."""
        pairs: dict[tuple[int, int], None] = {}
        for tasks in self.network.resources:
            for position, second in enumerate(tasks):
                for first in tasks[:position]:
                    if self.ordered(first, second) is None:
                        pairs[min(first, second), max(first, second)] = None
        return list(pairs)

    def num_binaries(self) -> int:
        """Return the number of order decisions left, plus one per backward that may be merged."""
        decisions = {tuple(sorted(self.canonical(*pair))) for pair in self.open_pairs()}
        return len(decisions) + len(self.network.merges)

    def latest_start(self, task: int) -> int:
        """Return the latest start within the upper bound [units]."""
        # behind a merged backward the W is empty and stands at its end
        kind, stage, microbatch, duration, _ = self.network.tasks[task]
        if kind == "W" and self.network.compute["D", stage, microbatch] in self.network.merges:
            duration = 0
        return self.upper_bound - duration - self.tail[task]

    def latest_end(self, task: int) -> int:
        """Return the latest end within the upper bound [units]."""
        merge = self.network.merges.get(task)
        if merge is None:
            return self.upper_bound - self.tail[task]
        return min(self.upper_bound, self.latest_start(task) + max(merge.input_grad, merge.full))

    def _tied_pairs(self, tasks: Sequence[int]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        for position, second in enumerate(tasks):
            for first in tasks[:position]:
                owners = self.canonical(first, second)
                if owners != (first, second):
                    yield (first, second), owners

    def _settle(self, use_memory: bool) -> None:
        for _ in range(_MAX_ROUNDS):
            changed = self._follow_owners()
            if use_memory:
                changed |= self._follow_memory()
            self._set_windows()
            if not (self._follow_windows() or changed):
                break
        self._follow_owners()
        self._set_windows()

    def _follow_owners(self) -> bool:
        changed = False
        for pair, owners in self._tied:
            for known, other in ((owners, pair), (pair, owners)):
                order = self.ordered(*known)
                if order is not None:
                    changed |= self.add(*other) if order else self.add(other[1], other[0])
        return changed

    def _follow_memory(self) -> bool:
        changed = False
        load = loads(self.network)
        for device, budget in enumerate(memory_rooms(self.network.problem)):
            if budget is None:
                continue
            slots = slots_of(self.network, device)
            rows: dict[int, list[Slot]] = {}
            for slot in slots:
                rows.setdefault(self.network.tasks[slot.forward].stage, []).append(slot)
            for slot in slots:
                for task in (slot.forward, slot.backward, slot.weight):
                    if task is not None and load[task].allocates:
                        least = load[task].during + min(0, load[task].merged)
                        changed |= self._fit(task, budget - least, slots, rows)
        return changed

    def _fit(self, task: int, room: int, slots: Sequence[Slot], rows: dict[int, list[Slot]]) -> bool:
        """Order releases before `task`, and allocations after it, where `room` [bytes] leaves no choice.

        Of a stage, releases are tried from the first microbatch on and allocations from the last one on: the next
        one asks for less, so the first that could stand on either side ends the row.
        """

        def overfull(before: int, after: int) -> bool:
            return sum(slot.least(before, after) for slot in slots) > room

        later = self.after[task] | 1 << task
        if overfull(self.before[task], later):
            raise ContradictionError(f"task {task} never fits its device")
        changed = False
        for row in rows.values():
            for release in ([slot.backward for slot in row], [slot.weight for slot in row if slot.weight is not None]):
                for other in release:
                    if other == task or self.ordered(other, task) is not None:
                        continue
                    if not overfull(self.before[task], later | self.after[other] | 1 << other):
                        break
                    changed |= self.add(other, task)
            for other in [slot.forward for slot in reversed(row)]:
                if other == task or self.ordered(other, task) is not None:
                    continue
                if not overfull(self.before[task] | self.before[other] | 1 << other, later):
                    break
                changed |= self.add(task, other)
        return changed

    def _set_windows(self) -> None:
        """Set heads and tails: the longest path, and what must run on the task's own resources before or after it."""
        tasks = self.network.tasks
        order = sorted(range(len(tasks)), key=lambda task: self.before[task].bit_count())
        for task in order:
            head = max(
                (self.head[other] + tasks[other].duration + delay for other, delay in self._into[task]), default=0
            )
            for resource in self._resources_of[task]:
                done = 0
                for other in sorted(bits(self.before[task] & resource), key=self.head.__getitem__):
                    done = max(done, self.head[other]) + tasks[other].duration
                head = max(head, done)
            self.head[task] = head
        for task in reversed(order):
            ways = (delay + tasks[other].duration + self.tail[other] for other, delay in self._out[task])
            tail = max(self._floors[task], *ways, 0)
            for resource in self._resources_of[task]:
                left = 0
                for other in sorted(bits(self.after[task] & resource), key=self.tail.__getitem__):
                    left = max(left, self.tail[other]) + tasks[other].duration
                tail = max(tail, left)
            self.tail[task] = tail

    def _follow_windows(self) -> bool:
        changed = False
        tasks = self.network.tasks
        for first, second in self.open_pairs():
            if self.ordered(first, second) is not None:
                continue
            for one, other in ((first, second), (second, first)):
                start = max(self.head[one] + tasks[one].duration, self.head[other])
                if start + tasks[other].duration + self.tail[other] > self.upper_bound:
                    changed |= self.add(other, one)
        return changed
