"""Windows under a deadline: what they find in known cases, and that no schedule is ever outside them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_cases import GridCase, grid_cases, grid_problem
from oracle.cases import case
from oracle.exhaustive import OutOfScopeError, shortest_makespan
from oracle.random_problems import random_problem

from cpipe.ir import Problem
from cpipe.solve.series import build_series
from cpipe.solve.windows import RefutedError, Windows


def settled(problem: Problem, deadline_ns: int, rounds: int = 20) -> Windows:
    """Return the windows of a problem under a deadline."""
    model = build_series(problem)
    windows = Windows(model)
    windows.settle(deadline_ns // model.unit_ns, rounds)
    return windows


def refuted(problem: Problem, deadline_ns: int) -> bool:
    """Return whether a deadline contradicts itself."""
    try:
        settled(problem, deadline_ns)
    except RefutedError:
        return True
    return False


def test_way_of_a_single_microbatch() -> None:
    """With one microbatch, heads and tails are the ways to and from each op; a ns less is refuted."""
    problem = case(1, [0, 1], forward=2, input_grad=3, weight_grad=4, latency=5)
    machines = settled(problem, 2 + 5 + 2 + 3 + 5 + 3 + 4).machines()
    assert machines[0] == [(0, 2, 22), (17, 3, 4), (20, 4, 0)]
    assert machines[1] == [(7, 2, 15), (9, 3, 12), (12, 4, 0)]
    with pytest.raises(RefutedError, match="the deadline cannot be met on resource"):
        settled(problem, 23)


def test_memory_makes_a_forward_wait_for_a_weight() -> None:
    """With room for one activation, F of the second microbatch follows W of the first, wherever that is known from."""
    problem = case(2, [0, 1], forward=1, input_grad=1, weight_grad=1, held=1, capacity=[1, 2], latency=10)
    jobs = settled(problem, 200).machines()[0]
    assert [head for head, _, _ in jobs[:2]] == [0, 25]
    assert refuted(problem, 49)
    assert not refuted(problem, 50)
    assert shortest_makespan(problem) == 50


def test_memory_of_two_stages_on_a_device() -> None:
    """In a V with room for two activations on the ends, the second microbatch cannot enter before the first turns."""
    problem = case(2, [0, 1, 1, 0], forward=1, held=1, capacity=[2, 9], latency=10)
    optimum = shortest_makespan(problem)
    assert optimum is not None
    assert refuted(problem, optimum - 1)
    assert not refuted(problem, optimum)


def test_a_shorter_full_backward_limits_the_splits() -> None:
    """One device, B 2 ns shorter than D and W: with no time to spare every W follows its own D."""
    problem = case(4, [0, 1], forward=2, input_grad=3, weight_grad=3, full=4, latency=0)
    model = build_series(problem)
    windows = Windows(model)
    windows.settle(2 + 4 * 6 + 3, 20)
    (split, _) = model.splits
    later = (split.gradient, 2)
    assert not windows.may_precede(later, (split.weight, 0))


def test_order_is_kept_and_what_follows_found() -> None:
    """An order that is imposed is not open any more, and moves the second op behind the first."""
    problem = case(3, [0], forward=2, input_grad=3, weight_grad=4)
    windows = Windows(build_series(problem))
    assert windows.may_precede((0, 2), (1, 0)) and windows.may_precede((1, 0), (0, 2))
    assert windows.next_open(1, 0, 0) == 1
    windows.order((0, 2), (1, 0))
    windows.settle(27, 9)
    assert windows.next_open(1, 0, 0) == 3
    assert not windows.may_precede((1, 0), (0, 2))
    assert windows.span((0, 2), (1, 0)) == 4 + 2 + 3 + 2 * 3 + 3 * 4


def test_a_copy_changes_on_its_own() -> None:
    """What is imposed on a copy is not known to the original."""
    windows = Windows(build_series(case(3, [0])))
    copy = windows.copy()
    copy.order((0, 2), (1, 0))
    copy.settle(9, 9)
    assert copy.next_open(1, 0, 0) == 3
    assert windows.next_open(1, 0, 0) == 1


def test_contradicting_orders_are_refuted() -> None:
    """Two orders that exclude each other leave no schedule, however long."""
    windows = Windows(build_series(case(3, [0], forward=1)))
    windows.order((0, 2), (1, 0))
    windows.order((2, 0), (0, 2))
    with pytest.raises(RefutedError, match="the deadline cannot be met on resource 0"):
        windows.settle(1000, 40)


@pytest.mark.parametrize("grid", [grid for grid in grid_cases() if grid.p * grid.n <= 64], ids=lambda grid: grid.name)
def test_the_best_known_is_never_refuted(grid: GridCase) -> None:
    """No makespan that somebody reached contradicts itself."""
    assert not refuted(grid_problem(grid), grid.best_known)


def test_the_optimum_is_never_refuted() -> None:
    """On random small problems the deadline at the exhaustive optimum stands, and often not one less."""
    checked = tight = 0
    for seed in range(400, 450):
        problem = random_problem(seed)
        try:
            optimum = shortest_makespan(problem)
        except OutOfScopeError:
            continue
        if optimum is None:
            continue
        assert not refuted(problem, optimum), problem.name
        checked += 1
        tight += optimum > 0 and refuted(problem, optimum - 1)
    assert checked > 35
    assert tight > 0.8 * checked


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30))
def test_longer_deadlines_keep_more(seed: int, more: int) -> None:
    """Windows under a longer deadline contain those under a shorter one."""
    problem = random_problem(seed)
    model = build_series(problem)
    deadline = model.serial_length()
    narrow, wide = Windows(model), Windows(model)
    try:
        narrow.settle(deadline, 30)
        wide.settle(deadline + more, 30)
    except RefutedError:
        return
    for tight, loose in zip(narrow.machines(), wide.machines(), strict=True):
        assert all(a[0] >= b[0] and a[2] >= b[2] for a, b in zip(tight, loose, strict=True))
