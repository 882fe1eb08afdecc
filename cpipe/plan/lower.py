"""Schedule + timeline -> plan: channels, groups and the host program of every rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec.structs import replace

from cpipe.ir import (
    Bound,
    Claims,
    Instruction,
    MadeBy,
    OpKind,
    Plan,
    Problem,
    ProblemSummary,
    RankProgram,
    Schedule,
    Timeline,
)
from cpipe.plan.digest import plan_digest, problem_digest
from cpipe.plan.posting import Receive, posting_positions
from cpipe.plan.wiring import ChannelKey, Message, Wiring, consumed

__all__ = ["lower"]

_COMPUTE = frozenset(kind.name for kind in OpKind)


def lower(
    problem: Problem,
    schedule: Schedule,
    timeline: Timeline,
    *,
    bound: Bound,
    resident_peaks: Sequence[int],
    made_by: MadeBy,
    lead: bool = True,
) -> Plan:
    """Write the program of every rank.

    Parameters
    ----------
    problem
        What the schedule solves; a `receive_window` is kept.
    schedule, timeline
        The orders, and their replay under `problem`.
    bound
        Proven lower bound on the makespan.
    resident_peaks
        Length P: peak memory of each device without receive buffers [bytes].
    made_by
        How the schedule was found.
    lead
        Post each receive one latency before its message is expected to leave, so that the receiver's ready note has
        arrived by then (gloo and NCCL are rendezvous protocols). False posts it only as that message leaves, which
        needs fewer buffers.

    Returns
    -------
    Plan
        With every receive posted before its message is expected to leave: replaying it gives `timeline` again.
    """
    wiring = Wiring(problem)
    lowering = _Lowering(problem, schedule, timeline, wiring, lead)
    ranks = tuple(lowering.program(device) for device in range(problem.num_devices))
    windows = {channel: window for program in ranks for channel, window in _windows(program.ops).items()}
    channels = wiring.declared(windows)
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
        ),
        channels=channels,
        groups=tuple(wiring.groups.values()),
        ranks=ranks,
    )
    return replace(plan, digest=plan_digest(plan))


class _Lowering:
    """Look-ups for one call of `lower`."""

    def __init__(self, problem: Problem, schedule: Schedule, timeline: Timeline, wiring: Wiring, lead: bool) -> None:
        self._problem = problem
        self._timeline = timeline
        self._wiring = wiring
        self._lead = lead
        self._orders = schedule.decoded(problem.microbatches)
        self._gather_runs = {run.stage: run for run in timeline.collectives if run.kind == "ALL_GATHER"}
        self._reduce_runs = {run.stage: run for run in timeline.collectives if run.kind != "ALL_GATHER"}
        self._runs = {
            Message(run.kind, run.stage + (1 if run.kind == "activation" else -1), run.microbatch): run
            for run in timeline.messages
        }

    def program(self, device: int) -> RankProgram:
        """Return the program of one rank: receives and WAITs before each op, sends and reductions after it."""
        order = self._orders[device]
        posted = self._posted(device)
        steps = self._gathers(device)
        gathers = {step.stage: step for step in steps}
        reduces: list[Instruction] = []
        unreduced = Counter(op.stage for op in order if op.kind in (OpKind.W, OpKind.B))
        times = zip(self._timeline.starts[device], self._timeline.ends[device], strict=True)
        for position, (op, (start, end)) in enumerate(zip(order, times, strict=True)):
            stage, mb = op.stage, op.microbatch
            steps += posted.get(position, ())
            if op.kind is OpKind.F and stage in gathers:
                steps.append(_wait(gathers.pop(stage)))
            read = self._wiring.reads(op)
            if read is not None:
                steps.append(Instruction(op="WAIT", stage=stage, mb=mb, channel=self._wiring.channel_ids[read]))
            steps.append(Instruction(op=op.kind.name, stage=stage, mb=mb, start_ns=start, end_ns=end))  # type: ignore[arg-type]
            fed = self._wiring.feeds(op)
            if fed is not None:
                steps.append(Instruction(op="SEND", stage=stage, mb=mb, channel=self._wiring.channel_ids[fed[0]]))
            if op.kind in (OpKind.W, OpKind.B):
                unreduced[stage] -= 1
                if unreduced[stage] == 0 and stage in self._reduce_runs:
                    reduces.append(self._reduce(device, stage))
                    steps.append(reduces[-1])
        steps += map(_wait, reduces)
        steps.append(Instruction(op="STEP"))
        return RankProgram(rank=device, device=self._problem.devices[device].name, ops=tuple(steps))

    def _posted(self, device: int) -> dict[int, list[Instruction]]:
        """Return the receives to post before each position of the device's order."""
        starts, ends = self._timeline.starts[device], self._timeline.ends[device]
        posted: dict[int, list[Instruction]] = defaultdict(list)
        reader = {consumed(op): position for position, op in enumerate(self._orders[device]) if op.kind is not OpKind.W}
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
        fed = map(self._wiring.feeds, self._orders[key.source])
        return [found[1] for found in fed if found is not None and found[0] == key]

    def _gathers(self, device: int) -> list[Instruction]:
        """Return the all-gathers of a device, in the order of its stages' first F."""
        stages = dict.fromkeys(op.stage for op in self._orders[device] if op.kind is OpKind.F)
        runs = [self._gather_runs[stage] for stage in stages if stage in self._gather_runs]
        return [self._collective(device, run.kind, run.stage, run.start_ns, run.end_ns) for run in runs]

    def _reduce(self, device: int, stage: int) -> Instruction:
        run = self._reduce_runs[stage]
        return self._collective(device, run.kind, stage, run.start_ns, run.end_ns)

    def _collective(
        self,
        device: int,
        kind: Literal["ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE"],
        stage: int,
        start: int,
        end: int,
    ) -> Instruction:
        return Instruction(op=kind, stage=stage, group=self._wiring.groups[device].id, start_ns=start, end_ns=end)


def _wait(collective: Instruction) -> Instruction:
    return Instruction(op="WAIT", stage=collective.stage, group=collective.group)


def _windows(ops: Iterable[Instruction]) -> dict[int, int]:
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
            channel = reading.pop((step.stage, step.mb), None)
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
    )
