"""Patterns run on a job's own times: limits are kept, waits are filled, nothing depends on chance."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.cases import case
from shapes import placed, shape

from cpipe.ir import Problem, Schedule
from cpipe.schedules import static_schedule
from cpipe.schedules.squeeze import AS_IT_IS, Policy, squeezed
from cpipe.sim import Simulator, memory_peaks

IN_ORDER = Policy(reorder=False, gap=0, patience=1)
PATIENT = Policy(reorder=False, gap=0, patience=4)
EAGER = Policy(reorder=True, gap=0, patience=0)
FROM_END = Policy(reorder=True, gap=0, patience=1, from_end=True)

TWO = "0F0 0F1 0D0 0W0 0D1 0W1\n1F0 1D0 1W0 1F1 1D1 1W1"


def test_as_it_is_changes_nothing() -> None:
    """Without a policy the pattern's own order comes back."""
    problem = case(2, [0, 1], held=1)
    pattern = Schedule.from_text(TWO, 2)
    assert squeezed(problem, [(pattern, [AS_IT_IS])], [2, 2]) == pattern


def test_weight_gradients_go_into_the_waits() -> None:
    """A device that waits runs a W whose D is done; one that does not wait lets it stand back."""
    problem = case(2, [0, 1], held=1)
    pattern = Schedule.from_text(TWO, 2)
    assert squeezed(problem, [(pattern, [IN_ORDER])], [2, 2]).to_text(2) == (
        "0F0 0F1 0D0 0W0 0D1 0W1\n1F0 1D0 1F1 1D1 1W0 1W1"
    )


def test_a_patient_device_waits_for_what_comes_soon() -> None:
    """With patience 4 a W has to be over when the next input arrives; with less it may delay it."""
    problem = case(2, [0, 1], held=1, weight_grad=[3, 1], latency=1)
    pattern = Schedule.from_text(TWO, 2)
    impatient, patient = (squeezed(problem, [(pattern, [policy])], [2, 2]).to_text(2) for policy in (IN_ORDER, PATIENT))
    assert impatient != patient or "0D0 0D1" in patient
    assert "0D0 0D1 0W0 0W1" in patient


def test_a_limit_makes_room_first() -> None:
    """With room for one activation the next F waits for the W before it, whatever else would be quicker."""
    problem = case(2, [0, 1], held=1)
    pattern = Schedule.from_text("0F0 0D0 0W0 0F1 0D1 0W1\n1F0 1D0 1W0 1F1 1D1 1W1", 2)
    assert squeezed(problem, [(pattern, [EAGER])], [1, 1]).to_text(2) == pattern.to_text(2)


def test_the_shortest_wins_and_the_first_of_equals() -> None:
    """Of several patterns and policies the one that ends first is returned; ties go to the one named first."""
    problem = case(2, [0, 1], held=1)
    slow = Schedule.from_text("0F0 0D0 0W0 0F1 0D1 0W1\n1F0 1D0 1W0 1F1 1D1 1W1", 2)
    quick = Schedule.from_text(TWO, 2)
    assert squeezed(problem, [(slow, [AS_IT_IS]), (quick, [AS_IT_IS])], [2, 2]) == quick
    assert squeezed(problem, [(quick, [AS_IT_IS]), (slow, [AS_IT_IS]), (quick, [IN_ORDER])], [2, 2]) != slow


def test_large_problems_keep_the_pattern() -> None:
    """Beyond the counted work nothing is tried: the first pattern comes back, so that a search stays quick."""
    problem = shape("line", 4, 3000)
    pattern = Schedule.from_text(
        "\n".join(" ".join(f"{s}F{m} {s}D{m} {s}W{m}" for m in range(3000)) for s in range(4)), 3000
    )
    assert squeezed(problem, [(pattern, [EAGER])], [3000] * 4) is pattern


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Problem, Schedule, list[int]]:
    """Draw a V, a loop or a line with odd times, an order of it that finishes, and the activations that it holds."""
    name, chunks = draw(st.sampled_from([("line", 1), ("loop", 2), ("wave", 2)]))
    p, n = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    placement = placed(name, p, chunks)
    times = st.lists(st.integers(0, 5), min_size=len(placement), max_size=len(placement))
    problem = case(
        n,
        placement,
        forward=draw(times),
        input_grad=draw(times),
        weight_grad=draw(times),
        latency=draw(st.integers(0, 6)),
        occupancy=draw(st.integers(0, 3)),
        held=1,
    )
    at_once = draw(st.integers(1, n))  # microbatches that go all the way before the next ones start
    orders: list[list[int]] = [[] for _ in range(p)]
    for first in range(0, n, at_once):
        group = range(first, min(n, first + at_once))
        for kind, stages in (("F", range(len(placement))), ("DW", range(len(placement))[::-1])):
            for stage in stages:
                for microbatch in group:
                    for mark in kind:
                        text = Schedule.from_text(f"{stage}{mark}{microbatch}", n)
                        orders[placement[stage]] += text.orders[0]
    pattern = Schedule(orders=tuple(map(tuple, orders)))
    return problem, pattern, list(memory_peaks(problem, pattern.orders))


