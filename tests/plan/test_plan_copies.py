"""Tests of copies to host memory in plans: lowering, reading back, and every way in which they can be wrong."""

from __future__ import annotations

from random import Random

import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from oracle.cases import case
from oracle.orders import random_schedule
from oracle.paired import draw_paired
from plan_edits import edit_op, insert_op, remove_op, set_ops, swap_ops
from random_offloads import draw_offering, draw_offloads
from random_plans import draw_problem, draw_schedule

from cpipe.analysis import explain_plan, explain_stated
from cpipe.compiler import simulate_plan
from cpipe.compiler.retime import retimed
from cpipe.errors import PlanError
from cpipe.ir import Instruction, Offload, Plan, Problem, Schedule
from cpipe.plan import decode_plan, encode_plan, lift, problem_digest, validate
from cpipe.plan.copies import has_offloads
from cpipe.plan.exchange import (
    deepspeed_faults,
    megatron_faults,
    timeline_csv,
    torch_faults,
)
from cpipe.sim import simulate
from cpipe.units import Bytes, Ns


def offering(problem: Problem, size: int, length: int) -> Problem:
    """Return the problem with `size` bytes of each activation that may go to host memory in `length` ns."""
    stages = tuple(replace(stage, offload_bytes=Bytes(size), offload_ns=Ns(length)) for stage in problem.stages)
    return replace(problem, stages=stages)


ALONE = offering(case(3, (0,), split=False, activation=10, capacity=22), 8, 1)
MOVED = replace(
    Schedule.from_text("0F0 0F1 0F2 0B0 0B1 0B2", 3),
    offloads=(Offload(stage=0, microbatch=1, freed_before=2, reloaded_before=4),),
)
PLAN = plan_of(ALONE, MOVED)


def words(plan: Plan) -> list[str]:
    """Return the instructions of rank 0 in short: name, microbatch, and of a WAIT what for."""
    return [
        f"{step.op}{'' if step.mb is None else step.mb}{':' + step.copy if step.copy else ''}"
        for step in plan.ranks[0].ops
    ]


def at(word: str) -> int:
    """Return where an instruction stands in the program of `PLAN`."""
    return words(PLAN).index(word)


def codes(plan: Plan, problem: Problem | None = ALONE) -> list[str]:
    """Return the codes of the faults of a plan that is signed as it stands."""
    return [fault.code for fault in validate(signed(plan), problem)]


def moved_to(plan: Plan, source: int, target: int) -> Plan:
    """Return the plan with one instruction of rank 0 moved."""
    ops = list(plan.ranks[0].ops)
    ops.insert(target, ops.pop(source))
    return set_ops(plan, 0, ops)


def test_program() -> None:
    """Copies out stand behind their forward; waits, then copies back, before their op; its own wait last."""
    assert_plan_ok(PLAN, ALONE)
    assert words(PLAN) == [
        "F0",
        "F1",
        "OFFLOAD1",
        "WAIT1:OFFLOAD",
        "F2",
        "B0",
        "RELOAD1",
        "WAIT1:RELOAD",
        "B1",
        "B2",
        "STEP",
    ]
    assert PLAN.claims.peak_bytes == (22,)
    step = PLAN.ranks[0].ops[at("OFFLOAD1")]
    assert (step.start_ns, step.end_ns) == (2, 3)


def test_random_plans() -> None:
    """Any offloads of any order give a valid plan that says the same again when it is read."""
    total = 0
    for seed in range(120):
        draw = Random(seed)
        problem = draw_offering(draw, draw_problem(draw, windows=False))
        schedule = draw_offloads(draw, problem, draw_schedule(draw, problem))
        plan = plan_of(problem, schedule)
        assert_plan_ok(plan, problem)
        assert lift(plan)[0] == schedule
        assert validate(plan) == ()
        assert has_offloads(plan) is bool(schedule.offloads)
        total += len(schedule.offloads)
    assert total > 200


