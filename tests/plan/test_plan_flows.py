"""Tests of plans of two flows: their own programs, one reduction over the copies of a stage, every slip caught."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import jsonschema
import pytest
from flow_problems import draw_flows, flow_document, flow_problem, flow_profile
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from oracle.orders import random_schedule
from oracle.paired import draw_paired, naive_makespan
from plan_edits import edit_op, edit_problem, insert_op, remove_op, set_ops

from cpipe.compiler import problem_for_plan
from cpipe.errors import Diagnostic, ProfileError
from cpipe.ir import Collectives, Instruction, Plan, Problem, Schedule
from cpipe.plan import encode_plan, lift, plan_schema, safe_transports, validate
from cpipe.plan.exchange import torch_faults
from cpipe.profile import normalize
from cpipe.sim import DeadlockError, simulate
from cpipe.units import Ns

DOCUMENT = flow_document(2, 4, latency_ms=1, gradient_bytes=1_000_000, output_bytes=4)
ORDER = """0F0 3F0 0F1 3B0 3F1 3B1 0B0 0B1
2F0 1F0 2F1 1B0 1F1 1B1 2B0 2B1"""


@cache
def made() -> tuple[Plan, Problem]:
    """Return a plan in the order of Chimera on two devices, and its problem."""
    problem = flow_problem(DOCUMENT)
    schedule = Schedule.from_text(ORDER, 2)
    schedule.verify(problem)
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    return plan, problem


def faults(plan: Plan, problem: Problem | None = None) -> list[Diagnostic]:
    """Return the faults of a changed plan once it is signed again."""
    return list(validate(signed(plan), problem))


def codes(plan: Plan, problem: Problem | None = None) -> set[str]:
    """Return their codes."""
    return {fault.code for fault in faults(plan, problem)}


def reduces(plan: Plan, place: int) -> list[int]:
    """Return the indices of a program's reductions."""
    return [index for index, step in enumerate(plan.ranks[place].ops) if step.op == "ALL_REDUCE"]


def test_summary_and_groups() -> None:
    """The plan says how many flows there are, and has a group for the copies of each stage."""
    plan, _ = made()
    assert (plan.problem.flows, plan.problem.stages, plan.problem.microbatches) == (2, 4, 2)
    assert [(group.id, group.kind, group.stages) for group in plan.groups] == [
        (0, "weight_copies", (0, 2)),
        (1, "weight_copies", (1, 3)),
    ]
    assert '"placement": [0, 1, 1, 0], "flows": 2}' in encode_plan(plan).decode()
    jsonschema.validate(json.loads(encode_plan(plan)), plan_schema())


def test_no_message_between_flows() -> None:
    """The last stage of one flow sends nothing to the first of the other; both directions have both kinds."""
    plan, _ = made()
    kinds = {(channel.source, channel.target, channel.carries) for channel in plan.channels}
    assert kinds == {(a, b, kind) for a, b in ((0, 1), (1, 0)) for kind in ("activation", "gradient")}
    sends = [(step.stage, plan.channels[step.channel or 0].carries) for step in plan.ranks[0].ops if step.op == "SEND"]
    assert set(sends) == {(0, "activation"), (3, "gradient")}


def test_reduction_starts_with_the_last_copy() -> None:
    """Both copies' all-reduces have the same times, after the last W or B of both; a link carries one at a time."""
    plan, problem = made()
    ends: dict[int, int] = {}
    runs: dict[int | None, set[tuple[int | None, int | None]]] = {}
    for program in plan.ranks:
        for step in program.ops:
            if step.op == "B" and step.stage is not None:
                ends[step.stage % 2] = max(ends.get(step.stage % 2, 0), step.end_ns or 0)
            elif step.op == "ALL_REDUCE":
                runs.setdefault(step.group, set()).add((step.start_ns, step.end_ns))
    assert all(len(times) == 1 for times in runs.values())
    (first,), (second,) = sorted(runs.values(), key=sorted)
    length = problem.stages[0].reduce_ns
    assert length == 2_500_000
    assert first == (min(ends.values()), min(ends.values()) + length)
    assert second[0] == max(max(ends.values()), first[1] or 0)
    assert plan.claims.makespan_ns == second[1]


