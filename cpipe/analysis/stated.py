"""A plan's own times as a replay, for where there is no profile to replay it on.

A plan states when ops run, not when messages travel. A message is taken to arrive as its reader starts, if that waited
and nothing else explains it; else as soon as it is made.
"""

from __future__ import annotations

from itertools import pairwise

from cpipe.ir import (
    CollectiveRun,
    CopyRun,
    Device,
    Hop,
    InvariantError,
    MessageRun,
    OpKind,
    Plan,
    Problem,
    Schedule,
    Stage,
    Timeline,
)
from cpipe.ir.ops import KINDS
from cpipe.plan import lift
from cpipe.sim.tables import NO_SLOT, Tables
from cpipe.units import Bytes, Ns

__all__ = ["stated_replay"]

_COLLECTIVES = ("ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE")
_COMPUTE = ("F", "D", "W", "B", "FB")


def stated_replay(plan: Plan) -> tuple[Problem, Schedule, Timeline]:
    """Return what a valid plan says of itself as a problem without costs, its orders and their times.

    Pipes are pairs of devices (``g0->g1``). A message takes its whole time as latency.

    Raises
    ------
    InvariantError
        When an op has no times.
    """
    problem, (schedule, _) = _shape(plan), lift(plan)
    times = _times(plan)
    starts = tuple(tuple(start for start, _ in times[device]) for device in range(problem.num_devices))
    ends = tuple(tuple(end for _, end in times[device]) for device in range(problem.num_devices))
    collectives, copies = _collectives(plan), _copies(plan)
    last = max([0, *(end for row in ends for end in row), *(run.end_ns for run in collectives)])
    timeline = Timeline(
        starts=starts,
        ends=ends,
        messages=_messages(problem, schedule, starts, ends, collectives, copies),
        collectives=collectives,
        copies=copies,
        makespan_ns=last + _step(plan),
        step_ns=_step(plan),
    )
    return problem, schedule, timeline


def _shape(plan: Plan) -> Problem:
    """Return a problem of the plan's shape, without costs."""
    placement, flows = plan.problem.placement, plan.problem.flows
    length = len(placement) // flows
    names = {program.rank: program.device for program in plan.ranks}
    pipes: dict[tuple[int, int], int] = {}

    def hop(stage: int, source: int, target: int) -> Hop | None:
        if source == target or (stage + 1) % length == 0:
            return None
        pipe = pipes.setdefault((source, target), len(pipes))
        return Hop(
            source=source, target=target, message_bytes=Bytes(0), latency_ns=Ns(0), occupancy_ns=Ns(0), pipe=pipe
        )

    pairs = list(enumerate(pairwise(placement)))
    forward = tuple(hop(stage, first, second) for stage, (first, second) in pairs)
    backward = tuple(hop(stage, second, first) for stage, (first, second) in pairs)
    free = Ns(0)
    return Problem(
        name=plan.problem.name,
        microbatches=plan.problem.microbatches,
        devices=tuple(Device(name=names[rank]) for rank in range(plan.problem.devices)),
        stages=tuple(
            Stage(
                name=f"stage {index}",
                device=device,
                forward_ns=free,
                input_grad_ns=free,
                weight_grad_ns=free,
                full_backward_ns=free,
            )
            for index, device in enumerate(placement)
        ),
        forward_hops=forward,
        backward_hops=backward,
        pipes=tuple(f"{names[source]}->{names[target]}" for source, target in pipes),
        flows=tuple(range(0, len(placement), length)),
    )


def _times(plan: Plan) -> dict[int, list[tuple[int, int]]]:
    """Return start and end of each rank's ops [ns], those of a fused pair twice."""
    times: dict[int, list[tuple[int, int]]] = {}
    for program in plan.ranks:
        row = times.setdefault(program.rank, [])
        for index, step in enumerate(program.ops):
            if step.op in _COMPUTE:
                if step.start_ns is None or step.end_ns is None:
                    raise InvariantError(f"rank {program.rank} ops[{index}]: {step.op} without times")
                row += [(step.start_ns, step.end_ns)] * (2 if step.op == "FB" else 1)
    return times


