"""Moves of the local search: legal by construction, and memory as a whole prefix sum sees it."""

from __future__ import annotations

from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle.cases import case
from strategies import problems

from cpipe.ir import Problem, Schedule, decode_op
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve.moves import Moves
from cpipe.solve.serial import serial_schedule


def ops(text: str, n: int = 2) -> list[int]:
    """Return op ids of a text such as ``0F0 0D0``."""
    return list(Schedule.from_text(text, n).orders[0])


def text(order: list[int] | None, n: int = 2) -> str | None:
    """Return the text of an order."""
    return None if order is None else " ".join(str(decode_op(op, n)) for op in order)


@settings(max_examples=80)
@given(problems(), st.randoms(use_true_random=False))
def test_memory_of_a_shift_is_that_of_the_whole_order(problem: Problem, draw: Random) -> None:
    """A shift fits by its own look at the places it touches exactly when the whole prefix sum fits."""
    orders = [list(order) for order in serial_schedule(problem).orders]
    assume(fits(problem, orders))
    moves = Moves(problem)
    for device, order in enumerate(orders):
        levels = moves.levels(device, order)
        assert levels is not None
        for _ in range(8 if order else 0):
            index = draw.randrange(len(order))
            target = moves.reach(order, index, draw.randint(-6, 6))
            if target is None:
                continue
            changed = order.copy()
            changed.insert(target, changed.pop(index))
            whole = moves.levels(device, changed)
            assert moves.fits_shifted(device, order, levels, index, target) == (whole is not None)
            if whole is not None:
                order[:] = changed
                moves.shift_levels(order, levels, min(index, target), max(index, target))
                assert levels == whole


@settings(max_examples=60)
@given(problems(), st.randoms(use_true_random=False))
def test_shifts_keep_a_schedule_complete(problem: Problem, draw: Random) -> None:
    """After any number of shifts microbatches are in order and F comes before D before W on every stage."""
    orders = [list(order) for order in serial_schedule(problem).orders]
    moves = Moves(problem)
    for _ in range(20):
        order = draw.choice([order for order in orders if order])
        index = draw.randrange(len(order))
        target = moves.reach(order, index, draw.randint(-6, 6))
        if target is not None:
            order.insert(target, order.pop(index))
    Schedule(orders=tuple(map(tuple, orders))).verify(problem)


def test_no_op_passes_its_relatives() -> None:
    """Not the same kind of its stage, not its own microbatch's other ops, not the ends of the order."""
    moves = Moves(case(2, [0]))
    order = ops("0F0 0F1 0D0 0W0 0D1 0W1")
    assert [moves.reach(order, 1, shift) for shift in (-1, 1, 2, 3, 9)] == [None, 2, 3, None, None]
    assert [moves.reach(order, 3, shift) for shift in (-2, -1, 1, 2)] == [None, None, 4, None]
    mixed = ops("0F0 0B0 0F1 0D1 0W1")
    assert [moves.reach(mixed, 3, shift) for shift in (-1, -2)] == [None, None]  # D1 passes neither F1 nor B0


def test_a_run_moves_together() -> None:
    """The same op of several microbatches moves by the same number of places, or none of them does."""
    moves = Moves(case(2, [0]))
    order = ops("0F0 0D0 0W0 0F1 0D1 0W1")
    w = [order[2], order[5]]
    assert moves.shifted_run(order, w, 1) is None  # the last cannot move on
    assert text(moves.shifted_run(order, [order[3]], -2)) == "0F0 0F1 0D0 0W0 0D1 0W1"
    assert text(moves.shifted_run(ops("0F0 0F1 0D0 0D1 0W0 0W1"), ops("0D0 0D1"), -1)) is None
    assert moves.shifted_run(order, [order[0] + 3], 1) is None  # not in the order
    later = ops("0F0 0D0 0W0 0F1 0D1 0W1 0F2 0D2 0W2", 3)
    assert text(moves_of(3).shifted_run(later, [later[2], later[5]], 2), 3) is not None


def moves_of(n: int) -> Moves:
    """Return the moves of one stage with n microbatches."""
    return Moves(case(n, [0]))


def test_d_and_w_trade_for_b_and_back() -> None:
    """D and W become B where D stood; B becomes D and W, unless an earlier W is still to come; F stays."""
    moves = Moves(case(2, [0], full=1))
    order = ops("0F0 0F1 0D0 0D1 0W0 0W1")
    merged = moves.exchanged(order, 4)
    assert text(merged) == "0F0 0F1 0B0 0D1 0W1"
    assert merged is not None
    assert text(moves.exchanged(merged, 2)) == "0F0 0F1 0D0 0W0 0D1 0W1"
    assert moves.exchanged(order, 0) is None
    assert moves.exchanged(ops("0F0 0F1 0D0 0B1 0W0"), 3) is None
    assert moves.exchanged(ops("0F0 0F1 0D0 0B1"), 3) is None  # the W is in the part that is not shown


def test_levels_say_where_memory_ends() -> None:
    """Levels are those before each op; an order that does not fit has none."""
    problem = case(2, [0], activation=2, held=1, capacity=4)
    moves = Moves(problem)
    assert moves.levels(0, ops("0F0 0F1 0D0 0W0 0D1 0W1")) == [0, 2, 4, 3, 2, 1]
    tight = Moves(case(2, [0], activation=2, held=1, capacity=3))
    assert tight.levels(0, ops("0F0 0F1 0D0 0W0 0D1 0W1")) is None
    assert Simulator(problem).makespan([ops("0F0 0F1 0D0 0W0 0D1 0W1")]) == 6
