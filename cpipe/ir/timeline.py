"""A timeline: when everything happens, derived from a schedule by the simulator."""

from __future__ import annotations

from typing import Literal

from cpipe.ir.base import Frozen, InvariantError
from cpipe.ir.schedule import Schedule

__all__ = ["CollectiveRun", "CopyRun", "MessageRun", "Timeline"]


class MessageRun(Frozen, frozen=True, kw_only=True):
    """One message: `kind` made by `stage` for `microbatch`, from device `source` to `target`; times [ns].

    It is ready when its producer ends, holds its pipe from `start_ns` to `end_ns` and arrives at `arrival_ns`.
    """

    kind: Literal["activation", "gradient"]
    stage: int
    microbatch: int
    source: int
    target: int
    pipe: int
    ready_ns: int
    start_ns: int
    end_ns: int
    arrival_ns: int


class CollectiveRun(Frozen, frozen=True, kw_only=True):
    """One data-parallel collective of `stage`, beside the compute of its device; times [ns]."""

    kind: Literal["ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE"]
    stage: int
    device: int
    start_ns: int
    end_ns: int


class CopyRun(Frozen, frozen=True, kw_only=True):
    """One copy of the activation of `stage` for `microbatch` to or from host memory, beside compute; times [ns]."""

    kind: Literal["OFFLOAD", "RELOAD"]
    stage: int
    microbatch: int
    device: int
    start_ns: int
    end_ns: int


class Timeline(Frozen, frozen=True, kw_only=True):
    """Start and end of every op, message and collective.

    Attributes
    ----------
    starts, ends
        Shape like `Schedule.orders`: times of each device's ops in its order [ns]; both of a fused pair have the
        pair's.
    messages
        Sorted by (kind, stage, microbatch).
    collectives
        Sorted by (device, start), in the order in which each device's link served them.
    copies
        To and from host memory; sorted by (device, kind, start, end).
    makespan_ns
        The last completion on any device, collectives included, and the step behind it.
    step_ns
        How long the end-of-step barrier takes [ns], which begins when the last device has finished.
    """

    starts: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]
    messages: tuple[MessageRun, ...] = ()
    collectives: tuple[CollectiveRun, ...] = ()
    copies: tuple[CopyRun, ...] = ()
    makespan_ns: int
    step_ns: int = 0

    @property
    def work_ends_ns(self) -> int:
        """When the last op or collective ends [ns] and the step begins."""
        return self.makespan_ns - self.step_ns

    @property
    def span_ns(self) -> int:
        """The longest span of a device [ns]: from its first start to its last end, collectives included, no step."""
        first = [starts[0] if starts else None for starts in self.starts]
        last = [ends[-1] if ends else 0 for ends in self.ends]
        for run in self.collectives:
            before = first[run.device]
            first[run.device] = run.start_ns if before is None else min(before, run.start_ns)
            last[run.device] = max(last[run.device], run.end_ns)
        return max((end - start for start, end in zip(first, last, strict=True) if start is not None), default=0)

    def verify(self, schedule: Schedule) -> None:
        """Check that times have the schedule's shape, never overlap on a device and end at the makespan.

        Raises
        ------
        InvariantError
            Naming the first device whose times are wrong.
        """
        last = 0
        fused = {second for _, second in schedule.pairs}
        for device, order in enumerate(schedule.orders):
            starts, ends = self.starts[device], self.ends[device]
            if not len(order) == len(starts) == len(ends):
                raise InvariantError(f"device {device}: {len(starts)} times for {len(order)} ops")
            clock, before = 0, (0, 0)
            for op, start, end in zip(order, starts, ends, strict=True):
                if op in fused and (start, end) != before:
                    raise InvariantError(f"device {device}: a fused pair is torn apart at {start} ns")
                if not (op in fused or clock <= start) or start > end:
                    raise InvariantError(f"device {device}: ops overlap at {start} ns")
                clock, before = end, (start, end)
            last = max(last, clock)
        last = max([last, *(run.end_ns for run in self.collectives)])
        if last != self.work_ends_ns:
            behind = f" less a step of {self.step_ns} ns" if self.step_ns else ""
            raise InvariantError(f"makespan is {self.makespan_ns} ns{behind} but the last op ends at {last} ns")
