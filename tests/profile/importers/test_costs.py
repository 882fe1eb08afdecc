"""Tests of cpipe.profile.importers.costs: times and bytes against published figures and formulas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_configs import CONFIGS

from cpipe.profile.importers import (
    Architecture,
    Costing,
    Layer,
    LayerShape,
    Linear,
    costing_assumptions,
    model_layers,
    parse_hf_config,
)
from cpipe.profile.importers.costs import attention_flops


def model(name: str) -> Architecture:
    """Return the architecture of a published model."""
    return parse_hf_config(json.dumps(CONFIGS[name]).encode(), name)


def layers(name: str, **options: Any) -> tuple[Layer, ...]:
    """Return the layers of a published model."""
    return model_layers(model(name), Costing(**options))


def gpt_layer(hidden: int, heads: int) -> LayerShape:
    """Return a layer as in Korthikanti et al. 2022: one product up to 4 h, one down, as many key as query heads."""
    return LayerShape(
        hidden=hidden,
        heads=heads,
        linears=(
            Linear(inputs=hidden, outputs=hidden, copies=3, active=3),
            Linear(inputs=hidden, outputs=hidden),
            Linear(inputs=hidden, outputs=4 * hidden),
            Linear(inputs=4 * hidden, outputs=hidden),
        ),
        other_parameters=4 * hidden,
        score_width=hidden,
        value_width=hidden,
        window=None,
        input_elements=7 * hidden,
        kept_elements=2 * hidden + 3 * hidden + 4 * hidden,
        output_elements=9 * hidden,
    )


def gpt(hidden: int, heads: int) -> Architecture:
    """Return a model of one such layer."""
    return Architecture(name="gpt", hidden=hidden, vocabulary=100, tied=False, layers=(gpt_layer(hidden, heads),))


def test_stage_of_405b_takes_109_ms() -> None:
    """Eight layers of Llama 3 405B at 500 TFLOP/s, TP 8 and sequence 8192 take the published 109 ms (108.85)."""
    layer = layers("llama3-405b", gpu_tflops=500.0, tensor_parallel=8, sequence=8192)[1]
    assert layer.forward_ms == pytest.approx(13.606456)
    assert round(8 * layer.forward_ms, 2) == 108.85
    assert layer.output_bytes == 8192 * 16384 * 2


def test_weight_gradient_has_no_attention_core() -> None:
    """D has the core's backward, W the matrix products alone; what F has beyond W is the core's forward."""
    layer = layers("llama3-405b", gpu_tflops=500.0, tensor_parallel=8, sequence=8192)[1]
    core_ms = 2 * 8192**2 * 16384 / (500e9 * 8)
    assert layer.weight_grad_ms is not None
    assert layer.forward_ms - layer.weight_grad_ms == pytest.approx(core_ms, abs=1e-5)
    assert layer.input_grad_ms == pytest.approx(layer.weight_grad_ms + 2.5 * core_ms, abs=1e-5)
    (again,) = layers("llama3-405b", attention_backward=1.0, gpu_tflops=500.0, tensor_parallel=8, sequence=8192)[1:2]
    assert again.input_grad_ms == pytest.approx(layer.forward_ms, abs=1e-5)


def test_attention_within_a_window() -> None:
    """Within a window of w, s tokens make w s - w^2 / 2 pairs; a window as long as the sequence changes nothing."""
    full, slid = model("llama3-8b").layers[0], model("mistral-7b").layers[0]
    for sequence, pairs in ((2048, 2048**2 / 2), (4096, 4096**2 / 2), (16384, 4096 * 16384 - 4096**2 / 2)):
        assert attention_flops(slid, Costing(sequence=sequence)) == pairs * 4 * 4096
        assert attention_flops(full, Costing(sequence=sequence)) == sequence**2 / 2 * 4 * 4096


def test_experts_cost_what_is_active() -> None:
    """A layer of Mixtral takes the time of two experts and the memory of eight."""
    layer, shape = layers("mixtral-8x7b", sequence=1024)[1], model("mixtral-8x7b").layers[0]
    expert = 3 * 4096 * 14336
    attention = 2 * 4096**2 + 2 * 4096 * 1024
    assert shape.active_parameters == attention + 2 * expert + 4096 * 8
    assert shape.parameters == attention + 8 * expert + 4096 * 8 + 2 * 4096
    assert layer.weight_grad_ms == pytest.approx(2 * shape.active_parameters * 1024 / 400e9, abs=1e-6)
    assert layer.parameter_bytes == 2 * shape.parameters


@pytest.mark.parametrize(("sequence", "hidden", "heads", "size"), [(2048, 4096, 32, 1), (1024, 1536, 16, 4)])
def test_kept_bytes_are_those_of_the_paper(sequence: int, hidden: int, heads: int, size: int) -> None:
    """A GPT layer keeps Korthikanti's 34 s b h, less 2 for masks of dropouts, and his 2 a s^2 b of scores if kept."""
    costing = Costing(sequence=sequence, microbatch_size=size)
    (_, flash, _) = model_layers(gpt(hidden, heads), costing)
    assert flash.activation_bytes == 32 * sequence * size * hidden
    (_, standard, _) = model_layers(
        gpt(hidden, heads), Costing(sequence=sequence, microbatch_size=size, attention="standard")
    )
    assert standard.activation_bytes - flash.activation_bytes == 2 * heads * sequence**2 * size


def test_held_bytes_are_those_of_the_paper() -> None:
    """Between D and W a GPT layer holds the 32 s b h of Qi et al. 2023, table 1."""
    (_, layer, _) = model_layers(gpt(1024, 16), Costing(sequence=512))
    assert layer.held_for_weight_grad_bytes == 32 * 512 * 1024


