"""Staircases: raising them, reversing time, and joining many at once in packed integers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpipe.solve.staircases import Lanes, inverse, lift


@st.composite
def staircases(draw: st.DrawFn) -> list[int]:
    """Draw a staircase of n steps between 0 and n."""
    n = draw(st.integers(1, 9))
    return sorted(draw(st.lists(st.integers(0, n), min_size=n, max_size=n)))


def test_lift_raises_the_rest_of_the_row() -> None:
    """What comes before an op comes before all later ops of its series, too."""
    steps = [0, 1, 1, 4]
    assert lift(steps, 1, 3)
    assert steps == [0, 3, 3, 4]
    assert not lift(steps, 2, 3)


@given(staircases(), st.data())
def test_lift_keeps_a_staircase(steps: list[int], data: st.DataObject) -> None:
    """A raised staircase still never falls, reaches the count, and is nowhere lower."""
    before = list(steps)
    at, count = data.draw(st.integers(0, len(steps) - 1)), data.draw(st.integers(0, len(steps)))
    assert lift(steps, at, count) == (before[at] < count)
    assert steps == sorted(steps) and steps[at] >= count
    assert all(new >= old for new, old in zip(steps, before, strict=True))


@given(staircases())
def test_inverse_says_the_same_backwards(steps: list[int]) -> None:
    """Pair by pair: i of the one precedes m of the other, forwards and with both counted from the end."""
    n = len(steps)
    turned = inverse(steps)
    for m in range(n):
        for i in range(n):
            assert (i < steps[m]) == (n - 1 - m < turned[n - 1 - i])
    assert inverse(turned) == steps


@given(st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), min_size=1, max_size=6))
def test_lanes_join_like_lists(pairs: list[tuple[int, int]]) -> None:
    """The packed maximum is the maximum of each lane."""
    lanes = Lanes(len(pairs), 13)
    first = sum(lanes.put(lane, one) for lane, (one, _) in enumerate(pairs))
    second = sum(lanes.put(lane, other) for lane, (_, other) in enumerate(pairs))
    joined = lanes.larger(first, second)
    assert [lanes.get(joined, lane) for lane in range(len(pairs))] == [max(pair) for pair in pairs]
