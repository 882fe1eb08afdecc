"""A finished replay as a graph: what each op, message and collective waited for.

Everything is read off the timeline; nothing is simulated again. One op, or the two of a fused pair, is a *unit*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cpipe.ir import CollectiveRun, CopyRun, MessageRun, OpKind, Problem, Schedule, Timeline, decode_op, encode_op
from cpipe.ir.ops import KINDS
from cpipe.sim.tables import Tables
from cpipe.sim.window import window_gates

__all__ = ["Input", "Runs", "Unit"]


class Unit(NamedTuple):
    """What a device does at once; `place` is its position among the device's units; times [ns]."""

    device: int
    place: int
    ops: tuple[int, ...]
    start: int
    end: int


class Input(NamedTuple):
    """What a unit reads: made by unit `producer`, brought by message `message`, -1 within a device."""

    producer: int
    message: int


class Runs:
    """The units of a replay, what feeds them, and who held which pipe until when.

    Parameters
    ----------
    problem, schedule, timeline
        A replay; of `problem` only its shape is read, no cost.
    gates
        What it was replayed with; see `cpipe.sim.simulate`.

    Attributes
    ----------
    units
        By device, in order.
    of_device
        Indices of each device's units.
    messages, collectives, copies
        Of the timeline.
    moved
        By unit: what is taken right before it [bytes], less what is freed there because it is in host memory.
    gates
        By slot that a message feeds: the units that had to end first.
    makespan, work_ends
        Of the timeline [ns]: its end, and when the step behind the last op or collective begins.
    """

    def __init__(
        self,
        problem: Problem,
        schedule: Schedule,
        timeline: Timeline,
        gates: Mapping[int, int | tuple[int, ...]] | None = None,
    ) -> None:
        self.problem = problem
        self.microbatches = problem.microbatches
        self.makespan = timeline.makespan_ns
        self.work_ends = timeline.work_ends_ns
        self.messages: tuple[MessageRun, ...] = timeline.messages
        self.collectives: tuple[CollectiveRun, ...] = timeline.collectives
        self._tables = Tables(problem)
        self.units: list[Unit] = []
        self.of_device: list[range] = []
        self.unit_of: dict[int, int] = {}
        self._collect_units(schedule, timeline)
        self._slot_of_message = [self._fed_by(run) for run in self.messages]
        self._bringer = {slot: index for index, slot in enumerate(self._slot_of_message)}
        self._maker = {self._tables.target[op]: unit for unit, entry in enumerate(self.units) for op in entry.ops}
        if gates is None:
            gates = window_gates(self._tables, schedule.orders) if problem.receive_window else {}
        self.gates = {slot: _units_of(gate, self.unit_of) for slot, gate in gates.items()}
        self.copies: tuple[CopyRun, ...] = timeline.copies
        self.moved: dict[int, int] = {}
        self._copies_of: dict[int, list[int]] = {}
        self._posted_by: list[int] = [-1] * len(self.copies)
        self._collect_copies(schedule)
        self.gather_of = {run.stage: index for index, run in enumerate(self.collectives) if run.kind == "ALL_GATHER"}

    def _collect_units(self, schedule: Schedule, timeline: Timeline) -> None:
        for device, units in enumerate(schedule.units()):
            first, at = len(self.units), 0
            for place, ops in enumerate(units):
                start, end = timeline.starts[device][at], timeline.ends[device][at]
                at += len(ops)
                self.unit_of.update(dict.fromkeys(ops, len(self.units)))
                self.units.append(Unit(device, place, ops, start, end))
            self.of_device.append(range(first, len(self.units)))

    def _collect_copies(self, schedule: Schedule) -> None:
        """Note which units wait for which copies, and behind which unit each copy is posted."""
        index_of = {(run.kind, run.stage, run.microbatch): index for index, run in enumerate(self.copies)}
        for entry in schedule.offloads:
            stage = self.problem.stages[entry.stage]
            order = schedule.orders[stage.device]
            out, back = (index_of[kind, entry.stage, entry.microbatch] for kind in ("OFFLOAD", "RELOAD"))
            forward, split, _, full = (encode_op(k, entry.stage, entry.microbatch, self.microbatches) for k in OpKind)
            gone, returns = (self.unit_of[order[place]] for place in (entry.freed_before, entry.reloaded_before))
            reader = self.unit_of[full if full in self.unit_of else split]
            self._copies_of.setdefault(gone, []).append(out)
            self._copies_of.setdefault(reader, []).append(back)
            self._posted_by[out], self._posted_by[back] = self.unit_of[forward], returns - 1
            for unit, size in ((gone, -stage.offload_bytes), (returns, stage.offload_bytes)):
                self.moved[unit] = self.moved.get(unit, 0) + size

    def copies_of(self, unit: int) -> list[int]:
        """Return the copies to and from host memory that a unit waits for."""
        return self._copies_of.get(unit, [])

    def poster(self, copy: int) -> int:
        """Return the unit behind which a copy is posted."""
        return self._posted_by[copy]

    def _fed_by(self, run: MessageRun) -> int:
        """Return the slot that a message feeds."""
        kind = OpKind.F if run.kind == "activation" else OpKind.D
        return self._tables.target[encode_op(kind, run.stage, run.microbatch, self.microbatches)]

    def label(self, unit: int) -> str:
        """Return the text form of a unit: ``2F0``, or ``2F3+1B0`` of a pair."""
        return "+".join(str(decode_op(op, self.microbatches)) for op in self.units[unit].ops)

    def stages(self, unit: int) -> tuple[int, ...]:
        """Return the stage of each op of a unit."""
        return tuple(op // KINDS // self.microbatches for op in self.units[unit].ops)

    def before(self, unit: int) -> int | None:
        """Return the unit that its device runs before `unit`."""
        return unit - 1 if self.units[unit].place else None

    def inputs(self, unit: int) -> list[Input]:
        """Return what a unit reads; nothing of the job's own input."""
        return [found for op in self.units[unit].ops if (found := self.input_of(op)) is not None]

    def input_of(self, op: int) -> Input | None:
        """Return what the op `op` reads, None for the job's own input."""
        slot = self._tables.slot[op]
        if op % KINDS == OpKind.W:
            return Input(self.unit_of[op - 1], -1)
        maker = self._maker.get(slot)
        return None if maker is None else Input(maker, self._bringer.get(slot, -1))

    def maker(self, message: int) -> int:
        """Return the unit that made a message."""
        return self._maker[self._slot_of_message[message]]

    def gates_of(self, message: int) -> tuple[int, ...]:
        """Return the units that had to end before a message might leave."""
        return self.gates.get(self._slot_of_message[message], ())

    def gathers(self, unit: int) -> list[int]:
        """Return the all-gathers whose parameters a unit needs."""
        return [self.gather_of[stage] for stage in self.stages(unit) if stage in self.gather_of]

    def reduced_after(self, collective: int) -> list[int]:
        """Return the units after which a reduction may run: the W and B of its stage and of the stage's copies."""
        run = self.collectives[collective]
        if run.kind == "ALL_GATHER":
            return []
        copies = set(self.problem.copies_of(run.stage))
        last = (OpKind.W, OpKind.B)
        return [
            unit
            for op, unit in self.unit_of.items()
            if op % KINDS in last and op // KINDS // self.microbatches in copies
        ]


def _units_of(gate: int | tuple[int, ...], unit_of: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(unit_of[op] for op in ((gate,) if isinstance(gate, int) else gate) if op in unit_of)