def test_copies_are_posted_in_one_order() -> None:
    """Both ranks post the reductions in the order in which they run, though one of them was ready earlier."""
    plan, _ = made()
    groups = [[program.ops[index].group for index in reduces(plan, place)] for place, program in enumerate(plan.ranks)]
    assert groups[0] == groups[1]
    assert groups[0] == [1, 0]


def test_problem_comes_back_from_the_profile() -> None:
    """The problem of a plan of two flows is made again from the profile; another number of microbatches is refused."""
    plan, problem = made()
    assert problem_for_plan(plan, flow_profile(DOCUMENT)) == problem
    with pytest.raises(ProfileError, match=r"the plan has 4 microbatches, the profile 6 \[different-size\]"):
        problem_for_plan(plan, flow_profile(DOCUMENT | {"microbatches": 6}))
    with pytest.raises(ProfileError, match=r"the plan has 4 stages, the profile 8"):
        problem_for_plan(edit_problem(plan, flows=4), flow_profile(DOCUMENT))


def test_reduction_before_the_last_backward() -> None:
    """Gradients are complete on each rank before it posts the reduction over the copies."""
    plan, problem = made()
    index = reduces(plan, 0)[0]
    step = plan.ranks[0].ops[index]
    early = insert_op(remove_op(plan, 0, index), 0, 3, step)
    assert "collective-order" in codes(early, problem)
    assert "collective-order" in codes(early)


def test_reduction_missing_on_one_rank() -> None:
    """Every copy takes part in the reduction."""
    plan, problem = made()
    gone = remove_op(plan, 1, reduces(plan, 1)[1])
    told = [fault.message for fault in faults(gone, problem) if fault.code == "missing-collective"]
    assert told == ["rank 1: stage 2 has no ALL_REDUCE"]
    bare = replace(plan, groups=())
    for place in (0, 1):
        bare = set_ops(bare, place, [step for step in bare.ranks[place].ops if step.group is None])
    assert {"missing-collective", "group-stages"} <= codes(bare), "also without a problem"


def test_reductions_the_other_way_round() -> None:
    """Two ranks that run their reductions in different orders would wait for each other."""
    plan, problem = made()
    first, second = reduces(plan, 1)
    ops = list(plan.ranks[1].ops)
    ops.insert(second, ops.pop(first))
    swapped = set_ops(plan, 1, ops)
    told = [fault.message for fault in faults(swapped, problem) if fault.code == "copies-order"]
    assert len(told) == 1 and told[0].startswith("rank 1: ALL_REDUCE of stage 2 comes before that of stage 1, rank 0")


def test_wait_in_the_middle() -> None:
    """A rank that waits for copies before its own compute is done may keep the others from theirs."""
    plan, problem = made()
    ops = list(plan.ranks[0].ops)
    index = reduces(plan, 0)[0]
    wait = next(at for at, step in enumerate(ops) if step.op == "WAIT" and step.group == ops[index].group)
    ops.insert(index + 1, ops.pop(wait))
    compute = [at for at, step in enumerate(ops) if step.op == "B"]
    assert compute[-1] > index
    assert "early-wait" in codes(set_ops(plan, 0, ops), problem)


@pytest.mark.parametrize(
    ("group", "code"),
    [
        ({"kind": "data_parallel"}, "group-stages"),
        ({"stages": (0, 3)}, "group-stages"),
        ({"stages": (0,)}, "group-stages"),
        ({"stages": ()}, "group-stages"),
        ({"stages": (0, 2, 2)}, "group-stages"),
    ],
)
def test_wrong_groups(group: dict[str, Any], code: str) -> None:
    """A group of copies is all copies of one stage, each on a rank of its own."""
    plan, problem = made()
    changed = replace(plan, groups=(replace(plan.groups[0], **group), plan.groups[1]))
    assert code in codes(changed, problem) and code in codes(changed)


def test_wait_before_a_message_that_others_need() -> None:
    """A rank that waits for copies before it has sent its last gradient may keep others from their last backward."""
    plan, problem = made()
    ops = list(plan.ranks[0].ops)
    ops.insert(len(ops) - 3, ops.pop(reduces(plan, 0)[0] - 1))
    late = set_ops(plan, 0, ops)
    expected = "rank 0: WAIT of stage 3 for the copies on other ranks comes before SEND of stage 3 mb 1, at ops[22]"
    for told in (faults(late), faults(late, problem)):
        assert [(fault.code, fault.message) for fault in told] == [("early-wait", expected)]


