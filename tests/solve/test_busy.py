"""When a resource and when memory is free: against counting it out moment by moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from oracle.cases import case

from cpipe.solve.busy import Busy, Releases, Room, memory_plan
from cpipe.solve.series import build_series


def last_end(jobs: list[tuple[int, int]]) -> int:
    """Return when a machine that never waits for nothing ends jobs of (head, duration)."""
    now = 0
    for head, duration in sorted(jobs):
        now = max(now, head) + duration
    return now


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=6),
    st.integers(0, 5),
    st.lists(st.integers(0, 20), min_size=6, max_size=6),
    st.integers(0, 5),
    st.data(),
)
def test_busy_is_a_machine_that_never_idles(
    own: list[int], duration: int, heads: list[int], other: int, data: st.DataObject
) -> None:
    """However the ops join, the end is that of the machine that runs them by heads."""
    own, heads = sorted(own), sorted(heads)
    steps = sorted(data.draw(st.lists(st.integers(0, 6), min_size=len(own), max_size=len(own))))
    busy = Busy((own, duration), [(steps, heads, other)])
    for microbatch in range(len(own)):
        jobs = [(head, duration) for head in own[:microbatch]] + [(head, other) for head in heads[: steps[microbatch]]]
        assert busy.advance(microbatch) == last_end(jobs)


def room_of(capacity: int, activation: int, held: int) -> Room:
    """Return the room of a device with one stage: F is series 0, D 1, W 2."""
    model = build_series(case(9, [0], activation=activation, held=held, capacity=capacity))
    return Room(model, 0, capacity)


def test_level_counts_both_parts_of_an_activation() -> None:
    """An activation of 10 of which W holds 7: F adds 10, D frees 3, W 7."""
    room = room_of(45, 10, 7)
    assert (room.openers, room.closers) == ([0], [1, 2])
    assert room.level([4], [0, 0]) == 40
    assert room.level([4], [2, 1]) == 40 - 2 * 3 - 7
    assert room.level([1], [3, 3]) == 0


def test_fewest_closed_is_what_memory_cannot_do_without() -> None:
    """The fifth activation in room for four and a half: all D may be enough, and without any W two of them must."""
    room = room_of(45, 10, 7)
    opened, possible = [5], [4, 4]
    spare = 45 - room.level(opened, possible)
    assert spare == 45 - 10
    assert room.fewest_closed(opened, possible, 1, 0, spare) == 0
    assert room.fewest_closed(opened, possible, 1, 3, spare) == 3
    assert room.fewest_closed([5], [4, 0], 0, 0, 45 - room.level([5], [4, 0])) == 2


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9), st.data())
def test_limits_agree_with_levels(capacity: int, activation: int, held: int, count: int, data: st.DataObject) -> None:
    """One closer less than the fewest, or one opener more than the most, does not fit; those themselves do."""
    room = room_of(min(capacity, 9 * activation - 1), activation, held)
    closed = [data.draw(st.integers(0, 9)) for _ in room.closers]
    spare = room.room - room.level([count], closed)
    if spare < 0:
        return
    for index in range(len(closed)):
        fewest = room.fewest_closed([count], closed, index, 0, spare)
        assert room.level([count], [*closed[:index], fewest, *closed[index + 1 :]]) <= room.room
        if fewest:
            assert room.level([count], [*closed[:index], fewest - 1, *closed[index + 1 :]]) > room.room
    most = room.most_opened([count], closed, 0, 9, spare)
    assert room.level([most], closed) <= room.room
    assert most >= 9 or room.level([most + 1], closed) > room.room


def test_plan_counts_what_must_and_what_may_have_happened() -> None:
    """F m has m + 1 activations with its own; of D and W, all that need not come after it may have ended."""
    room = room_of(45, 10, 7)
    n = 9
    after_own = list(range(1, n + 1))
    before = [{1: [0] * n, 2: [0] * n}, {0: after_own, 2: [0] * n}, {0: after_own, 1: after_own}]
    plan = memory_plan(room, before, 0, n)
    assert [opened for opened, _ in plan] == [[m + 1] for m in range(n)]
    assert [possible for _, possible in plan] == [[m, m] for m in range(n)]
    assert memory_plan(room, before, 2, n)[3] == ([4], [9, 3])


def test_releases_wait_for_the_first_moment_that_fits() -> None:
    """With room for two whole activations, the third F waits until the first W can have ended, the fourth longer."""
    room = room_of(25, 10, 7)
    plan = [([m + 1], [m, m]) for m in range(5)]
    gradients, weights = [10, 20, 30, 40, 50], [12, 22, 32, 42, 52]
    releases = Releases(room, 0, plan, [(gradients, 2), (weights, 4)])
    assert [releases.advance(m, 2 * m) for m in range(5)] == [0, 2, 16, 26, 36]


def test_transients_leave_less_room() -> None:
    """What an op needs beyond what it holds is missing for the rest: a D more has to end."""
    room = room_of(25, 10, 7)
    plan = [([m + 1], [m, m]) for m in range(3)]
    releases = Releases(room, 6, plan, [([10, 20, 30], 2), ([12, 22, 32], 4)])
    assert [releases.advance(m, 0) for m in range(3)] == [0, 12, 22]
