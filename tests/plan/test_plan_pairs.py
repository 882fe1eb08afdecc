"""Tests of FB, the op of a fused pair: lowered, lifted, written, and every change of it caught."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import jsonschema
import pytest
from helpers import assert_plan_ok, plan_of, signed
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle.cases import case
from oracle.orders import random_schedule
from oracle.paired import draw_paired
from plan_edits import edit_op, insert_op, remove_op, set_ops
from random_plans import draw_problem, draw_schedule
from strategies import problems

from cpipe.errors import PlanError
from cpipe.ir import InvariantError, MadeBy, Plan, Problem, Schedule
from cpipe.plan import decode_plan, encode_plan, late_sends, lift, plan_schema, safe_transports, validate
from cpipe.plan.exchange import plan_of_table, read_torch_csv, torch_csv, torch_faults
from cpipe.report.figures import plan_figures, replay_figures
from cpipe.report.gantt import render_gantt
from cpipe.sim import DeadlockError, memory_peaks, simulate
from cpipe.units import Ns

V = case(3, (0, 1, 1, 0), full=3, activation=2, message=1)
ORDER = Schedule.from_text(
    """0F0 0F1 3F0 0F2+3B0 3F1 3B1 3F2 3B2 0B0 0B1 0B2
1F0 2F0 1F1 2F1 1F2+2B0 2F2 1B0 2B1 1B1 2B2 1B2""",
    3,
)
MADE_BY = MadeBy(cpipe="0", method="test", seed=0, limits={})


@cache
def made() -> Plan:
    """Return the plan of the V example, checked."""
    plan = plan_of(V, ORDER)
    assert_plan_ok(plan, V)
    return plan


def place_of(plan: Plan, op: str) -> tuple[int, int]:
    """Return place and index of the first instruction of a kind."""
    return next(
        (place, index)
        for place, program in enumerate(plan.ranks)
        for index, step in enumerate(program.ops)
        if step.op == op
    )


def codes(plan: Plan, problem: Problem | None = V) -> set[str]:
    """Return the codes of a plan's faults once it is signed again."""
    return {fault.code for fault in validate(signed(plan), problem)}


def test_program_of_a_pair() -> None:
    """Both receives are waited for before an FB, both sends follow it."""
    ops = made().ranks[1].ops
    at = next(index for index, step in enumerate(ops) if step.op == "FB")
    assert [(step.op, step.stage, step.mb) for step in ops[at - 2 : at + 2]] == [
        ("WAIT", 1, 2),
        ("WAIT", 2, 0),
        ("FB", 1, 2),
        ("RECV", 2, 1),
    ]
    assert (ops[at].backward_stage, ops[at].backward_mb) == (2, 0)
    first = made().ranks[0].ops
    at = next(index for index, step in enumerate(first) if step.op == "FB")
    assert [(step.op, step.stage, step.mb) for step in first[at + 1 : at + 3]] == [("SEND", 0, 2), ("SEND", 3, 0)]


def test_pair_comes_back() -> None:
    """A lifted plan has the pairs of its schedule, and sends that follow an FB are not late."""
    schedule, _ = lift(made())
    assert schedule == ORDER
    assert late_sends(made()) == {}


def test_text_of_fb() -> None:
    """FB names its backward behind its forward; the schema knows both, and needs neither elsewhere."""
    text = encode_plan(made()).decode()
    assert '{"op": "FB", "stage": 0, "mb": 2, "backward_stage": 3, "backward_mb": 0, "start_ns": ' in text
    assert text.count("backward_") == 4
    jsonschema.validate(json.loads(text), plan_schema())
    with pytest.raises(PlanError, match="backward_stage"):
        decode_plan(text.replace('"backward_stage": 3', '"backward_stage": "3"').encode(), "plan.json")


def test_lift_needs_the_backward() -> None:
    """An FB that does not say what its backward is cannot be lifted."""
    with pytest.raises(InvariantError, match="FB without the stage or microbatch of its backward"):
        lift(edit_op(made(), *place_of(made(), "FB"), backward_mb=None))


