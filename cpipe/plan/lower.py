"""Schedule + timeline -> plan: channels, groups and the host program of every rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal, TypedDict

from msgspec.structs import replace

from cpipe.ir import (
    Bound,
    Claims,
    CollectiveRun,
    Instruction,
    MadeBy,
    Objective,
    Op,
    OpKind,
    Plan,
    Problem,
    ProblemSummary,
    RankProgram,
    Schedule,
    Timeline,
    decode_op,
)
from cpipe.plan.copies import copy_steps
from cpipe.plan.digest import plan_digest, problem_digest
from cpipe.plan.posting import Receive, posting_positions
from cpipe.plan.wiring import ChannelKey, Message, Wiring, consumed

__all__ = ["Certificate", "certificate", "lower", "receive_windows"]

_COMPUTE = frozenset((*(kind.name for kind in OpKind), "FB"))


def lower(
    problem: Problem,
    schedule: Schedule,
    timeline: Timeline,
    *,
    bound: Bound,
    resident_peaks: Sequence[int],
    made_by: MadeBy,
    lead: bool = True,
    objective: Objective = "makespan",
) -> Plan:
    """Write the program of every rank.

    Parameters
    ----------
    problem
        What the schedule solves; a `receive_window` is kept.
    schedule, timeline
        The orders, and their replay under `problem`.
    bound
        Proven lower bound on the objective.
    resident_peaks
        Length P: peak memory of each device without receive buffers [bytes].
    made_by
        How the schedule was found.
    lead
        Post each receive one latency before its message is expected to leave, so that the receiver's ready note has
        arrived by then (gloo and NCCL are rendezvous protocols). False posts it only as that message leaves, which
        needs fewer buffers.
    objective
        What `bound` is of; a span is claimed beside the makespan.

    Returns
    -------
    Plan
        With every receive posted before its message is expected to leave: replaying it gives `timeline` again.
    """
    wiring = Wiring(problem)
    lowering = _Lowering(problem, schedule, timeline, wiring, lead)
    ranks = tuple(lowering.program(device) for device in range(problem.num_devices))
    windows = {channel: window for program in ranks for channel, window in receive_windows(program.ops).items()}
    channels = wiring.declared(windows)
    reached = timeline.span_ns if objective == "span" else timeline.makespan_ns
    peaks = list(resident_peaks)
    for channel in channels:
        peaks[channel.target] += channel.window * channel.message_bytes
    plan = Plan(
        format="cpipe.plan",
        version=1,
        digest="",
        made_by=made_by,
        problem=_summary(problem),
        claims=Claims(
            makespan_ns=timeline.makespan_ns,
            lower_bound_ns=bound.value_ns,
            proved_by=bound.proved_by,
            peak_bytes=tuple(peaks),
            objective=objective,
            span_ns=reached if objective == "span" else None,
            **certificate(reached, bound),
        ),
        channels=channels,
        groups=wiring.groups,
        ranks=ranks,
    )
    return replace(plan, digest=plan_digest(plan))


class Certificate(TypedDict):
    """The fields of `cpipe.ir.Claims` that say how good a plan is."""

    status: Literal["optimal", "feasible"]
    gap_ppm: int
    reason: str


def certificate(reached_ns: int, bound: Bound) -> Certificate:
    """Return what a plan that reaches `reached_ns` [ns] of its objective may claim of its quality, given a bound."""
    return {
        "status": "optimal" if reached_ns == bound.value_ns else "feasible",
        "gap_ppm": -((bound.value_ns - reached_ns) * 1_000_000 // reached_ns) if reached_ns else 0,
        "reason": bound.reason,
    }


class _Lowering:
    """Look-ups for one call of `lower`."""

    def __init__(self, problem: Problem, schedule: Schedule, timeline: Timeline, wiring: Wiring, lead: bool) -> None:
        self._problem = problem
        self._timeline = timeline
        self._wiring = wiring
        self._lead = lead
        n = problem.microbatches
        self._units = [[tuple(decode_op(op, n) for op in unit) for unit in units] for units in schedule.units()]
        fused = {second for _, second in schedule.pairs}
        self._times = [
            [times for op, *times in zip(*rows, strict=True) if op not in fused]
            for rows in zip(schedule.orders, timeline.starts, timeline.ends, strict=True)
        ]
        self._gather_runs = {run.stage: run for run in timeline.collectives if run.kind == "ALL_GATHER"}
        self._reduce_runs = {run.stage: run for run in timeline.collectives if run.kind != "ALL_GATHER"}
        self._runs = {
            Message(run.kind, run.stage + (1 if run.kind == "activation" else -1), run.microbatch): run
            for run in timeline.messages
        }
        self._copies = [copy_steps(schedule, timeline, problem, device) for device in range(problem.num_devices)]

    def program(self, device: int) -> RankProgram:
        """Return the program of one rank: receives and WAITs before each op, sends and reductions after it.

        Copies to host memory come behind the sends; WAITs of them, and copies back, between receives and other WAITs.
        """
        copies = self._copies[device]
        units = self._units[device]
        posted = self._posted(device)
        steps = self._gathers(device)
        gathers = {step.stage: step for step in steps}
        reduces: list[Instruction] = []
        unreduced = Counter(op.stage for unit in units for op in unit if op.kind in (OpKind.W, OpKind.B))
        complete: list[int] = []  # stages whose reductions are still to be posted
        for position, (unit, (start, end)) in enumerate(zip(units, self._times[device], strict=True)):
            steps += posted.get(position, ())
            steps += copies.before.get(unit[0], ())
            for op in unit:
                if op.kind is OpKind.F and op.stage in gathers:
                    steps.append(_wait(gathers.pop(op.stage)))
                read = self._wiring.reads(op)
                if read is not None:
                    steps.append(_message("WAIT", op, self._wiring.channel_ids[read]))
            steps.append(_compute(unit, start, end))
            for op in unit:
                fed = self._wiring.feeds(op)
                if fed is not None:
                    steps.append(_message("SEND", op, self._wiring.channel_ids[fed[0]]))
            for op in unit:
                steps += copies.behind.get(op, ())
            for op in unit:
                if op.kind in (OpKind.W, OpKind.B):
                    unreduced[op.stage] -= 1
                    if unreduced[op.stage] == 0 and op.stage in self._reduce_runs:
                        complete.append(op.stage)
            for stage in self._due(device, complete, len(reduces)):
                reduces.append(self._collective(self._reduce_runs[stage]))
                steps.append(reduces[-1])
        steps += map(_wait, reduces)
        steps.append(_step(self._timeline))
        return RankProgram(rank=device, device=self._problem.devices[device].name, ops=tuple(steps))

    def _posted(self, device: int) -> dict[int, list[Instruction]]:
        """Return the receives to post before each unit of the device's order."""
        starts, ends = zip(*self._times[device], strict=True) if self._times[device] else ((), ())
        posted: dict[int, list[Instruction]] = defaultdict(list)
        reader = {
            consumed(op): position
            for position, unit in enumerate(self._units[device])
            for op in unit
            if op.kind is not OpKind.W
        }
        for key, channel in self._wiring.channel_ids.items():
            if key.target != device:
                continue
            messages = self._sent(key)
            receives = [
                Receive(run, reader[message], self._wiring.post_by_ns(key, run, self._lead))
                for message in messages
                for run in [self._runs[message]]
            ]
            places = posting_positions(receives, starts, ends, self._problem.receive_window)
            for place, message in zip(places, messages, strict=True):
                posted[place].append(
                    Instruction(op="RECV", stage=message.stage, mb=message.microbatch, channel=channel)
                )
        return posted

    def _sent(self, key: ChannelKey) -> list[Message]:
        """Return the messages of a channel in its sender's order."""
        fed = map(self._wiring.feeds, chain.from_iterable(self._units[key.source]))
        return [found[1] for found in fed if found is not None and found[0] == key]

    def _gathers(self, device: int) -> list[Instruction]:
        """Return the all-gathers of a device, in the order of its stages' first F."""
        stages = dict.fromkeys(op.stage for unit in self._units[device] for op in unit if op.kind is OpKind.F)
        return [self._collective(self._gather_runs[stage]) for stage in stages if stage in self._gather_runs]

    def _collective(self, run: CollectiveRun) -> Instruction:
        group = self._wiring.group_of[run.stage].id
        return Instruction(op=run.kind, stage=run.stage, group=group, start_ns=run.start_ns, end_ns=run.end_ns)

    def _due(self, device: int, complete: list[int], num_posted: int) -> list[int]:
        """Take from `complete` the stages whose reductions are to be posted now.

        Those of copies stand in the order in which they run, on every rank the same: a rank whose own gradients are
        complete earlier posts later, but no later than the reduction can start, since an earlier one holds its link.
        """
        if len(self._problem.flows) == 1 or not complete:
            due = complete.copy()
        else:
            turns = [run.stage for run in self._timeline.collectives if run.device == device]
            due = []
            for stage in turns[num_posted:]:
                if stage not in complete:
                    break
                due.append(stage)
        complete[:] = [stage for stage in complete if stage not in due]
        return due


