"""Tests of cpipe.analysis.stated: a plan's own times as a replay."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from helpers import plan_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle.cases import case
from random_plans import draw_problem, draw_schedule

from cpipe.analysis import explain_stated
from cpipe.analysis.stated import stated_replay
from cpipe.ir import InvariantError, Problem, Schedule
from cpipe.sim import DeadlockError, simulate


def stated(problem: Problem, text: str) -> list[str]:
    """Return the path that a plan tells by itself."""
    plan = plan_of(problem, Schedule.from_text(text, problem.microbatches))
    return [f"{p.kind} {p.label} {p.start_ns}-{p.end_ns} {p.follows}" for p in explain_stated(plan).path]


def test_messages_are_one_piece() -> None:
    """Without costs of links a message is one piece from its producer to its reader, whatever it is made of."""
    problem = case(1, [0, 1], latency=3, occupancy=2)
    assert stated(problem, "0F0 0D0 0W0\n1F0 1D0 1W0") == [
        "compute 0F0 0-1 start",
        "transfer 0F0 1-6 input",
        "compute 1F0 6-7 input",
        "compute 1D0 7-8 order",
        "transfer 1D0 8-13 input",
        "compute 0D0 13-14 input",
        "compute 0W0 14-15 order",
    ]


def test_collectives_are_told() -> None:
    """Collectives are in the plan, so that they are on the path without a profile, too."""
    problem = case(1, [0], gather=4, reduce=7)
    assert stated(problem, "0F0 0D0 0W0") == [
        "collective ALL_GATHER of stage 0 0-4 start",
        "compute 0F0 4-5 gather",
        "compute 0D0 5-6 order",
        "compute 0W0 6-7 order",
        "collective REDUCE_SCATTER of stage 0 7-14 input",
    ]


def test_pipes_are_pairs_of_devices() -> None:
    """A plan knows no links, only who talks to whom."""
    problem = case(2, [0, 1, 0])
    plan = plan_of(
        problem, Schedule.from_text("0F0 0F1 2F0 2D0 2W0 2F1 2D1 2W1 0D0 0W0 0D1 0W1\n1F0 1F1 1D0 1W0 1D1 1W1", 2)
    )
    names = [program.device for program in plan.ranks]
    shape, schedule, timeline = stated_replay(plan)
    assert shape.pipes == (f"{names[0]}->{names[1]}", f"{names[1]}->{names[0]}")
    assert (shape.placement, shape.microbatches) == ((0, 1, 0), 2)
    timeline.verify(schedule)


def test_ops_without_times() -> None:
    """An op without times leaves nothing to explain, and says which."""
    problem = case(1, [0])
    plan = plan_of(problem, Schedule.from_text("0F0 0D0 0W0", 1))
    ops = list(plan.ranks[0].ops)
    ops[0] = replace(ops[0], start_ns=None)
    broken = replace(plan, ranks=(replace(plan.ranks[0], ops=tuple(ops)),))
    with pytest.raises(InvariantError, match=r"rank 0 ops\[0\]: F without times"):
        stated_replay(broken)


@given(st.integers(0, 10**9))
def test_stated_path_and_idle_fill_the_makespan(seed: int) -> None:
    """The path that a plan tells by itself reaches from 0 to its makespan, and idle and busy fill every device."""
    draw = Random(seed)
    problem = draw_problem(draw)
    schedule = draw_schedule(draw, problem)
    try:
        timeline = simulate(problem, schedule)
        plan = plan_of(problem, schedule)
    except DeadlockError:
        return
    explanation = explain_stated(plan)
    assert explanation.makespan_ns == timeline.makespan_ns == plan.claims.makespan_ns
    assert sum(piece.length_ns for piece in explanation.path) == timeline.makespan_ns
    assert all(first.end_ns == second.start_ns for first, second in pairwise(explanation.path))
    for device in range(problem.num_devices):
        busy = sum(timeline.ends[device]) - sum(timeline.starts[device])
        idle = sum(part.length_ns for part in explanation.idle if part.device == device)
        assert busy + idle == timeline.makespan_ns
    assert "memory" not in {part.cause for part in explanation.idle}
    assert not {"bandwidth", "latency"} & {piece.kind for piece in explanation.path}