def test_split_pair_is_caught() -> None:
    """F and B in the place of their FB, at its times, overlap; one after the other they take what they take apart."""
    plan = made()
    place, index = place_of(plan, "FB")
    pair = plan.ranks[place].ops[index]
    forward = replace(pair, op="F", backward_stage=None, backward_mb=None)
    backward = replace(forward, op="B", stage=pair.backward_stage, mb=pair.backward_mb)
    ops = list(plan.ranks[place].ops)
    at_once = set_ops(plan, place, [*ops[:index], forward, backward, *ops[index + 1 :]])
    assert "wrong-time" in codes(at_once)
    assert "overlap" in codes(at_once, None)
    slow = replace(V, stages=tuple(replace(stage, forward_backward_ns=Ns(6)) for stage in V.stages))
    plan = plan_of(slow, ORDER)
    assert_plan_ok(plan, slow)
    index = place_of(plan, "FB")[1]
    ops = list(plan.ranks[place].ops)
    start, end = ops[index].start_ns or 0, ops[index].end_ns or 0
    assert end - start == 6
    parts = [replace(forward, start_ns=start, end_ns=start + 1), replace(backward, start_ns=start + 1, end_ns=end)]
    apart = set_ops(plan, place, [*ops[:index], *parts, *ops[index + 1 :]])
    told = [fault.message for fault in validate(signed(apart), slow) if fault.code == "wrong-time"]
    assert told[0].startswith(f"rank 0: B of stage 3 mb 0 runs from {start + 1} to {start + 4} ns")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"backward_stage": 1}, "wrong-rank"),
        ({"backward_stage": 9}, "stage-range"),
        ({"backward_mb": 3}, "mb-range"),
        ({"backward_mb": None}, "fields"),
        ({"backward_stage": None, "backward_mb": None}, "fields"),
        ({"op": "F"}, "fields"),
        ({"op": "B"}, "fields"),
        ({"stage": 1}, "wrong-rank"),
        ({"backward_mb": 1}, "duplicate-op"),
        ({"backward_stage": 0}, "duplicate-op"),
        ({"mb": 1}, "duplicate-op"),
        ({"channel": 0}, "fields"),
        ({"end_ns": 1}, "time-range"),
    ],
)
def test_wrong_fields_of_a_pair(fields: dict[str, Any], code: str) -> None:
    """The partner stands on the same rank, exists, and runs once."""
    assert code in codes(edit_op(made(), *place_of(made(), "FB"), **fields))


def test_pair_of_one_slot() -> None:
    """A backward cannot run at the same time as its own forward."""
    place, index = place_of(made(), "FB")
    plan = edit_op(made(), place, index, backward_stage=0, backward_mb=2)
    told = [fault.message for fault in validate(signed(plan), V) if fault.code == "dependency"]
    assert "rank 0: B of stage 0 mb 2 in its FB needs F of stage 0 mb 2 in its FB, which runs at the same time" in told


def test_pair_moved_or_gone() -> None:
    """An FB that is left out, repeated or moved before its input is reported for what it lacks."""
    place, index = place_of(made(), "FB")
    assert {"missing-op"} <= codes(remove_op(made(), place, index))
    assert {"duplicate-op"} <= codes(insert_op(made(), place, index, made().ranks[place].ops[index]))
    moved = insert_op(remove_op(made(), place, index), place, 0, made().ranks[place].ops[index])
    assert "dependency" in codes(moved)


def test_peak_of_a_pair_is_checked() -> None:
    """The validator counts both halves of a pair at once: with less memory than that, the FB is named."""
    problem = replace(
        V, stages=tuple(replace(stage, input_grad_transient_bytes=9, forward_transient_bytes=9) for stage in V.stages)
    )
    assert memory_peaks(problem, ORDER.orders, ORDER.pairs) == (8 + 18, 10 + 18)
    assert memory_peaks(problem, ORDER.orders) == (8 + 9, 10 + 9)
    plan = plan_of(problem, ORDER)
    assert_plan_ok(plan, problem)
    lower = replace(plan, claims=replace(plan.claims, peak_bytes=tuple(peak - 1 for peak in plan.claims.peak_bytes)))
    faults = [fault.message for fault in validate(signed(lower), problem) if fault.code == "wrong-peak"]
    assert len(faults) == 2 and any("in its FB" in message for message in faults)


