"""Precedences between two series as staircases: per op of one, how many of the other must come first.

A staircase never falls, since both series run in microbatch order.
"""

from __future__ import annotations

__all__ = ["Lanes", "Staircase", "inverse", "lift"]

Staircase = list[int]


def lift(steps: Staircase, microbatch: int, count: int) -> bool:
    """Let at least `count` ops come before each op from `microbatch` on; return whether that is new."""
    if steps[microbatch] >= count:
        return False
    for later in range(microbatch, len(steps)):
        if steps[later] >= count:
            break
        steps[later] = count
    return True


def inverse(steps: Staircase) -> Staircase:
    """Return the same precedences with time reversed: how many ops of the other series come after each of this one.

    `steps` has, for each op of the other series, how many of this one come before it; the result is last op first.
    """
    n = len(steps)
    result, index = [0] * n, 0
    for microbatch in range(n):
        while index < n and steps[index] <= microbatch:
            index += 1
        result[n - 1 - microbatch] = n - index
    return result


class Lanes:
    """Vectors of counts, packed into one integer each and joined lane by lane.

    A lane has a spare bit above its count: set in a minuend, it is still set after the subtraction where the minuend
    is not the smaller one.

    Parameters
    ----------
    size
        Number of lanes.
    most
        Largest count.
    """

    def __init__(self, size: int, most: int) -> None:
        self.width = most.bit_length() + 1
        self._mask = (1 << self.width) - 1
        self._spare = sum(1 << (self.width * (lane + 1) - 1) for lane in range(size))

    def put(self, lane: int, count: int) -> int:
        """Return the vector with one count and zeros."""
        return count << self.width * lane

    def get(self, vector: int, lane: int) -> int:
        """Return one count."""
        return vector >> self.width * lane & self._mask

    def larger(self, first: int, second: int) -> int:
        """Return the larger count of each lane."""
        ahead = (first | self._spare) - second & self._spare
        keep = ahead - (ahead >> self.width - 1)
        return first & keep | second & ~keep