def test_windows_and_pairs() -> None:
    """Copies go together with capped receives and with fused pairs."""
    for seed in range(40):
        draw = Random(seed)
        problem = draw_offering(draw, case(3, (0, 1, 1, 0), full=3, latency=2, message=1, window=draw.randint(1, 2)))
        schedule = draw_paired(draw, problem, random_schedule(problem, draw))
        if simulate_or_none(problem, schedule):
            plan = plan_of(problem, draw_offloads(draw, problem, schedule))
            assert_plan_ok(plan, problem)


def simulate_or_none(problem: Problem, schedule: Schedule) -> bool:
    """Return whether a schedule can finish within its receive window."""
    from cpipe.sim import DeadlockError

    try:
        simulate(problem, schedule)
    except DeadlockError:
        return False
    return True


def test_nothing_without_offloads() -> None:
    """A plan without copies has no word of them, also where its stages offer them."""
    plan = plan_of(ALONE, Schedule(orders=MOVED.orders))
    text = encode_plan(plan).decode()
    assert "LOAD" not in text and "copy" not in text
    assert not has_offloads(plan)


def test_digest() -> None:
    """A job is another one with other copies; without them its digest is that of a job that never heard of them."""
    plain = case(3, (0,), split=False, activation=10, capacity=22)
    digests = {problem_digest(problem) for problem in (plain, ALONE, offering(plain, 8, 2), offering(plain, 7, 1))}
    assert len(digests) == 4
    assert problem_digest(offering(plain, 0, 0)) == problem_digest(plain)


EDITS = [
    (remove_op(PLAN, 0, at("OFFLOAD1")), "missing-copy"),
    (remove_op(PLAN, 0, at("WAIT1:OFFLOAD")), "missing-copy"),
    (remove_op(PLAN, 0, at("RELOAD1")), "missing-copy"),
    (remove_op(PLAN, 0, at("WAIT1:RELOAD")), "missing-copy"),
    (insert_op(PLAN, 0, at("F2"), PLAN.ranks[0].ops[at("OFFLOAD1")]), "duplicate-copy"),
    (insert_op(PLAN, 0, at("F2"), PLAN.ranks[0].ops[at("WAIT1:OFFLOAD")]), "duplicate-copy"),
    (insert_op(PLAN, 0, at("B1"), PLAN.ranks[0].ops[at("RELOAD1")]), "duplicate-copy"),
    (moved_to(PLAN, at("OFFLOAD1"), at("F1")), "copy-order"),
    (moved_to(PLAN, at("OFFLOAD1"), at("F2")), "copy-order"),
    (moved_to(PLAN, at("RELOAD1"), at("F1")), "copy-order"),
    (moved_to(PLAN, at("WAIT1:RELOAD"), at("B1")), "copy-order"),
    (moved_to(PLAN, at("WAIT1:RELOAD"), at("B0")), "copy-order"),
    (swap_ops(PLAN, 0, at("RELOAD1"), at("WAIT1:RELOAD")), "copy-order"),
    (moved_to(PLAN, at("WAIT1:OFFLOAD"), at("F2")), "memory"),
    (moved_to(PLAN, at("RELOAD1"), at("F2")), "memory"),
    (edit_op(PLAN, 0, at("OFFLOAD1"), end_ns=4), "wrong-time"),
    (edit_op(PLAN, 0, at("RELOAD1"), start_ns=4), "wrong-time"),
    (edit_op(PLAN, 0, at("OFFLOAD1"), mb=2), "copy-order"),
    (edit_op(PLAN, 0, at("OFFLOAD1"), mb=3), "mb-range"),
    (edit_op(PLAN, 0, at("OFFLOAD1"), start_ns=None), "fields"),
    (edit_op(PLAN, 0, at("WAIT1:OFFLOAD"), mb=None), "fields"),
    (edit_op(PLAN, 0, at("F2"), copy="RELOAD"), "fields"),
    (replace(PLAN, claims=replace(PLAN.claims, peak_bytes=(30,))), "wrong-peak"),
]