@pytest.mark.parametrize("seed", range(80))
def test_random_pairs_make_valid_plans(seed: int) -> None:
    """Random problems, shared pipes, windows and collectives included, with random pairs give valid plans."""
    draw = Random(7000 + seed)
    problem = draw_problem(draw)
    stages = [replace(stage, forward_backward_ns=draw.choice((None, Ns(2), Ns(5)))) for stage in problem.stages]
    problem = replace(problem, stages=tuple(stages))
    paired = draw_paired(draw, replace(problem, receive_window=None), draw_schedule(draw, problem))
    try:
        plan = plan_of(problem, paired, lead=draw.random() < 0.5)
    except DeadlockError:  # with a receive window
        return
    assert_plan_ok(plan, problem)
    assert lift(plan)[0] == paired
    assert validate(plan) == ()


@given(problems(memory=False), st.integers(0, 10**6))
def test_pairs_of_any_profile(problem: Problem, seed: int) -> None:
    """Whatever the profile, pairs that can run make a plan that is valid, with its costs and by itself."""
    draw = Random(seed)
    paired = draw_paired(draw, problem, random_schedule(problem, draw))
    plan = plan_of(problem, paired)
    assert_plan_ok(plan, problem)
    assert validate(plan) == ()


@pytest.mark.parametrize("seed", range(40))
def test_mutations_near_pairs_are_caught(seed: int) -> None:
    """Of single changes of an FB's numbers, each is a fault with and without a problem's costs."""
    draw = Random(400 + seed)
    plan = made()
    place, index = place_of(plan, "FB") if draw.random() < 0.5 else (1, [s.op for s in plan.ranks[1].ops].index("FB"))
    step = plan.ranks[place].ops[index]
    name = draw.choice(("stage", "mb", "backward_stage", "backward_mb", "start_ns", "end_ns"))
    changed = edit_op(plan, place, index, **{name: getattr(step, name) + draw.choice((-1, 1, 2, -3))})
    assert codes(changed)
    assert name in ("start_ns", "end_ns") or codes(changed, None)


def test_figures_count_a_pair_once() -> None:
    """A device is busy for the length of its pairs, and holds one microbatch more while one runs."""
    plan = made()
    timeline = simulate(V, ORDER)
    ours = plan_figures(plan, V)
    again = replay_figures(plan, V, ORDER, timeline, memory_peaks(V, ORDER.orders, ORDER.pairs))
    assert [figure.busy_ns for figure in ours] == [figure.busy_ns for figure in again] == [3 * 8, 3 * 8]
    assert [figure.bubble for figure in ours] == [figure.bubble for figure in again]
    assert [figure.in_flight for figure in ours] == [4, 5]


def test_gantt_shows_pairs() -> None:
    """A pair has a bar of its own that names both halves, and an entry in the legend."""
    chart = render_gantt(made(), width=200)
    assert "0F2+3B0" in chart and "1F2+2B0" in chart
    assert "forward and backward" in chart


@pytest.mark.parametrize("layout", ["compute_only", "compute_comms"])
def test_torch_table_round_trip(layout: str) -> None:
    """An FB is an OVERLAP_F_B cell in torch's table, and comes back as the same plan."""
    assert torch_faults(made()) == ()
    table = torch_csv(made(), layout=layout)
    assert "(0F2;3B0)OVERLAP_F_B" in table.splitlines()[0].split(",")
    plan = plan_of_table(read_torch_csv(table.encode(), "t.csv"), V, MADE_BY)
    assert lift(plan)[0] == ORDER
    assert validate(plan) == ()
    assert "gloo" not in safe_transports(plan) or layout == "compute_only" or not torch_faults(made(), layout=layout)


def test_other_overlaps_stay_apart() -> None:
    """A cell of torch's that overlaps anything but an F and a B is no FB: its ops follow each other."""
    table = read_torch_csv(b"0F0,(0F1;0I0)OVERLAP_F_B,0W0,(0B1)OVERLAP_F_B\n", "t.csv")
    assert [str(cell) for cell in table.rows[0]] == ["0F0", "0F1", "0I0", "0W0", "0B1"]
    assert not any(cell.fused for cell in table.cells())
    swapped = read_torch_csv(b"0F0,(0B0;0F1)OVERLAP_F_B,0B1\n", "t.csv")
    assert [(str(cell), cell.fused) for cell in swapped.rows[0]] == [
        ("0F0", False), ("0F1", True), ("0B0", True), ("0B1", False)
    ]  # fmt: skip
