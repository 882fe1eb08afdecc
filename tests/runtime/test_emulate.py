"""Tests of cpipe.runtime.emulate: when a message that has arrived may be used."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

from cpipe.runtime.emulate import Emulation, HopDelay

FORWARD = (0, 1, "activation")
BACKWARD = (1, 0, "gradient")


def emulation(*delays: HopDelay) -> Emulation:
    """Return an emulation, by way of the JSON that the command hands to its workers."""
    return Emulation.from_builtins(json.loads(json.dumps(Emulation(delays).to_builtins())))


def test_latency_counts_from_sending() -> None:
    """A message may be used one latency after it was sent, however late its receiver looks."""
    slow = emulation(HopDelay(carries="activation", stage=1, latency_s=2.0))
    assert slow.hold(FORWARD, 1, 10.0, 10.1) == 12.0
    assert slow.hold(FORWARD, 1, 11.0, 12.5) == 13.0


def test_never_before_it_is_there() -> None:
    """A message is not handed over before it has arrived, whatever the model says."""
    slow = emulation(HopDelay(carries="activation", stage=1, latency_s=2.0))
    assert slow.hold(FORWARD, 1, 10.0, 15.0) == 15.0


def test_unnamed_hop_costs_nothing() -> None:
    """A hop without a delay hands over at once: another stage, or the other direction."""
    slow = emulation(HopDelay(carries="activation", stage=1, latency_s=2.0))
    assert slow.hold(FORWARD, 2, 10.0, 10.1) == 10.1
    assert slow.hold(BACKWARD, 1, 10.0, 10.1) == 10.1


def test_windows_of_a_channel_follow_each_other() -> None:
    """Messages sent at once take the pipe one after the other; each arrives a latency after its own window ends."""
    slow = emulation(HopDelay(carries="activation", stage=1, latency_s=0.5, occupancy_s=2.0))
    assert [slow.hold(FORWARD, 1, 10.0, 10.0) for _ in range(3)] == [12.5, 14.5, 16.5]
    assert slow.hold(FORWARD, 1, 100.0, 100.0) == 102.5


def test_channels_share_a_pipe() -> None:
    """Two channels on one pipe take turns; on pipes of their own they do not meet."""
    shared = [
        HopDelay(carries="activation", stage=1, latency_s=0.0, occupancy_s=2.0, pipe=7),
        HopDelay(carries="gradient", stage=2, latency_s=0.0, occupancy_s=2.0, pipe=7),
    ]
    one = emulation(*shared)
    assert one.hold(FORWARD, 1, 10.0, 10.0) == 12.0
    assert one.hold((0, 1, "gradient"), 2, 10.0, 10.0) == 14.0
    apart = emulation(shared[0], HopDelay(carries="gradient", stage=2, latency_s=0.0, occupancy_s=2.0, pipe=8))
    assert apart.hold(FORWARD, 1, 10.0, 10.0) == 12.0
    assert apart.hold((0, 1, "gradient"), 2, 10.0, 10.0) == 12.0


def test_an_earlier_message_takes_an_earlier_gap() -> None:
    """A message that was sent earlier and seen later still takes the window that was free when it was sent."""
    delays = [
        HopDelay(carries="activation", stage=1, latency_s=0.0, occupancy_s=2.0),
        HopDelay(carries="gradient", stage=2, latency_s=0.0, occupancy_s=2.0),
    ]
    slow = emulation(*delays)
    assert slow.hold(FORWARD, 1, 20.0, 20.0) == 22.0
    assert slow.hold((0, 1, "gradient"), 2, 10.0, 20.0) == 20.0
    assert slow.hold((0, 1, "gradient"), 2, 19.0, 20.0) == 24.0


def test_a_message_never_overtakes_its_channel() -> None:
    """A short message behind a long one of its channel waits for it, even where a gap would do."""
    delays = [
        HopDelay(carries="activation", stage=1, latency_s=0.0, occupancy_s=5.0),
        HopDelay(carries="activation", stage=2, latency_s=0.0, occupancy_s=1.0),
        HopDelay(carries="gradient", stage=3, latency_s=0.0, occupancy_s=4.0),
    ]
    slow = emulation(*delays)
    assert slow.hold((0, 1, "gradient"), 3, 12.0, 12.0) == 16.0
    assert slow.hold(FORWARD, 1, 10.0, 16.0) == 21.0
    assert slow.hold(FORWARD, 2, 10.0, 16.0) == 22.0


@pytest.mark.parametrize(
    ("delays", "message"),
    [
        (
            [HopDelay(carries="activation", stage=1, latency_s=0.0)] * 2,
            "the activation hop into stage 1 is given twice",
        ),
        ([HopDelay(carries="gradient", stage=2, latency_s=-1.0)], "the gradient hop into stage 2 has a negative time"),
    ],
)
def test_wrong_delays(delays: list[HopDelay], message: str) -> None:
    """A hop has one delay, and time does not run backwards."""
    with pytest.raises(ValueError, match=message):
        Emulation(delays)
