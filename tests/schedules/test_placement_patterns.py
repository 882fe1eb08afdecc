"""Placements: in line with adjacent stages together, in a loop, in waves."""

from __future__ import annotations

import itertools
import random

import pytest

from cpipe.schedules.placements import line_placement, loop_placement, wave_placement


def loads_of(loads: list[int], placement: tuple[int, ...]) -> list[int]:
    """Return the load of each device."""
    return [
        sum(load for load, device in zip(loads, placement, strict=True) if device == each)
        for each in range(max(placement) + 1)
    ]


@pytest.mark.parametrize(
    ("loads", "p", "expected"),
    [
        ([1] * 4, 4, [1, 1, 1, 1]),
        ([1] * 5, 4, [1, 1, 1, 2]),
        ([1] * 42, 16, [2] * 6 + [3] * 10),
        ([0, 2, 0, 1, 1, 1, 1, 0, 0, 2, 0], 4, [2, 2, 2, 2]),  # embedding and head weigh two layers
        ([8, 8, 8, 10], 2, [16, 18]),
        ([0, 0, 0], 3, [0, 0, 0]),
        ([5, 1, 1, 1], 2, [5, 3]),
        ([7], 1, [7]),
    ],
)
def test_runs_are_even_and_never_empty(loads: list[int], p: int, expected: list[int]) -> None:
    """The largest load is the least possible, every device has a stage, and the rest is even too."""
    placement = line_placement(loads, p)
    assert loads_of(loads, placement) == expected
    assert len(set(placement)) == p


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_is_more_even(seed: int) -> None:
    """Against every cut of up to seven stages: least maximum, then least sum of squares."""
    draw = random.Random(seed)
    size = draw.randint(1, 7)
    p = draw.randint(1, size)
    loads = [draw.randrange(6) for _ in range(size)]
    cuts = (
        [sum(loads[a:b]) for a, b in itertools.pairwise((0, *cut, size))]
        for cut in itertools.combinations(range(1, size), p - 1)
    )
    best = min((max(each), sum(load * load for load in each)) for each in cuts)
    placement = line_placement(loads, p)
    found = loads_of(loads, placement)
    assert (max(found), sum(load * load for load in found)) == best
    assert list(placement) == sorted(placement)


def test_loop_and_wave() -> None:
    """A loop starts again at the first device, a wave turns round at either end."""
    assert loop_placement(7, 3) == (0, 1, 2, 0, 1, 2, 0)
    assert wave_placement(8, 2) == (0, 1, 1, 0, 0, 1, 1, 0)
    assert wave_placement(9, 3) == (0, 1, 2, 2, 1, 0, 0, 1, 2)
    assert loop_placement(3, 3) == wave_placement(3, 3) == line_placement([1, 1, 1], 3)
