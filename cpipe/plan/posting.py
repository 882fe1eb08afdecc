"""Where a receive is posted: late enough to need few buffers, early enough that no sender waits for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from cpipe.ir import MessageRun

__all__ = ["Receive", "posting_positions"]


class Receive(NamedTuple):
    """A message as its receiver sees it.

    `consumer` is the position of the op that reads it, in the receiver's order; `post_by_ns` is when it should be
    posted [ns].
    """

    message: MessageRun
    consumer: int
    post_by_ns: int


def posting_positions(
    receives: Sequence[Receive], starts: Sequence[int], ends: Sequence[int], window: int | None
) -> list[int]:
    """Return before which op of the receiver's order each receive of one channel is posted.

    Parameters
    ----------
    receives
        The channel's messages in the sender's order.
    starts, ends
        Times of the receiver's ops in its order [ns].
    window
        Most receives that may be posted and not yet consumed at once, or None.

    Returns
    -------
    list of int
        Non-decreasing, one position a message: the latest whose time (the end of the op before) is no later than
        `post_by_ns`, but never after the op that reads this message or a later one of the channel, and never
        before the window lets it.
    """
    positions: list[int] = []
    for receive in receives:
        position = bisect_right(ends, receive.post_by_ns)
        while position and _may_depend(position - 1, receive.message, starts, ends):
            position -= 1
        positions.append(min(position, receive.consumer))
    # a channel serves its receives in the order posted: none may stand behind a later one
    for index in range(len(positions) - 2, -1, -1):
        positions[index] = min(positions[index], positions[index + 1])
    if window is not None:
        read = 0
        for index in range(window, len(positions)):
            read = max(read, receives[index - window].consumer + 1)
            positions[index] = max(positions[index], read)
    return positions


def _may_depend(before: int, message: MessageRun, starts: Sequence[int], ends: Sequence[int]) -> bool:
    """Return whether the op at `before`, which ends before `message` leaves, might still need it or one behind it.

    Only an op that takes no time and ends at the very moment at which the message leaves can.
    """
    return starts[before] == ends[before] == message.start_ns