def test_ring_of_reductions() -> None:
    """Three ranks of which each waits for the next hang, though every two of them agree on the order of theirs."""
    problem = normalize(flow_profile(flow_document(3, 2)), placement=(0, 0, 1, 2, 1, 2), flows=2)
    plan = plan_of(problem, random_schedule(problem, Random(1)))
    assert_plan_ok(plan, problem)
    turns = ((0, 1), (1, 2), (2, 0))
    for place, turn in enumerate(turns):
        ops = [step for step in plan.ranks[place].ops if step.op != "ALL_REDUCE"]
        posts = {step.group: step for step in plan.ranks[place].ops if step.op == "ALL_REDUCE"}
        first = next(index for index, step in enumerate(ops) if step.op == "WAIT" and step.group is not None)
        plan = set_ops(plan, place, [*ops[:first], *(posts[group] for group in turn), *ops[first:]])
    expected = (
        "rank 0: ALL_REDUCE of stage 0 can never run: those that come first wait for each other: "
        "ALL_REDUCE of stage 0 on rank 0, ALL_REDUCE of stage 4 on rank 1, ALL_REDUCE of stage 5 on rank 2"
    )
    for told in (faults(plan), faults(plan, problem)):
        assert ("copies-order", expected) in [(fault.code, fault.message) for fault in told]


def test_copies_are_reduced_at_one_time() -> None:
    """Without a problem, too, the reduction over copies is one op: all ranks state the same times for it."""
    plan, _ = made()
    index = reduces(plan, 0)[0]
    step = plan.ranks[0].ops[index]
    start, end = step.start_ns or 0, step.end_ns or 0
    told = faults(edit_op(plan, 0, index, start_ns=start + 1))
    expected = (
        f"rank 1: ALL_REDUCE of stage 1 runs from {start} to {end} ns, "
        f"that of its copy on rank 0 from {start + 1} to {end} ns"
    )
    assert [(fault.code, fault.message) for fault in told] == [("copies-time", expected)]


def test_kind_of_group_follows_the_flows() -> None:
    """Copies exist only where there are flows, and where there are, they are what a group joins."""
    plan, _ = made()
    one_each = replace(
        plan,
        groups=tuple(replace(group, kind="data_parallel", stages=(index,)) for index, group in enumerate(plan.groups)),
    )
    assert {"group-kind", "group-stages"} <= codes(one_each)


def test_copies_on_one_rank() -> None:
    """Two copies on one rank are no copies: each of a group's stages stands on a rank of its own."""
    plan, _ = made()
    told = [
        fault.message for fault in faults(edit_problem(plan, placement=(0, 1, 0, 1))) if fault.code == "group-stages"
    ]
    assert "group 0 has 2 copies on 1 ranks, expected one on each" in told


@pytest.mark.parametrize("flows", [0, -1, 3, 1, 4])
def test_wrong_flows(flows: int) -> None:
    """The number of flows divides the stages, and the programs are those of that many."""
    plan, problem = made()
    changed = edit_problem(plan, flows=flows)
    assert {"other-problem"} <= codes(changed, problem)
    assert codes(changed) & {"count", "wrong-channel", "group-stages", "group-kind"}


def test_time_of_a_reduction_is_checked() -> None:
    """The replay knows when the copies are complete: another time of the all-reduce is a fault."""
    plan, problem = made()
    index = reduces(plan, 0)[1]
    step = plan.ranks[0].ops[index]
    later = edit_op(plan, 0, index, start_ns=(step.start_ns or 0) + 1, end_ns=(step.end_ns or 0) + 1)
    assert "wrong-time" in codes(later, problem)


def test_torch_has_one_flow() -> None:
    """Torch's table cannot hold two copies of a stage."""
    assert [fault.code for fault in torch_faults(made()[0])][-1] == "torch-flows"


def test_transports() -> None:
    """A plan of two flows claims the transports that it is right for as any other."""
    assert "channels" in safe_transports(made()[0])


