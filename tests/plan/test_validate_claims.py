"""Tests of cpipe.plan.validate against a problem: identity, memory, collectives, sizes and times."""

from __future__ import annotations

from typing import Literal

import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import edit_channel, edit_op, edit_problem, insert_op, remove_op, set_ops, swap_ops
from sample_plans import MS, make_problem, one_f_one_b

from cpipe.ir import Collectives, Hop, Instruction, Plan, Problem, Schedule, Stage
from cpipe.plan import validate
from cpipe.units import Bytes, Ns

PROBLEM = make_problem(2, 2, latency_ms=1)
PLAN = plan_of(PROBLEM, one_f_one_b(PROBLEM, split=True))


def found(plan: Plan, problem: Problem | None = PROBLEM, *, sign: bool = True) -> list[str]:
    """Return the faults of a plan as `PATH: MESSAGE [CODE]`; the digest is made right unless `sign` is false."""
    faults = validate(signed(plan) if sign else plan, problem)
    return [f"{fault.path}: {fault.message} [{fault.code}]" for fault in faults]


def with_stage(problem: Problem, index: int, **fields: object) -> Problem:
    """Change fields of one stage."""
    stages = list(problem.stages)
    stages[index] = Stage(**{name: getattr(stages[index], name) for name in Stage.__struct_fields__} | fields)
    return replace(problem, stages=tuple(stages))


def with_capacity(problem: Problem, *capacities: int | None) -> Problem:
    """Limit the memory of each device."""
    devices = [
        replace(device, capacity_bytes=capacity) for device, capacity in zip(problem.devices, capacities, strict=True)
    ]
    return replace(problem, devices=tuple(devices))


def test_edited_plan_is_noticed() -> None:
    """A plan whose content does not give its digest was changed by hand."""
    plan = edit_op(PLAN, 0, 0, end_ns=2 * MS + 1)
    (line,) = [line for line in found(plan, None, sign=False) if "[plan-digest]" in line]
    assert line.startswith("$.digest: the plan was changed after it was made: its digest is sha256:")
    assert line.endswith(f"it says {PLAN.digest} [plan-digest]")


def test_lower_bound_is_no_higher_than_the_makespan() -> None:
    """A lower bound above the makespan, or below zero, is wrong."""
    for value in (-1, 17 * MS):
        plan = replace(PLAN, claims=replace(PLAN.claims, lower_bound_ns=value))
        assert found(plan) == [
            f"$.claims.lower_bound_ns: lower bound {value} ns is not between 0 and the makespan 16000000 ns [bound]"
        ]


def test_prover_is_a_known_one() -> None:
    """A bound is proved by a closed form or a solver that cpipe knows; nobody can say what another name proves."""
    plan = replace(PLAN, claims=replace(PLAN.claims, proved_by="potato"))
    assert found(plan, None) == [
        "$.claims.proved_by: expected one of bound, highs, cpsat, got 'potato' [unknown-prover]"
    ]
    for prover in ("bound", "highs", "cpsat"):
        assert found(replace(PLAN, claims=replace(PLAN.claims, proved_by=prover))) == []


@pytest.mark.parametrize(("prover", "claimed", "is_fault"), [
    ("bound", 9, False), ("bound", 10, True), ("highs", 10, False)
])  # fmt: skip
def test_bound_is_what_closed_forms_prove(prover: str, claimed: int, is_fault: bool) -> None:
    """A bound said to be a closed form's is no higher than closed forms go; a solver's may be."""
    plan = signed(replace(PLAN, claims=replace(PLAN.claims, lower_bound_ns=claimed, proved_by=prover)))
    lines = [str(fault) for fault in validate(plan, PROBLEM, closed_bound_ns=9)]
    expected = "$.claims.lower_bound_ns: closed forms prove no more than 9 ns, the plan says 10 ns [bound-not-proved]"
    assert lines == ([f"error: {expected}"] if is_fault else [])


def test_peak_holds_the_posted_receives() -> None:
    """Without a problem, too, a peak is at least what the plan's own channels post into."""
    plan = replace(PLAN, claims=replace(PLAN.claims, peak_bytes=(99, 199)))
    assert found(plan, None) == [
        "$.claims.peak_bytes[0]: rank 0: posted receives alone take 100 bytes, the plan says a peak of 99 [wrong-peak]",
        "$.claims.peak_bytes[1]: rank 1: posted receives alone take 200 bytes, the plan says a peak of 199 "
        "[wrong-peak]",
    ]
    assert found(replace(PLAN, claims=replace(PLAN.claims, peak_bytes=(100, 200))), None) == []