def _step(plan: Plan) -> int:
    """Return how long the step of all ranks takes [ns]."""
    steps = (step for program in plan.ranks for step in program.ops if step.op == "STEP")
    return max([0, *((step.end_ns or 0) - (step.start_ns or 0) for step in steps)])


def _collectives(plan: Plan) -> tuple[CollectiveRun, ...]:
    return tuple(
        CollectiveRun(
            kind=step.op,  # type: ignore[arg-type]
            stage=step.stage or 0,
            device=program.rank,
            start_ns=step.start_ns or 0,
            end_ns=step.end_ns or 0,
        )
        for program in plan.ranks
        for step in program.ops
        if step.op in _COLLECTIVES
    )


def _copies(plan: Plan) -> tuple[CopyRun, ...]:
    return tuple(
        CopyRun(
            kind=step.op,
            stage=step.stage or 0,
            microbatch=step.mb or 0,
            device=program.rank,
            start_ns=step.start_ns or 0,
            end_ns=step.end_ns or 0,
        )
        for program in plan.ranks
        for step in program.ops
        if step.op in ("OFFLOAD", "RELOAD")
    )


def _messages(
    problem: Problem,
    schedule: Schedule,
    starts: tuple[tuple[int, ...], ...],
    ends: tuple[tuple[int, ...], ...],
    collectives: tuple[CollectiveRun, ...],
    copies: tuple[CopyRun, ...],
) -> tuple[MessageRun, ...]:
    tables, n = Tables(problem), problem.microbatches
    made = {
        op: end for order, row in zip(schedule.orders, ends, strict=True) for op, end in zip(order, row, strict=True)
    }
    awaited = _awaited(schedule, tables, starts, ends, made, collectives, copies)
    messages = []
    for op, ready in made.items():
        hop, fed = tables.hop[op], tables.target[op]
        if hop is None or fed == NO_SLOT:
            continue
        stage, microbatch = divmod(op // KINDS, n)
        messages.append(
            MessageRun(
                kind="gradient" if op % KINDS else "activation",
                stage=stage,
                microbatch=microbatch,
                source=hop.source,
                target=hop.target,
                pipe=hop.pipe,
                ready_ns=ready,
                start_ns=ready,
                end_ns=ready,
                arrival_ns=max(ready, awaited.get(fed, ready)),
            )
        )
    return tuple(sorted(messages, key=lambda run: (run.kind, run.stage, run.microbatch)))


def _awaited(
    schedule: Schedule,
    tables: Tables,
    starts: tuple[tuple[int, ...], ...],
    ends: tuple[tuple[int, ...], ...],
    made: dict[int, int],
    collectives: tuple[CollectiveRun, ...],
    copies: tuple[CopyRun, ...],
) -> dict[int, int]:
    """Return, by slot, when the messages arrive [ns] that some unit waited for: of its inputs the one made last."""
    maker = {tables.target[op]: op for op in made if tables.hop[op] is not None}
    gathered = {(run.stage, run.end_ns) for run in collectives if run.kind == "ALL_GATHER"}
    copied = {(run.device, run.end_ns) for run in copies}
    arrivals: dict[int, int] = {}
    for device, units in enumerate(schedule.units()):
        at = clock = 0
        for ops in units:
            start = starts[device][at]
            stages = {op // KINDS // tables.microbatches for op in ops}
            slots = [tables.slot[op] for op in ops if op % KINDS != OpKind.W and tables.slot[op] in maker]
            explained = (device, start) in copied or any((stage, start) in gathered for stage in stages)
            if start > clock and slots and not explained:
                arrivals[max(slots, key=lambda slot: made[maker[slot]])] = start
            clock = ends[device][at]
            at += len(ops)
    return arrivals
