"""Tests of cpipe.plan.exchange: torch's schedule tables out of plans and plans out of tables, as text alone.

Field cases: hangs of tables (A1, A3), blanks and split ops in files (A12), swapped receives (A16), messages that are
no groups (D10).
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import remove_op
from sample_plans import make_problem, one_f_one_b
from shapes import placed, two_flows
from torch_tables import as_profile, import_text, job_document

from cpipe.compiler import SolveOptions, compile_profile, import_table, problem_for_plan, simulate_plan
from cpipe.errors import PlanError
from cpipe.ir import Collectives, Plan, Problem, Schedule
from cpipe.plan import lift, validate
from cpipe.plan.exchange import LAYOUTS, read_torch_csv, torch_csv, torch_faults
from cpipe.profile import normalize
from cpipe.schedules import SCHEDULES, applicable, static_schedule

TWO_RANKS = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
    "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
)
"""Two stages, two microbatches, with messages."""

FACING = (
    "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2B0,2SEND_B0,2RECV_F1,2F1,2B1,2SEND_B1,0RECV_B0,0B0,0RECV_B1,0B1,"
    "0REDUCE_GRAD,2REDUCE_GRAD\n"
    "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1,1REDUCE_GRAD\n"
)
"""Three stages on two ranks: both ranks send before they receive what the other sends."""


STATIC = {
    "line": {"gpipe", "1f1b", "1f1b-split", "zb-h1", "zb-h2"},
    "loop": {"interleaved-1f1b", "interleaved-zb", "looped-bfs"},
    "wave": {"zb-v", "v-half", "v-min", "hanayo", "dualpipe-v"},
}
"""The static schedules of one flow, by the placement that they are for."""


def codes(found: tuple[object, ...]) -> list[str]:
    """Return the rules of diagnostics."""
    return [fault.code for fault in found]  # type: ignore[attr-defined]


def wave(microbatches: int) -> tuple[Problem, Plan]:
    """Return four stages on two ranks in a V: one after the other, no two microbatches at once."""
    problem = make_problem(2, microbatches, placement=(0, 1, 1, 0))
    rows = ("0F{0} 3F{0} 3D{0} 3W{0} 0B{0}", "1F{0} 2F{0} 2B{0} 1D{0} 1W{0}")
    text = "\n".join(" ".join(row.format(mb) for mb in range(microbatches)) for row in rows)
    return problem, plan_of(problem, Schedule.from_text(text, microbatches))


def test_compute_only_is_the_order_of_compute() -> None:
    """A compute_only table has the compute ops of each rank in order, D written as I, and nothing else."""
    problem, plan = wave(1)
    assert_plan_ok(plan, problem)
    assert torch_csv(plan) == "0F0,3F0,3I0,3W0,0B0\n1F0,2F0,2B0,1I0,1W0\n"


def test_compute_comms_has_messages_where_the_plan_posts_them() -> None:
    """In compute_comms a SEND or RECV names the stage that executes it; neighbours on one rank exchange no message.

    Every stage reduces its gradients once, after its last W or B and the message that leaves right after it.
    """
    problem, plan = wave(1)
    assert_plan_ok(plan, problem)
    assert torch_csv(plan, layout="compute_comms") == (
        "0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,3REDUCE_GRAD,0RECV_B0,0B0,0REDUCE_GRAD\n"
        "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,2REDUCE_GRAD,1I0,1SEND_B0,1W0,1REDUCE_GRAD\n"
    )


def test_fsdp_gathers_one_stage_ahead() -> None:
    """With FSDP a stage is gathered before the stage before it runs, and let go once its gradients are reduced."""
    problem, plan = wave(1)
    assert_plan_ok(plan, problem)
    assert torch_csv(plan, layout="compute_comms", fsdp=True) == (
        "0UNSHARD,3UNSHARD,0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,3REDUCE_GRAD,3RESHARD,"
        "0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,2UNSHARD,1F0,2F0,2SEND_F0,2RECV_B0,2B0,2REDUCE_GRAD,2RESHARD,"
        "1I0,1SEND_B0,1W0,1REDUCE_GRAD,1RESHARD\n"
    )


def test_zero1_plans_gather_where_they_say() -> None:
    """A ZeRO-1 plan needs FSDP for compute_comms; then UNSHARD and REDUCE_GRAD stand where it posts its collectives."""
    problem = replace(make_problem(2, 1), collectives=Collectives(mode="zero1", replicas=2))
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    (fault,) = torch_faults(plan, layout="compute_comms")
    assert (fault.code, fault.path) == ("torch-data-parallel", "$.ranks[0].ops[0]")
    assert "ALL_GATHER of stage 0: torch gathers parameters only for stages under FSDP" in fault.message
    assert torch_faults(plan, layout="compute_only") == torch_faults(plan, layout="compute_comms", fsdp=True) == ()
    assert torch_csv(plan, layout="compute_comms", fsdp=True) == (
        "0UNSHARD,0RECV_B0,0F0,0SEND_F0,0B0,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n"
    ).replace("0UNSHARD,0RECV_B0,0F0,0SEND_F0,", "0UNSHARD,0F0,0SEND_F0,0RECV_B0,")


@pytest.mark.parametrize(
    ("split", "fsdp", "reason"),
    [
        (True, False, "D of stage 0: under DDP torch leaves"),
        (False, True, "ALL_REDUCE of stage 0: the plan is for DDP"),
    ],
)
def test_what_torch_cannot_reduce_is_refused(split: bool, fsdp: bool, reason: str) -> None:
    """A split backward under DDP, and a DDP plan under FSDP, are refused at the first op that breaks the rule."""
    problem = replace(make_problem(2, 2), collectives=Collectives(mode="ddp", replicas=2))
    plan = plan_of(problem, one_f_one_b(problem, split=split))
    assert_plan_ok(plan, problem)
    (fault,) = torch_faults(plan, layout="compute_comms", fsdp=fsdp)
    assert fault.code == "torch-data-parallel"
    assert reason in fault.message


def test_ranks_without_a_stage_are_refused() -> None:
    """Torch needs a stage on every rank; a rank without one is named."""
    problem = make_problem(3, 1, placement=(0, 2))
    plan = plan_of(problem, Schedule.from_text("0F0 0B0\n\n1F0 1B0", 1))
    assert_plan_ok(plan, problem)
    (fault,) = torch_faults(plan)
    assert (fault.code, fault.path) == ("torch-idle-rank", "$.ranks[1]")


def test_wrong_plans_are_not_exported() -> None:
    """A plan that is not valid, or whose messages one group would swap, is refused with the validator's own faults."""
    problem, plan = wave(1)
    assert_plan_ok(plan, problem)
    broken = signed(remove_op(plan, 0, 0))
    assert torch_faults(broken) == validate(broken)
    swapped, _ = import_text(HOISTED, job_document(2, 4, 2))
    assert torch_faults(swapped, layout="compute_only") == ()
    (fault,) = torch_faults(swapped, layout="compute_comms")
    assert fault.code == "swapped"
    assert fault.hint == "torch puts all messages on one group; with --format compute_only it places them itself"


