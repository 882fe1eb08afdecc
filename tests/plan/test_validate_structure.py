"""Tests of cpipe.plan.validate: header, instructions, compute ops and messages; one row of the table for each rule."""

from __future__ import annotations

import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import edit_channel, edit_op, edit_problem, insert_op, remove_op, set_ops, swap_ops
from sample_plans import make_problem, one_f_one_b

from cpipe.errors import UsageError
from cpipe.ir import Group, Instruction, Plan, Schedule
from cpipe.plan import TRANSPORTS, validate

PROBLEM = make_problem(2, 2, latency_ms=1)
PLAN = plan_of(PROBLEM, one_f_one_b(PROBLEM, split=True))
# rank 0: 0 F0.0  1 SEND  2 F0.1  3 SEND  4 RECV0.0  5 WAIT  6 D0.0
#         7 W0.0  8 RECV0.1  9 WAIT  10 D0.1  11 W0.1  12 STEP
# rank 1: 0 RECV1.0  1 RECV1.1  2 WAIT  3 F1.0  4 D1.0  5 SEND  6 W1.0
#         7 WAIT  8 F1.1  9 D1.1  10 SEND  11 W1.1  12 STEP


def found(plan: Plan) -> list[str]:
    """Return the faults of a plan with a right digest, without a problem, as `PATH: MESSAGE [CODE]`."""
    return [f"{fault.path}: {fault.message} [{fault.code}]" for fault in validate(signed(plan))]


def test_a_right_plan_has_no_fault() -> None:
    """A plan as it is made has no fault, with or without its problem, under every transport."""
    assert_plan_ok(PLAN, PROBLEM)
    for transport in TRANSPORTS:
        assert validate(PLAN, PROBLEM, transport=transport) == ()
        assert validate(PLAN, transport=transport) == ()


def test_unknown_transport_is_refused() -> None:
    """A transport that does not exist is a mistake of the caller, who is told the names."""
    with pytest.raises(UsageError, match="unknown transport 'mpi', known are channels, gloo, nccl-pair"):
        validate(PLAN, transport="mpi")


def test_faults_name_the_file_in_file_order() -> None:
    """Every fault carries the file as the user named it; the header comes first, then rank by rank, op by op."""
    plan = edit_op(edit_op(edit_channel(PLAN, 1, window=9), 1, 3, mb=7), 0, 2, stage=5)
    faults = validate(signed(plan), file="my plan.json")
    assert {fault.file for fault in faults} == {"my plan.json"}
    assert str(faults[0]).startswith("error: my plan.json: $.channels[1].window: channel 1: 1 receives are open")
    places = [fault.path for fault in faults if fault.path is not None and "ops" in fault.path]
    assert places == sorted(places, key=lambda path: [int(part.split("]")[0]) for part in path.split("[")[1:]])


def test_header_faults_stand_in_file_order() -> None:
    """Faults of the header come in the order of the file, whichever check found them, and before those of ops."""
    claims = replace(PLAN.claims, lower_bound_ns=-1, proved_by="oracle", peak_bytes=(0, 0))
    plan = edit_op(edit_channel(edit_problem(PLAN, devices=3, stages=9), 1, window=9), 1, 3, mb=7)
    plan = replace(plan, claims=claims, groups=(Group(id=1, kind="data_parallel", stages=(0,)),))
    paths = [fault.path for fault in validate(plan)]
    assert paths[:9] == [
        "$.digest",
        "$.problem.devices",
        "$.problem.stages",
        "$.claims.lower_bound_ns",
        "$.claims.proved_by",
        "$.claims.peak_bytes[0]",
        "$.claims.peak_bytes[1]",
        "$.channels[1].window",
        "$.groups[0].id",
    ]
    assert "$.ranks[1].ops[3].mb" in paths


