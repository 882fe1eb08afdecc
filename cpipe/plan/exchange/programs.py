"""Torch's schedule table -> plan, action by action: nothing is moved, dropped or mended.

A table with messages keeps them where they stand. A table of compute ops alone gets messages as late as the order of
each channel allows, which is enough to say whether it can run; the compiler places them well.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from cpipe.errors import PlanError
from cpipe.ir import (
    Channel,
    Claims,
    Hop,
    Instruction,
    MadeBy,
    Op,
    OpKind,
    Plan,
    Problem,
    ProblemSummary,
    RankProgram,
    Timeline,
)
from cpipe.plan.digest import plan_digest, problem_digest
from cpipe.plan.exchange.cells import COMPUTE, MESSAGES, Cell, TorchTable, units_of
from cpipe.plan.wiring import ChannelKey, Wiring

__all__ = ["plan_of_table", "with_times"]

_KINDS = {"F": OpKind.F, "I": OpKind.D, "W": OpKind.W, "B": OpKind.B}


def plan_of_table(table: TorchTable, problem: Problem, made_by: MadeBy, *, file: str | None = None) -> Plan:
    """Return the plan that a table describes, every time in it 0.

    Parameters
    ----------
    table
        With as many rows as the problem has devices.
    problem
        Under the table's own placement.
    made_by
        What the plan says of its origin.
    file
        Name for the messages.

    Returns
    -------
    Plan
        As right or wrong as the table: `cpipe.plan.validate` says which.

    Raises
    ------
    PlanError
        With every cell that no plan can hold: a stage that the problem lacks, a message without a second rank.
    """
    _check_cells(table, problem, file)
    wiring = Wiring(problem)
    if not table.has_messages:
        computes = (tuple(cell for cell in row if cell.action in COMPUTE) for row in table.rows)
        table = _with_messages(table._replace(rows=tuple(computes)), problem, wiring)
    builder = _Builder(problem, wiring)
    ranks = tuple(builder.program(device, row) for device, row in enumerate(table.rows))
    channels = wiring.declared(builder.windows)
    plan = Plan(
        format="cpipe.plan",
        version=1,
        digest="",
        made_by=made_by,
        problem=ProblemSummary(
            digest=problem_digest(problem),
            name=problem.name,
            devices=problem.num_devices,
            stages=problem.num_stages,
            microbatches=problem.microbatches,
            placement=problem.placement,
            recompute=problem.recompute,
        ),
        claims=Claims(makespan_ns=0, lower_bound_ns=0, proved_by="bound", peak_bytes=_buffers(channels, problem)),
        channels=channels,
        groups=wiring.groups,
        ranks=ranks,
    )
    return replace(plan, digest=plan_digest(plan))


def _buffers(channels: Iterable[Channel], problem: Problem) -> tuple[int, ...]:
    """Return the bytes of the posted receives of each device: no peak is lower, whatever the ops hold."""
    buffers = [0] * problem.num_devices
    for channel in channels:
        buffers[channel.target] += channel.window * channel.message_bytes
    return tuple(buffers)


def with_times(plan: Plan, timeline: Timeline) -> Plan:
    """Return the plan with the times of its replay, signed: `timeline` has its ops in its order."""
    runs = {(run.stage, run.kind): run for run in timeline.collectives}
    copies = {(run.kind, run.stage, run.microbatch): run for run in timeline.copies}
    ranks = []
    for device, program in enumerate(plan.ranks):
        times = zip(timeline.starts[device], timeline.ends[device], strict=True)
        ops = []
        for step in program.ops:
            if step.op in OpKind.__members__ or step.op == "FB":
                start, end = next(times)
                if step.op == "FB":  # both of its ops have its times
                    next(times)
                step = replace(step, start_ns=start, end_ns=end)
            elif step.op in ("OFFLOAD", "RELOAD"):
                copy = copies[step.op, step.stage, step.mb]  # type: ignore[index]
                step = replace(step, start_ns=copy.start_ns, end_ns=copy.end_ns)
            elif step.stage is not None and step.start_ns is not None:
                run = runs[step.stage, step.op]  # type: ignore[index]
                step = replace(step, start_ns=run.start_ns, end_ns=run.end_ns)
            elif step.op == "STEP":
                spent = (timeline.work_ends_ns, timeline.makespan_ns) if timeline.step_ns else (None, None)
                step = replace(step, start_ns=spent[0], end_ns=spent[1])
            ops.append(step)
        ranks.append(replace(program, ops=tuple(ops)))
    plan = replace(plan, ranks=tuple(ranks), claims=replace(plan.claims, makespan_ns=timeline.makespan_ns))
    return replace(plan, digest=plan_digest(plan))


def _check_cells(table: TorchTable, problem: Problem, file: str | None) -> None:
    """Refuse cells that a plan has no words for."""
    faults = []
    for cell in table.cells():
        if cell.stage >= problem.num_stages:
            faults.append(cell.fault("stage-range", f"stages are 0..{problem.num_stages - 1}", file))
        elif cell.action in MESSAGES:
            neighbour = _neighbour(cell)
            if not 0 <= neighbour < problem.num_stages:
                message = f"there is no stage {neighbour} to exchange it with"
                faults.append(cell.fault("local-message", message, file))
            elif _hop(problem, cell) is None:
                message = f"stage {neighbour} is on the same rank, where torch hands over without a message"
                faults.append(cell.fault("local-message", message, file))
    if problem.collectives is not None:
        for row in table.rows:
            faults += [cell.fault("late-collective", _LATE, file) for cell in _late(row, problem.collectives.mode)]
    if faults:
        raise PlanError(faults)


_LATE = "a plan gathers before all compute of its rank and reduces right after a stage's last W or B"


def _late(row: Iterable[Cell], mode: str) -> Iterator[Cell]:
    """Yield the collectives that stand later than the model has them."""
    computed: Cell | None = None
    for cell in row:
        if cell.action in COMPUTE:
            computed = cell
        elif computed is not None and (
            (cell.action == "UNSHARD" and mode == "zero1")
            or (cell.action == "REDUCE_GRAD" and (computed.stage != cell.stage or computed.action not in ("W", "B")))
        ):
            yield cell


def _neighbour(cell: Cell) -> int:
    """Return the stage at the other end of a message."""
    return cell.stage + (1 if cell.action in ("SEND_F", "RECV_B") else -1)


def _hop(problem: Problem, cell: Cell) -> Hop | None:
    """Return the hop of a message whose neighbour exists, None inside a device."""
    hops = problem.forward_hops if cell.action.endswith("_F") else problem.backward_hops
    return hops[min(cell.stage, _neighbour(cell))]


class _Builder:
    """Turns cells into instructions; `windows` counts the open receives of each channel."""

    def __init__(self, problem: Problem, wiring: Wiring) -> None:
        self._problem = problem
        self._wiring = wiring
        self._mode = problem.collectives.mode if problem.collectives is not None else None
        self.windows: Counter[int] = Counter()

    def program(self, device: int, row: Sequence[Cell]) -> RankProgram:
        """Return the program of one rank."""
        steps: list[Instruction] = []
        gathers: dict[int, Instruction] = {}
        reduces: list[Instruction] = []
        self._open: Counter[int] = Counter()
        self._posted: dict[tuple[str, int, int], int] = {}
        for unit in units_of(row):
            cell = unit[0]
            if cell.action in COMPUTE:
                if cell.action == "F" and cell.stage in gathers:
                    steps.append(_wait(gathers.pop(cell.stage)))
                steps += self._compute(unit)
            elif cell.action in MESSAGES:
                steps.append(self._message(cell))
            elif cell.action == "UNSHARD" and self._mode == "zero1":
                gathers[cell.stage] = self._collective(cell, "ALL_GATHER")
                steps.append(gathers[cell.stage])
            elif cell.action == "REDUCE_GRAD" and self._mode is not None:
                name = "REDUCE_SCATTER" if self._mode == "zero1" else "ALL_REDUCE"
                reduces.append(self._collective(cell, name))
                steps.append(reduces[-1])
        steps += map(_wait, reduces)
        steps.append(Instruction(op="STEP"))
        return RankProgram(rank=device, device=self._problem.devices[device].name, ops=tuple(steps))

    def _compute(self, unit: tuple[Cell, ...]) -> Iterator[Instruction]:
        for cell in unit:
            read = self._wiring.reads(_op(cell))
            if read is not None and cell.mb < self._problem.microbatches:
                yield _step("WAIT", cell, channel=self._wiring.channel_ids[read])
        if len(unit) == 1:
            yield _step(_KINDS[unit[0].action].name, unit[0], start_ns=0, end_ns=0)
        else:
            second = unit[1]
            yield _step("FB", unit[0], backward_stage=second.stage, backward_mb=second.mb, start_ns=0, end_ns=0)
        for cell in unit:
            if cell.action != "W":
                key = ("activation" if cell.action == "F" else "gradient", cell.stage, cell.mb)
                channel = self._posted.pop(key, None)
                if channel is not None:
                    self._open[channel] -= 1

    def _message(self, cell: Cell) -> Instruction:
        hop = _hop(self._problem, cell)
        if hop is None:
            raise LookupError(f"no message: {cell}")  # refused before
        name, _, kind = cell.action.partition("_")
        carries: Any = "activation" if kind == "F" else "gradient"
        channel = self._wiring.channel_ids[ChannelKey(hop.source, hop.target, carries)]
        if name == "RECV":
            self._open[channel] += 1
            self._posted[carries, cell.stage, cell.mb] = channel
            self.windows[channel] = max(self.windows[channel], self._open[channel])
        return _step(name, cell, channel=channel)

    def _collective(self, cell: Cell, name: str) -> Instruction:
        group = self._wiring.group_of[cell.stage].id
        instruction = _step(name, cell, group=group, start_ns=0, end_ns=0)
        return replace(instruction, mb=None)


def _step(name: str, cell: Cell, **fields: int) -> Instruction:
    return Instruction(op=name, stage=cell.stage, mb=cell.mb, **fields)  # type: ignore[arg-type]


def _wait(collective: Instruction) -> Instruction:
    return Instruction(op="WAIT", stage=collective.stage, group=collective.group)


def _with_messages(table: TorchTable, problem: Problem, wiring: Wiring) -> TorchTable:
    """Return a table of compute ops with messages and collectives: receives as late as their channel's order allows."""
    receives = _receives(table, problem, wiring)
    rows = []
    for index, row in enumerate(table.rows):
        unreduced = Counter(cell.stage for cell in row if cell.action in ("W", "B"))
        gathered = dict.fromkeys(cell.stage for cell in row if cell.action == "F")
        cells = [Cell(index, 0, stage, "UNSHARD") for stage in gathered]
        place = 0
        for unit in units_of(row):
            for before in range(place, place + len(unit)):
                cells += receives.get((index, before), ())
            place += len(unit)
            cells += unit
            for cell in unit:
                if cell.mb < problem.microbatches and wiring.feeds(_op(cell)) is not None:
                    name = "SEND_F" if cell.action == "F" else "SEND_B"
                    cells.append(cell._replace(action=name, fused=False))
            for cell in unit:
                if cell.action in ("W", "B"):
                    unreduced[cell.stage] -= 1
                    if unreduced[cell.stage] == 0:
                        cells.append(cell._replace(action="REDUCE_GRAD", mb=-1, fused=False))
        rows.append(tuple(cells))
    return TorchTable(tuple(rows))


