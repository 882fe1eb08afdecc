"""The static schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cpipe.ir import Problem, Schedule
from cpipe.schedules.chimera import chimera
from cpipe.schedules.dualpipe import dualpipe, dualpipe_v
from cpipe.schedules.gpipe import gpipe
from cpipe.schedules.hanayo import hanayo
from cpipe.schedules.interleaved import interleaved_1f1b, looped_bfs
from cpipe.schedules.interleaved_zb import interleaved_zb
from cpipe.schedules.one_f_one_b import one_f_one_b, one_f_one_b_split
from cpipe.schedules.zb_h1 import zb_h1
from cpipe.schedules.zb_h2 import zb_h2
from cpipe.schedules.zb_v import v_half, v_min, zb_v

__all__ = ["SCHEDULES", "StaticSchedule", "applicable", "static_schedule"]

_DEAR_OPS = 20_000  # ops up to which a search tries the dear schedules

Sizes = Callable[[int, int, Sequence[int]], Schedule]
Generator = Callable[[Problem, int | None], Schedule]


class StaticSchedule(NamedTuple):
    """A generator and what it asks of the problem.

    Attributes
    ----------
    generate
        Of the problem and the group size (None: the schedule's own).
    splits
        Whether it needs stages whose backward can be split.
    flows
        How many flows of microbatches it schedules.
    grouped
        Whether it takes a group size.
    dear
        Whether making it costs as much as timing several orders: a search leaves it out of large problems.
    """

    generate: Generator
    splits: bool
    flows: int = 1
    grouped: bool = False
    dear: bool = False


def _sized(generate: Sizes) -> Generator:
    """Return a generator of the sizes and the placement alone."""
    return lambda problem, _: generate(problem.num_stages, problem.microbatches, problem.placement)


def _timed(generate: Callable[[Problem], Schedule]) -> Generator:
    """Return a generator that looks at the times too."""
    return lambda problem, _: generate(problem)


def _grouped(generate: Callable[[int, int, Sequence[int], int | None], Schedule]) -> Generator:
    """Return a generator of the sizes, the placement and the group size."""
    return lambda problem, group_size: generate(problem.num_stages, problem.microbatches, problem.placement, group_size)


SCHEDULES: dict[str, StaticSchedule] = {
    "gpipe": StaticSchedule(_sized(gpipe), False),
    "1f1b": StaticSchedule(_sized(one_f_one_b), False),
    "1f1b-split": StaticSchedule(_sized(one_f_one_b_split), True),
    "zb-h1": StaticSchedule(_sized(zb_h1), True),
    "zb-h2": StaticSchedule(_timed(zb_h2), True),
    "interleaved-1f1b": StaticSchedule(_grouped(interleaved_1f1b), False, grouped=True),
    "interleaved-zb": StaticSchedule(_timed(interleaved_zb), True),
    "looped-bfs": StaticSchedule(_sized(looped_bfs), False),
    "zb-v": StaticSchedule(_timed(zb_v), True),
    "v-half": StaticSchedule(_timed(v_half), True),
    "v-min": StaticSchedule(_timed(v_min), True),
    "hanayo": StaticSchedule(_sized(hanayo), False, dear=True),
    "dualpipe-v": StaticSchedule(_sized(dualpipe_v), True),
    "chimera": StaticSchedule(_sized(chimera), False, flows=2, dear=True),
    "dualpipe": StaticSchedule(_sized(dualpipe), True, flows=2),
}


def static_schedule(name: str, problem: Problem, *, group_size: int | None = None) -> Schedule:
    """Return the static schedule `name` for `problem`.

    Parameters
    ----------
    name
        A key of `SCHEDULES`.
    problem
        Its sizes and placement; of some schedules also its times.
    group_size
        Consecutive microbatches through one stage of a device, for schedules in groups.

    Raises
    ------
    ValueError
        When the schedule does not exist for this problem: a stage that cannot be split, a placement of another shape,
        too few microbatches, a group size out of range. The message is a clause that says why.
    """
    schedule = SCHEDULES[name]
    if group_size is not None and not schedule.grouped:
        grouped = " and ".join(other for other, entry in SCHEDULES.items() if entry.grouped)
        raise ValueError(f"has no groups: a group size is for {grouped}")
    if len(problem.flows) != schedule.flows:
        wanted = "one flow of microbatches" if schedule.flows == 1 else "two flows in opposite directions"
        raise ValueError(f"needs {wanted}, got {len(problem.flows)}")
    if schedule.splits:
        fused = [stage.name for stage in problem.stages if not stage.can_split]
        if fused:
            raise ValueError(f"needs input_grad_ms and weight_grad_ms, stage {fused[0]!r} has only full_backward_ms")
    made = schedule.generate(problem, group_size)
    idle = problem.num_devices - len(made.orders)  # devices that hold no stage
    return Schedule(orders=made.orders + ((),) * idle, pairs=made.pairs)


def applicable(problem: Problem) -> Iterator[tuple[str, Schedule]]:
    """Yield the name and order of every static schedule that exists for `problem`, made as it is asked for.

    Of large problems the schedules that are dear to make are left out.
    """
    large = 3 * problem.num_stages * problem.microbatches > _DEAR_OPS
    for name, entry in SCHEDULES.items():
        if entry.dear and large:
            continue
        try:
            schedule = static_schedule(name, problem)
        except ValueError:
            continue
        yield name, schedule
