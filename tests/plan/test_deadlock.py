"""Tests of cpipe.plan.validate.deadlock: the queue models of five transports, and the cycles they report.

Several plans come from hangs that users of pipeline runtimes reported; see each test. They are fragments: other rules
find fault with them, only what is said of deadlocks and swaps is looked at.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hand_plans import hand_plan, link
from helpers import assert_plan_ok, plan_of
from plan_edits import set_ops
from random_plans import draw_problem, draw_schedule
from sample_plans import make_problem, one_f_one_b

from cpipe.ir import Plan
from cpipe.plan import TRANSPORTS, validate


def verdicts(plan: Plan, *codes: str) -> dict[str, list[str]]:
    """Return the messages of the asked codes under every transport."""
    return {
        transport: [fault.message for fault in validate(plan, transport=transport) if fault.code in codes]
        for transport in TRANSPORTS
    }


def hangs(plan: Plan) -> set[str]:
    """Return the transports under which the plan can hang."""
    return {transport for transport, messages in verdicts(plan, "deadlock").items() if messages}


def test_two_sends_face_each_other() -> None:
    """A1: both ranks stand in a send whose receive comes later in the peer's queue; separate queues let both pass."""
    plan = hand_plan(
        [0, 1, 0, 1],
        2,
        ["F0.1 S0.1@0 R2.0@1 ?2.0@1 F2.0", "F1.0 S1.0@1 R1.1@0 ?1.1@0 F1.1"],
        [link(0, 1, "activation"), link(1, 0, "activation")],
    )
    assert hangs(plan) == {"nccl-pair", "nccl-rank", "nccl-dir2"}
    (cycle,) = verdicts(plan, "deadlock")["nccl-pair"]
    assert cycle == (
        "wait cycle under nccl-pair: rank 0 ops[1] SEND activation of stage 0 mb 1 to rank 1 -> "
        "rank 1 ops[1] SEND activation of stage 1 mb 0 to rank 0 -> rank 0 ops[1]"
    )
    (fault,) = [fault for fault in validate(plan, transport="nccl-pair") if fault.code == "deadlock"]
    assert fault.path == "$.ranks[0].ops[1]"


def test_message_of_one_end_has_no_makespan() -> None:
    """A rank that waits for what nobody sends never finishes: there is no cycle, and no time is compared either."""
    late = hand_plan([0, 1], 1, ["F0.0", "R1.0@0 ?1.0@0 F1.0"], [link(0, 1, "activation")], makespan_ns=77)
    assert hangs(late) == set()
    codes = {fault.code for fault in validate(late)}
    assert "missing-send" in codes
    assert not codes & {"before-input", "wrong-makespan", "overlap"}


def test_receives_posted_too_early_block_sends() -> None:
    """A3: a receive placed when its sender is merely scheduled stands before a send that the peer waits for."""
    plan = hand_plan(
        [0, 1, 0],
        2,
        [
            "F0.0 S0.0@0 R2.0@1 F0.1 S0.1@0 R2.1@1 ?2.0@1 F2.0 ?2.1@1 F2.1",
            "R1.0@0 R1.1@0 ?1.0@0 F1.0 S1.0@1 ?1.1@0 F1.1 S1.1@1",
        ],
        [link(0, 1, "activation"), link(1, 0, "activation")],
    )
    assert hangs(plan) == {"nccl-pair", "nccl-rank", "nccl-dir2"}
    (cycle,) = verdicts(plan, "deadlock")["nccl-rank"]
    assert "rank 0 ops[2] RECV activation of stage 2 mb 0 from rank 1" in cycle
    assert "rank 1 ops[1] RECV activation of stage 1 mb 1 from rank 0" in cycle


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 7, 8])
def test_ring_of_sends(num_ranks: int) -> None:
    """A5: when every rank sends to the next before it receives, one queue per rank hangs, odd or even."""
    placement = [*range(num_ranks), 0]
    programs = [
        f"S{rank}.0@{rank} R{rank or num_ranks}.0@{before} ?{rank or num_ranks}.0@{before}"
        for rank in range(num_ranks)
        for before in [(rank - 1) % num_ranks]
    ]
    channels = [link(rank, (rank + 1) % num_ranks, "activation") for rank in range(num_ranks)]
    plan = hand_plan(placement, 1, programs, channels)
    expected = {"nccl-rank", "nccl-dir2"} | ({"nccl-pair"} if num_ranks == 2 else set())
    assert hangs(plan) == expected
    (cycle,) = verdicts(plan, "deadlock")["nccl-rank"]
    assert cycle.count("SEND") == num_ranks