@pytest.mark.parametrize("seed", range(30))
def test_round_trip(seed: int) -> None:
    """Out, in and out again gives the same table, and the plan that comes in is valid, whatever the network.

    A table with messages brings back the very programs.
    """
    draw = Random(seed)
    profile = as_profile(random_job(draw))
    compiled = compile_profile(profile, SolveOptions(method="greedy"))
    for layout in LAYOUTS:
        if torch_faults(compiled.plan, layout=layout):
            continue
        text = torch_csv(compiled.plan, layout=layout)
        plan, found = import_table(read_torch_csv(text.encode(), "t.csv"), profile)
        assert found == ()
        assert_plan_ok(plan, compiled.problem)
        assert torch_csv(plan, layout=layout) == text
        assert plan.claims.makespan_ns == compiled.plan.claims.makespan_ns
        assert plan.claims.peak_bytes == compiled.plan.claims.peak_bytes or layout == "compute_only"
        if layout == "compute_comms":
            assert plan.ranks == compiled.plan.ranks


@pytest.mark.parametrize(("kind", "chunks"), [("line", 1), ("loop", 2), ("loop", 3), ("wave", 2)])
def test_every_static_schedule_round_trips(kind: str, chunks: int) -> None:
    """Every static schedule of one flow goes out and comes in with its orders, fused pairs and programs."""
    document = job_document(3, 3 * chunks, 7)
    for stage, device in enumerate(placed(kind, 3, chunks)):
        document["stages"][stage]["device"] = f"g{device}"
    profile = as_profile(document)
    problem = normalize(profile)
    names = []
    for name, schedule in applicable(problem):
        plan = plan_of(problem, schedule)
        assert_plan_ok(plan, problem)
        names.append(name)
        for layout in LAYOUTS:
            if faults := torch_faults(plan, layout=layout):
                assert layout == "compute_comms", "the order alone always goes out"
                assert {fault.code for fault in faults} <= {"swapped", "deadlock"}
                continue
            text = torch_csv(plan, layout=layout)
            assert text.count("OVERLAP_F_B") == len(schedule.pairs)
            again, found = import_table(read_torch_csv(text.encode(), "t.csv"), profile)
            assert found == ()
            assert_plan_ok(again, problem)
            assert lift(again)[0] == schedule
            assert layout == "compute_only" or again.ranks == plan.ranks
            spaced = text.replace(",", " ,\t").replace("\n", " \r\n").replace(";", " ; ")
            assert read_torch_csv(spaced.encode(), "t.csv").rows == read_torch_csv(text.encode(), "t.csv").rows
    assert names == [name for name in SCHEDULES if name in names]
    assert set(names) == STATIC[kind]


