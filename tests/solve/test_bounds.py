"""Closed-form lower bounds: their values, and that none is ever above an optimum."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from oracle.cases import case
from oracle.exhaustive import OutOfScopeError, shortest_makespan
from oracle.random_problems import random_problem

from cpipe.ir import Problem
from cpipe.solve import lower_bound
from cpipe.solve.bounds import chain_bounds, link_bounds, load_bounds, memory_bounds
from cpipe.solve.chains import Chains
from cpipe.solve.jackson import MAX_OPS, one_machine_bounds


def line(p: int, n: int, middle: tuple[int, int] = (0, 0), memory: int = 1) -> Problem:
    """Return the study's instance: F 100, D 110, W 90, one cut in the middle, memory for `memory` x p activations."""
    delays = [(0, 0)] * (p - 1)
    delays[p // 2 - 1] = middle
    return case(
        n,
        list(range(p)),
        forward=100,
        input_grad=110,
        weight_grad=90,
        activation=10,
        held=7,
        message=0,
        capacity=10 * p * memory,
        latency=[latency for latency, _ in delays],
        occupancy=[occupancy for _, occupancy in delays],
    )


@pytest.mark.parametrize(
    ("p", "n", "middle", "memory", "bound"),
    [
        (4, 8, (0, 0), 1, 2760),
        (4, 8, (0, 0), 2, 2700),
        (4, 8, (200, 25), 1, 3660),
        (4, 8, (25, 200), 2, 2935),
        (4, 16, (200, 25), 1, 6570),
        (8, 16, (0, 0), 1, 5640),
        (8, 16, (200, 25), 1, 6540),
        (8, 16, (25, 200), 1, 6540),
        (8, 16, (25, 200), 2, 5755),
    ],
)
def test_bounds_of_the_study(p: int, n: int, middle: tuple[int, int], memory: int, bound: int) -> None:
    """The bounds meet the proven optima of the study (but 4 x 16 with delay: 6600; one device alone proves 6420)."""
    assert lower_bound(line(p, n, middle, memory)).value_ns == bound


def test_chain_is_the_way_of_one_microbatch() -> None:
    """Down, back and the last W, with latency and occupancy of every hop."""
    problem = case(1, [0, 1, 2], forward=2, input_grad=3, weight_grad=5, latency=7, occupancy=11)
    assert list(chain_bounds(problem, Chains(problem))) == [
        (3 * 2 + 3 * 3 + 5 + 4 * 18, "one microbatch through all stages")
    ]


def test_load_counts_head_and_tail() -> None:
    """The last device's work starts after p - 1 forwards; the first's input gradients end before nothing but W."""
    problem = case(4, [0, 1])
    bounds = dict((reason, value) for value, reason in load_bounds(problem, Chains(problem)))
    assert bounds["work of device g1"] == 1 + 4 * 3
    assert bounds["forward and input-gradient work of device g1"] == 1 + 4 * 2 + 2


def test_load_of_a_stage_that_cannot_split_counts_the_way_home() -> None:
    """After the last B of a device its gradient still travels to the first stage."""
    problem = case(4, [0, 1], split=False, latency=10)
    bounds = dict((reason, value) for value, reason in load_bounds(problem, Chains(problem)))
    assert bounds["work of device g1"] == (1 + 10) + 4 * 3 + 10 + 2


def test_link_counts_both_directions_of_a_half_duplex_link() -> None:
    """A pipe serves one message at a time: all occupancies of both directions follow one another."""
    problem = case(4, [0, 1], occupancy=3, half_duplex=True)
    assert max(link_bounds(problem, Chains(problem)))[0] == 1 + 8 * 3 + 2


def test_memory_bound_needs_one_stage_and_a_limit() -> None:
    """Without a limit, with room for all microbatches or with two stages on a device there is no round-trip bound."""
    tight = line(4, 8)
    assert list(memory_bounds(tight, Chains(tight)))
    roomy = line(4, 8, memory=2)
    assert list(memory_bounds(roomy, Chains(roomy))) == []
    shared = case(4, [0, 1, 1, 0], capacity=3)
    assert list(memory_bounds(shared, Chains(shared))) == []


def test_one_machine_bounds_stop_at_their_limit() -> None:
    """Above the limit nothing is computed; the load bounds dominate there."""
    problem = case(MAX_OPS // 3 + 1, [0])
    assert list(one_machine_bounds(problem, Chains(problem))) == []
    small = case(2, [0, 1])
    assert [reason for _, reason in one_machine_bounds(small, Chains(small))] == [
        "one-machine problem of device g0",
        "one-machine problem of device g1",
    ]


@pytest.mark.parametrize("block", range(10))
def test_no_bound_is_above_the_optimum(block: int) -> None:
    """On random small problems every bound is at most the exhaustive optimum, and the best one is often tight."""
    tight = 0
    for seed in range(block * 30, block * 30 + 30):
        problem = random_problem(seed)
        try:
            optimum = shortest_makespan(problem)
        except OutOfScopeError:
            continue
        if optimum is None:
            continue
        chains = Chains(problem)
        for family in (chain_bounds, load_bounds, link_bounds, memory_bounds, one_machine_bounds):
            for value, reason in family(problem, chains):
                assert value <= optimum, f"{problem.name}: {reason} says {value}, the optimum is {optimum}"
        tight += lower_bound(problem).value_ns == optimum
    assert tight >= 10


def test_more_memory_never_raises_a_bound() -> None:
    """Capacity only ever constrains: the bound falls, or stays, as it grows."""
    problem = line(4, 16, (200, 25))
    values = []
    for activations in range(1, 20):
        devices = tuple(replace(device, capacity_bytes=10 * activations) for device in problem.devices)
        values.append(lower_bound(replace(problem, devices=devices)).value_ns)
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]


def test_an_all_gather_that_holds_up_a_stage_lets_messages_pile_up() -> None:
    """What waits for the parameters follows in a row afterwards: the spacing of earlier stages is gone by then."""
    problem = case(5, [0, 1], forward=[10, 1], gather=[0, 60], reduce=[0, 0])
    assert lower_bound(problem).value_ns <= 75
    small = replace(problem, microbatches=3)
    optimum = shortest_makespan(small)
    assert optimum == 69
    assert lower_bound(small).value_ns <= optimum


def test_no_bound_is_above_the_optimum_with_large_collectives() -> None:
    """The same with gathers and reduces that dominate everything else, and with backwards of any price."""
    draw = Random(7)
    for _ in range(150):
        placement = draw.choice(([0], [0, 1], [0, 1, 2], [0, 0], [0, 1, 0], [0, 1, 1]))
        size = len(placement)

        def numbers(most: int, count: int = size) -> list[int]:
            return [draw.choice((0, draw.randint(0, most))) for _ in range(count)]

        problem = case(
            draw.randint(1, 4 if size < 3 else 2),
            placement,
            forward=numbers(8),
            input_grad=numbers(8),
            weight_grad=numbers(8),
            full=numbers(20),
            split=draw.random() < 0.7,
            latency=numbers(9, size - 1),
            occupancy=numbers(9, size - 1),
            gather=numbers(60),
            reduce=numbers(60),
        )
        optimum = shortest_makespan(problem)
        assert optimum is not None
        for value, reason in one_machine_bounds(problem, Chains(problem)):
            assert value <= optimum, reason
        assert lower_bound(problem).value_ns <= optimum