def test_plan_for_another_problem() -> None:
    """A plan for another problem is told apart by digest, and by what differs in its summary."""
    other = replace(with_stage(PROBLEM, 0, static_bytes=Bytes(5001)), name="other")
    assert [line.partition(": ")[0] for line in found(PLAN, other)] == [
        "$.problem.digest", "$.problem.name", "$.claims.peak_bytes[0]"
    ]  # fmt: skip
    shorter = found(PLAN, make_problem(2, 1, latency_ms=1))
    assert shorter[1:] == ["$.problem.microbatches: the problem has 1, the plan is for 2 [other-problem]"]
    assert shorter[0].endswith("[problem-digest]")
    renamed = replace(PROBLEM, devices=(PROBLEM.devices[0], replace(PROBLEM.devices[1], name="h1")))
    assert found(PLAN, renamed)[1:] == ["$.ranks[1]: rank 1 is g1, the problem has h1 [other-device]"]


def test_times_are_those_of_the_replay() -> None:
    """Each op starts and ends when the validator's own replay says; later differences of a rank are counted."""
    assert found(edit_op(PLAN, 0, 7, end_ns=10 * MS)) == [
        "$.ranks[0].ops[7]: rank 0: W of stage 0 mb 0 runs from 10000000 to 11000000 ns, "
        "the plan says 10000000 to 10000000 ns [wrong-time]"
    ]
    slower = with_stage(PROBLEM, 1, weight_grad_ns=Ns(2 * MS))
    plan = edit_problem(PLAN, digest=plan_of(slower, one_f_one_b(slower)).problem.digest)
    assert found(plan, slower) == [
        "$.claims.makespan_ns: the last op ends at 17000000 ns, the plan says 16000000 ns [wrong-makespan]",
        "$.ranks[0].ops[10]: rank 0: D of stage 0 mb 1 runs from 14000000 to 16000000 ns, "
        "the plan says 13000000 to 15000000 ns (and 1 more on this rank) [wrong-time]",
        "$.ranks[1].ops[6]: rank 1: W of stage 1 mb 0 runs from 7000000 to 9000000 ns, "
        "the plan says 7000000 to 8000000 ns (and 3 more on this rank) [wrong-time]",
    ]


def test_late_receive_delays_its_message() -> None:
    """A receive posted after its message could have left makes the plan slower than it says."""
    late = swap_ops(swap_ops(PLAN, 1, 1, 2), 1, 2, 3)  # RECV1.1 behind F1.0: 5 ms instead of 0, it is ready at 4
    faults = found(late)
    assert "$.channels[0].window: channel 0: 1 receives are open at once, the plan says 2 [window]" in faults
    assert not [line for line in faults if "[wrong-time]" in line]  # it still arrives before F1.1 could start
    later = swap_ops(late, 1, 3, 4)
    later = swap_ops(swap_ops(later, 1, 4, 5), 1, 5, 6)
    assert [line for line in found(later) if "[wrong-time]" in line and "ranks[1]" in line] == [
        "$.ranks[1].ops[8]: rank 1: F of stage 1 mb 1 runs from 9000000 to 11000000 ns, "
        "the plan says 8000000 to 10000000 ns (and 2 more on this rank) [wrong-time]"
    ]


def test_stated_times_without_a_problem() -> None:
    """Without a problem the times must still fit each other: no overlap, inputs first, the last end claimed."""
    assert found(replace(PLAN, claims=replace(PLAN.claims, makespan_ns=15 * MS)), None) == [
        "$.claims.makespan_ns: the last op ends at 16000000 ns, the plan says 15000000 ns [wrong-makespan]"
    ]
    assert found(edit_op(PLAN, 0, 7, start_ns=9 * MS), None) == [
        "$.ranks[0].ops[7]: rank 0: W of stage 0 mb 0 starts at 9000000 ns, D of stage 0 mb 0 ends at 10000000 ns "
        "[overlap]"
    ]
    assert found(edit_op(PLAN, 1, 3, start_ns=MS), None) == [
        "$.ranks[1].ops[3]: rank 1: F of stage 1 mb 0 starts at 1000000 ns, its input F of stage 0 mb 0 ends at "
        "2000000 ns [before-input]"
    ]


