"""Tests of cpipe.cli.layer_split: layers to stages, stages to devices."""

from __future__ import annotations

from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpipe.cli.layer_split import balanced_counts, check_stages, listed_counts, stage_devices
from cpipe.errors import UsageError
from cpipe.profile.importers import Layer, layer_load_ns


def layers(*times: int) -> list[Layer]:
    """Return layers that take these times, forward alone [ms]."""
    return [Layer(name="x", forward_ms=float(time), full_backward_ms=0.0) for time in times]


def loads(times: list[int], counts: tuple[int, ...]) -> list[int]:
    """Return the time of each stage."""
    return [sum(times[start:end]) for start, end in pairwise([0, *accumulate(counts)])]


def evenness(parts: list[int]) -> tuple[int, int]:
    """Return the longest part and the sum of squares."""
    return max(parts), sum(part * part for part in parts)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_balanced_counts_are_the_best(times: list[int], data: st.DataObject) -> None:
    """Of all ways to cut layers into stages none has a shorter longest stage, nor among those a more even one."""
    stages = data.draw(st.integers(1, len(times)))
    counts = balanced_counts(layers(*times), stages)
    assert min(counts) >= 1
    cuts = combinations(range(1, len(times)), stages - 1)
    every = [[sum(times[start:end]) for start, end in pairwise([0, *cut, len(times)])] for cut in cuts]
    assert evenness(loads(times, counts)) == min(map(evenness, every))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 50), st.integers(0, 50), st.data())
def test_ends_never_stand_alone(times: list[int], embedding: int, head: int, data: st.DataObject) -> None:
    """However heavy the ends are, every stage holds at least one of the layers between them."""
    stages = data.draw(st.integers(1, len(times)))
    counts = balanced_counts(layers(embedding, *times, head), stages, 1, 1)
    inner = list(counts)
    inner[0] -= 1
    inner[-1] -= 1
    assert min(inner) >= 1
    assert sum(inner) == len(times)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_ties_are_always_broken_alike(times: list[int], data: st.DataObject) -> None:
    """The same layers always give the same split."""
    stages = data.draw(st.integers(1, len(times)))
    assert balanced_counts(layers(*times), stages) == balanced_counts(layers(*times), stages)


def test_ties_leave_the_first_stages_short() -> None:
    """Of splits that are as even, the first stages hold the fewest layers; a layer that takes no time is one."""
    assert balanced_counts(layers(1, 1, 1, 1, 1), 3) == (1, 2, 2)
    assert balanced_counts(layers(0, 0, 0), 3) == (1, 1, 1)


def test_published_split() -> None:
    """64 equal layers, of which the ends are embedding and head, on 8 stages: 7, 8, 8, 8, 8, 8, 8, 7 and the ends."""
    assert balanced_counts(layers(*[1] * 64), 8, 1, 1) == (8,) * 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got ''"),
        ("7,x,8", "got 'x'"),
        ("7,0,8", "got '0'"),
        ("7,1.5,8", "got '1.5'"),
        ("7,\u0668,8", "got '\u0668'"),
        ("8,8", "expected 3 numbers, one for each stage, got 2"),
        ("8,8,9", "expected numbers that add up to the 24 layers, got 25"),
    ],
)
def test_wrong_lists(text: str, message: str) -> None:
    """A list that is no split is refused, with what is wrong in it."""
    with pytest.raises(UsageError, match="bad-split") as caught:
        listed_counts(text, 3, 24)
    assert message in str(caught.value)


def test_lists() -> None:
    """A list is taken as it is; all that is wrong with another is told at once."""
    assert listed_counts(" 7, 9 ,8", 3, 24) == (7, 9, 8)
    with pytest.raises(UsageError, match="bad-split") as caught:
        listed_counts("8,9", 3, 24)
    assert len(caught.value.diagnostics) == 2


@pytest.mark.parametrize(("stages", "code"), [(9, "too-many-stages"), (3, "too-few-stages")])
def test_numbers_of_stages(stages: int, code: str) -> None:
    """There are at most as many stages as layers, and at least as many as devices."""
    check_stages(4, 8, 4)
    check_stages(8, 8, 4)
    with pytest.raises(UsageError, match=code):
        check_stages(stages, 8, 4)


@pytest.mark.parametrize(
    ("pattern", "stages", "name", "devices"),
    [
        (None, 2, "ud", (0, 1)),
        (None, 4, "loop", (0, 1, 0, 1)),
        (None, 3, "ud", (0, 1, 1)),
        ("ud", 4, "ud", (0, 0, 1, 1)),
        ("wave", 4, "wave", (0, 1, 1, 0)),
        ("wave", 6, "wave", (0, 1, 1, 0, 0, 1)),
    ],
)
def test_patterns(pattern: str | None, stages: int, name: str, devices: tuple[int, ...]) -> None:
    """A pattern says where each stage stands; without one it is a loop where that comes out even."""
    assert stage_devices(pattern, [1] * stages, layers(*[1] * stages), 2) == (name, devices)


@pytest.mark.parametrize("pattern", ["loop", "wave"])
def test_patterns_that_do_not_apply(pattern: str) -> None:
    """Loops and waves need as many stages on each device."""
    with pytest.raises(UsageError, match=f"placement {pattern} needs a number of stages.*placement-does-not-apply"):
        stage_devices(pattern, [1] * 3, layers(1, 1, 1), 2)


def test_loads_count_whole_backwards() -> None:
    """The time of a layer is its forward and its whole backward, or D and W where that has no time of its own."""
    split = Layer(name="x", forward_ms=1.0, input_grad_ms=2.0, weight_grad_ms=4.0)
    whole = Layer(name="x", forward_ms=1.0, input_grad_ms=2.0, weight_grad_ms=4.0, full_backward_ms=5.0)
    assert layer_load_ns([split]) == 7_000_000
    assert layer_load_ns([split, whole]) == 13_000_000
