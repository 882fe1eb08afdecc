"""Tests of cpipe.profile.importers.layers: runs of layers become stages, and nothing gets lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cpipe.profile.importers import Layer, layer_load_ns, stages_of, unit_counts
from cpipe.profile.schema import RecomputeSpec

SIZES = ("activation_bytes", "static_bytes", "parameter_bytes", "gradient_bytes")


def layer(**changes: Any) -> Layer:
    """Return a layer of F 2, D 3, W 1 ms that keeps 100 bytes."""
    base = Layer(
        name="x",
        forward_ms=2.0,
        input_grad_ms=3.0,
        weight_grad_ms=1.0,
        activation_bytes=100,
        held_for_weight_grad_bytes=40,
        static_bytes=7,
        output_bytes=5,
        parameter_bytes=3,
        gradient_bytes=6,
    )
    return replace(base, **changes)


def test_sums_and_last_output() -> None:
    """Times and sizes of a stage are the sums over its layers, its output is the last layer's."""
    first, second = stages_of([layer(), layer(), layer(output_bytes=9), layer()], (1, 3), ("a", "b"))
    assert (first.id, first.device, second.id, second.device) == ("s0", "a", "s1", "b")
    assert (second.forward_ms, second.input_grad_ms, second.weight_grad_ms) == (6.0, 9.0, 3.0)
    assert (second.activation_bytes, second.held_for_weight_grad_bytes, second.static_bytes) == (300, 120, 21)
    assert second.full_backward_ms is None
    (last,) = stages_of([layer(output_bytes=1), layer(output_bytes=9)], (2,), ("a",))
    assert last.output_bytes == 9


def test_first_stage_runs_its_whole_backward_as_w() -> None:
    """The first stage has no input gradient: D is 0, W the whole backward, and all it keeps is kept for W."""
    transients = {"input_grad_transient_bytes": 11, "weight_grad_transient_bytes": 8}
    whole, other = stages_of([layer(**transients), layer(**transients)], (1, 1), ("a", "a"))
    assert (whole.input_grad_ms, whole.weight_grad_ms, whole.held_for_weight_grad_bytes) == (0.0, 4.0, 100)
    assert (whole.input_grad_transient_bytes, whole.weight_grad_transient_bytes) == (0, 11)
    assert (other.input_grad_ms, other.weight_grad_ms, other.held_for_weight_grad_bytes) == (3.0, 1.0, 40)
    split, _ = stages_of([layer(), layer()], (1, 1), ("a", "a"), whole_first=False)
    assert (split.input_grad_ms, split.weight_grad_ms, split.held_for_weight_grad_bytes) == (3.0, 1.0, 40)


def test_own_time_of_the_full_backward() -> None:
    """A backward with a time of its own keeps it; in the first stage, that is the time of W."""
    first, second = stages_of([layer(full_backward_ms=3.5)] * 3, (1, 2), ("a", "b"))
    assert (first.weight_grad_ms, first.full_backward_ms) == (3.5, None)
    assert (second.input_grad_ms, second.weight_grad_ms, second.full_backward_ms) == (6.0, 2.0, 7.0)


def test_one_layer_that_cannot_be_split() -> None:
    """A stage with one layer that has no D and W of its own has none either, and no held part."""
    fused = layer(input_grad_ms=None, weight_grad_ms=None, full_backward_ms=5.0)
    (stage,) = stages_of([layer(), fused], (2,), ("a",))
    assert (stage.input_grad_ms, stage.weight_grad_ms, stage.full_backward_ms) == (None, None, 9.0)
    assert stage.held_for_weight_grad_bytes is None


def test_unknown_held_part() -> None:
    """When one layer does not say what it holds, neither does its stage."""
    _, stage = stages_of([layer(), layer(), layer(held_for_weight_grad_bytes=None)], (1, 2), ("a", "b"))
    assert stage.held_for_weight_grad_bytes is None


def test_transients_are_the_largest() -> None:
    """Layers run one after the other, so of their transients the largest counts."""
    _, stage = stages_of(
        [layer(), layer(forward_transient_bytes=5), layer(forward_transient_bytes=9, weight_grad_transient_bytes=2)],
        (1, 2),
        ("a", "b"),
    )
    assert (stage.forward_transient_bytes, stage.weight_grad_transient_bytes) == (9, 2)


def test_recomputation_is_offered() -> None:
    """Where it is offered, a stage may keep its input and run its forward again; never where that saves nothing."""
    layers = [layer(), layer(output_bytes=100), layer(output_bytes=9), layer()]
    first, second, third = stages_of(layers, (2, 1, 1), ("a", "b", "c"), offer_recompute=True, input_bytes=8)
    assert first.recompute == RecomputeSpec(activation_bytes=8, extra_ms=4.0)
    assert second.recompute is None
    assert third.recompute == RecomputeSpec(activation_bytes=9, extra_ms=2.0)
    assert {stage.recompute for stage in stages_of(layers, (2, 1, 1), ("a", "b", "c"))} == {None}


def test_ends_bring_their_layers() -> None:
    """An embedding and a head stand on the first and the last stage; of one stage, both on it."""
    assert unit_counts((7, 8, 7), 1, 1) == (8, 8, 8)
    assert unit_counts((3,), 1, 2) == (6,)


@given(st.data(), st.lists(st.tuples(*[st.integers(0, 10**9)] * 3), min_size=1, max_size=12), st.booleans())
def test_nothing_gets_lost(data: st.DataObject, times: list[tuple[int, int, int]], whole: bool) -> None:
    """However layers are cut, all work and all bytes are in the stages, to the nanosecond."""
    layers = [
        layer(forward_ms=f / 1e6, input_grad_ms=d / 1e6, weight_grad_ms=w / 1e6, activation_bytes=f)
        for f, d, w in times
    ]
    cuts = data.draw(st.sets(st.integers(1, len(layers) - 1))) if len(layers) > 1 else set()
    edges = [0, *sorted(cuts), len(layers)]
    counts = [end - start for start, end in pairwise(edges)]
    stages = stages_of(layers, counts, ["g"] * len(counts), whole_first=whole)
    total = sum(
        round((stage.forward_ms + (stage.input_grad_ms or 0) + (stage.weight_grad_ms or 0)) * 1e6) for stage in stages
    )
    assert total == sum(map(sum, times)) == layer_load_ns(layers)
    for size in SIZES:
        assert sum(getattr(stage, size) for stage in stages) == sum(getattr(one, size) for one in layers)