@pytest.mark.parametrize(("plan", "code"), EDITS, ids=range(len(EDITS)))
def test_mutations(plan: Plan, code: str) -> None:
    """Whatever is wrong with a copy is found, by its own name."""
    assert code in codes(plan)


def test_a_moved_copy_is_refused_or_replays() -> None:
    """Where a copy, or a WAIT for one, stands elsewhere, either the place is refused or both replays agree on it."""
    refused = agreed = 0
    timed = {"wrong-time", "wrong-makespan", "wrong-peak"}
    for seed in range(60):
        draw = Random(seed)
        problem = draw_offering(draw, draw_problem(draw, windows=False))
        plan = plan_of(problem, draw_offloads(draw, problem, draw_schedule(draw, problem)))
        for rank, program in enumerate(plan.ranks):
            moving = [at for at, step in enumerate(program.ops) if step.op in ("OFFLOAD", "RELOAD") or step.copy]
            for source in draw.sample(moving, min(4, len(moving))):
                ops = list(program.ops)
                ops.insert(max(0, source + draw.choice((-3, -2, -1, 1, 2, 3))), ops.pop(source))
                changed = signed(set_ops(plan, rank, ops))
                if {fault.code for fault in validate(changed, problem)} - timed:
                    refused += 1
                    continue
                agreed += 1
                assert_plan_ok(retimed(changed, problem, simulate_plan(changed, problem)), problem)
    assert refused > 50 and agreed > 20


BOTH = plan_of(
    ALONE,
    replace(
        MOVED,
        offloads=(
            Offload(stage=0, microbatch=1, freed_before=2, reloaded_before=4),
            Offload(stage=0, microbatch=2, freed_before=4, reloaded_before=5),
        ),
    ),
)


def test_turns_between_two_ops() -> None:
    """Between two ops a device waits for copies out before it posts those back, and posts all before other WAITs."""
    steps = [(step.op, step.mb, step.copy) for step in BOTH.ranks[0].ops]
    wait, back = steps.index(("WAIT", 2, "OFFLOAD")), steps.index(("RELOAD", 1, None))
    assert back == wait + 1
    faults = validate(signed(swap_ops(BOTH, 0, wait, back)), ALONE)
    assert [(fault.code, fault.message) for fault in faults if fault.code == "copy-order"] == [
        (
            "copy-order",
            f"rank 0: WAIT for the OFFLOAD of stage 0 mb 2 comes behind RELOAD of stage 0 mb 1, ops[{wait}]",
        )
    ]


def test_copies_that_are_not_offered() -> None:
    """A stage that offers nothing is not copied, whether the plan is checked or replayed."""
    plain = case(3, (0,), split=False, activation=10, capacity=30)
    assert "copy-not-offered" in codes(PLAN, plain)
    with pytest.raises(PlanError, match="moves activations of stage 0 to host memory, the profile does not offer it"):
        simulate_plan(PLAN, plain)


def test_a_late_copy_is_a_later_op() -> None:
    """With slower copies the validator's own replay finds other times, the same as the simulator's."""
    slow = offering(case(3, (0,), split=False, activation=10, capacity=22), 8, 4)
    assert "wrong-time" in codes(PLAN, slow)
    timeline = simulate_plan(PLAN, slow)
    again = retimed(PLAN, slow, timeline)
    assert again.claims.makespan_ns == timeline.makespan_ns > PLAN.claims.makespan_ns
    assert_plan_ok(again, slow)


STATED = [
    (edit_op(PLAN, 0, at("OFFLOAD1"), start_ns=1), "OFFLOAD of stage 0 mb 1 starts at 1 ns, F of stage 0 mb 1 ends"),
    (edit_op(PLAN, 0, at("OFFLOAD1"), end_ns=4), "F of stage 0 mb 2 starts at 3 ns, OFFLOAD of stage 0 mb 1 ends at 4"),
    (edit_op(PLAN, 0, at("RELOAD1"), end_ns=9), "B of stage 0 mb 1 starts at 7 ns, RELOAD of stage 0 mb 1 ends at 9"),
    (edit_op(PLAN, 0, at("RELOAD1"), start_ns=5), "RELOAD of stage 0 mb 1 starts at 5 ns, B of stage 0 mb 0 ends at 6"),
]


