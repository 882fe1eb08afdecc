"""The critical path of a replay: why its last completion is not sooner.

Walked backwards from the makespan: whatever begins at some time begins then because something else ended at that very
time, and that is the next piece. Where several did, the op before it on its device comes first (so that a path shows
waiting only where there was nothing to do), then its input, then what held its message back. The pieces touch, so their
lengths add up to the makespan exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cpipe.ir.explanation import Follows, Segment
from cpipe.ir.ops import KINDS, OpKind
from cpipe.sim.memory import MemoryStep, memory_steps
from cpipe.sim.runs import Runs

__all__ = ["critical_path", "levels_before"]


class _Node(NamedTuple):
    """A thing that ended.

    Kinds: ``unit``, ``message`` (arrived), ``held`` (a message left its pipe), ``collective``, ``copy``.
    """

    kind: str
    at: int


def critical_path(runs: Runs, rooms: Sequence[int | None] = ()) -> tuple[Segment, ...]:
    """Return the critical path of a replay, first piece first.

    Parameters
    ----------
    runs
        The replay.
    rooms
        Length P: what each device has for activations and transients [bytes], None without a limit. Empty: not known;
        memory is then never given as a reason.

    Returns
    -------
    tuple of Segment
        From 0 to the makespan without a gap. Pieces without length are left out.
    """
    return _Walk(runs, rooms).path()


class _Walk:
    """The look-ups of one walk back from the end."""

    def __init__(self, runs: Runs, rooms: Sequence[int | None]) -> None:
        self._runs = runs
        self._rooms = rooms
        self._lenient = False  # whether to go on where the times do not say why something began
        self._steps = memory_steps(runs.problem) if rooms else ()
        self._levels = levels_before(runs, self._steps) if rooms else []
        self._freed: dict[tuple[int, int], list[_Node]] = defaultdict(list)  # (link, time) -> who held it until then
        for index, message in enumerate(runs.messages):
            self._freed[message.pipe, message.end_ns].append(_Node("held", index))
        for index, run in enumerate(runs.collectives):
            for link in self._links(index):
                self._freed[link, run.end_ns].append(_Node("collective", index))

    def path(self) -> tuple[Segment, ...]:
        """Return the path: depth first, as zero lengths may offer a way that leads round in a circle."""
        runs = self._runs
        if not runs.makespan:
            return ()
        return tuple(piece for piece in (*self._work(), self._step()) if piece.length_ns)

    def _work(self) -> tuple[Segment, ...]:
        """Return the pieces up to the last completion of an op or collective."""
        runs, end = self._runs, self._runs.work_ends
        last = [_Node("unit", index) for index, unit in enumerate(runs.units) if unit.end == end]
        last += [_Node("collective", i) for i, run in enumerate(runs.collectives) if run.end_ns == end]
        for self._lenient in (False, True):
            trail = self._back_from(last)
            if trail:
                return tuple(self._segments(trail))
        return (Segment(kind="unknown", follows="start", start_ns=0, end_ns=end, label="", device=-1),)

    def _step(self) -> Segment:
        """Return what all devices do together behind everything else."""
        runs = self._runs
        why: Follows = "order" if runs.work_ends else "start"
        return Segment(kind="step", follows=why, start_ns=runs.work_ends, end_ns=runs.makespan, label="STEP", device=-1)

    def _back_from(self, last: Sequence[_Node]) -> list[tuple[_Node, Follows]]:
        """Return a way from one of `last` back to 0, each with why the piece behind it began; empty without one."""
        seen: set[_Node] = set()
        trail: list[tuple[_Node, Follows, Iterator[tuple[_Node, Follows]]]] = []
        for first in last:
            seen.add(first)
            trail.append((first, "start", self._causes(first)))
            while trail:
                node, _, causes = trail[-1]
                if self._start(node) == 0 or (self._lenient and not any(self._causes(node))):
                    return [(entry, via) for entry, via, _ in trail]
                step = next((cause for cause in causes if cause[0] not in seen), None)
                if step is None:
                    trail.pop()
                    continue
                seen.add(step[0])
                trail.append((*step, self._causes(step[0])))
        return []

    def _start(self, node: _Node) -> int:
        if node.kind == "unit":
            return self._runs.units[node.at].start
        if node.kind == "collective":
            return self._runs.collectives[node.at].start_ns
        if node.kind == "copy":
            return self._runs.copies[node.at].start_ns
        return self._runs.messages[node.at].start_ns

    def _end(self, node: _Node) -> int:
        if node.kind == "unit":
            return self._runs.units[node.at].end
        if node.kind == "collective":
            return self._runs.collectives[node.at].end_ns
        if node.kind == "copy":
            return self._runs.copies[node.at].end_ns
        message = self._runs.messages[node.at]
        return message.arrival_ns if node.kind == "message" else message.end_ns

    def _causes(self, node: _Node) -> Iterator[tuple[_Node, Follows]]:
        """Yield what ended exactly when `node` began, best explanation first."""
        start = self._start(node)
        tight = [(cause, why) for cause, why in self._candidates(node) if self._end(cause) == start]
        yield from tight
        if not tight and node.kind != "unit":  # who was served before is told by time alone, so it comes last
            yield from self._queued(node, start)
        if self._lenient and not tight:
            yield from self._latest(node, start)

    def _candidates(self, node: _Node) -> Iterator[tuple[_Node, Follows]]:
        runs = self._runs
        if node.kind == "unit":
            before = runs.before(node.at)
            if before is not None:
                yield _Node("unit", before), "memory" if self._held_back(node.at) else "order"
            for producer, message in runs.inputs(node.at):
                yield (_Node("unit", producer) if message < 0 else _Node("message", message)), "input"
            for gather in runs.gathers(node.at):
                yield _Node("collective", gather), "gather"
            for copy in runs.copies_of(node.at):
                yield _Node("copy", copy), "input"
        elif node.kind == "copy":
            yield _Node("unit", runs.poster(node.at)), "input"
            for copy in runs.copies_of(runs.poster(node.at) + 1):  # that a copy back is posted behind
                if runs.copies[node.at].kind == "RELOAD" and runs.copies[copy].kind == "OFFLOAD":
                    yield _Node("copy", copy), "input"
        elif node.kind == "collective":
            for unit in runs.reduced_after(node.at):
                yield _Node("unit", unit), "input"
        else:
            yield _Node("unit", runs.maker(node.at)), "input"
            source = runs.messages[node.at].source
            for gate in runs.gates_of(node.at):
                yield _Node("unit", gate), "send" if runs.units[gate].device == source else "window"

    def _queued(self, node: _Node, start: int) -> Iterator[tuple[_Node, Follows]]:
        """Yield who held a link until `start`: what has a length first, as that was surely served before."""
        if node.kind == "copy":
            mine_run = self._runs.copies[node.at]
            for index, run in enumerate(self._runs.copies):
                if index != node.at and (run.device, run.kind, run.end_ns) == (mine_run.device, mine_run.kind, start):
                    yield _Node("copy", index), "queue"
            return
        links = (self._runs.messages[node.at].pipe,) if node.kind != "collective" else self._links(node.at)
        mine = _Node("collective" if node.kind == "collective" else "held", node.at)
        held = [other for link in links for other in self._freed.get((link, start), ()) if other != mine]
        for other in sorted(dict.fromkeys(held), key=lambda other: self._start(other) == start):
            yield other, "queue"

    def _links(self, collective: int) -> tuple[int, ...]:
        """Return the pipes that a collective holds; the data-parallel link of device d is numbered -1 - d."""
        problem, run = self._runs.problem, self._runs.collectives[collective]
        homes = {problem.stages[copy].device for copy in problem.copies_of(run.stage)}
        shared = problem.collectives.pipes if problem.collectives is not None else ()
        return (*sorted(-1 - home for home in homes), *shared)

    def _latest(self, node: _Node, start: int) -> Iterator[tuple[_Node, Follows]]:
        """Yield what ended last before `start`, for times that say no more; the time between stays unexplained."""
        ended = [(cause, why) for cause, why in self._candidates(node) if self._end(cause) < start]
        yield from sorted(ended, key=lambda entry: -self._end(entry[0]))

    def _held_back(self, unit: int) -> bool:
        """Whether memory keeps a forward behind the unit before it: its input was there, and it did not fit."""
        runs, entry = self._runs, self._runs.units[unit]
        room = self._rooms[entry.device] if self._rooms else None
        if room is None or len(entry.ops) > 1 or entry.ops[0] % KINDS != OpKind.F:
            return False
        read = runs.input_of(entry.ops[0])
        if read is not None:
            arrived = runs.messages[read.message].arrival_ns if read.message >= 0 else runs.units[read.producer].end
            if arrived > runs.units[unit - 1].start:
                return False
        step = self._steps[runs.stages(unit)[0] * KINDS + OpKind.F]
        return self._levels[unit - 1] + step.during > room

    def _segments(self, trail: Sequence[tuple[_Node, Follows]]) -> Iterator[Segment]:
        """Yield the pieces of a trail that leads backwards from the end."""
        clock = 0
        # each entry says why the one after it in time began; so shift the reasons by one
        reasons: list[Follows] = ["start", *(why for _, why in reversed(trail[1:]))]
        for (node, _), why in zip(reversed(trail), reasons, strict=True):
            start = self._start(node)
            if start > clock:
                yield Segment(kind="unknown", follows=why, start_ns=clock, end_ns=start, label="", device=-1)
            yield from (piece for piece in self._pieces(node, why) if piece.length_ns)
            clock = self._end(node)

    def _pieces(self, node: _Node, why: Follows) -> Iterator[Segment]:
        runs = self._runs
        if node.kind == "unit":
            unit = runs.units[node.at]
            label = runs.label(node.at)
            yield Segment(
                kind="compute", follows=why, start_ns=unit.start, end_ns=unit.end, label=label, device=unit.device
            )
        elif node.kind == "copy":
            copy = runs.copies[node.at]
            label = f"{copy.kind} of stage {copy.stage} microbatch {copy.microbatch}"
            yield Segment(
                kind="copy", follows=why, start_ns=copy.start_ns, end_ns=copy.end_ns, label=label, device=copy.device
            )
        elif node.kind == "collective":
            run = runs.collectives[node.at]
            label = f"{run.kind} of stage {run.stage}"
            yield Segment(
                kind="collective", follows=why, start_ns=run.start_ns, end_ns=run.end_ns, label=label, device=run.device
            )
        else:
            message = runs.messages[node.at]
            parts = [("bandwidth", why, message.start_ns, message.end_ns)]
            if node.kind == "message":
                behind: Follows = "input" if message.end_ns > message.start_ns else why
                parts.append(("latency", behind, message.end_ns, message.arrival_ns))
            for kind, reason, start, end in parts:
                yield Segment(
                    kind=kind,  # type: ignore[arg-type]
                    follows=reason,
                    start_ns=start,
                    end_ns=end,
                    label=runs.label(runs.maker(node.at)),
                    device=message.source,
                    carries=message.kind,
                    pipe=message.pipe,
                )


def levels_before(runs: Runs, steps: Sequence[MemoryStep]) -> list[int]:
    """Return the activations [bytes] that a device holds just before each unit, by unit; `steps` of the problem."""
    levels: list[int] = []
    for units in runs.of_device:
        level = 0
        for unit in units:
            level += runs.moved.get(unit, 0)
            levels.append(level)
            for op, stage in zip(runs.units[unit].ops, runs.stages(unit), strict=True):
                level += steps[stage * KINDS + op % KINDS].after
    return levels
