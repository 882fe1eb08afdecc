"""What the plan predicts against what a step measured, per rank and per channel.

A channel's predicted wait is read off the plan: the idle time in front of each op that one of its messages feeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpipe.ir import Instruction, Plan, RankProgram
from cpipe.runtime.records import OpRecord

__all__ = ["ChannelComparison", "DeviceComparison", "compare_channels", "compare_devices", "step_seconds"]

_COMPUTE = frozenset((*"FDWB", "FB"))


@dataclass(frozen=True, kw_only=True)
class DeviceComparison:
    """One rank over one step.

    Attributes
    ----------
    id
        The device's name in the plan.
    num_ops
        Compute ops that it ran.
    order_kept
        Whether they are those of the plan, in its order.
    predicted_busy_ms, measured_busy_ms
        Time in compute ops [ms].
    predicted_idle_ms, measured_idle_ms
        Time before its last op ended in which it ran none [ms].
    """

    id: str
    num_ops: int
    order_kept: bool
    predicted_busy_ms: float
    measured_busy_ms: float
    predicted_idle_ms: float
    measured_idle_ms: float


@dataclass(frozen=True, kw_only=True)
class ChannelComparison:
    """One channel over one step.

    Attributes
    ----------
    id, source, target, carries
        As in the plan.
    num_messages
        Messages that the receiver waited for.
    predicted_wait_ms, measured_wait_ms
        Time that compute on the receiver stood still for them, in sum [ms].
    """

    id: int
    source: int
    target: int
    carries: str
    num_messages: int
    predicted_wait_ms: float
    measured_wait_ms: float


Records = Mapping[int, Sequence[OpRecord]]
"""By rank; times [s] from the common start of the step."""


def step_seconds(records: Records) -> float:
    """Return the measured makespan [s]: the end of the last compute op or collective on any rank."""
    ends = [record.end_s for rank in records.values() for record in rank if _counts(record)]
    return max(ends, default=0.0)


def compare_devices(plan: Plan, records: Records, time_scale: float = 1.0) -> tuple[DeviceComparison, ...]:
    """Compare each rank's compute; the plan's times are multiplied by `time_scale`."""
    return tuple(_device(program, records.get(program.rank, ()), time_scale) for program in plan.ranks)


def compare_channels(plan: Plan, records: Records, time_scale: float = 1.0) -> tuple[ChannelComparison, ...]:
    """Compare what compute waits for each channel; the plan's times are multiplied by `time_scale`."""
    predicted: defaultdict[int, float] = defaultdict(float)
    for program in plan.ranks:
        for channel, wait_ns in _waits(program.ops):
            predicted[channel] += wait_ns * time_scale / 1e6
    measured: defaultdict[int, list[float]] = defaultdict(list)
    for rank in records.values():
        for record in rank:
            if record.op == "WAIT" and record.channel is not None:
                measured[record.channel].append(record.wait_s * 1e3)
    return tuple(
        ChannelComparison(
            id=channel.id,
            source=channel.source,
            target=channel.target,
            carries=channel.carries,
            num_messages=len(measured[channel.id]),
            predicted_wait_ms=predicted[channel.id],
            measured_wait_ms=sum(measured[channel.id]),
        )
        for channel in plan.channels
    )


def _device(program: RankProgram, records: Sequence[OpRecord], time_scale: float) -> DeviceComparison:
    planned = [op for op in program.ops if op.op in _COMPUTE]
    ran = [record for record in records if record.op in _COMPUTE]
    busy_ns = sum((op.end_ns or 0) - (op.start_ns or 0) for op in planned)
    end_ns = max((op.end_ns or 0 for op in planned), default=0)
    busy_s = sum(record.end_s - record.start_s for record in ran)
    end_s = max((record.end_s for record in ran), default=0.0)
    return DeviceComparison(
        id=program.device,
        num_ops=len(ran),
        order_kept=[(op.op, op.stage, op.mb) for op in planned] == [(item.op, item.stage, item.mb) for item in ran],
        predicted_busy_ms=busy_ns * time_scale / 1e6,
        measured_busy_ms=busy_s * 1e3,
        predicted_idle_ms=(end_ns - busy_ns) * time_scale / 1e6,
        measured_idle_ms=(end_s - busy_s) * 1e3,
    )


def _waits(ops: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Return (channel, idle time [ns]) of each op that a message feeds, as the plan has it."""
    waits: list[tuple[int, int]] = []
    free_ns = 0
    awaited: list[int] = []
    for op in ops:
        if op.op == "WAIT" and op.channel is not None:
            awaited.append(op.channel)
        elif op.op in _COMPUTE:
            waits += [(channel, (op.start_ns or 0) - free_ns) for channel in awaited]
            free_ns = op.end_ns or 0
            awaited.clear()
    return waits


def _counts(record: OpRecord) -> bool:
    return record.op in _COMPUTE or record.op in ("ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE")
