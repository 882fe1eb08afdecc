"""A replayed schedule in the model's terms: the value of every variable for the start that is given as a hint."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.ir import Schedule, Timeline
from cpipe.solve.milp.network import Network
from cpipe.solve.milp.orders import replayed

__all__ = ["Replay"]


class Replay:
    """Times of the tasks of a network in the simulator's replay of a schedule.

    Parameters
    ----------
    network
        The network.
    schedule
        An order without any B that the model would not choose (see `cpipe.solve.milp.network.split_dominated`).
    timeline
        Its replay.
    ticks
        Ticks a unit of each device's own clock; see `cpipe.solve.cpsat.model`.

    Attributes
    ----------
    starts, ends
        Per task [units]. An absent W stands with the W before it, without length.
    spans
        Per task: start and end on its device's own clock.
    position
        Per task: place in its device's order, or its producer's.
    merged
        The D tasks that run as B.
    makespan, span
        [units].
    """

    def __init__(self, network: Network, schedule: Schedule, timeline: Timeline, ticks: Sequence[int]) -> None:
        self.network = network
        starts, self.position, self.merged = replayed(network, schedule, timeline)
        self.starts = [start // network.unit_ns for start in starts]
        self.ends = [start + self._duration(task) for task, start in enumerate(self.starts)]
        self.spans = list(zip(self.starts, self.ends, strict=True))
        self.makespan, self.span = timeline.makespan_ns // network.unit_ns, timeline.span_ns // network.unit_ns
        self._refine(ticks)
        self._stand_in()

    def runs(self, task: int) -> bool:
        """Return whether the task runs: whether it is no W of a merged backward."""
        kind, stage, microbatch, _, _ = self.network.tasks[task]
        return kind != "W" or self.network.compute["D", stage, microbatch] not in self.merged

    def served(self, first: int, second: int) -> bool:
        """Return whether a message or collective leaves before another; at one moment, what takes no time first."""
        ranks = [(self.starts[task], self._duration(task), self.position[task]) for task in (first, second)]
        return ranks[0] < ranks[1]

    def _duration(self, task: int) -> int:
        kind, stage, microbatch, duration, _ = self.network.tasks[task]
        if kind not in ("D", "W"):
            return duration
        backward = self.network.compute["D", stage, microbatch]
        merge = self.network.merges.get(backward)
        if merge is None:
            return duration
        if kind == "W":
            return 0 if backward in self.merged else merge.weight_grad
        return merge.full if backward in self.merged else merge.input_grad

    def _refine(self, ticks: Sequence[int]) -> None:
        """Give what takes no time a tick of its moment, in the device's order."""
        devices: list[list[int]] = [[] for _ in ticks]
        for task in self.network.compute.values():
            devices[self.network.device(task)].append(task)
        for scale, tasks in zip(ticks, devices, strict=True):
            if scale == 1:
                continue
            moment, used = -1, 0
            for task in sorted(filter(self.runs, tasks), key=self.position.__getitem__):
                if self.starts[task] != moment:
                    moment, used = self.starts[task], 0
                start = moment * scale + used
                momentary = self.ends[task] == moment
                self.spans[task] = start, start + 1 if momentary else self.ends[task] * scale
                used += momentary

    def _stand_in(self) -> None:
        """Put absent W with the W before them: the row of a stage's W never goes back in time."""
        for (kind, stage, microbatch), task in self.network.compute.items():
            if kind == "W" and not self.runs(task):
                before = self.network.compute.get(("W", stage, microbatch - 1))
                start = 0 if before is None else self.starts[before]
                at = 0 if before is None else self.spans[before][0]
                self.starts[task], self.ends[task] = start, start
                self.spans[task] = at, at
