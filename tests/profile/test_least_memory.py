"""The least memory of one microbatch, against the simulator's count over every order a device could run."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpipe.ir.ops import OpKind, encode_op
from cpipe.ir.problem import Device, Hop, Problem, Stage
from cpipe.profile.memory import least_activation_bytes, receive_bytes
from cpipe.sim import memory_peaks
from cpipe.units import Bytes, Ns

NUM_SIZES = 5


def stage_of(*sizes: int, can_split: bool = True) -> Stage:
    """Return a stage with the given activation, held bytes and transients of F, D, W."""
    activation, held, forward, input_grad, weight_grad = (*sizes, *[0] * (NUM_SIZES - len(sizes)))
    return Stage(
        name="s",
        device=0,
        forward_ns=Ns(1),
        input_grad_ns=Ns(1),
        weight_grad_ns=Ns(1),
        full_backward_ns=Ns(2),
        can_split=can_split,
        activation_bytes=Bytes(activation),
        held_bytes=Bytes(held),
        forward_transient_bytes=Bytes(forward),
        input_grad_transient_bytes=Bytes(input_grad),
        weight_grad_transient_bytes=Bytes(weight_grad),
    )


def orders(stages: list[Stage], backwards: int = 0, waiting: tuple[int, ...] = ()) -> Iterator[list[int]]:
    """Yield every way through the backwards of one microbatch, once `backwards` stages, from the last, are done."""
    if backwards == len(stages) and not waiting:
        yield []
    if backwards < len(stages):
        stage = len(stages) - 1 - backwards
        for rest in orders(stages, backwards + 1, waiting):
            yield [encode_op(OpKind.B, stage, 0, 1), *rest]
        if stages[stage].can_split:
            for rest in orders(stages, backwards + 1, (*waiting, stage)):
                yield [encode_op(OpKind.D, stage, 0, 1), *rest]
    for stage in waiting:
        for rest in orders(stages, backwards, tuple(other for other in waiting if other != stage)):
            yield [encode_op(OpKind.W, stage, 0, 1), *rest]


def searched(stages: list[Stage]) -> int:
    """Return the least peak of one microbatch over all orders, as the simulator counts it."""
    none = (None,) * (len(stages) - 1)
    device = Device(name="g")
    problem = Problem(microbatches=1, devices=(device,), stages=tuple(stages), forward_hops=none, backward_hops=none)
    problem.verify()
    forwards = [encode_op(OpKind.F, stage, 0, 1) for stage in range(len(stages))]
    return min(memory_peaks(problem, [forwards + rest])[0] for rest in orders(stages))


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([stage_of(3)], 3),  # F alone
        ([stage_of(3, 0, 2)], 5),  # F with its transient
        ([stage_of(3, 0, 0, 4)], 7),  # D with its transient
        ([stage_of(3, 1, 0, 0, 4)], 5),  # W after D freed most; B would peak at 7
        ([stage_of(3, 1, 0, 0, 4, can_split=False)], 7),  # B is all there is
        ([stage_of(3, 5, 0, 1, 1)], 4),  # D would keep more than F did: B is cheaper
        ([stage_of(3), stage_of(3)], 6),  # both forwards are held before the first backward
        ([stage_of(5), stage_of(1, 0, 0, 0, 5)], 6),  # the W of the last stage waits for the D of the first
        ([stage_of(6, 3, 0, 0, 5), stage_of(4, 2, 0, 0, 8)], 10),  # of two waiting W, the smaller goes first
        ([stage_of(10), stage_of(1, 2, 0, 1, 5)], 13),  # a D that keeps more than F did counts that while it runs
        ([stage_of(0)], 0),
    ],
)
def test_known_peaks(stages: list[Stage], expected: int) -> None:
    """Small cases by hand: forwards climb, and each backward goes the cheapest way."""
    assert least_activation_bytes(stages) == expected
    assert searched(stages) == expected


@settings(deadline=None)
@given(st.lists(st.builds(stage_of, *[st.integers(0, 6)] * NUM_SIZES, can_split=st.booleans()), min_size=1, max_size=4))
def test_least_peak_is_exact(stages: list[Stage]) -> None:
    """No order of one microbatch peaks lower, and one peaks exactly there."""
    assert least_activation_bytes(stages) == searched(stages)


def test_receive_buffers_are_one_per_channel() -> None:
    """Messages of one kind from one device share a buffer as large as the largest; kinds and senders have their own."""

    def hop(source: int, target: int, size: int) -> Hop:
        return Hop(
            source=source, target=target, message_bytes=Bytes(size), latency_ns=Ns(0), occupancy_ns=Ns(0), pipe=0
        )

    placement = [0, 1, 0, 1, 2]
    sizes = [10, 200, 3000, 40000]
    pairs = list(zip(placement, placement[1:], sizes, strict=False))
    problem = Problem(
        microbatches=1,
        devices=tuple(Device(name=f"g{index}") for index in range(3)),
        stages=tuple(msgspec.structs.replace(stage_of(), device=device) for device in placement),
        forward_hops=tuple(hop(source, target, size) for source, target, size in pairs),
        backward_hops=tuple(hop(target, source, size) for source, target, size in pairs),
        pipes=("any",),
    )
    problem.verify()
    assert receive_bytes(problem, 0) == 200 + 3000  # activations of s1; gradients of s1 (10) and s3 (3000)
    assert receive_bytes(problem, 1) == 3000 + 200 + 40000  # activations of s0, s2; gradients of s2; of s4
    assert receive_bytes(problem, 2) == 40000
