"""List schedules in unit times: the rule decides, limits are kept, what cannot go on is told."""

from __future__ import annotations

import itertools

import pytest
from oracle.cases import case
from shapes import placed

from cpipe.ir import decode_op
from cpipe.schedules.listing import Rule, list_schedule
from cpipe.sim import Simulator, memory_peaks


def rule(
    *, forward_first: bool = False, entry_limit: int = 99, device_limit: int | None = None, backward_time: int = 2
) -> Rule:
    """Return a rule of F = 1, the oldest backward first."""
    return Rule(
        forward_time=1,
        backward_time=backward_time,
        forward_first=forward_first,
        entry_limit=entry_limit,
        device_limit=device_limit,
        backward_key=lambda position, microbatch: (microbatch, -position),
    )


def test_backward_first_turns_early() -> None:
    """On the last of two devices each forward is followed by its backward; with forwards first all of them go first."""
    early, late = (list_schedule((0, 1), 2, 3, rule(forward_first=first)) for first in (False, True))
    assert early is not None
    assert late is not None
    assert early.schedule.to_text(3) == "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"
    assert late.schedule.to_text(3) == "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2"
    assert (early.makespan, late.makespan) == (12, 12)


def test_the_entry_limit_is_1f1bs_warm_up() -> None:
    """With p microbatches on their way a line runs 1F1B on its first device."""
    listed = list_schedule((0, 1), 2, 4, rule(entry_limit=2))
    assert listed is not None
    assert listed.schedule.to_text(4).splitlines()[0] == "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"


def test_a_limit_that_stops_everything_gives_nothing() -> None:
    """One activation on the device of both ends of a V: the forward that comes back has no room."""
    assert list_schedule((0, 1, 1, 0), 4, 2, rule(device_limit=1)) is None
    assert list_schedule((0, 1, 1, 0), 4, 2, rule(device_limit=2, entry_limit=1)) is not None


@pytest.mark.parametrize(
    ("kind", "chunks", "p", "n"), [*itertools.product(("line", "wave", "loop"), (2,), (1, 2, 3), (1, 4))]
)
@pytest.mark.parametrize("forward_first", [False, True])
def test_the_makespan_is_the_simulators(kind: str, chunks: int, p: int, n: int, forward_first: bool) -> None:
    """What a list schedule says of itself is what the simulator finds on links that cost nothing."""
    placement = placed(kind, p, 1 if kind == "line" else chunks)
    problem = case(n, placement, forward=1, full=3, split=False, held=0)
    listed = list_schedule(placement, len(placement), n, rule(forward_first=forward_first, backward_time=3))
    assert listed is not None
    listed.schedule.verify(problem)
    assert Simulator(problem).makespan(listed.schedule.orders) == listed.makespan


@pytest.mark.parametrize("limit", [4, 5, 6, 8])
def test_limits_hold(limit: int) -> None:
    """No device holds more than its limit, and no more microbatches are on their way than may enter."""
    placement = placed("wave", 3, 2)
    listed = list_schedule(placement, 6, 9, rule(forward_first=True, entry_limit=limit // 2, device_limit=limit))
    assert listed is not None
    problem = case(9, placement, split=False)
    assert max(memory_peaks(problem, listed.schedule.orders)) <= limit
    on_their_way = 0
    for op in listed.schedule.orders[0]:
        kind, stage, _ = decode_op(op, 9)
        if stage == 0:
            on_their_way += 1 if kind.name == "F" else -1
            assert on_their_way <= limit // 2