HEADER = {
    "ranks counted wrong": (edit_problem(PLAN, devices=3), [
        "$.problem.devices: 3 devices, but ranks has 2 [count]"]),
    "stages counted wrong": (edit_problem(PLAN, stages=0), [
        "$.problem.stages: 0 stages, but placement has 2 [count]"]),
    "peaks counted wrong": (replace(PLAN, claims=replace(PLAN.claims, peak_bytes=(1,))), [
        "$.claims.peak_bytes: 1 peaks for 2 ranks [count]"]),
    "unknown rank": (replace(PLAN, ranks=(PLAN.ranks[0], replace(PLAN.ranks[1], rank=2))), [
        "$.ranks: rank 1 has no program [rank]",
        "$.ranks[1]: rank 2 is not in 0..1 [rank]"]),
    "rank twice": (replace(PLAN, ranks=(PLAN.ranks[0], replace(PLAN.ranks[1], rank=0))), [
        "$.ranks: rank 1 has no program [rank]",
        "$.ranks[1]: rank 0 has a second program [rank]"]),
    "ranks in another order": (replace(PLAN, ranks=PLAN.ranks[::-1]), [
        "$.ranks[0]: expected rank 0 here, got 1: programs stand in the order of their ranks [rank]",
        "$.ranks[1]: expected rank 1 here, got 0: programs stand in the order of their ranks [rank]"]),
    "channel id": (edit_channel(PLAN, 1, id=0), [
        "$.channels[1].id: ids count up from 0: expected 1, got 0 [channel-id]"]),
    "channel to nowhere": (edit_channel(PLAN, 1, target=-1), [
        "$.channels[1]: channel 1 joins ranks 1 and -1, ranks are 0..1 [channel-ends]"]),
    "channel to itself": (edit_channel(PLAN, 1, target=1), [
        "$.channels[1]: channel 1 joins rank 1 with itself [channel-ends]"]),
    "channel twice": (edit_channel(PLAN, 1, source=0, target=1, carries="activation"), [
        "$.channels[1]: channels 0 and 1 both carry activations from rank 0 to rank 1 [channel-twice]"]),
    "group id": (replace(PLAN, groups=(Group(id=1, kind="data_parallel", stages=(0,)),)), [
        "$.groups[0].id: ids count up from 0: expected 0, got 1 [group-id]"]),
    "group of a missing stage": (replace(PLAN, groups=(Group(id=0, kind="data_parallel", stages=(2,)),)), [
        "$.groups[0].stages: group 0 names a stage that does not exist [group-stages]"]),
    "group over ranks": (replace(PLAN, groups=(Group(id=0, kind="data_parallel", stages=(0, 1)),)), [
        "$.groups[0].stages: group 0 has stages of 2 ranks, expected one rank [group-stages]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADER)
def test_header_rules(name: str) -> None:
    """Counts, ranks, channels and groups fit together, or it is said what does not."""
    plan, lines = HEADER[name]
    assert [line for line in found(plan) if line in lines] == lines


def test_microbatches_and_placement_rules() -> None:
    """A plan has at least one microbatch, and its stages stand on ranks that exist."""
    assert found(edit_problem(PLAN, microbatches=0))[0] == (
        "$.problem.microbatches: expected at least 1 microbatch, got 0 [count]"
    )
    assert found(edit_problem(PLAN, placement=(0, 4)))[0] == (
        "$.problem.placement[1]: stage 1 is placed on rank 4, ranks are 0..1 [placement]"
    )


STEPS = {
    "field missing": (edit_op(PLAN, 0, 7, end_ns=None), [
        "$.ranks[0].ops[7]: rank 0: W has stage, mb, start_ns, expected stage, mb, start_ns, end_ns [fields]"]),
    "field too many": (edit_op(PLAN, 0, 12, stage=0), [
        "$.ranks[0].ops[12]: rank 0: STEP has stage, expected no field or start_ns, end_ns [fields]"]),
    "wait for both": (edit_op(PLAN, 0, 5, group=0), [
        "$.ranks[0].ops[5]: rank 0: WAIT has stage, mb, channel, group, "
        "expected stage, mb, channel or stage, group or stage, mb, copy [fields]"]),
    "stage that does not exist": (edit_op(PLAN, 0, 7, stage=-1), [
        "$.ranks[0].ops[7].stage: rank 0: W of stage -1 mb 0: stages are 0..1 [stage-range]"]),
    "stage of another rank": (edit_op(PLAN, 0, 7, stage=1), [
        "$.ranks[0].ops[7].stage: rank 0: W of stage 1 mb 0: the stage stands on rank 1 [wrong-rank]"]),
    "microbatch that does not exist": (edit_op(PLAN, 0, 7, mb=2), [
        "$.ranks[0].ops[7].mb: rank 0: W of stage 0 mb 2: microbatches are 0..1 [mb-range]"]),
    "ends before it starts": (edit_op(PLAN, 0, 7, end_ns=5), [
        "$.ranks[0].ops[7].start_ns: rank 0: W of stage 0 mb 0 runs from 10000000 to 5 ns [time-range]"]),
    "negative start": (edit_op(PLAN, 0, 0, start_ns=-1), [
        "$.ranks[0].ops[0].start_ns: rank 0: F of stage 0 mb 0 runs from -1 to 2000000 ns [time-range]"]),
    "channel that does not exist": (edit_op(PLAN, 0, 1, channel=2), [
        "$.ranks[0].ops[1].channel: rank 0: SEND of stage 0 mb 0: there is no usable channel 2 [channel-range]"]),
    "wrong end of a channel": (edit_op(PLAN, 0, 1, channel=1), [
        "$.ranks[0].ops[1].channel: rank 0: SEND of stage 0 mb 0: on channel 1 rank 1 sends, not this rank "
        "[wrong-channel]"]),
    "group that does not exist": (insert_op(PLAN, 0, 12, Instruction(op="WAIT", stage=0, group=-3)), [
        "$.ranks[0].ops[12].group: rank 0: WAIT of stage 0: group -3 does not exist or lacks the stage "
        "[group-member]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_instruction_rules(name: str) -> None:
    """Each instruction has the fields of its kind, and they name what exists."""
    plan, lines = STEPS[name]
    faults = found(plan)
    assert [line for line in lines if line not in faults] == []


COMPUTE = {
    "missing F": (remove_op(PLAN, 0, 2), [
        "$.ranks[0]: rank 0: F of stage 0 mb 1 is missing [missing-op]",
        "$.ranks[0].ops[2]: rank 0: SEND of stage 0 mb 1: the op of this message is not in the program [stray-send]"]),
    "missing D": (remove_op(PLAN, 1, 9), [
        "$.ranks[1]: rank 1: D or B of stage 1 mb 1 is missing [missing-op]",
        "$.ranks[1].ops[9]: rank 1: SEND of stage 1 mb 1: the op of this message is not in the program [stray-send]",
        "$.ranks[1].ops[10]: rank 1: W of stage 1 mb 1 has no D [missing-op]"]),
    "missing W": (remove_op(PLAN, 0, 7), [
        "$.ranks[0].ops[6]: rank 0: D of stage 0 mb 0 has no W [missing-op]"]),
    "many missing": (edit_problem(PLAN, microbatches=1000), [
        f"$.ranks[{rank}]: rank {rank}: {op} of stage {rank} mb 2..999 is missing [missing-op]"
        for rank in (0, 1) for op in ("F", "D or B")]),
    "op twice": (insert_op(PLAN, 0, 8, PLAN.ranks[0].ops[7]), [
        "$.ranks[0].ops[8]: rank 0: W of stage 0 mb 0 comes after W of stage 0 mb 0 at ops[7], which does the same "
        "[duplicate-op]",
        "$.ranks[0].ops[8]: rank 0: W of stage 0 mb 0 starts at 10000000 ns, W of stage 0 mb 0 ends at 11000000 ns "
        "[overlap]"]),
    "B beside D": (insert_op(PLAN, 0, 12, replace(PLAN.ranks[0].ops[11], op="B")), [
        "$.ranks[0].ops[12]: rank 0: B of stage 0 mb 1 comes after D of stage 0 mb 1 at ops[10], which does the same "
        "[duplicate-op]",
        "$.ranks[0].ops[12]: rank 0: B of stage 0 mb 1 starts at 15000000 ns, W of stage 0 mb 1 ends at 16000000 ns "
        "[overlap]"]),
    "W beside B": (edit_op(PLAN, 0, 10, op="B"), [
        "$.ranks[0].ops[11]: rank 0: W of stage 0 mb 1 beside B of stage 0 mb 1, which includes it [mixed-backward]"]),
    "W before D": (swap_ops(PLAN, 1, 9, 11), [
        "$.ranks[1].ops[9]: rank 1: W of stage 1 mb 1 needs D of stage 1 mb 1, which comes later, at ops[11] "
        "[dependency]",
        "$.ranks[1].ops[10]: rank 1: SEND of stage 1 mb 1 comes before D makes it, at ops[11] [early-send]",
        "$.ranks[1].ops[11]: rank 1: D of stage 1 mb 1 starts at 10000000 ns, W of stage 1 mb 1 ends at 13000000 ns "
        "[overlap]"]),
    "D before F": (swap_ops(PLAN, 1, 8, 9), [
        "$.ranks[1].ops[8]: rank 1: D of stage 1 mb 1 needs F of stage 1 mb 1, which comes later, at ops[9] "
        "[dependency]",
        "$.ranks[1].ops[9]: rank 1: F of stage 1 mb 1 starts at 8000000 ns, D of stage 1 mb 1 ends at 12000000 ns "
        "[overlap]"]),
    "microbatches out of order": (swap_ops(PLAN, 0, 7, 11), [
        "$.ranks[0].ops[7]: rank 0: W of stage 0 mb 1 needs D of stage 0 mb 1, which comes later, at ops[10] "
        "[dependency]",
        "$.ranks[0].ops[10]: rank 0: D of stage 0 mb 1 starts at 13000000 ns, W of stage 0 mb 1 ends at 16000000 ns "
        "[overlap]",
        "$.ranks[0].ops[11]: rank 0: W of stage 0 mb 0 comes after W of stage 0 mb 1: microbatches go in order "
        "[mb-order]",
        "$.ranks[0].ops[11]: rank 0: W of stage 0 mb 0 starts at 10000000 ns, D of stage 0 mb 1 ends at 15000000 ns "
        "[overlap]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTE)
def test_compute_rules(name: str) -> None:
    """Each op runs exactly once, in microbatch order, after what it needs on its own rank."""
    plan, lines = COMPUTE[name]
    assert [line for line in found(plan) if "peak" not in line] == lines


def test_local_dependencies() -> None:
    """On one rank a stage runs after the stage before it, and its backward after that of the stage behind it."""
    problem = make_problem(1, 1, placement=(0, 0))
    plan = plan_of(problem, one_f_one_b_local())
    assert_plan_ok(plan, problem)
    assert found(swap_ops(plan, 0, 0, 1))[0] == (
        "$.ranks[0].ops[0]: rank 0: F of stage 1 mb 0 needs F of stage 0 mb 0, which comes later, at ops[1] "
        "[dependency]"
    )
    assert found(swap_ops(plan, 0, 2, 3))[0] == (
        "$.ranks[0].ops[2]: rank 0: B of stage 0 mb 0 needs B of stage 1 mb 0, which comes later, at ops[3] "
        "[dependency]"
    )


def one_f_one_b_local() -> Schedule:
    """Return the order of two stages on one rank for one microbatch."""
    return Schedule.from_text("0F0 1F0 1B0 0B0\n", 1)


MESSAGES = {
    "never sent": (remove_op(PLAN, 0, 1), [
        "$.ranks[0].ops[0]: rank 0: F of stage 0 mb 0 is needed on rank 1 and never sent [missing-send]"]),
    "sent twice": (insert_op(PLAN, 0, 2, PLAN.ranks[0].ops[1]), [
        "$.ranks[0].ops[2]: rank 0: SEND of stage 0 mb 0 on channel 0 is at ops[1] already [duplicate-send]"]),
    "sent before it is made": (swap_ops(PLAN, 0, 2, 3), [
        "$.ranks[0].ops[2]: rank 0: SEND of stage 0 mb 1 comes before F makes it, at ops[3] [early-send]"]),
    "never received": (remove_op(PLAN, 0, 8), [
        "$.ranks[0].ops[9]: rank 0: D of stage 0 mb 1 reads a message from rank 1 that is never received "
        "[missing-receive]"]),
    "received twice": (insert_op(PLAN, 0, 9, PLAN.ranks[0].ops[8]), [
        "$.channels[1].window: channel 1: 2 receives are open at once, the plan says 1 [window]",
        "$.ranks[0].ops[9]: rank 0: RECV of stage 0 mb 1 on channel 1 is at ops[8] already [duplicate-receive]"]),
    "received after the wait": (swap_ops(PLAN, 0, 8, 9), [
        "$.ranks[0].ops[9]: rank 0: RECV of stage 0 mb 1 comes after its WAIT, at ops[8] [late-receive]"]),
    "never waited for": (remove_op(PLAN, 0, 9), [
        "$.ranks[0].ops[9]: rank 0: D of stage 0 mb 1 reads a message from rank 1 without a WAIT for it "
        "[missing-wait]"]),
    "waited for twice": (insert_op(PLAN, 0, 9, PLAN.ranks[0].ops[9]), [
        "$.ranks[0].ops[10]: rank 0: WAIT of stage 0 mb 1 on channel 1 is at ops[9] already [duplicate-wait]"]),
    "waited for after use": (swap_ops(PLAN, 0, 9, 10), [
        "$.ranks[0].ops[10]: rank 0: WAIT of stage 0 mb 1 comes after D has read the message, at ops[9] [late-wait]"]),
    "without consumer": (remove_op(PLAN, 1, 8), [
        "$.ranks[1]: rank 1: F of stage 1 mb 1 is missing [missing-op]",
        "$.ranks[1].ops[1]: rank 1: RECV of stage 1 mb 1: the op of this message is not in the program "
        "[stray-receive]",
        "$.ranks[1].ops[7]: rank 1: WAIT of stage 1 mb 1: the op of this message is not in the program [stray-wait]"]),
    "swapped": (swap_ops(PLAN, 1, 0, 1), [
        "$.ranks[1].ops[0]: rank 1 ops[0] RECV activation of stage 1 mb 1 from rank 0 would take "
        "rank 0 ops[1] SEND activation of stage 0 mb 0 to rank 1: swapped, silent data corruption [swapped]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_message_rules(name: str) -> None:
    """Each message is sent once after it is made, received once, waited for once before it is read, in order."""
    plan, lines = MESSAGES[name]
    faults = [line for line in found(plan) if "[window]" not in line or "open" in lines[0]]
    assert [line for line in lines if line not in faults] == []
    assert len([line for line in faults if "wait cycle" not in line]) == len(lines)


def test_messages_stay_between_ranks() -> None:
    """Stages of one rank hand over locally: a SEND between them is refused."""
    problem = make_problem(2, 1, placement=(0, 0, 1))
    plan = plan_of(problem, Schedule.from_text("0F0 1F0 1B0 0B0\n2F0 2B0\n", 1))
    assert_plan_ok(plan, problem)
    local = insert_op(plan, 0, 1, Instruction(op="SEND", stage=0, mb=0, channel=0))
    assert found(local) == [
        "$.ranks[0].ops[1].channel: rank 0: SEND of stage 0 mb 0: the neighbour stage is on this rank too, "
        "no message is needed [local-message]"
    ]


def test_messages_have_a_neighbour() -> None:
    """The first stage sends no gradient, the last no activation, and a message goes where its reader stands."""
    problem = make_problem(2, 1, placement=(0, 1, 0))
    plan = plan_of(problem, Schedule.from_text("0F0 2F0 2B0 0B0\n1F0 1B0\n", 1))
    assert_plan_ok(plan, problem)
    ends = [(channel.source, channel.target, channel.carries) for channel in plan.channels]
    gradient = ends.index((0, 1, "gradient"))
    stray = Instruction(op="SEND", stage=0, mb=0, channel=gradient)
    assert found(insert_op(plan, 0, len(plan.ranks[0].ops) - 1, stray)) == [
        "$.ranks[0].ops[10].channel: rank 0: SEND of stage 0 mb 0: channel 1 joins rank 1, the stage exchanges "
        "gradients with nobody [wrong-channel]"
    ]
    wave = make_problem(3, 1, placement=(0, 1, 2))
    plan = plan_of(wave, one_f_one_b(wave))
    assert_plan_ok(plan, wave)
    moved = edit_problem(plan, placement=(0, 2, 1))
    assert (
        "$.ranks[0].ops[1].channel: rank 0: SEND of stage 0 mb 0: channel 0 joins rank 1, the stage exchanges "
        "activations with rank 2 [wrong-channel]"
    ) in found(moved)


STEP_RULES = {
    "no STEP": (remove_op(PLAN, 1, 12), ["$.ranks[1]: rank 1: the program has no STEP [missing-step]"]),
    "STEP twice": (insert_op(PLAN, 1, 3, Instruction(op="STEP")), [
        "$.ranks[1].ops[3]: rank 1: STEP is there more than once [early-step]"]),
    "STEP early": (swap_ops(PLAN, 1, 11, 12), [
        "$.ranks[1].ops[11]: rank 1: STEP is not the last op, ops[12] is [early-step]"]),
    "no ops": (set_ops(set_ops(edit_problem(replace(PLAN, channels=()), microbatches=1), 0, ()), 1, ()), [
        *(f"$.ranks[{rank}]: rank {rank}: {text}" for rank in (0, 1) for text in (
            f"F of stage {rank} mb 0 is missing [missing-op]", f"D or B of stage {rank} mb 0 is missing [missing-op]",
            "the program has no STEP [missing-step]"))]),
}  # fmt: skip


@pytest.mark.parametrize("name", STEP_RULES)
def test_step_rules(name: str) -> None:
    """STEP ends every program, once."""
    plan, lines = STEP_RULES[name]
    assert found(plan) == lines


CHANNELS = {
    "window": (edit_channel(PLAN, 0, window=1), [
        "$.channels[0].window: channel 0: 2 receives are open at once, the plan says 1 [window]"]),
    "size": (edit_channel(PLAN, 0, message_bytes=-1), [
        "$.channels[0].message_bytes: channel 0: size -1 [message-bytes]"]),
    "unused": (replace(PLAN, channels=(*PLAN.channels, replace(PLAN.channels[0], id=2, carries="gradient"))), [
        "$.channels[2]: channel 2 has no receive [unused-channel]",
        "$.channels[2].window: channel 2: 0 receives are open at once, the plan says 2 [window]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANNELS)
def test_channel_rules(name: str) -> None:
    """Every channel is used, and its window is the one that the programs need."""
    plan, lines = CHANNELS[name]
    assert found(plan) == lines