@pytest.mark.parametrize("seed", range(60))
def test_random_flows(seed: int) -> None:
    """Random orders and pairs of two flows make valid plans; the simulator agrees with a sweep of its own."""
    draw = Random(3000 + seed)
    problem = draw_flows(draw)
    problem.verify()
    schedule = draw_paired(draw, problem, random_schedule(problem, draw))
    schedule.verify(problem)
    timeline = simulate(problem, schedule)
    timeline.verify(schedule)
    assert timeline.makespan_ns == naive_makespan(problem, schedule)
    plan = plan_of(problem, schedule, lead=draw.random() < 0.5)
    assert_plan_ok(plan, problem)
    assert lift(plan)[0] == schedule
    assert validate(plan) == ()


@pytest.mark.parametrize("seed", range(60))
def test_random_flows_on_shared_pipes(seed: int) -> None:
    """Also where messages of all devices share pipes that the reductions occupy too, and receives are few."""
    draw = Random(8000 + seed)
    problem = replace(draw_flows(draw, shared=True), receive_window=draw.choice((None, None, 1, 2)))
    problem.verify()
    schedule = draw_paired(draw, problem, random_schedule(problem, draw))
    try:
        plan = plan_of(problem, schedule)
    except DeadlockError:  # the window is too small for the order
        return
    assert_plan_ok(plan, problem)


def tied(draw: Random) -> Problem:
    """Return two flows of ops that mostly take no time, their copies on other devices; all share one pipe."""
    placement = draw.choice(((0, 1, 1, 1, 0, 2), (0, 0, 1, 2, 1, 2), (1, 0, 2, 2, 1, 0)))
    problem = normalize(flow_profile(flow_document(3, 2 * draw.randint(1, 3))), placement=placement, flows=2)
    lengths = [Ns(draw.choice((0, 0, 1, 4))) for _ in range(3)]
    stages = [
        replace(
            stage,
            forward_ns=Ns(draw.choice((0, 0, 2))),
            full_backward_ns=Ns(draw.choice((0, 0, 2))),
            reduce_ns=lengths[index % 3],
        )
        for index, stage in enumerate(problem.stages)
    ]
    hops = [
        tuple(hop and replace(hop, pipe=0, occupancy_ns=Ns(draw.choice((0, 2)))) for hop in row)
        for row in (problem.forward_hops, problem.backward_hops)
    ]
    shared = Collectives(mode="ddp", replicas=1, pipes=draw.choice(((), (0,))))
    tied = replace(
        problem, stages=tuple(stages), forward_hops=hops[0], backward_hops=hops[1], pipes=("one",), collectives=shared
    )
    tied.verify()
    return tied


@pytest.mark.parametrize("seed", range(0, 400, 40))
def test_ties_on_a_shared_pipe(seed: int) -> None:
    """What is ready at the same time takes its turn in one way, for the simulator and for the plan's own replay."""
    for number in range(seed, seed + 40):
        draw = Random(number)
        problem = tied(draw)
        assert_plan_ok(plan_of(problem, random_schedule(problem, draw)), problem)


@pytest.mark.parametrize("seed", range(40))
def test_changes_of_reductions_are_caught(seed: int) -> None:
    """Every single change of a collective instruction is a fault."""
    draw = Random(seed)
    plan, problem = made()
    place = draw.randrange(2)
    places = [index for index, step in enumerate(plan.ranks[place].ops) if step.group is not None]
    index = draw.choice(places)
    step = plan.ranks[place].ops[index]
    changed = draw.choice(
        (
            remove_op(plan, place, index),
            insert_op(plan, place, draw.randint(0, len(plan.ranks[place].ops)), step),
            edit_op(plan, place, index, group=1 - (step.group or 0)),
            edit_op(plan, place, index, stage=(step.stage or 0) + draw.choice((-1, 1, 2))),
            edit_op(plan, place, index, op="WAIT" if step.op == "ALL_REDUCE" else "ALL_REDUCE"),
            insert_op(plan, place, 0, Instruction(op="WAIT", stage=step.stage, group=step.group)),
        )
    )
    assert codes(changed, problem) and codes(changed)
