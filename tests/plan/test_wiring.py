"""Tests of cpipe.plan.wiring: channels, groups and when a receive is due."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace
from sample_plans import MS, make_problem

from cpipe.ir import Collectives, MessageRun, Op, OpKind, Problem
from cpipe.plan.wiring import ChannelKey, Message, Wiring, consumed

WAVE = make_problem(2, 1, placement=(0, 1, 1, 0), latency_ms=3)


def test_channels_are_sorted() -> None:
    """Channel ids follow source, target, and activations before gradients."""
    wiring = Wiring(WAVE)
    assert list(wiring.channel_ids.items()) == [
        (ChannelKey(0, 1, "activation"), 0),
        (ChannelKey(0, 1, "gradient"), 1),
        (ChannelKey(1, 0, "activation"), 2),
        (ChannelKey(1, 0, "gradient"), 3),
    ]


@pytest.mark.parametrize(
    ("op", "channel", "message"),
    [
        (Op(OpKind.F, 0, 0), ChannelKey(0, 1, "activation"), Message("activation", 1, 0)),
        (Op(OpKind.F, 1, 0), None, None),  # stage 2 is on the same rank
        (Op(OpKind.F, 2, 0), ChannelKey(1, 0, "activation"), Message("activation", 3, 0)),
        (Op(OpKind.F, 3, 0), None, None),  # the last stage
        (Op(OpKind.D, 3, 0), ChannelKey(0, 1, "gradient"), Message("gradient", 2, 0)),
        (Op(OpKind.B, 1, 0), ChannelKey(1, 0, "gradient"), Message("gradient", 0, 0)),
        (Op(OpKind.B, 2, 0), None, None),  # stage 1 is on the same rank
        (Op(OpKind.D, 0, 0), None, None),  # the first stage
        (Op(OpKind.W, 3, 0), None, None),
    ],
)
def test_what_leaves_after_an_op(op: Op, channel: ChannelKey | None, message: Message | None) -> None:
    """F sends an activation, D and B a gradient, where a neighbour stage stands on another rank; W sends nothing."""
    found = Wiring(WAVE).feeds(op)
    assert found == (None if channel is None else (channel, message))


@pytest.mark.parametrize(
    ("op", "channel"),
    [
        (Op(OpKind.F, 0, 0), None),
        (Op(OpKind.F, 1, 0), ChannelKey(0, 1, "activation")),
        (Op(OpKind.F, 2, 0), None),
        (Op(OpKind.F, 3, 0), ChannelKey(1, 0, "activation")),
        (Op(OpKind.B, 3, 0), None),
        (Op(OpKind.B, 2, 0), ChannelKey(0, 1, "gradient")),
        (Op(OpKind.D, 1, 0), None),
        (Op(OpKind.D, 0, 0), ChannelKey(1, 0, "gradient")),
        (Op(OpKind.W, 0, 0), None),
    ],
)
def test_what_an_op_reads(op: Op, channel: ChannelKey | None) -> None:
    """Every message that is sent is read by the op of the neighbour stage for the same microbatch."""
    assert Wiring(WAVE).reads(op) == channel


def test_senders_and_readers_agree() -> None:
    """What an op sends is what the op it names reads, on the same channel."""
    wiring = Wiring(WAVE)
    reads = {
        consumed(op): wiring.reads(op) for stage in range(4) for op in (Op(OpKind.F, stage, 0), Op(OpKind.B, stage, 0))
    }
    fed = [wiring.feeds(Op(kind, stage, 0)) for stage in range(4) for kind in (OpKind.F, OpKind.B)]
    assert [reads[found[1]] == found[0] for found in fed if found is not None] == [True] * 4


@pytest.mark.parametrize("mode", ["ddp", "zero1"])
def test_groups_are_one_per_rank(mode: Literal["ddp", "zero1"]) -> None:
    """With data parallelism the stages of a rank are one group; without it there is none."""
    assert Wiring(WAVE).groups == ()
    problem = replace(make_problem(3, 1, placement=(2, 0, 2)), collectives=Collectives(mode=mode, replicas=2))
    wiring = Wiring(problem)
    assert [(group.id, group.stages) for group in wiring.groups] == [(0, (1,)), (1, (0, 2))]
    assert {stage: group.id for stage, group in wiring.group_of.items()} == {1: 0, 0: 1, 2: 1}


def message(pipe: int) -> MessageRun:
    """Return an activation that is ready at 5 ms and leaves at 9 ms."""
    return MessageRun(
        kind="activation",
        stage=0,
        microbatch=0,
        source=0,
        target=1,
        pipe=pipe,
        ready_ns=5 * MS,
        start_ns=9 * MS,
        end_ns=9 * MS,
        arrival_ns=12 * MS,
    )


def half_duplex(problem: Problem) -> Problem:
    """Put every hop on pipe 0."""
    hops = [
        tuple(hop and replace(hop, pipe=0) for hop in side) for side in (problem.forward_hops, problem.backward_hops)
    ]
    return replace(problem, forward_hops=hops[0], backward_hops=hops[1])


def test_receives_are_due_when_the_message_leaves() -> None:
    """On a pipe of its own a message needs its receive when it leaves; with `lead`, one latency before that."""
    key = ChannelKey(0, 1, "activation")
    assert Wiring(WAVE).post_by_ns(key, message(1), lead=True) == 6 * MS
    assert Wiring(WAVE).post_by_ns(key, message(1), lead=False) == 9 * MS


def test_receives_are_due_earlier_on_shared_pipes() -> None:
    """Where others send too, a message queues from when it is ready: the receive must be there by then."""
    key = ChannelKey(0, 1, "activation")
    assert Wiring(half_duplex(WAVE)).post_by_ns(key, message(0), lead=False) == 5 * MS
    contended = replace(WAVE, collectives=Collectives(mode="ddp", replicas=2, pipes=(1,)))
    assert Wiring(contended).post_by_ns(key, message(1), lead=True) == 2 * MS