@pytest.mark.parametrize(("plan", "message"), STATED, ids=range(len(STATED)))
def test_stated_times(plan: Plan, message: str) -> None:
    """Without a problem the times of copies are held against each other and against compute."""
    assert any(message in fault.message for fault in validate(signed(plan)))


def test_copies_of_one_way_do_not_overlap() -> None:
    """Two copies out that a plan states at one time are refused."""
    offloads = (
        Offload(stage=0, microbatch=0, freed_before=3, reloaded_before=3),
        Offload(stage=0, microbatch=1, freed_before=3, reloaded_before=4),
    )
    plan = plan_of(offering(ALONE, 8, 3), replace(MOVED, offloads=offloads))
    assert validate(plan) == ()
    second = words(plan).index("OFFLOAD1")
    early = edit_op(plan, 0, second, start_ns=2)
    assert [fault.message for fault in validate(signed(early))] == [
        "rank 0: OFFLOAD of stage 0 mb 1 starts at 2 ns, OFFLOAD of stage 0 mb 0 ends at 4 ns"
    ]


def test_decoded_again() -> None:
    """A WAIT names the copy that it waits for; another word is refused with its place."""
    data = encode_plan(PLAN)
    assert b'{"op": "WAIT", "stage": 0, "mb": 1, "copy": "OFFLOAD"}' in data
    with pytest.raises(PlanError, match=r"\$\.ranks\[0\]\.ops\[3\]\.copy: rank 0: "):
        decode_plan(data.replace(b'"copy": "OFFLOAD"', b'"copy": "SEND"'), "plan.json")


def test_explained() -> None:
    """A plan with copies is explained with and without its profile, and by itself tells the same waits."""
    slow = offering(ALONE, 8, 5)
    plan = plan_of(slow, MOVED)
    whole = explain_plan(plan, slow, simulate_plan(plan, slow))
    stated = explain_stated(plan)
    for explanation in (whole, stated):
        assert sum(part.length_ns for part in explanation.idle if part.cause == "copy") == 5 + 5
        assert [piece.label for piece in explanation.path if piece.kind == "copy"] == [
            "OFFLOAD of stage 0 microbatch 1",
            "RELOAD of stage 0 microbatch 1",
        ]
    assert all(case.bound_ns <= (case.found_ns or case.bound_ns) for case in whole.what_ifs)


def test_exports_refuse() -> None:
    """No other system is given a plan that moves activations: the first OFFLOAD is named."""
    for faults, system in ((torch_faults, "torch"), (megatron_faults, "Megatron"), (deepspeed_faults, "DeepSpeed")):
        found = [fault for fault in faults(PLAN, file="plan.json") if fault.code == "export-offload"]
        assert [(fault.path, fault.hint) for fault in found] == [("$.ranks[0].ops[2]", "solve with --offload none")]
        expected = f"rank 0: OFFLOAD of stage 0 mb 1: {system} keeps every activation on its device"
        assert found[0].message == expected


def test_table_of_times() -> None:
    """The timeline as a table has a row for each copy."""
    rows = [line.split(",") for line in timeline_csv(PLAN).splitlines()]
    assert [row[2:5] for row in rows if "LOAD" in row[2]] == [["OFFLOAD", "0", "1"], ["RELOAD", "0", "1"]]


def test_order_of_the_first_fault() -> None:
    """A copy of an op that is not in the program is a fault of that op, and nothing fails on the way."""
    for index in range(len(PLAN.ranks[0].ops)):
        assert codes(remove_op(PLAN, 0, index))
    stray = Instruction(op="WAIT", stage=0, mb=2, copy="RELOAD")
    assert "missing-copy" in codes(insert_op(PLAN, 0, at("F2"), stray))