def test_message_sizes_are_the_problems() -> None:
    """A channel whose messages have another size than the problem's would fill buffers of the wrong size."""
    plan = edit_channel(PLAN, 0, message_bytes=99)
    assert found(plan)[1:] == [
        "$.channels[0].message_bytes: channel 0: messages of 99 bytes, the problem has 100 [message-bytes]"
    ]


def test_stage_that_cannot_split() -> None:
    """A stage whose backward is one op runs B, never D and W."""
    problem = with_stage(PROBLEM, 1, can_split=False)
    lines = [line for line in found(PLAN, problem) if "[cannot-split]" in line]
    assert lines[0] == "$.ranks[1].ops[4]: rank 1: D of stage 1 mb 0: the stage has only B [cannot-split]"
    assert len(lines) == 4


def test_receive_window_of_the_problem() -> None:
    """A plan keeps the receive window that it was asked for."""
    assert found(PLAN, replace(PROBLEM, receive_window=1)) == [
        "$.channels[0].window: channel 0: 2 receives are open at once, allowed are 1 [window-cap]"
    ]


def test_peak_counts_everything() -> None:
    """The peak is static bytes, activations, transients and posted receives (field case B10)."""
    problem = make_problem(2, 4)
    schedule = one_f_one_b(problem)
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    in_flight, depth = 1, plan.channels[0].window
    assert plan.claims.peak_bytes[1] == 5000 + in_flight * 1000 + depth * 100
    wrong = replace(plan, claims=replace(plan.claims, peak_bytes=(7100, 1)))
    assert found(wrong, problem) == [
        "$.claims.peak_bytes[1]: rank 1: the peak is 6100 bytes at F of stage 1 mb 0, the plan says 1 [wrong-peak]"
    ]


def capacity_faults(plan: Plan, problem: Problem) -> list[str]:
    """Return the memory faults of a plan on a problem of other capacities."""
    return [line for line in found(plan, problem) if "[memory]" in line]


def test_memory_is_kept_at_every_op() -> None:
    """The first op of a rank that needs more than the device has is named, with both numbers."""
    peak = PLAN.claims.peak_bytes[0]
    assert capacity_faults(PLAN, with_capacity(PROBLEM, peak, None)) == []
    assert capacity_faults(PLAN, with_capacity(PROBLEM, peak - 1, 6199)) == [
        "$.ranks[0].ops[2]: rank 0: F of stage 0 mb 1 needs 7100 bytes, capacity 7099 [memory]",
        "$.ranks[1].ops[3]: rank 1: F of stage 1 mb 0 needs 6200 bytes, capacity 6199 [memory]",
    ]
    assert capacity_faults(PLAN, with_capacity(PROBLEM, 5099, None)) == [
        "$.ranks[0]: rank 0: 5000 bytes static and 100 of receive buffers, capacity 5099 [memory]"
    ]


@pytest.mark.parametrize(
    ("order", "fields", "peak"),
    [
        ("0F0 0B0", {"activation_bytes": 10}, 10),
        ("0F0 0B0", {"activation_bytes": 10, "forward_transient_bytes": 3}, 13),
        ("0F0 0B0", {"activation_bytes": 10, "input_grad_transient_bytes": 4, "weight_grad_transient_bytes": 6}, 16),
        (
            "0F0 0D0 0W0",
            {"activation_bytes": 10, "input_grad_transient_bytes": 4, "weight_grad_transient_bytes": 6},
            14,
        ),
        ("0F0 0D0 0W0", {"activation_bytes": 10, "held_bytes": 12, "input_grad_transient_bytes": 4}, 16),
        ("0F0 0D0 0W0", {"activation_bytes": 10, "held_bytes": 12, "weight_grad_transient_bytes": 5}, 17),
        ("0F0 0D0 0W0", {"activation_bytes": 10, "held_bytes": 4, "weight_grad_transient_bytes": 5}, 10),
        ("0F0 0D0 0W0", {"activation_bytes": 10, "static_bytes": 7}, 17),
    ],
)
def test_memory_steps(order: str, fields: dict[str, int], peak: int) -> None:
    """F allocates, D frees all but what W needs (or adds to it), W and B free the rest; transients count meanwhile."""
    problem = with_stage(make_problem(1, 1), 0, **({"activation_bytes": 0, "static_bytes": 0} | fields))
    plan = plan_of(problem, Schedule.from_text(order, 1))
    assert_plan_ok(plan, problem)
    assert plan.claims.peak_bytes == (peak,)


