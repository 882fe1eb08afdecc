"""A timeline: when everything happens, derived from a schedule by the simulator."""

from __future__ import annotations

from typing import Literal

from cpipe.ir.base import Frozen, InvariantError
from cpipe.ir.schedule import Schedule

__all__ = ["CollectiveRun", "MessageRun", "Timeline"]


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


class Timeline(Frozen, frozen=True, kw_only=True):
    """Start and end of every op, message and collective.

    Attributes
    ----------
    starts, ends
        Shape like `Schedule.orders`: times of each device's ops in its order [ns].
    messages
        Sorted by (kind, stage, microbatch).
    collectives
        Sorted by (device, start).
    makespan_ns
        The last completion on any device, collectives included.
    """

    starts: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]
    messages: tuple[MessageRun, ...] = ()
    collectives: tuple[CollectiveRun, ...] = ()
    makespan_ns: int

    def verify(self, schedule: Schedule) -> None:
        """Check that times have the schedule's shape, never overlap on a device and end at the makespan.

        Raises
        ------
        InvariantError
            Naming the first device whose times are wrong.
        """
        last = 0
        for device, order in enumerate(schedule.orders):
            starts, ends = self.starts[device], self.ends[device]
            if not len(order) == len(starts) == len(ends):
                raise InvariantError(f"device {device}: {len(starts)} times for {len(order)} ops")
            clock = 0
            for start, end in zip(starts, ends, strict=True):
                if not clock <= start <= end:
                    raise InvariantError(f"device {device}: ops overlap at {start} ns")
                clock = end
            last = max(last, clock)
        last = max([last, *(run.end_ns for run in self.collectives)])
        if last != self.makespan_ns:
            raise InvariantError(f"makespan is {self.makespan_ns} ns but the last op ends at {last} ns")