@pytest.mark.parametrize(("depth", "stuck"), [(1, True), (2, True), (3, True), (4, False)])
def test_finite_receive_depth(depth: int, stuck: bool) -> None:
    """A14: how many receives are posted ahead decides whether a blocking queue hangs; separate channels never do."""
    forwards = " ".join(f"F0.{mb} S0.{mb}@0" for mb in range(4))
    backwards = " ".join(f"R0.{mb}@1 ?0.{mb}@1 B0.{mb}" for mb in range(4))
    peer = " ".join(f"R1.{mb}@0" for mb in range(depth))
    for mb in range(4):
        peer += f" ?1.{mb}@0 F1.{mb} B1.{mb}"
        peer += f" R1.{mb + depth}@0" if mb + depth < 4 and mb % 2 else ""
        peer += f" S1.{mb}@1" + (f" R1.{mb + depth}@0" if mb + depth < 4 and mb % 2 == 0 else "")
    plan = hand_plan(
        [0, 1], 4, [f"{forwards} {backwards}", peer], [link(0, 1, "activation", depth), link(1, 0, "gradient")]
    )
    assert hangs(plan) == ({"nccl-pair", "nccl-rank"} if stuck else set())


def test_swap_is_named_a_swap() -> None:
    """A16: sends x, y and receives y, x agree in number and hang nowhere; they are refused as a swap."""
    plan = hand_plan(
        [0, 1], 2, ["F0.0 S0.0@0 F0.1 S0.1@0", "R1.1@0 R1.0@0 ?1.0@0 F1.0 ?1.1@0 F1.1"], [link(0, 1, "activation", 2)]
    )
    for messages in verdicts(plan, "swapped", "deadlock").values():
        assert messages == [
            "rank 1 ops[0] RECV activation of stage 1 mb 1 from rank 0 would take "
            "rank 0 ops[1] SEND activation of stage 0 mb 0 to rank 1: swapped, silent data corruption"
        ]


def test_kinds_may_swap_where_they_share_a_stream() -> None:
    """A gradient hoisted over an activation between the same ranks is right on channels, a swap elsewhere."""
    programs = ["F0.0 S0.0@0 F3.0 B3.0 S3.0@1", "R2.0@1 R1.0@0 ?1.0@0 F1.0 ?2.0@1 B2.0"]
    plan = hand_plan([0, 1, 1, 0], 1, programs, [link(0, 1, "activation"), link(0, 1, "gradient")])
    swapped = {transport for transport, messages in verdicts(plan, "swapped").items() if messages}
    assert swapped == {"gloo", "nccl-pair", "nccl-rank"}


def test_orders_that_wait_for_each_other() -> None:
    """Two ranks that each wait for what the other makes afterwards hang on every transport; all ops are named."""
    plan = hand_plan(
        [0, 1],
        1,
        ["R0.0@1 ?0.0@1 B0.0 F0.0 S0.0@0", "R1.0@0 ?1.0@0 F1.0 B1.0 S1.0@1"],
        [link(0, 1, "activation"), link(1, 0, "gradient")],
    )
    assert hangs(plan) == set(TRANSPORTS)
    assert verdicts(plan, "deadlock")["channels"] == [
        "wait cycle under channels: rank 0 ops[0] RECV gradient of stage 0 mb 0 from rank 1 -> "
        "rank 1 ops[1] WAIT activation of stage 1 mb 0 from rank 0 -> "
        "rank 1 ops[0] RECV activation of stage 1 mb 0 from rank 0 -> "
        "rank 0 ops[1] WAIT gradient of stage 0 mb 0 from rank 1 -> rank 0 ops[0]"
    ]


