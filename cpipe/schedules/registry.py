"""The static schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cpipe.ir import Problem, Schedule
from cpipe.schedules.gpipe import gpipe
from cpipe.schedules.one_f_one_b import one_f_one_b, one_f_one_b_split
from cpipe.schedules.zb_h1 import zb_h1

__all__ = ["SCHEDULES", "StaticSchedule", "static_schedule"]


class StaticSchedule(NamedTuple):
    """A generator and whether it needs stages whose backward can be split."""

    generate: Callable[[int, int, Sequence[int]], Schedule]
    splits: bool


SCHEDULES: dict[str, StaticSchedule] = {
    "gpipe": StaticSchedule(gpipe, False),
    "1f1b": StaticSchedule(one_f_one_b, False),
    "1f1b-split": StaticSchedule(one_f_one_b_split, True),
    "zb-h1": StaticSchedule(zb_h1, True),
}


def static_schedule(name: str, problem: Problem) -> Schedule:
    """Return the static schedule `name` for `problem`.

    Raises
    ------
    ValueError
        When the schedule does not exist for this problem: a stage that cannot be split, or several stages on
        a device. The message is a clause that says why.
    """
    schedule = SCHEDULES[name]
    if schedule.splits:
        fused = [stage.name for stage in problem.stages if not stage.can_split]
        if fused:
            raise ValueError(f"needs input_grad_ms and weight_grad_ms, stage {fused[0]!r} has only full_backward_ms")
    orders = schedule.generate(problem.num_stages, problem.microbatches, problem.placement).orders
    idle = problem.num_devices - len(orders)  # devices that hold no stage
    return Schedule(orders=orders + ((),) * idle)