def _receives(table: TorchTable, problem: Problem, wiring: Wiring) -> dict[tuple[int, int], list[Cell]]:
    """Return, by row and the place of the op that they stand before, the receives of a table of compute ops."""
    readers: dict[tuple[str, int, int], tuple[int, int]] = {}
    sent: dict[ChannelKey, list[tuple[str, int, int]]] = defaultdict(list)
    for row in table.rows:
        for place, cell in enumerate(row):
            if cell.mb >= problem.microbatches:
                continue
            if cell.action != "W" and wiring.reads(_op(cell)) is not None:
                readers.setdefault(("F" if cell.action == "F" else "B", cell.stage, cell.mb), (cell.row, place))
            fed = wiring.feeds(_op(cell))
            if fed is not None:
                kind = "F" if fed[1].carries == "activation" else "B"
                sent[fed[0]].append((kind, fed[1].stage, fed[1].microbatch))
    receives: dict[tuple[int, int], deque[Cell]] = defaultdict(deque)
    for messages in sent.values():
        latest: tuple[int, int] | None = None
        for kind, stage, mb in reversed(messages):
            reader = readers.get((kind, stage, mb))
            if reader is not None:
                latest = reader if latest is None else min(latest, reader)
                receives[latest].appendleft(Cell(latest[0], 0, stage, f"RECV_{kind}", mb))
    return {place: list(cells) for place, cells in receives.items()}


def _op(cell: Cell) -> Op:
    return Op(_KINDS[cell.action], cell.stage, cell.mb)
