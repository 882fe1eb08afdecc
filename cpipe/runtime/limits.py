"""What each instruction of a rank is called, and how long it may take: from the plan's expected times."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.ir import Instruction, Plan
from cpipe.runtime.monitor import Activity
from cpipe.runtime.watchdog import Watchdog

__all__ = ["Timetable"]

_NS_PER_S = 1e9
_COMPUTE = frozenset((*"FDWB", "FB"))


class Timetable:
    """Activities of a rank's program, by instruction.

    Parameters
    ----------
    pipeline, replicas
        Processes of the pipeline by rank, and of the data-parallel group but this one.

    Attributes
    ----------
    first
        Whether the first step runs, which has a floor of its own.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        watchdog: Watchdog,
        pipeline: Sequence[int],
        replicas: tuple[int, ...],
        *,
        host_runs_ahead: bool = False,
    ) -> None:
        self._watchdog = watchdog
        self._pipeline = pipeline
        self._replicas = replicas
        self._sources = {channel.id: channel for channel in plan.channels}
        self.first = True
        ops = next(program.ops for program in plan.ranks if program.rank == rank)
        sides = []
        for first in (True, False):
            floor = max(watchdog.first_step_s, watchdog.floor_s) if first else watchdog.floor_s
            sides.append(self._activities(ops, floor))
        self._first, self._later = sides
        targets = tuple(sorted({pipeline[channel.target] for channel in plan.channels if channel.source == rank}))
        ends = [step.end_ns for step in ops if step.end_ns is not None]
        # A host that runs ahead of its device is behind its program when the step has hardly begun.
        behind = 0 if host_runs_ahead else max(ends, default=0)
        expected = (plan.claims.makespan_ns - behind) / _NS_PER_S
        what = "its last messages to be taken"
        self._draining = [
            self._make("wait", what, expected, floor, awaits=targets)
            for floor in (max(watchdog.first_step_s, watchdog.floor_s), watchdog.floor_s)
        ]

    def activity(self, index: int) -> Activity:
        """Return what the rank does in instruction `index` of its program."""
        return (self._first if self.first else self._later)[index]

    @property
    def stepping(self) -> Activity:
        """Return what the rank does in the last instruction of its program, STEP."""
        return self.activity(-1)

    @property
    def draining(self) -> Activity:
        """What the rank does behind its program."""
        return self._draining[0 if self.first else 1]

    def _activities(self, ops: Sequence[Instruction], floor: float) -> list[Activity]:
        found = []
        previous_ns = 0
        for index, step in enumerate(ops):
            if step.op in _COMPUTE:
                end_ns = step.end_ns or 0
                expected = (end_ns - previous_ns) / _NS_PER_S
                what = f"{step.op} of stage {step.stage} microbatch {step.mb}"
                found.append(self._make("compute", what, expected, floor, step=step))
                previous_ns = end_ns
            elif step.op == "WAIT":
                start_ns = next((later.start_ns for later in ops[index:] if later.op in _COMPUTE), None)
                expected = ((start_ns or previous_ns) - previous_ns) / _NS_PER_S
                found.append(self._waiting(step, expected, floor))
            else:
                what = f"{step.op} of stage {step.stage}" if step.stage is not None else step.op
                found.append(self._make("compute", what, 0.0, floor, step=step))
        return found

    def _waiting(self, step: Instruction, expected: float, floor: float) -> Activity:
        if step.copy is not None:
            what = f"the {step.copy} of stage {step.stage} microbatch {step.mb}"
            return self._make("wait", what, expected, floor, step=step)
        if step.channel is None:
            what = f"the collective of stage {step.stage}"
            return self._make("wait", what, expected, floor, step=step, awaits=self._replicas)
        channel = self._sources[step.channel]
        what = f"the {channel.carries} of stage {step.stage} microbatch {step.mb} from rank {channel.source}"
        return self._make("wait", what, expected, floor, step=step, awaits=(self._pipeline[channel.source],))

    def _make(
        self,
        state: str,
        what: str,
        expected: float,
        floor: float,
        *,
        step: Instruction | None = None,
        awaits: tuple[int, ...] = (),
    ) -> Activity:
        return Activity(
            state=state,
            what=what,
            awaits=awaits,
            expected_s=expected,
            limit_s=max(floor, self._watchdog.factor * expected),
            stage=step.stage if step is not None else None,
            mb=step.mb if step is not None else None,
        )
