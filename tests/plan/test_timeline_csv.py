"""Tests of cpipe.plan.exchange.timeline_csv: the table read back by the csv module holds the plan and its replay."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from sample_plans import make_problem, one_f_one_b
from shapes import shape
from torch_tables import as_profile, job_document

from cpipe.compiler import SolveOptions, compile_profile, problem_for_plan, simulate_plan
from cpipe.ir import Collectives, Plan, Problem, Schedule
from cpipe.plan.exchange import TIMELINE_COLUMNS, timeline_csv
from cpipe.schedules import static_schedule

Row = dict[str, str]


def read(text: str) -> list[Row]:
    """Return the rows of a table."""
    table = csv.DictReader(io.StringIO(text), strict=True)
    rows = list(table)
    assert tuple(table.fieldnames or ()) == TIMELINE_COLUMNS
    return rows


def number(text: str) -> int | None:
    """Return the number in a cell, None when it is empty."""
    return int(text) if text else None


def planned(problem: Problem, schedule: Schedule) -> Plan:
    """Return the plan of a schedule, checked."""
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    return plan


def check_ops(rows: list[Row], plan: Plan) -> None:
    """Check that ops and collectives are the plan's, in its order and with its times."""
    for program in plan.ranks:
        mine = [row for row in rows if row["rank"] == str(program.rank) and row["op"].isupper()]
        timed = sorted((step for step in program.ops if step.start_ns is not None), key=lambda step: step.start_ns or 0)
        for row, step in zip(mine, timed, strict=True):
            assert (row["op"], row["device"]) == (step.op, program.device)
            for name in ("stage", "mb", "backward_stage", "backward_mb", "group", "start_ns", "end_ns"):
                assert number(row[name]) == getattr(step, name)
            assert float(row["start_ms"]) * 1e6 == pytest.approx(step.start_ns)
            assert row["ready_ns"] == row["arrival_ns"] == row["target"] == ""


@pytest.mark.parametrize("seed", range(20))
def test_round_trip(seed: int) -> None:
    """Every op, message and collective is one row; on a profile a message has its window and its arrival too."""
    draw = Random(seed)
    num_ranks = draw.randint(1, 4)
    dp = {"data_parallel": {"mode": draw.choice(("ddp", "zero1")), "replicas": 2, "bandwidth_gbit_s": 1}}
    job = job_document(num_ranks, 2 * num_ranks, draw.randint(1, 5), **draw.choice(({}, dp)))
    job["links"] = [
        {"from": f"g{a}", "to": f"g{b}", "latency_ms": draw.choice((0, 3)), "beta_ns_per_byte": 50000}
        for a in range(num_ranks)
        for b in range(num_ranks)
        if a != b
    ]
    compiled = compile_profile(as_profile(job), SolveOptions(method="greedy"))
    plan = compiled.plan
    assert_plan_ok(plan, compiled.problem)
    timeline = simulate_plan(plan, compiled.problem)
    rows = read(timeline_csv(plan, (compiled.problem, timeline)))
    check_ops(rows, plan)
    messages = {
        (row["op"], int(row["stage"]), int(row["mb"])): row for row in rows if row["op"] in ("activation", "gradient")
    }
    assert len(messages) == len(timeline.messages)
    for run in timeline.messages:
        row = messages[run.kind, run.stage, run.microbatch]
        assert (row["rank"], row["target"], row["bytes"]) == (str(run.source), str(run.target), "10")
        times = [number(row[name]) for name in ("ready_ns", "start_ns", "end_ns", "arrival_ns")]
        assert times == [run.ready_ns, run.start_ns, run.end_ns, run.arrival_ns]
        channel = plan.channels[int(row["channel"])]
        assert (channel.source, channel.target, channel.carries) == (run.source, run.target, run.kind)
    assert len(rows) == len(messages) + sum(step.start_ns is not None for rank in plan.ranks for step in rank.ops)