def _compute(unit: Sequence[Op], start: int, end: int) -> Instruction:
    """Return the instruction of one op, or of the two of a fused pair."""
    kind, stage, mb = unit[0]
    if len(unit) == 1:
        return Instruction(op=kind.name, stage=stage, mb=mb, start_ns=start, end_ns=end)  # type: ignore[arg-type]
    return Instruction(
        op="FB",
        stage=stage,
        mb=mb,
        backward_stage=unit[1].stage,
        backward_mb=unit[1].microbatch,
        start_ns=start,
        end_ns=end,
    )


def _message(name: Literal["SEND", "WAIT"], op: Op, channel: int) -> Instruction:
    return Instruction(op=name, stage=op.stage, mb=op.microbatch, channel=channel)


def _wait(collective: Instruction) -> Instruction:
    return Instruction(op="WAIT", stage=collective.stage, group=collective.group)


def _step(timeline: Timeline) -> Instruction:
    """Return the end of the iteration; it has times only where it takes some."""
    if not timeline.step_ns:
        return Instruction(op="STEP")
    return Instruction(op="STEP", start_ns=timeline.work_ends_ns, end_ns=timeline.makespan_ns)


def receive_windows(ops: Iterable[Instruction]) -> dict[int, int]:
    """Return, for each channel of a program, the most receives posted and not yet consumed at once."""
    windows: dict[int, int] = {}
    open_receives: Counter[int] = Counter()
    reading: dict[tuple[int | None, int | None], int] = {}
    for step in ops:
        if step.channel is not None and step.op == "RECV":
            open_receives[step.channel] += 1
            windows[step.channel] = max(windows.get(step.channel, 0), open_receives[step.channel])
        elif step.channel is not None and step.op == "WAIT":
            reading[step.stage, step.mb] = step.channel
        elif step.op in _COMPUTE:  # the op directly behind the WAIT reads it
            for reader in ((step.stage, step.mb), (step.backward_stage, step.backward_mb)):
                channel = reading.pop(reader, None)
                if channel is not None:
                    open_receives[channel] -= 1
    return windows


def _summary(problem: Problem) -> ProblemSummary:
    return ProblemSummary(
        digest=problem_digest(problem),
        name=problem.name,
        devices=problem.num_devices,
        stages=problem.num_stages,
        microbatches=problem.microbatches,
        placement=problem.placement,
        flows=len(problem.flows),
        recompute=problem.recompute,
    )