def test_network_that_blocks_the_order() -> None:
    """Channels alone would not hang, but on one shared pipe a late receive holds up everything behind it."""

    def hop(source: int, target: int) -> Hop:
        return Hop(
            source=source,
            target=target,
            message_bytes=Bytes(1),
            latency_ns=Ns(0),
            occupancy_ns=Ns(1),
            pipe=source,
        )

    base = make_problem(2, 2, placement=(0, 1, 0, 1))
    problem = replace(
        base,
        pipes=("0", "1"),
        forward_hops=(hop(0, 1), hop(1, 0), hop(0, 1)),
        backward_hops=(hop(1, 0), hop(0, 1), hop(1, 0)),
    )
    schedule = Schedule.from_text("0F0 2F0 0F1 2B0 0B0 2F1 2B1 0B1\n1F0 3F0 3B0 1B0 1F1 3F1 3B1 1B1\n", 2)
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    # F(0, 1) is sent before the gradient of B(2, 0), both from rank 0 to rank 1; rank 1 now receives them the other
    # way round: on two channels that is no swap, on one pipe the first holds up the second
    ops = list(plan.ranks[1].ops)
    late = next(step for step in ops if (step.op, step.stage, step.mb) == ("RECV", 1, 1))
    ops.remove(late)
    ops.insert(ops.index(next(step for step in ops if (step.op, step.stage, step.mb) == ("WAIT", 1, 1))), late)
    faults = [line for line in found(set_ops(plan, 1, ops), problem) if not line.startswith("$.c")]
    assert faults == [
        "$.ranks[0].ops[14]: rank 0: WAIT of stage 0 mb 0 never ends: a message before it on a pipe of this network "
        "cannot leave [cannot-finish]",
        "$.ranks[1].ops[10]: rank 1: WAIT of stage 1 mb 0 never ends: a message before it on a pipe of this network "
        "cannot leave [cannot-finish]",
    ]


def data_parallel(mode: Literal["ddp", "zero1"]) -> tuple[Plan, Problem]:
    """Return a plan with collectives of 5 and 7 ms on two ranks."""
    problem = replace(make_problem(2, 2), collectives=Collectives(mode=mode, replicas=2))
    for stage in (0, 1):
        problem = with_stage(problem, stage, all_gather_ns=Ns(5 * MS), reduce_ns=Ns(7 * MS))
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    return plan, problem


ZERO, ZERO_PROBLEM = data_parallel("zero1")
# rank 1: 0 ALL_GATHER 1 RECV1.0 2 WAIT(group) 3 WAIT1.0 4 F1.0 5 RECV1.1 6 B1.0 7 SEND 8 WAIT1.1 9 F1.1 10 B1.1
#         11 SEND 12 REDUCE_SCATTER 13 WAIT(group) 14 STEP

