"""Tests of cpipe.plan.validate.replay: times worked out by hand, one rule of the network at a time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hand_plans import hand_plan, link
from helpers import assert_plan_ok, plan_of
from random_plans import draw_problem, draw_schedule

from cpipe.ir import Collectives, Device, Hop, Plan, Problem, Stage
from cpipe.plan.validate.layout import check_layout
from cpipe.plan.validate.replay import Outcome, replay
from cpipe.plan.validate.report import Report
from cpipe.plan.validate.steps import check_steps
from cpipe.units import Bytes, Ns

ACTIVATION, GRADIENT = link(0, 1, "activation", 4), link(1, 0, "gradient", 4)


def network(
    placement: tuple[int, ...],
    microbatches: int,
    *,
    latency: int = 0,
    occupancy: int = 0,
    shared: bool = False,
    forward: int = 10,
    backward: int = 20,
) -> Problem:
    """Return a problem of equal stages and links; `shared` puts all messages on one pipe."""
    num_devices = max(placement) + 1

    def hop(source: int, target: int) -> Hop | None:
        if source == target:
            return None
        return Hop(
            source=source,
            target=target,
            message_bytes=Bytes(1),
            latency_ns=Ns(latency),
            occupancy_ns=Ns(occupancy),
            pipe=0 if shared else source * num_devices + target,
        )

    pairs = list(pairwise(placement))
    return Problem(
        microbatches=microbatches,
        devices=tuple(Device(name=f"g{device}") for device in range(num_devices)),
        stages=tuple(
            Stage(
                name=f"s{stage}",
                device=device,
                forward_ns=Ns(forward),
                input_grad_ns=Ns(backward // 2),
                weight_grad_ns=Ns(backward - backward // 2),
                full_backward_ns=Ns(backward),
            )
            for stage, device in enumerate(placement)
        ),
        forward_hops=tuple(hop(source, target) for source, target in pairs),
        backward_hops=tuple(hop(target, source) for source, target in pairs),
        pipes=tuple(f"pipe{index}" for index in range(num_devices**2)),
    )


def run(plan: Plan, problem: Problem) -> Outcome:
    """Replay a plan."""
    report = Report(None)
    layout = check_layout(plan, report)
    return replay(layout, check_steps(layout, report), problem)


def starts(outcome: Outcome, rank: int) -> list[int]:
    """Return the starts of a rank's ops in program order [ns]."""
    return [start for _, (start, _) in sorted(outcome.times[rank].items())]


def test_message_takes_occupancy_and_latency() -> None:
    """A message arrives after it has held its pipe and travelled; the next one waits for the pipe, not the journey."""
    plan = hand_plan([0, 1], 2, ["F0.0 S0.0@0 F0.1 S0.1@0", "R1.0@0 R1.1@0 ?1.0@0 F1.0 ?1.1@0 F1.1"], [ACTIVATION])
    outcome = run(plan, network((0, 1), 2, latency=100, occupancy=30))
    # ready 10, holds the pipe 10..40, arrives 140; ready 20, holds 40..70, arrives 170
    assert starts(outcome, 1) == [140, 170]
    assert outcome.makespan_ns == 180
    assert outcome.blocked == {}


def test_late_receive_holds_up_its_message() -> None:
    """A message leaves no earlier than its receive is posted: when the op before the receive has ended."""
    plan = hand_plan([0, 1], 2, ["F0.0 S0.0@0 F0.1 S0.1@0", "R1.0@0 ?1.0@0 F1.0 R1.1@0 ?1.1@0 F1.1"], [ACTIVATION])
    outcome = run(plan, network((0, 1), 2, latency=100))
    # F1.0 runs 110..120; the second message is ready at 20 and leaves at 120
    assert starts(outcome, 1) == [110, 220]


def test_receive_behind_a_wait_is_posted_when_it_ends() -> None:
    """A host that stands at a WAIT posts nothing until the message has arrived."""
    plan = hand_plan([0, 1], 2, ["F0.0 S0.0@0 F0.1 S0.1@0", "R1.0@0 ?1.0@0 R1.1@0 F1.0 ?1.1@0 F1.1"], [ACTIVATION])
    outcome = run(plan, network((0, 1), 2, latency=100))
    assert starts(outcome, 1) == [110, 210]  # posted at 110, when the first has arrived


def test_messages_of_one_sender_keep_their_order() -> None:
    """On one pipe a message behind one whose receive is late waits too, whatever their channels."""
    plan = hand_plan(
        [0, 1, 0, 1],
        2,
        [
            "F0.0 S0.0@0 R2.0@2 ?2.0@2 F2.0 S2.0@0",
            "R1.0@0 ?1.0@0 F1.0 S1.0@2 R3.0@0 ?3.0@0 F3.0",
        ],
        [ACTIVATION, link(0, 1, "gradient"), link(1, 0, "activation")],
    )
    outcome = run(plan, network((0, 1, 0, 1), 2, latency=5))
    assert starts(outcome, 0) == [0, 30]
    assert starts(outcome, 1) == [15, 45]