def test_every_cycle_is_reported_once() -> None:
    """Two independent hangs in one plan are two cycles; a rank that merely waits for them adds none."""
    block = ["R{0}.0@{1} ?{0}.0@{1} B{0}.0 F{0}.0 S{0}.0@{2}", "R{3}.0@{2} ?{3}.0@{2} F{3}.0 B{3}.0 S{3}.0@{1}"]
    programs = [
        *(text.format(0, 1, 0, 1) for text in block),
        *(text.format(2, 3, 2, 3) for text in block),
        "R4.0@4 ?4.0@4 F4.0",
    ]
    channels = [
        link(0, 1, "activation"), link(1, 0, "gradient"), link(2, 3, "activation"), link(3, 2, "gradient"),
        link(3, 4, "activation"),
    ]  # fmt: skip
    plan = hand_plan([0, 1, 2, 3, 4], 1, programs, channels)
    assert len(verdicts(plan, "deadlock")["channels"]) == 2


def test_message_without_partner_is_no_cycle() -> None:
    """A receive that nobody sends is reported as missing; it is no wait cycle, and the plan gets no makespan."""
    plan = hand_plan([0, 1], 1, ["F0.0", "R1.0@0 ?1.0@0 F1.0"], [link(0, 1, "activation")], makespan_ns=77)
    codes = {fault.code for fault in validate(plan)}
    assert "missing-send" in codes
    assert not codes & {"deadlock", "wrong-makespan", "wrong-time"}


def test_plan_that_hangs_gets_no_makespan() -> None:
    """A plan that cannot finish is told so, and nothing is said about its times."""
    problem = make_problem(2, 3)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    ops = list(plan.ranks[0].ops)
    gradient = next(index for index, step in enumerate(ops) if step.op == "WAIT")
    moved = ops[gradient - 1 : gradient + 2]
    plan = set_ops(plan, 0, [*moved, *ops[: gradient - 1], *ops[gradient + 2 :]])
    codes = {fault.code for fault in validate(plan, problem)}
    assert "deadlock" in codes
    assert not codes & {"wrong-time", "wrong-makespan", "cannot-finish", "overlap", "before-input"}


@pytest.mark.parametrize("seed", range(40))
def test_our_plans_never_hang_on_their_channels(seed: int) -> None:
    """Plans as they are made finish on channels; `validate` says so whatever the order and placement."""
    draw = Random(1000 + seed)
    problem = draw_problem(draw, windows=False)
    plan = plan_of(problem, draw_schedule(draw, problem))
    assert_plan_ok(plan, problem)
    assert "channels" not in hangs(plan)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 7, 8])
def test_nothing_depends_on_parity(num_ranks: int) -> None:
    """A5: 1F1B plans of any number of ranks are right on channels and gloo, with fewer microbatches than ranks too."""
    for microbatches in (1, 2, num_ranks + 1):
        problem = make_problem(num_ranks, microbatches, latency_ms=1)
        plan = plan_of(problem, one_f_one_b(problem))
        assert_plan_ok(plan, problem)
        assert not hangs(plan) & {"channels", "gloo"}


def test_shared_queues_only_get_worse() -> None:
    """What hangs on separate channels hangs on queues that merge them: pair and direction, then the whole rank."""
    plans = []
    for seed in range(60):
        draw = Random(seed)
        problem = draw_problem(draw, windows=False)
        plan = plan_of(problem, draw_schedule(draw, problem))
        place = draw.randrange(len(plan.ranks))
        ops = list(plan.ranks[place].ops)
        draw.shuffle(ops)
        plans.append(set_ops(plan, place, ops))
    outcomes = [hangs(plan) for plan in plans if not any(verdicts(plan, "swapped").values())]
    assert outcomes
    for finer, coarser in pairwise(("channels", "nccl-dir2", "nccl-rank")):
        assert all(coarser in outcome for outcome in outcomes if finer in outcome)
