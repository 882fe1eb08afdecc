"""Series: what a problem becomes for the bounds by contradiction."""

from __future__ import annotations

import pytest
from known_cases import PEERS, peer_problem
from oracle.cases import case

from cpipe.ir import Problem
from cpipe.solve.series import Edge, Sender, SeriesModel, Split, build_series


def holdings(model: SeriesModel, resource: int) -> list[tuple[int, int, int]]:
    """Return a resource's holdings as plain tuples."""
    return [(one.size, one.opens, one.closes) for one in model.holdings[resource]]


def test_a_line_without_delays_is_three_series_a_stage() -> None:
    """F forwards, then G and W backwards; a gradient feeds its own W and the G below."""
    model = build_series(case(3, [0, 1], forward=2, input_grad=3, weight_grad=4))
    assert [(one.duration, one.resource) for one in model.series] == [(2, 0), (2, 1), (3, 1), (4, 1), (3, 0), (4, 0)]
    assert model.edges == [Edge(0, 1), Edge(1, 2), Edge(2, 3), Edge(2, 4), Edge(4, 5)]
    assert model.resources == [[0, 4, 5], [1, 2, 3], [], []]
    assert model.num_relations == 3 * (9 + 9)


def test_a_message_that_holds_a_pipe_is_a_series() -> None:
    """Occupancy makes messages ops of their pipe; latency alone is a delay."""
    model = build_series(case(2, [0, 1], latency=5, occupancy=3))
    messages = [one for one in model.series if one.resource >= 2]
    assert [one.duration for one in messages] == [3, 3]
    assert Edge(0, 1) in model.edges and Edge(1, 2, 5) in model.edges
    late = build_series(case(2, [0, 1], latency=5))
    assert [one.resource for one in late.series if one.resource >= 2] == []
    assert Edge(0, 1, 5) in late.edges


def test_units_are_the_greatest_common_divisor() -> None:
    """Times of 20, 30 and 50 ns are 2, 3 and 5 units of 10 ns."""
    model = build_series(case(2, [0, 1], forward=20, input_grad=30, weight_grad=50, latency=70))
    assert model.unit_ns == 10
    assert [one.duration for one in model.series] == [2, 2, 3, 5, 3, 5]


def test_a_stage_that_cannot_split_has_no_weight_series() -> None:
    """B is all of G; an activation is held until it ends, and the reduction follows it."""
    model = build_series(case(2, [0], split=False, full=7, activation=5, held=3, capacity=6, reduce=4))
    assert [one.duration for one in model.series] == [1, 7]
    assert model.series[1].delivery == 4
    assert holdings(model, 0) == [(5, 0, 1)]


@pytest.mark.parametrize(
    ("activation", "held", "expected"),
    [(5, 3, [(2, 0, 1), (3, 0, 2)]), (5, 5, [(5, 0, 2)]), (5, 0, [(5, 0, 1)]), (3, 8, [(3, 0, 2)])],
)
def test_what_is_held_between_backward_and_weight(
    activation: int, held: int, expected: list[tuple[int, int, int]]
) -> None:
    """The smaller of activation and held part stays until W; what D adds is not there if B runs."""
    model = build_series(case(4, [0], activation=activation, held=held, capacity=9))
    assert holdings(model, 0) == expected


def test_memory_for_everything_is_no_limit() -> None:
    """A room in which all microbatches fit at once is left out; one byte less is not."""
    assert build_series(case(4, [0], activation=3, held=3, capacity=12)).rooms[0] is None
    assert build_series(case(4, [0], activation=3, held=3, capacity=11)).rooms[0] == 11


def test_full_backward_shorter_than_its_halves() -> None:
    """G is the shorter way to the gradient, W the rest of the shortest whole, and each split costs the difference."""
    model = build_series(case(2, [0, 1], input_grad=4, weight_grad=5, full=7))
    assert [one.duration for one in model.series] == [1, 1, 4, 3, 4, 3]
    assert model.splits == [Split(2, 3, 2, reader=4), Split(4, 5, 2)]


def test_the_reader_of_a_split_is_the_message() -> None:
    """Where the gradient travels as a message, that is what waits for it; its window's edge is not a reader."""
    model = build_series(case(4, [0, 1], input_grad=4, weight_grad=5, full=7, occupancy=1, latency=9, window=2))
    message = next(edge.target for edge in model.edges if edge.source == model.splits[0].gradient and edge.target != 4)
    assert model.series[message].resource >= 2
    assert model.splits[0].reader == message and model.splits[0].delay == 0
    assert model.splits[1].reader is None


def test_receive_windows_hold_messages_back() -> None:
    """Message m leaves after the op that reads message m - window has ended, in both directions."""
    model = build_series(case(4, [0, 1], latency=2, window=2))
    assert [edge for edge in model.edges if edge.lag] == [Edge(2, 1, 0, 2), Edge(6, 5, 0, 2)]


def test_messages_of_one_sender_keep_its_order() -> None:
    """In a V, a device sends activations and gradients to the same neighbour on one pipe."""
    model = build_series(case(2, [0, 1, 1, 0], occupancy=1))
    kinds = [(model.series[sender.first].resource, sender.second < sender.first) for sender in model.senders]
    assert kinds == [(2, True), (3, True)]
    assert all(isinstance(sender, Sender) for sender in model.senders)
    assert build_series(case(2, [0, 1], occupancy=1)).senders == []


def test_collectives_are_releases_and_deliveries() -> None:
    """An all-gather holds the first F back; a reduction follows the last W."""
    model = build_series(case(2, [0, 1], gather=[3, 4], reduce=[5, 6]))
    assert [one.release for one in model.series] == [3, 4, 0, 0, 0, 0]
    assert [one.delivery for one in model.series] == [0, 0, 0, 6, 0, 5]


def check_reversal(problem: Problem) -> None:
    """Mirror a model twice and compare; once, every edge goes forwards."""
    model = build_series(problem)
    once = model.mirrored()
    assert all(edge.source < edge.target for edge in (*model.edges, *once.edges) if not edge.lag)
    twice = once.mirrored()
    for name in ("series", "edges", "resources", "rooms", "holdings"):
        assert getattr(twice, name) == getattr(model, name), name


def test_time_can_be_reversed() -> None:
    """Reversed twice, a model is what it was; edges without lag always go from lower to higher series."""
    check_reversal(case(3, [0, 1, 1, 0], occupancy=2, latency=1, capacity=5, held=1, reduce=1, gather=2, window=1))
    check_reversal(case(3, [0, 1, 2], full=1, capacity=2, activation=2, held=1))
    check_reversal(peer_problem(PEERS[1], 1))


def test_serial_length_is_long_enough() -> None:
    """Nothing overlapping, a problem takes at most the serial length."""
    model = build_series(case(2, [0, 1], forward=1, input_grad=2, weight_grad=3, latency=4))
    assert model.serial_length() == 2 * (2 * 6 + 2 * 4)