@settings(max_examples=120)
@given(jobs(), st.booleans(), st.integers(0, 4), st.integers(0, 4))
def test_any_policy_finishes_within_the_limit(
    job: tuple[Problem, Schedule, list[int]], reorder: bool, gap: int, patience: int
) -> None:
    """Whatever is taken early, the order is complete, finishes, and holds no more than the pattern did."""
    problem, pattern, peaks = job
    policy = Policy(reorder=reorder, gap=gap, patience=patience)
    schedule = squeezed(problem, [(pattern, [policy])], peaks)
    schedule.verify(problem)
    assert Simulator(problem).makespan(schedule.orders) is not None
    found = memory_peaks(problem, schedule.orders)
    assert all(peak <= limit for peak, limit in zip(found, peaks, strict=True))
    best = squeezed(problem, [(pattern, [AS_IT_IS]), (pattern, [policy])], peaks)
    simulator = Simulator(problem)
    makespans = [simulator.makespan(each.orders) for each in (best, pattern, schedule)]
    assert makespans[0] == min(value for value in makespans if value is not None)


@settings(max_examples=120)
@given(
    jobs(), st.lists(st.builds(Policy, st.booleans(), st.integers(0, 5), st.integers(0, 4), st.booleans()), max_size=4)
)
def test_to_and_fro_stays_within_the_limit(
    job: tuple[Problem, Schedule, list[int]], policies: list[Policy | None]
) -> None:
    """Run from its end, forwards, and from its end again, an order stays complete, feasible and within its limits."""
    problem, pattern, peaks = job
    simulator = Simulator(problem)
    for last in (AS_IT_IS, EAGER):
        schedule = squeezed(problem, [(pattern, [*policies, last])], peaks)
        schedule.verify(problem)
        assert simulator.makespan(schedule.orders) is not None
        found = memory_peaks(problem, schedule.orders)
        assert all(peak <= limit for peak, limit in zip(found, peaks, strict=True))


def test_from_the_end_waits_are_filled_too() -> None:
    """Seen from its end an order that waits takes what comes before: one microbatch at a time becomes 1F1B."""
    problem = case(3, [0, 1], held=1)
    pattern = Schedule.from_text(
        "0F0 0D0 0W0 0F1 0D1 0W1 0F2 0D2 0W2\n1F0 1D0 1W0 1F1 1D1 1W1 1F2 1D2 1W2",
        3,
    )
    filled = "0F0 0F1 0D0 0W0 0F2 0D1 0W1 0D2 0W2\n1F0 1D0 1W0 1F1 1D1 1W1 1F2 1D2 1W2"
    assert squeezed(problem, [(pattern, [FROM_END, AS_IT_IS])], [2, 2]).to_text(3) == filled
    assert squeezed(problem, [(pattern, [FROM_END, AS_IT_IS])], [1, 1]) == pattern  # no room to begin one early
    assert [
        Simulator(problem).makespan(Schedule.from_text(text, 3).orders) for text in (pattern.to_text(3), filled)
    ] == [
        15,
        11,
    ]


def test_from_the_end_weight_gradients_follow_their_input_gradients() -> None:
    """Run from its end an order has each W right after its D, wherever it was before."""
    problem = case(2, [0, 1], held=1)
    late = Schedule.from_text("0F0 0F1 0D0 0D1 0W0 0W1\n1F0 1D0 1F1 1D1 1W0 1W1", 2)
    turned = squeezed(problem, [(late, [FROM_END, AS_IT_IS])], [2, 2])
    assert turned.to_text(2) == "0F0 0F1 0D0 0W0 0D1 0W1\n1F0 1D0 1W0 1F1 1D1 1W1"


@pytest.mark.parametrize("reorder", [False, True])
def test_the_same_call_gives_the_same_order(reorder: bool) -> None:
    """Two runs are equal: no clock, no hash decides."""
    problem = shape("wave", 3, 7, 2, forward=2, latency=1)
    pattern = static_schedule("v-min", problem)
    policy = Policy(reorder=reorder, gap=2, patience=2)
    first, second = (squeezed(problem, [(pattern, [policy])], [9] * 3) for _ in range(2))
    assert first == second
