"""Idle time of each device by cause: warm-up, links, work upstream, memory, collectives, copies, tail, step.

A device is idle before its first op, behind its last, and between two ops while the second waits for a message. While
that message is not made yet the work *upstream* is the cause; afterwards the link is. If meanwhile a forward whose
input is there does not fit in memory, memory is: with more of it the device would have something to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpipe.ir.explanation import IdleCause, IdlePart
from cpipe.ir.ops import KINDS, OpKind
from cpipe.sim.critical import levels_before
from cpipe.sim.memory import memory_steps
from cpipe.sim.runs import Runs

__all__ = ["idle_parts"]


def idle_parts(runs: Runs, rooms: Sequence[int | None] = ()) -> tuple[IdlePart, ...]:
    """Return every idle time of a replay with its cause.

    Parameters
    ----------
    runs
        The replay.
    rooms
        Length P: what each device has for activations and transients [bytes], None without a limit. Empty: not known;
        memory is then never the cause.

    Returns
    -------
    tuple of IdlePart
        By device and time. With its busy times they fill each device's makespan exactly.
    """
    return tuple(part for device in range(len(runs.of_device)) for part in _Idle(runs, rooms, device).parts())


class _Idle:
    """The idle times of one device."""

    def __init__(self, runs: Runs, rooms: Sequence[int | None], device: int) -> None:
        self._runs = runs
        self._device = device
        self._units = runs.of_device[device]
        self._room = rooms[device] if rooms else None
        self._own = sorted((run.start_ns, run.end_ns) for run in runs.collectives if run.device == device)
        if self._room is not None:
            self._steps = memory_steps(runs.problem)
            self._levels = levels_before(runs, self._steps)
            self._coming = self._next_forwards()

    def parts(self) -> Iterator[IdlePart]:
        runs, clock = self._runs, 0
        for unit in self._units:
            start = runs.units[unit].start
            if start > clock:
                yield from self._first(unit, start) if not runs.units[unit].place else self._between(unit, clock, start)
            clock = runs.units[unit].end
        if clock < runs.work_ends:
            yield from self._split(clock, runs.work_ends, "tail", self._own)
        yield from self._cut("step", runs.work_ends, runs.makespan)

    def _first(self, unit: int, start: int) -> Iterator[IdlePart]:
        """Before the first op: while its parameters are gathered that is the cause, as far as nothing else is."""
        gathers = [self._runs.collectives[index] for index in self._runs.gathers(unit)]
        binding = [(run.start_ns, run.end_ns) for run in gathers if run.end_ns == start]
        yield from self._split(0, start, "warm-up", binding)

    def _between(self, unit: int, clock: int, start: int) -> Iterator[IdlePart]:
        copied = max((self._runs.copies[index].end_ns for index in self._runs.copies_of(unit)), default=0)
        there = self._there(unit, clock)
        if copied == start and there < start:  # it waits for a copy once all else is there
            if clock < there:
                yield from self._between_messages(unit, clock, there)
            yield self._part("copy", there, start)
            return
        yield from self._between_messages(unit, clock, start)

    def _there(self, unit: int, clock: int) -> int:
        """Return when a unit could start but for copies [ns]."""
        runs = self._runs
        arrivals = [runs.messages[index].arrival_ns for _, index in runs.inputs(unit) if index >= 0]
        return max([clock, *arrivals, *(runs.collectives[index].end_ns for index in runs.gathers(unit))])

    def _between_messages(self, unit: int, clock: int, start: int) -> Iterator[IdlePart]:
        held = self._held_back_from(unit, clock, start)
        yield from self._waiting(unit, clock, held)
        if held < start:
            yield self._part("memory", held, start)

    def _waiting(self, unit: int, clock: int, stop: int) -> Iterator[IdlePart]:
        """Yield the wait for the message that comes last, from `clock` to `stop`."""
        runs = self._runs
        arrivals = [(runs.messages[index].arrival_ns, index) for _, index in runs.inputs(unit) if index >= 0]
        gathered = max((runs.collectives[index].end_ns for index in runs.gathers(unit)), default=0)
        last = max(arrivals, default=(0, -1))
        if gathered > max(last[0], clock):
            yield from self._cut("data-parallel", clock, stop)
            return
        if last[0] <= clock:
            yield from self._cut("other", clock, stop)
            return
        message = runs.messages[last[1]]
        made = min(stop, max(clock, message.ready_ns))
        for cause, begin, end in (("upstream", clock, made), ("link", made, stop)):
            if begin < end:
                yield IdlePart(
                    device=self._device,
                    cause="upstream" if cause == "upstream" else "link",
                    start_ns=begin,
                    end_ns=end,
                    carries=message.kind,
                    pipe=message.pipe,
                )

    def _held_back_from(self, unit: int, clock: int, start: int) -> int:
        """Return from when on a forward that could run does not fit, `start` if none."""
        if self._room is None:
            return start
        runs, since = self._runs, start
        for forward in self._coming[unit - self._units.start]:
            stage = forward // KINDS // runs.microbatches
            if self._levels[unit] + self._steps[stage * KINDS + OpKind.F].during <= self._room:
                continue
            read = runs.input_of(forward)
            arrived = 0
            if read is not None:
                arrived = runs.units[read.producer].end
                if read.message >= 0:
                    arrived = runs.messages[read.message].arrival_ns
            since = min(since, max(clock, arrived))
        return since

    def _next_forwards(self) -> list[tuple[int, ...]]:
        """Return, for each unit, the next forward of each stage that is still to run from there on."""
        coming: list[tuple[int, ...]] = []
        latest: dict[int, int] = {}
        for unit in reversed(self._units):
            for op in self._runs.units[unit].ops:
                if op % KINDS == OpKind.F:
                    latest[op // KINDS // self._runs.microbatches] = op
            coming.append(tuple(latest.values()))
        return coming[::-1]

    def _split(
        self, start: int, stop: int, cause: IdleCause, collectives: Sequence[tuple[int, int]]
    ) -> Iterator[IdlePart]:
        """Yield `start` .. `stop` with the times of `collectives` (sorted) as data-parallel, the rest as `cause`."""
        clock = start
        for begin, end in collectives:
            begin, end = max(begin, clock), min(end, stop)
            if begin < end:
                yield from self._cut(cause, clock, begin)
                yield self._part("data-parallel", begin, end)
                clock = end
        yield from self._cut(cause, clock, stop)

    def _cut(self, cause: IdleCause, start: int, stop: int) -> Iterator[IdlePart]:
        if start < stop:
            yield self._part(cause, start, stop)

    def _part(self, cause: IdleCause, start: int, stop: int) -> IdlePart:
        return IdlePart(device=self._device, cause=cause, start_ns=start, end_ns=stop)