def test_every_static_schedule_is_tried() -> None:
    """The round trips cover all schedules but those of two flows, which torch's table has no words for."""
    tried = set().union(*STATIC.values())
    assert {name for name, entry in SCHEDULES.items() if entry.flows == 1} == tried
    problem = two_flows(2, 4)
    plan = plan_of(problem, static_schedule("dualpipe", problem))
    assert_plan_ok(plan, problem)
    assert codes(torch_faults(plan))[0] == "torch-flows"


def test_zero1_round_trip() -> None:
    """A ZeRO-1 plan goes out with FSDP and comes back with the programs and the times that it had."""
    profile = as_profile(job_document(2, 4, 3, **ZERO1))
    compiled = compile_profile(profile, SolveOptions(method="greedy"))
    text = torch_csv(compiled.plan, layout="compute_comms", fsdp=True)
    assert text.count("UNSHARD") == text.count("RESHARD") == text.count("REDUCE_GRAD") == 4
    plan, found = import_table(read_torch_csv(text.encode(), "t.csv"), profile, transport="channels")
    assert found == ()
    assert_plan_ok(plan, compiled.problem)
    assert plan.ranks == compiled.plan.ranks
    assert torch_csv(plan, layout="compute_comms", fsdp=True) == text


def random_job(draw: Random) -> dict[str, Any]:
    """Return a profile of 1 to 4 ranks with links of all kinds; every rank has a stage."""
    num_ranks = draw.randint(1, 4)
    job = job_document(num_ranks, num_ranks * draw.randint(1, 2), draw.randint(1, 5))
    for stage in job["stages"]:
        stage |= {"forward_ms": draw.randint(1, 4), "input_grad_ms": draw.randint(1, 4)}
        stage["full_backward_ms"] = stage["input_grad_ms"] + 1
    job["links"] = [
        {
            "from": f"g{a}",
            "to": f"g{b}",
            "latency_ms": draw.choice((0, 1, 5)),
            "beta_ns_per_byte": draw.choice((0, 50000)),
        }
        for a in range(num_ranks)
        for b in range(num_ranks)
        if a != b
    ]
    return job


def test_tables_keep_their_receives() -> None:
    """A table with messages is timed with its receives where it has them: late ones hold their senders back."""
    link = [{"between": ["g0", "g1"], "latency_ms": 4}]
    early, found = import_text(TWO_RANKS, job_document(2, 2, 2, links=link))
    assert found == ()
    late, found = import_text(
        TWO_RANKS.replace("1RECV_F1,1B0,1SEND_B0,", "1B0,1SEND_B0,1RECV_F1,"), job_document(2, 2, 2, links=link)
    )
    assert found == ()
    assert early.claims.makespan_ns < late.claims.makespan_ns
    assert torch_csv(late, layout="compute_comms") == TWO_RANKS.replace(
        "1RECV_F1,1B0,1SEND_B0,", "1B0,1SEND_B0,1RECV_F1,"
    )


def test_fewer_receives_keep_the_reason_of_the_bound() -> None:
    """Where receives are posted later so that their buffers fit, the plan still says what its bound rests on."""
    job = job_document(2, 2, 4, links=[{"between": ["g0", "g1"], "latency_ms": 9}])
    for stage in job["stages"]:
        stage["output_bytes"] = 100
    table = "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n"
    wide, found = import_text(table, job)
    assert found == ()
    assert max(channel.window for channel in wide.channels) > 1
    for device, peak in zip(job["devices"], wide.claims.peak_bytes, strict=True):
        device["memory_bytes"] = peak - 100
    narrow, found = import_text(table, job)
    assert found == ()
    assert narrow.channels != wide.channels
    assert narrow.claims.reason == wide.claims.reason != ""