@pytest.mark.parametrize(("shared", "last_start"), [(False, 57), (True, 61)])
def test_shared_pipe_carries_one_message_at_a_time(shared: bool, last_start: int) -> None:
    """On a pipe for both directions a message waits until the one before it, of whichever sender, has passed."""
    plan = hand_plan(
        [0, 1],
        2,
        [
            "F0.0 S0.0@0 F0.1 S0.1@0 R0.0@1 ?0.0@1 B0.0",
            "R1.0@0 R1.1@0 ?1.0@0 F1.0 B1.0 S1.0@1 ?1.1@0 F1.1",
        ],
        [ACTIVATION, GRADIENT],
    )
    outcome = run(plan, network((0, 1), 2, occupancy=17, shared=shared, backward=3))
    # the activations hold the pipe 10..27 and 27..44; the gradient is ready at 40, when B1.0 ends
    assert starts(outcome, 1) == [27, 37, 44]
    assert starts(outcome, 0) == [0, 10, last_start]


def test_lower_rank_goes_first_at_equal_times() -> None:
    """Of two messages that are ready at the same time on a shared pipe, the lower rank's is carried first."""
    plan = hand_plan(
        [1, 2, 0, 2],
        1,
        ["F2.0 S2.0@0", "F0.0 S0.0@1", "R3.0@0 R1.0@1 ?1.0@1 F1.0 ?3.0@0 F3.0"],
        [link(0, 2, "activation"), link(1, 2, "activation")],
    )
    # F2.0 and F0.0 end at 10 on ranks 0 and 1: rank 0's message holds the pipe 10..15, rank 1's 15..20
    outcome = run(plan, network((1, 2, 0, 2), 1, occupancy=5, shared=True))
    assert starts(outcome, 2) == [20, 30]


def test_collectives_run_beside_compute() -> None:
    """A gather holds back only its own stage; reductions follow each other on the rank's own link."""
    problem = network((0, 0), 1)
    stages = [
        Stage(
            **{name: getattr(stage, name) for name in Stage.__struct_fields__} | {"all_gather_ns": 4, "reduce_ns": 50}
        )
        for stage in problem.stages
    ]
    problem = Problem(
        **{name: getattr(problem, name) for name in Problem.__struct_fields__}
        | {"stages": tuple(stages), "collectives": Collectives(mode="zero1", replicas=2)}
    )
    plan = plan_of(problem, draw_schedule(Random(3), problem))
    assert_plan_ok(plan, problem)
    outcome = run(plan, problem)
    times = {
        (step.op, step.stage): outcome.times[0][index]
        for index, step in enumerate(plan.ranks[0].ops)
        if index in outcome.times[0]
    }
    assert times["ALL_GATHER", 0] == (0, 4)
    assert times["ALL_GATHER", 1] == (4, 8)
    assert times["F", 0] == (4, 14)
    assert times["F", 1] == (14, 24)
    first, second = sorted(times["REDUCE_SCATTER", stage] for stage in (0, 1))
    assert second[0] == max(first[1], second[1] - 50)
    assert outcome.makespan_ns == second[1]


def test_blocked_ranks_are_named() -> None:
    """When nothing moves any more, each rank that is not done is given with the WAIT at which it stands."""
    plan = hand_plan(
        [0, 1], 1, ["R0.0@1 ?0.0@1 B0.0 F0.0 S0.0@0", "R1.0@0 ?1.0@0 F1.0 B1.0 S1.0@1"], [ACTIVATION, GRADIENT]
    )
    outcome = run(plan, network((0, 1), 1))
    assert {rank: (step.at, step.op) for rank, step in outcome.blocked.items()} == {0: (1, "WAIT"), 1: (1, "WAIT")}


@pytest.mark.parametrize("seed", range(60))
def test_replay_agrees_with_the_simulator(seed: int) -> None:
    """Two machines written apart give every op and collective the same times."""
    draw = Random(9000 + seed)
    problem = draw_problem(draw, windows=False)
    plan = plan_of(problem, draw_schedule(draw, problem))
    assert_plan_ok(plan, problem)
    outcome = run(plan, problem)
    stated = {
        (program.rank, index): (step.start_ns, step.end_ns)
        for program in plan.ranks
        for index, step in enumerate(program.ops)
        if step.start_ns is not None
    }
    replayed = {(rank, index): times for rank, row in outcome.times.items() for index, times in row.items()}
    assert replayed == stated
    assert outcome.makespan_ns == plan.claims.makespan_ns