def test_static_bytes() -> None:
    """Mixed precision takes 18 bytes a parameter, 6 + 12 / d when d replicas divide the optimizer's state."""
    shape = model("llama3-8b").layers[0]
    for options, each in (({}, 18.0), ({"replicas": 4}, 9.0), ({"replicas": 4, "zero": 0}, 18.0)):
        costing = Costing(**options)  # type: ignore[arg-type]
        assert costing.static_bytes_per_parameter == each
        layer = model_layers(model("llama3-8b"), costing)[1]
        assert layer.static_bytes == each * shape.parameters
        assert layer.gradient_bytes == 4 * shape.parameters


def test_ends_of_the_model() -> None:
    """The embedding takes no time; the head takes that of its product, and keeps its logits in fp32."""
    embedding, *_, head = layers("llama3-8b", sequence=1024, gpu_tflops=100.0)
    assert (embedding.forward_ms, embedding.input_grad_ms, embedding.weight_grad_ms) == (0.0, 0.0, 0.0)
    assert embedding.parameter_bytes == 2 * 128256 * 4096
    product = 2 * 1024 * 128256 * 4096 / 100e9
    assert head.forward_ms == head.input_grad_ms == head.weight_grad_ms == pytest.approx(product, abs=1e-6)
    assert head.activation_bytes == 1024 * (2 * 4096 * 2 + 4 * 128256)
    assert head.parameter_bytes == 2 * (128256 * 4096 + 4096)
    assert head.output_bytes == 0


def test_recompute_full() -> None:
    """With full recomputation a layer keeps its input, D runs the forward again and needs the layer's room for it."""
    plain, full = (layers("llama3-8b", recompute=kind)[1] for kind in ("none", "full"))
    assert full.activation_bytes == full.output_bytes < plain.activation_bytes
    assert full.input_grad_transient_bytes == plain.activation_bytes
    assert full.input_grad_ms == pytest.approx((plain.input_grad_ms or 0) + plain.forward_ms, abs=1e-5)
    assert (full.forward_ms, full.weight_grad_ms) == (plain.forward_ms, plain.weight_grad_ms)
    assert full.held_for_weight_grad_bytes == plain.held_for_weight_grad_bytes


def test_recompute_selective() -> None:
    """Selective recomputation leaves out the scores where they would be kept, and nothing with flash."""
    kept, left = (layers("llama3-8b", recompute=kind, attention="standard")[1] for kind in ("none", "selective"))
    scores = 2 * 32 * 4096**2
    assert kept.activation_bytes - left.activation_bytes == scores == left.input_grad_transient_bytes
    assert (left.input_grad_ms or 0) > (kept.input_grad_ms or 0)
    assert layers("llama3-8b", recompute="selective") == layers("llama3-8b")


def test_sequence_parallelism() -> None:
    """Without sequence parallelism each GPU of the group has its own copy of the norms' inputs and outputs."""
    shared, copied = (layers("llama3-8b", tensor_parallel=4, sequence_parallel=flag)[1] for flag in (True, False))
    assert copied.activation_bytes - shared.activation_bytes == 3 * 4 * 4096 * 4096 * 2
    alone = [layers("llama3-8b", sequence_parallel=flag)[1] for flag in (True, False)]
    assert alone[0] == alone[1]


def test_factors_replace_the_counts() -> None:
    """A factor stands for the counted bytes: so many for each token and feature."""
    layer = layers("llama3-8b", activation_factor=34.0, held_factor=10.0, sequence=2048)[1]
    assert (layer.activation_bytes, layer.held_for_weight_grad_bytes) == (34 * 2048 * 4096, 10 * 2048 * 4096)


@given(st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4096), st.sampled_from(["bf16", "fp32"]))
def test_scaling(size: int, group: int, sequence: int, dtype: str) -> None:
    """Microbatch size multiplies times and activations, the group divides times, parameters never change."""
    base = layers("llama3.2-1b", sequence=sequence, dtype=dtype)
    more = layers("llama3.2-1b", sequence=sequence, dtype=dtype, microbatch_size=size, tensor_parallel=group)
    for one, other in zip(base, more, strict=True):
        assert other.forward_ms == pytest.approx(one.forward_ms * size / group, abs=1e-5)
        assert other.activation_bytes == size * one.activation_bytes
        assert other.output_bytes == size * one.output_bytes
        assert other.static_bytes == one.static_bytes


@pytest.mark.parametrize("name", CONFIGS)
def test_every_model_has_costs(name: str) -> None:
    """Every published model gets its layers, each with time, memory and a split backward."""
    embedding, *inner, head = layers(name)
    assert len(inner) == CONFIGS[name]["num_hidden_layers"]
    assert [layer.name for layer in (embedding, inner[0], inner[-1], head)] == [
        "embedding",
        "layer0",
        f"layer{len(inner) - 1}",
        "head",
    ]
    for layer in (*inner, head):
        assert layer.can_split
        assert min(layer.forward_ms, layer.activation_bytes, layer.static_bytes) > 0


def test_assumptions_follow_the_choices() -> None:
    """Every assumption has a source and what overrides it, its name once, and the value that was used."""
    costing = Costing(gpu_tflops=512.5, attention="standard", replicas=4, recompute="full")
    found = costing_assumptions(model("deepseek-v3"), costing)
    by_name = {assumption.name: assumption for assumption in found}
    assert len(by_name) == len(found)
    assert all(assumption.source and assumption.option for assumption in found)
    assert by_name["gpu_tflops"].value == 512.5
    assert by_name["attention_backward"].value == 2.0
    assert by_name["static_bytes"].value == 9.0
    assert by_name["not_counted"].value == "1 layers for multi-token prediction"
    assert str(by_name["sequence"]) == "sequence = 4,096 tokens: of the training job (--sequence)"