def test_blanks_and_mixed_backwards_are_read() -> None:
    """A12: blanks around cells, blank cells of compute_only, I and W beside B, Windows line ends, OVERLAP are read."""
    text = " 0F0 ,\t0F1,,0I0,0W0 , 0B1\r\n,1F0,(1F1;1B0)OVERLAP_F_B,1B1 \r\n\r\n"
    plan, found = import_text(text, job_document(2, 2, 2))
    assert found == ()
    assert torch_csv(plan) == "0F0,0F1,0I0,0W0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n"
    assert read_torch_csv(text.encode(), "t.csv").blanks == ((0, 2), (1, 0))


def test_tables_of_spreadsheets_are_read() -> None:
    """A12: a byte order mark and quotes around cells, as spreadsheets write them, change nothing; half a quote does."""
    plain = "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n"
    quoted = (
        "\ufeff" + ",".join(f'" {cell}"' for cell in plain.splitlines()[0].split(",")) + "\n" + plain.splitlines()[1]
    )
    assert read_torch_csv(quoted.encode(), "t.csv") == read_torch_csv(plain.encode(), "t.csv")
    with pytest.raises(PlanError, match=r"t\.csv:1:1: rank 0: expected an action .* \[unknown-op\]"):
        read_torch_csv(plain.replace("0F0", '"').encode(), "t.csv")


def test_overlapped_messages_leave_after_both() -> None:
    """Torch sends what an OVERLAP_F_B cell makes after both of its ops: an FB, timed as both before the send."""
    apart = TWO_RANKS.replace("1B0,1SEND_B0,1F1,", "1B0,1F1,1SEND_B0,")
    plan, found = import_text(
        TWO_RANKS.replace("1B0,1SEND_B0,1F1,", "(1B0;1F1)OVERLAP_F_B,1SEND_B0,"), job_document(2, 2, 2)
    )
    assert found == ()
    assert [step.op for step in plan.ranks[1].ops].count("FB") == 1
    alike, found = import_text(apart, job_document(2, 2, 2))
    assert found == ()
    assert alike.claims.makespan_ns == plan.claims.makespan_ns
    starts = [step.start_ns for step in plan.ranks[0].ops if (step.op, step.mb) == ("B", 0)]
    assert starts == [9_000_000]  # 1B0 ends at 7 ms, 1F1 at 9 ms


def test_unknown_ops_are_named_with_row_and_cell() -> None:
    """A12: every cell that is no action is named with its row and its place in it, junk that torch lets pass too."""
    with pytest.raises(PlanError, match="unknown-op") as raised:
        read_torch_csv(
            b"0F0,0F0xyz,0Q1\n1F0,1UNSHARD3,F1,1F,1F1234567890,(1F0;1SEND_F0)OVERLAP_F_B,\xc3\xa9\n", "t.csv"
        )
    places = [(fault.line, fault.column) for fault in raised.value.diagnostics]
    assert places == [(1, 2), (1, 3), (2, 2), (2, 3), (2, 4), (2, 5), (2, 6), (2, 7)]
    assert str(raised.value.diagnostics[0]) == (
        "error: t.csv:1:2: rank 0: expected an action such as 0F3, 2I1 or 1SEND_B0, got '0F0xyz' [unknown-op]"
    )


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"", "empty-file"), (b",\n \n", "empty-file"), (b"0F0\xff", "encoding"), (b'"0F0\n', "unknown-op")],
)
def test_what_is_no_table_is_refused(data: bytes, code: str) -> None:
    """An empty file, and one that is no text, is refused."""
    with pytest.raises(PlanError, match=rf"\[{code}\]"):
        read_torch_csv(data, "t.csv")


HOISTED = (
    "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0F1,0SEND_F1,0RECV_B0,0B0,3RECV_F1,3F1,3B1,3SEND_B1,3REDUCE_GRAD,"
    "0RECV_B1,0B1,0REDUCE_GRAD\n"
    "1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,2RECV_B0,2B0,1B0,1SEND_B0,1F1,2F1,2SEND_F1,2RECV_B1,2B1,2REDUCE_GRAD,"
    "1B1,1SEND_B1,1REDUCE_GRAD\n"
)
"""A V on two ranks: rank 0 sends F0, B0, F1 to rank 1, which receives F0, F1, B0."""