COLLECTIVES = {
    "gather missing": (remove_op(ZERO, 1, 0), [
        "$.ranks[1]: rank 1: stage 1 has no ALL_GATHER [missing-collective]",
        "$.ranks[1].ops[1]: rank 1: WAIT of stage 1 waits for no collective that was posted [stray-wait]"]),
    "gather twice": (insert_op(ZERO, 1, 1, ZERO.ranks[1].ops[0]), [
        "$.ranks[1].ops[1]: rank 1: ALL_GATHER of stage 1 is at ops[0] already [duplicate-collective]"]),
    "gather not waited for": (remove_op(ZERO, 1, 2), [
        "$.ranks[1].ops[11]: rank 1: REDUCE_SCATTER of stage 1 is never waited for [missing-wait]",
        "$.ranks[1].ops[12]: rank 1: WAIT of stage 1 (ALL_GATHER) comes after F of stage 1 mb 0, at ops[3] "
        "[collective-order]"]),
    "gather waited for too late": (swap_ops(swap_ops(ZERO, 1, 2, 3), 1, 3, 4), [
        "$.ranks[1].ops[4]: rank 1: WAIT of stage 1 (ALL_GATHER) comes after F of stage 1 mb 0, at ops[3] "
        "[collective-order]"]),
    "reduction too early": (swap_ops(swap_ops(ZERO, 1, 11, 12), 1, 10, 11), [  # field case E3
        "$.ranks[1].ops[10]: rank 1: REDUCE_SCATTER of stage 1 comes before B of stage 1 mb 1, at ops[11]: "
        "gradients are incomplete [collective-order]"]),
    "other mode": (edit_op(ZERO, 1, 12, op="ALL_REDUCE"), [
        "$.ranks[1]: rank 1: stage 1 has no REDUCE_SCATTER [missing-collective]",
        "$.ranks[1].ops[12]: rank 1: ALL_REDUCE of stage 1, expected ALL_GATHER and REDUCE_SCATTER "
        "[unexpected-collective]",
        "$.ranks[1].ops[13]: rank 1: WAIT of stage 1 waits for no collective that was posted [stray-wait]"]),
    "no group": (replace(ZERO, groups=ZERO.groups[:1]), [
        "$.groups: stage 1 has collectives to run and no group [group-stages]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collective_rules(name: str) -> None:
    """Gathers end before the first F, reductions follow the last W or B, each once, each waited for."""
    plan, lines = COLLECTIVES[name]
    for problem in (ZERO_PROBLEM, None):
        faults = [line for line in found(plan, problem) if not line.startswith("$.claims")]
        assert [line for line in lines if line not in faults] == []


def test_groups_without_data_parallelism() -> None:
    """A plan with groups and collectives is none for a problem without data parallelism."""
    problem = replace(ZERO_PROBLEM, collectives=None)
    lines = found(ZERO, problem)
    assert "$.groups: there are groups, but the problem has no data parallelism [group-stages]" in lines
    assert "$.ranks[1].ops[0]: rank 1: ALL_GATHER of stage 1, expected no collective [unexpected-collective]" in lines


def test_stage_in_two_groups() -> None:
    """A stage belongs to one group."""
    plan = replace(ZERO, groups=(ZERO.groups[0], replace(ZERO.groups[1], stages=(1, 1))))
    assert "$.groups[1].stages: stage 1 is in more than one group [group-stages]" in found(plan, ZERO_PROBLEM)


def test_collective_times() -> None:
    """Collectives run at the stated times too, and belong to the makespan."""
    plan, problem = data_parallel("ddp")
    last = len(plan.ranks[0].ops) - 3
    assert plan.ranks[0].ops[last].end_ns == plan.claims.makespan_ns
    assert found(edit_op(plan, 0, last, end_ns=plan.claims.makespan_ns + 1), problem) == [
        "$.ranks[0].ops[10]: rank 0: ALL_REDUCE of stage 0 runs from 15000000 to 22000000 ns, "
        "the plan says 15000000 to 22000001 ns [wrong-time]"
    ]


def test_stated_collective_times_without_a_problem() -> None:
    """A stage's gather ends before its first F starts; its reduction starts after its last W or B has ended."""
    assert found(edit_op(ZERO, 1, 0, end_ns=30 * MS), None)[-1] == (
        "$.ranks[1].ops[4]: rank 1: F of stage 1 mb 0 starts at 7000000 ns, ALL_GATHER of stage 1 ends at 30000000 ns "
        "[before-input]"
    )
    assert found(edit_op(ZERO, 1, 12, start_ns=MS), None) == [
        "$.ranks[1].ops[12]: rank 1: REDUCE_SCATTER of stage 1 starts at 1000000 ns, B of stage 1 mb 1 ends at "
        "17000000 ns [before-input]"
    ]


def test_stray_group_wait() -> None:
    """A WAIT for a collective that was not posted is refused."""
    stray = insert_op(ZERO, 1, 14, Instruction(op="WAIT", stage=1, group=1))
    assert found(stray, ZERO_PROBLEM) == [
        "$.ranks[1].ops[14]: rank 1: WAIT of stage 1 waits for no collective that was posted [stray-wait]"
    ]
