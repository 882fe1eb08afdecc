"""Tests of cpipe.plan.posting: before which op a receive is posted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cpipe.ir import MessageRun
from cpipe.plan.posting import Receive, posting_positions


def receive(consumer: int, leaves: int, post_by: int | None = None) -> Receive:
    """Return a message that leaves at `leaves` ns and is read by op `consumer`."""
    run = MessageRun(
        kind="activation",
        stage=0,
        microbatch=0,
        source=0,
        target=1,
        pipe=0,
        ready_ns=leaves,
        start_ns=leaves,
        end_ns=leaves,
        arrival_ns=leaves,
    )
    return Receive(run, consumer, leaves if post_by is None else post_by)


STARTS = [0, 10, 20, 30, 40]
ENDS = [10, 20, 30, 40, 50]


@pytest.mark.parametrize(
    ("receives", "window", "expected"),
    [
        ([receive(4, 35)], None, [3]),  # op 2 ends at 30, op 3 only at 40
        ([receive(4, 30)], None, [3]),  # an op that ends as the message leaves is early enough
        ([receive(4, 35, 29)], None, [2]),  # one latency earlier
        ([receive(4, 35, -5)], None, [0]),  # before the start there is only the start
        ([receive(1, 90)], None, [1]),  # never after the op that reads it
        ([receive(4, 25), receive(1, 60)], None, [1, 1]),  # nor after a later message's: order is kept
        ([receive(1, 0), receive(2, 0), receive(3, 20), receive(4, 30)], None, [0, 0, 2, 3]),
        ([receive(1, 0), receive(2, 20), receive(3, 30), receive(4, 40)], 1, [0, 2, 3, 4]),
        ([receive(2, 0), receive(1, 0), receive(3, 30), receive(4, 40)], 2, [0, 0, 3, 4]),
        ([], 3, []),
    ],
)
def test_position_is_the_latest_that_is_early_enough(
    receives: Sequence[Receive], window: int | None, expected: list[int]
) -> None:
    """A receive is posted as late as its deadline, its reader, its order and its window allow."""
    assert posting_positions(receives, STARTS, ENDS, window) == expected


def test_ops_of_no_duration_are_passed() -> None:
    """An op that takes no time at the moment the message leaves may need it: the receive is posted before that op."""
    assert posting_positions([receive(3, 10)], [0, 10, 10, 15], [10, 10, 10, 20], None) == [1]
    assert posting_positions([receive(3, 12)], [0, 10, 10, 15], [10, 10, 10, 20], None) == [3]