def test_hoisted_receives_are_swapped_on_one_group() -> None:
    """A16: a receive of an activation before that of a gradient sent before it takes the wrong tensor on one group.

    On a channel for each kind it does not. The order of the table stays in the plan, and torch's group is what a table
    with messages is checked for.
    """
    plan, found = import_text(HOISTED, job_document(2, 4, 2))
    assert codes(found) == ["swapped"]
    assert "would take" in found[0].message
    assert codes(validate(plan, transport="gloo")) == ["swapped"]
    assert validate(plan) == ()
    assert "gloo" not in plan.claims.transports
    assert import_text(HOISTED, job_document(2, 4, 2), "channels") == (plan, ())


def test_swapped_receives_are_swapped_everywhere() -> None:
    """A16: two receives of one channel in the wrong order are reported under every transport, and not mended."""
    text = TWO_RANKS.replace("1RECV_F0,1F0,1RECV_F1,1B0", "1RECV_F1,1RECV_F0,1F0,1B0")
    plan, found = import_text(text, job_document(2, 2, 2))
    assert codes(found) == ["swapped"]
    assert codes(validate(plan)) == ["swapped"]
    assert plan.claims.makespan_ns == 0
    receives = [(step.stage, step.mb) for step in plan.ranks[1].ops if step.op == "RECV"]
    assert receives == [(1, 1), (1, 0)]


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        ("channels", []),
        ("gloo", []),
        ("nccl-pair", ["deadlock"]),
        ("nccl-rank", ["deadlock"]),
        ("nccl-dir2", ["deadlock"]),
    ],
)
def test_facing_sends_hang_on_shared_queues(transport: str, expected: list[str]) -> None:
    """A1, A3: a table in which both ranks send first hangs where the two directions share a queue, and nowhere else."""
    plan, found = import_text(FACING, job_document(2, 3, 2), transport)
    assert codes(found) == expected
    assert plan.claims.transports == ("channels", "gloo")


def test_messages_come_in_pairs() -> None:
    """D10: an exported table groups nothing: each SEND cell has one RECV cell, of the neighbour stage."""
    problem, plan = wave(3)
    assert_plan_ok(plan, problem)
    cells = torch_csv(plan, layout="compute_comms").replace("\n", ",").split(",")
    sends = [cell for cell in cells if "SEND" in cell]
    for cell in sends:
        stage, kind, mb = cell.partition("SEND")[0], cell.split("_")[1][0], cell[-1]
        reader = int(stage) + (1 if kind == "F" else -1)
        assert cells.count(f"{reader}RECV_{kind}{mb}") == 1
    assert len(sends) == sum("RECV" in cell for cell in cells) == 12


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("0F1,0SEND_F1,", "0SEND_F1,", ["missing-op", "stray-send"]),
        ("1RECV_F1,", "", ["missing-receive"]),
        ("0SEND_F1,", "", ["missing-send"]),
        ("1F0,", "1F0,1F0,", ["duplicate-op"]),
        ("1RECV_F0,", "1RECV_F0,1RECV_F0,", ["duplicate-receive"]),
        ("1B1,1SEND_B1,", "1B1,1SEND_B1,0F1,", ["wrong-rank"]),
        ("1RECV_F0,1F0,", "1F0,1RECV_F0,", ["late-receive"]),
        ("0F0,0SEND_F0,", "0SEND_F0,0F0,", ["early-send"]),
        ("0B1,", "0I1,", ["missing-op"]),
        ("0F0,0SEND_F0,0F1,0SEND_F1,", "0F1,0SEND_F1,0F0,0SEND_F0,", ["mb-order", "swapped"]),
        ("0RECV_B0,0B0", "0B0,0RECV_B0", ["late-receive"]),
        ("1F1,1B1", "1B1,1F1", ["dependency"]),
        ("0F1,0SEND_F1", "0F1,0SEND_F7", ["mb-range", "missing-send"]),
    ],
)
def test_faults_of_tables_are_the_validators(old: str, new: str, expected: list[str]) -> None:
    """What is wrong with a table is wrong with its plan, and `validate` says the same of it; nothing is mended."""
    assert TWO_RANKS.count(old) == 1
    plan, found = import_text(TWO_RANKS.replace(old, new), job_document(2, 2, 2))
    assert found == validate(plan)
    assert set(expected) <= set(codes(found))
    assert plan.claims.makespan_ns == 0
    assert plan.claims.transports == ()


