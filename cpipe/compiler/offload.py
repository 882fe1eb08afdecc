"""Orders that need more memory than there is, made to fit by keeping some activations in host memory meanwhile.

On each device the order is walked once. Where it does not fit, the resident activation that is needed last goes to the
host: what holds it waits for its copy only there, where the memory is needed. It comes back as early as memory allows.
Two numbers steer that, and a few of each are tried, for all devices and then for each: how many ops an activation stays
before it may go (so that its copy is done when it must be), and how many ops before its backward it is back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from cpipe.ir import Objective, Offload, OpKind, Problem, Schedule, Timeline
from cpipe.ir.ops import KINDS
from cpipe.sim import DeadlockError, Simulator
from cpipe.sim.memory import MemoryStep, memory_rooms, memory_steps

__all__ = ["Fitted", "fitted", "offloads_of"]

_STAYS = (0, 1, 2, 4)
_AHEAD = (1, 2, 4, 1 << 30)
_REPLAYS = 150  # of one order

Policy = tuple[int, int]
"""Ops that an activation stays before it goes, and at most comes back before it is needed."""

_Key = tuple[int, int]  # stage, microbatch


class Fitted(NamedTuple):
    """A schedule that fits, its replay and its objective [ns]; and how many replays it took."""

    value: int
    schedule: Schedule
    timeline: Timeline
    evaluations: int


def fitted(problem: Problem, schedule: Schedule, objective: Objective) -> Fitted | None:
    """Return the best way found to make `schedule` fit by offloading; None when none was found that finishes.

    Parameters
    ----------
    problem
        With its receive window, whose buffers are set aside.
    schedule
        Its orders and pairs are kept.
    objective
        What counts.
    """
    search = _Search(problem, schedule, objective)
    for policy in ((stay, ahead) for stay in _STAYS for ahead in _AHEAD):
        search.look([policy] * problem.num_devices)
    search.descend()
    if search.best is None:
        return None
    value, _, found, timeline = search.best
    return Fitted(value, found, timeline, search.evaluations)


def offloads_of(problem: Problem, schedule: Schedule, policies: Sequence[Policy]) -> tuple[Offload, ...] | None:
    """Return what to offload so that `schedule` fits on every device; None where that does not suffice.

    Parameters
    ----------
    problem, schedule
        The orders and pairs; offloads that the schedule has do not count.
    policies
        Length P.
    """
    steps, rooms = memory_steps(problem), memory_rooms(problem)
    found: list[Offload] = []
    for device, units in enumerate(schedule.units()):
        room = rooms[device]
        if room is None:
            continue
        moved = _Walk(problem, steps, units, room).moved(*policies[device])
        if moved is None:
            return None
        found += moved
    return tuple(sorted(found, key=lambda entry: (entry.stage, entry.microbatch)))


class _Search:
    """Tries policies for one order."""

    def __init__(self, problem: Problem, schedule: Schedule, objective: Objective) -> None:
        self.best: tuple[int, list[Policy], Schedule, Timeline] | None = None
        self.evaluations = 0
        self._problem, self._schedule, self._objective = problem, schedule, objective
        self._simulator = Simulator(problem, objective)
        self._seen: set[tuple[Offload, ...]] = set()

    def look(self, policies: list[Policy]) -> None:
        """Replay the order with these policies, unless they say what others said before."""
        offloads = offloads_of(self._problem, self._schedule, policies)
        if offloads is None or offloads in self._seen:
            return
        self._seen.add(offloads)
        found = replace(self._schedule, offloads=offloads)
        self.evaluations += 1
        try:
            timeline = self._simulator.run(found)
        except DeadlockError:
            return
        value = timeline.span_ns if self._objective == "span" else timeline.makespan_ns
        if self.best is None or value < self.best[0]:
            self.best = value, policies, found, timeline

    def descend(self) -> None:
        """Change the policy of one device after the other, as long as that helps and replays are left."""
        before = None
        while self.best is not None and self.best[0] != before:
            before = self.best[0]
            for device in range(self._problem.num_devices):
                for policy in ((stay, ahead) for stay in _STAYS for ahead in _AHEAD):
                    if self.evaluations >= _REPLAYS:
                        return
                    policies = self.best[1].copy()
                    policies[device] = policy
                    self.look(policies)


class _Walk:
    """The order of one device, unit by unit, and the memory that it needs."""

    def __init__(
        self, problem: Problem, steps: Sequence[MemoryStep], units: Sequence[tuple[int, ...]], room: int
    ) -> None:
        self._problem, self._room = problem, room
        n = problem.microbatches
        self._during, self._after = [], []
        self._head: list[int] = []  # position in the order of each unit's first op
        self._made: dict[_Key, int] = {}  # unit of the forward of what may be offloaded
        self._read: dict[_Key, int] = {}  # unit of its backward
        position = 0
        for place, unit in enumerate(units):
            self._head.append(position)
            position += len(unit)
            changes = [steps[op // KINDS // n * KINDS + op % KINDS] for op in unit]
            self._during.append(sum(change.during for change in changes))
            self._after.append(sum(change.after for change in changes))
            for op in unit:
                key = divmod(op // KINDS, n)
                if problem.stages[key[0]].offload_bytes and op % KINDS != OpKind.W:
                    (self._made if op % KINDS == OpKind.F else self._read)[key] = place

    def moved(self, stay: int, ahead: int) -> list[Offload] | None:
        """Return what goes to the host, so that everything fits; None where it does not."""
        freed, peaks = self._freed(stay)
        if freed is None:
            return None
        found = []
        for (stage, microbatch), gone in sorted(freed.items(), key=lambda entry: self._read[entry[0]]):
            size = self._problem.stages[stage].offload_bytes
            back = last = self._read[stage, microbatch]
            while back > gone + 1 and last - back < ahead and peaks[back - 1] + size <= self._room:
                back -= 1
                peaks[back] += size
            found.append(
                Offload(
                    stage=stage,
                    microbatch=microbatch,
                    freed_before=self._head[gone],
                    reloaded_before=self._head[back],
                )
            )
        return found

    def _freed(self, stay: int) -> tuple[dict[_Key, int] | None, list[int]]:
        """Return before which unit each offloaded activation is gone, and the peak while each unit runs [bytes].

        Activations come back only as they are needed.
        """
        freed: dict[_Key, int] = {}
        resident: set[_Key] = set()
        peaks: list[int] = []
        makes, reads = _inverse(self._made), _inverse(self._read)
        level = 0
        for place, during in enumerate(self._during):
            needed = reads.get(place, [])
            level += sum(self._size(key) for key in needed if key in freed)
            resident.difference_update(needed)
            for key in self._victims(resident, place, stay):
                if level + during <= self._room:
                    break
                level -= self._size(key)
                freed[key] = place
                resident.discard(key)
            if level + during > self._room:
                return None, []
            peaks.append(level + during)
            level += self._after[place]
            resident.update(makes.get(place, ()))
        return freed, peaks

    def _victims(self, resident: set[_Key], place: int, stay: int) -> Iterator[_Key]:
        """Yield what may go, that needed last first; what has not stayed long enough comes after all else."""
        yield from sorted(resident, key=lambda key: (place - self._made[key] <= stay, -self._read[key], key))

    def _size(self, key: _Key) -> int:
        return self._problem.stages[key[0]].offload_bytes


def _inverse(places: dict[_Key, int]) -> dict[int, list[_Key]]:
    found: dict[int, list[_Key]] = {}
    for key, place in places.items():
        found.setdefault(place, []).append(key)
    return found
