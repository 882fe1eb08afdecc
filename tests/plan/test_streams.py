"""Tests of cpipe.plan.validate.streams: what shares a queue, and what is matched by order."""

from __future__ import annotations

import pytest

from cpipe.ir import Channel
from cpipe.plan import TRANSPORTS
from cpipe.plan.validate.streams import queue_of, stream_of

FORWARD = Channel(id=0, source=0, target=1, carries="activation", message_bytes=1, window=1)
RETURN = Channel(id=1, source=1, target=0, carries="gradient", message_bytes=1, window=1)
ALONG = Channel(id=2, source=0, target=1, carries="gradient", message_bytes=1, window=1)
ONWARD = Channel(id=3, source=1, target=2, carries="activation", message_bytes=1, window=1)


@pytest.mark.parametrize(
    ("transport", "with_return", "with_along", "with_onward"),
    [
        ("channels", False, False, False),
        ("gloo", False, True, False),
        ("nccl-pair", True, True, False),
        ("nccl-rank", True, True, True),
        ("nccl-dir2", False, False, True),
    ],
)
def test_queues(transport: str, with_return: bool, with_along: bool, with_onward: bool) -> None:
    """Each transport merges what its communicators merge: nothing, directed pairs, pairs, ranks, or directions."""
    key = queue_of(transport, 1, FORWARD)
    assert (key == queue_of(transport, 1, RETURN)) is with_return
    assert (key == queue_of(transport, 1, ALONG)) is with_along
    assert (key == queue_of(transport, 1, ONWARD)) is with_onward


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_streams_have_one_direction(transport: str) -> None:
    """Order alone matches messages of one direction; kinds are told apart only where each has a communicator."""
    assert stream_of(transport, FORWARD) != stream_of(transport, RETURN)
    assert stream_of(transport, FORWARD) != stream_of(transport, ONWARD)
    apart = transport in ("channels", "nccl-dir2")
    assert (stream_of(transport, FORWARD) != stream_of(transport, ALONG)) is apart


def test_a_stream_lies_within_one_queue() -> None:
    """What is matched by order waits in one queue at each end, or order would mean nothing."""
    channels = (FORWARD, RETURN, ALONG, ONWARD)
    for transport in TRANSPORTS:
        for one in channels:
            for other in channels:
                if stream_of(transport, one) == stream_of(transport, other):
                    assert queue_of(transport, one.source, one) == queue_of(transport, other.source, other)
                    assert queue_of(transport, one.target, one) == queue_of(transport, other.target, other)