def test_missing_ops_of_compute_tables_are_named() -> None:
    """A compute_only table with an op too few and one too many gives just these two faults."""
    plan, found = import_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F2,1B1\n", job_document(2, 2, 2))
    assert sorted(codes(found)) == ["mb-range", "missing-op"]
    assert "F of stage 1 mb 1 is missing" in " ".join(fault.message for fault in found)
    assert found == validate(plan)


@pytest.mark.parametrize("backwards", [("1B0", "1B1"), ("1I0,1W0", "1I1,1W1")])
def test_forwards_from_one_are_explained(backwards: tuple[str, str]) -> None:
    """F1..Fn beside B0..Bn-1, as torch 2.13 writes its own 1F1B, is named as that beside the faults."""
    text = "0F0,0F1,0B0,0B1\n1F1,{},1F2,{}\n".format(*backwards)
    plan, found = import_text(text, job_document(2, 2, 2))
    assert sorted(codes(found)) == ["mb-range", "missing-op", "torch-1f1b"]
    assert found[1:] == validate(plan)
    assert str(found[0]) == (
        "warning: table.csv:2:1: rank 1: 1F1: F1..F2 with B0..B1: so torch 2.13 describes the last rank of its 1F1B, "
        "which runs F0..F1 [torch-1f1b]"
    )
    assert codes(import_text(text.replace("1F1", "1F0").replace("1F2", "1F1"), job_document(2, 2, 2))[1]) == []


def test_cycles_of_compute_tables_are_printed() -> None:
    """A compute_only table whose ranks wait for each other is a deadlock with its cycle."""
    _, found = import_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", job_document(2, 2, 2))
    assert codes(found) == ["deadlock"]
    assert "wait cycle under channels: rank 0" in found[0].message


@pytest.mark.parametrize(
    ("text", "document", "message"),
    [
        ("0F0,0B0\n", job_document(2, 2, 1), "the table has 1 ranks, the profile 2 devices"),
        ("0F0,0B0\n1F0,1B0\n", job_document(2, 2, 2), "the table has 1 microbatches, the profile 2"),
        ("0F0,0B0\n1F0,2F0,2B0,1B0\n", job_document(2, 2, 1), "the table has 3 stages, the profile 2"),
    ],
)
def test_tables_for_another_job_are_refused(text: str, document: dict[str, Any], message: str) -> None:
    """A whole table for other numbers of ranks, stages or microbatches is refused with both numbers."""
    with pytest.raises(PlanError, match=rf"{message} \[different-size\]"):
        import_text(text, document)


@pytest.mark.parametrize(
    ("old", "new", "code", "place"),
    [
        ("1RECV_F0,", "7RECV_F0,", "stage-range", (2, 1)),
        ("1F0,", "1F0,1SEND_F0,", "local-message", (2, 3)),
        ("0F0,", "0RECV_F0,0F0,", "local-message", (1, 1)),
    ],
)
def test_cells_without_words_in_a_plan_are_refused(old: str, new: str, code: str, place: tuple[int, int]) -> None:
    """A stage that the job lacks, and a message to nobody, are refused with row and cell: no plan can hold them."""
    with pytest.raises(PlanError, match=rf"\[{code}\]") as raised:
        import_text(TWO_RANKS.replace(old, new, 1), job_document(2, 2, 2))
    assert [(fault.line, fault.column) for fault in raised.value.diagnostics] == [place]


def test_messages_inside_a_rank_are_refused() -> None:
    """A SEND between neighbours on one rank, on which torch fails, is refused."""
    with pytest.raises(PlanError, match="1SEND_F0: stage 2 is on the same rank, where torch hands over without"):
        import_text(HOISTED.replace("1F0,2F0", "1F0,1SEND_F0,2F0"), job_document(2, 4, 2))


def test_the_tables_own_placement_counts() -> None:
    """Stages stand where the table computes them, not where the profile has them, as torch infers it."""
    plan, found = import_text(HOISTED, job_document(2, 4, 2), "channels")
    assert found == ()
    assert plan.problem.placement == (0, 1, 1, 0)