def test_a_plan_alone_knows_when_messages_are_ready() -> None:
    """Without a profile a message has no window, no bytes and no arrival, but the end of what made it."""
    plan = planned(make_problem(2, 2, latency_ms=3), one_f_one_b(make_problem(2, 2)))
    rows = read(timeline_csv(plan))
    check_ops(rows, plan)
    ends = {(row["op"], row["stage"], row["mb"]): row["end_ns"] for row in rows}
    messages = [row for row in rows if row["target"]]
    assert Counter(row["op"] for row in messages) == {"activation": 2, "gradient": 2}
    for row in messages:
        assert row["ready_ns"] == ends["F" if row["op"] == "activation" else "B", row["stage"], row["mb"]]
        assert {row[name] for name in ("bytes", "start_ns", "end_ns", "arrival_ns", "start_ms", "end_ms")} == {""}


def test_another_profile_gives_other_times() -> None:
    """On a slower profile all times are those of the replay there, not the plan's."""
    fast, slow = (
        as_profile(job_document(2, 2, 3, links=[{"between": ["g0", "g1"], "latency_ms": ms}])) for ms in (0, 9)
    )
    compiled = compile_profile(fast, SolveOptions(method="1f1b"))
    assert_plan_ok(compiled.plan, compiled.problem)
    problem = problem_for_plan(compiled.plan, slow)
    timeline = simulate_plan(compiled.plan, problem)
    rows = read(timeline_csv(compiled.plan, (problem, timeline)))
    assert max(int(row["end_ns"]) for row in rows) == timeline.makespan_ns > compiled.plan.claims.makespan_ns


@pytest.mark.parametrize(("planned_for", "replayed_on"), [(0, 4), (4, 0), (4, 7)])
def test_the_step_is_that_of_the_replay(planned_for: float, replayed_on: float) -> None:
    """On a profile with another step, or none, the STEP of every rank has the times that it has there."""
    document = job_document(2, 2, 3)
    before, after = (as_profile(document | {"step_ms": ms}) for ms in (planned_for, replayed_on))
    compiled = compile_profile(before, SolveOptions(method="1f1b"))
    assert_plan_ok(compiled.plan, compiled.problem)
    problem = problem_for_plan(compiled.plan, after)
    timeline = simulate_plan(compiled.plan, problem)
    steps = [row for row in read(timeline_csv(compiled.plan, (problem, timeline))) if row["op"] == "STEP"]
    expected = {(str(timeline.work_ends_ns), str(timeline.makespan_ns))} if replayed_on else set()
    assert {(row["start_ns"], row["end_ns"]) for row in steps} == expected


def test_pairs_have_both_halves() -> None:
    """An FB is one row with the stage and microbatch of its forward and of its backward."""
    problem = shape("wave", 2, 4, 2)
    plan = planned(problem, static_schedule("dualpipe-v", problem))
    rows = read(timeline_csv(plan))
    check_ops(rows, plan)
    pairs = [row for row in rows if row["op"] == "FB"]
    assert pairs
    assert all(row["backward_stage"] and row["backward_mb"] for row in pairs)


def test_names_with_commas_and_quotes_stay_whole() -> None:
    """A device may be called anything: what a comma, a quote or a letter beyond ASCII would break is quoted."""
    names = ('a,"b"', "Zürich;1")
    plan = planned(make_problem(2, 1, names=names), one_f_one_b(make_problem(2, 1)))
    assert {row["device"] for row in read(timeline_csv(plan))} == set(names)


def test_text(golden: Callable[[str], None]) -> None:
    """The whole table of a small plan with messages and all-reduces, on its own problem."""
    problem = replace(make_problem(2, 2, latency_ms=1), collectives=Collectives(mode="ddp", replicas=2))
    plan = planned(problem, one_f_one_b(problem))
    golden(timeline_csv(plan, (problem, simulate_plan(plan, problem))))