@pytest.mark.parametrize("missing", ["1REDUCE_GRAD", "0REDUCE_GRAD"])
def test_unscaled_gradients_are_warned_of(missing: str) -> None:
    """A stage without a REDUCE_GRAD after its last W or B leaves gradients too large in torch: a warning."""
    _, found = import_text(TWO_RANKS.replace(f",{missing}", ""), job_document(2, 2, 2))
    assert [(fault.code, fault.severity) for fault in found] == [("reduce-grad", "warning")]
    early = TWO_RANKS.replace(",0REDUCE_GRAD", "").replace("0RECV_B1,", "0REDUCE_GRAD,0RECV_B1,")
    assert codes(import_text(early, job_document(2, 2, 2))[1]) == ["reduce-grad"]


def test_blank_cells_among_messages_are_warned_of() -> None:
    """A blank cell in a table with messages, which torch does not load, is a warning."""
    _, found = import_text(TWO_RANKS.replace("0F1", ",0F1"), job_document(2, 2, 2))
    assert [(fault.code, fault.line, fault.column) for fault in found] == [("blank-cell", 1, 3)]


ZERO1 = {"data_parallel": {"mode": "zero1", "replicas": 2, "bandwidth_gbit_s": 1}}
DDP = {"data_parallel": {"mode": "ddp", "replicas": 2, "bandwidth_gbit_s": 1}}
UNSHARDED = "0UNSHARD," + TWO_RANKS.replace("1RECV_F0", "1UNSHARD,1RECV_F0")


@pytest.mark.parametrize(("text", "job"), [(UNSHARDED, ZERO1), (TWO_RANKS, DDP), (UNSHARDED, DDP)])
def test_collectives_are_those_of_the_profile(text: str, job: dict[str, Any]) -> None:
    """UNSHARD is the all-gather of ZeRO-1 and REDUCE_GRAD the profile's reduction; both are timed."""
    plan, found = import_text(text, job_document(2, 2, 2, **job))
    assert found == ()
    names = [step.op for program in plan.ranks for step in program.ops if step.start_ns is not None]
    expected = {"ALL_GATHER": 2, "REDUCE_SCATTER": 2} if job is ZERO1 else {"ALL_REDUCE": 2}
    assert {name: names.count(name) for name in sorted({*names} - {"F", "D", "W", "B"})} == expected
    assert plan.claims.makespan_ns > import_text(TWO_RANKS, job_document(2, 2, 2))[0].claims.makespan_ns


def test_missing_collectives_are_faults() -> None:
    """A table without UNSHARD for a ZeRO-1 job lacks a collective: nothing is put in its place."""
    _, found = import_text(TWO_RANKS, job_document(2, 2, 2, **ZERO1))
    assert set(codes(found)) == {"missing-collective"}


def test_late_collectives_are_refused() -> None:
    """Collectives that stand later than the model has them are refused with their cells."""
    text = TWO_RANKS.replace("0SEND_F0", "0SEND_F0,0UNSHARD").replace("1RECV_F0", "1UNSHARD,1RECV_F0")
    with pytest.raises(PlanError, match=r"table.csv:1:3: rank 0: 0UNSHARD: .* \[late-collective\]"):
        import_text(text, job_document(2, 2, 2, **ZERO1))


def test_stages_without_a_split_are_faults() -> None:
    """A table that splits the backward of a stage that has only B is at odds with the profile."""
    job = job_document(2, 2, 1)
    for stage in job["stages"]:
        del stage["input_grad_ms"], stage["weight_grad_ms"]
    _, found = import_text("0F0,0B0\n1F0,1I0,1W0\n", job)
    assert codes(found) == ["cannot-split", "cannot-split"]


def test_too_little_memory_is_a_fault() -> None:
    """A table that needs more memory than the profile has is timed all the same, and the fault says where."""
    job = job_document(2, 2, 2)
    job["devices"][0]["memory_bytes"] = 1500
    plan, found = import_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", job)
    assert codes(found) == ["memory"]
    assert plan.claims.makespan_ns > 0


def test_imported_plans_replay_on_other_profiles() -> None:
    """An imported plan is a plan: on a slower profile it takes longer, its receives where the table has them."""
    plan, _ = import_text(TWO_RANKS, job_document(2, 2, 2))
    slow = as_profile(job_document(2, 2, 2, links=[{"from": "g0", "to": "g1", "latency_ms": 9}]))
    assert simulate_plan(plan, problem_for_plan(plan, slow)).makespan_ns > plan.claims.makespan_ns
