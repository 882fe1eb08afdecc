"""Tests of cpipe.profile.importers.hf_config: parameters of published models, and everything that is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_configs import CONFIGS, PARAMETERS, config

from cpipe.errors import InputError
from cpipe.profile.importers import MODEL_TYPES, Architecture, parse_hf_config


def parsed(document: dict[str, Any]) -> Architecture:
    """Return the architecture of a configuration."""
    return parse_hf_config(json.dumps(document).encode(), "config.json")


def faults(document: object) -> list[str]:
    """Return what is said about a wrong configuration, without the name of its file."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(InputError, match=r"config\.json") as caught:
        parse_hf_config(data, "config.json")
    return [str(fault).removeprefix("error: config.json: ") for fault in caught.value.diagnostics]


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_the_published_ones(name: str) -> None:
    """The parameters of every model are those of its published weights, to the last one."""
    assert parsed(CONFIGS[name]).parameters == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama3-8b", "8.03"),
        ("llama3-70b", "70.55"),
        ("llama3-405b", "405.85"),
        ("mixtral-8x7b", "46.70"),
        ("qwen3-30b-a3b", "30.53"),
        ("deepseek-v3", "671.03"),
    ],
)
def test_parameters_as_people_know_them(name: str, billions: str) -> None:
    """Rounded, the sizes are the ones on the models' cards."""
    assert f"{parsed(CONFIGS[name]).parameters / 1e9:.2f}" == billions


def test_every_family_has_a_model() -> None:
    """Each model type but Gemma 1 is checked against published weights of its own."""
    tested = {document["model_type"] for document in CONFIGS.values()}
    assert set(MODEL_TYPES) - tested == {"gemma"}
    gemma = config("gemma-2-9b", model_type="gemma")
    fewer = 42 * 2 * 3584  # two norms a layer instead of four
    assert parsed(gemma).parameters == PARAMETERS["gemma-2-9b"] - fewer


def test_layer_of_405b() -> None:
    """A layer of Llama 3 405B has 3187.7 million parameters, all of them active."""
    layer = parsed(CONFIGS["llama3-405b"]).layers[0]
    assert layer.active_parameters == 3_187_671_040
    assert layer.parameters == layer.active_parameters + 2 * 16384


@pytest.mark.parametrize(
    ("name", "active"),
    [("mixtral-8x7b", "12.7"), ("qwen3-30b-a3b", "3.0"), ("deepseek-v3", "36.6"), ("llama3-8b", "7.5")],
)
def test_active_parameters(name: str, active: str) -> None:
    """Weights that work on one token, an embedding with them, are as many as the card of a mixture of experts says."""
    model = parsed(CONFIGS[name])
    total = sum(layer.active_parameters for layer in model.layers) + model.embedding_parameters
    assert f"{total / 1e9:.1f}" == active


def test_experts_stand_where_the_configuration_has_them() -> None:
    """The first layers of DeepSeek are dense, and so are the layers that Qwen's lists and steps leave out."""
    deepseek = [len(layer.linears) for layer in parsed(CONFIGS["deepseek-v3"]).layers]
    assert deepseek[:3] == [deepseek[0]] * 3
    assert deepseek[3:] == [deepseek[3]] * 58
    assert deepseek[0] != deepseek[3]
    listed = parsed(config("qwen3-30b-a3b", mlp_only_layers=[0, 5])).layers
    assert [index for index, layer in enumerate(listed) if layer.parameters != listed[1].parameters] == [0, 5]
    stepped = parsed(config("qwen3-30b-a3b", decoder_sparse_step=2)).layers
    assert [layer.parameters for layer in stepped[:4]] == [listed[0].parameters, listed[1].parameters] * 2


@pytest.mark.parametrize(
    ("document", "windows"),
    [
        (CONFIGS["mistral-7b"], {4096}),
        (CONFIGS["mixtral-8x7b"], {None}),
        (CONFIGS["qwen2.5-7b"], {None}),
        (config("qwen2.5-7b", use_sliding_window=True, max_window_layers=28), {None}),
        (config("qwen2.5-7b", use_sliding_window=True, max_window_layers=0), {131072}),
        (config("llama3-8b", sliding_window=1024), {None}),
        (CONFIGS["gemma-2-9b"], {4096, None}),
    ],
)
def test_windows(document: dict[str, Any], windows: set[int | None]) -> None:
    """A sliding window is for the layers that the family, or the configuration, slides."""
    assert {layer.window for layer in parsed(document).layers} == windows


def test_layer_types_win() -> None:
    """A list of the kinds of layers says which of them slide."""
    kinds = ["sliding_attention", "full_attention"] * 21
    layers = parsed(config("gemma-2-9b", layer_types=kinds)).layers
    assert [layer.window for layer in layers] == [4096, None] * 21


def test_null_is_an_absent_key() -> None:
    """A key that is null is one that is not there, and unknown keys say nothing."""
    plain = config("llama3-8b", num_key_value_heads=...)
    null = config("llama3-8b", num_key_value_heads=None, rope_theta=5e5, transformers_version="4", torch_dtype=None)
    assert parsed(plain) == parsed(null)
    assert parsed(plain).layers[0].linears[1].outputs == 4096


def test_biases_count() -> None:
    """Biases of attention and block are parameters where the configuration has them."""
    base, biased = parsed(CONFIGS["llama3-8b"]), parsed(config("llama3-8b", attention_bias=True, mlp_bias=True))
    per_layer = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    assert biased.parameters - base.parameters == 32 * per_layer


def test_what_is_not_counted_is_named() -> None:
    """Layers for multi-token prediction are named, as no cost holds them."""
    assert parsed(CONFIGS["deepseek-v3"]).uncounted == ("1 layers for multi-token prediction",)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"", "expected a JSON object, got an empty file [empty-file]"),
        (b"[1]", "$: expected an object, got a list of 1 value [wrong-type]"),
        ({}, '$: the required key "model_type" is missing [missing-key]'),
        (config("llama3-8b", model_type="mamba"), "$.model_type: this kind of model is not modelled: expected one of"),
        (config("llama3-8b", hidden_size=...), '$: the required key "hidden_size" is missing [missing-key]'),
        (config("llama3-8b", intermediate_size=...), '$: the key "intermediate_size" is missing [missing-key]'),
        (config("llama3-8b", hidden_size=0), "$.hidden_size: expected an integer >= 1, got 0 [too-small]"),
        (config("llama3-8b", hidden_size="4096"), '$.hidden_size: expected an integer >= 1, got "4096" [wrong-type]'),
        (config("llama3-8b", hidden_size=4096.5), "$.hidden_size: expected an integer >= 1, got 4096.5"),
        (config("llama3-8b", num_hidden_layers=10**6), "$.num_hidden_layers: expected an integer <= 2048"),
        (
            config("llama3-8b", num_key_value_heads=5),
            "$.num_key_value_heads: expected a divisor of num_attention_heads 32, got 5 [not-a-divisor]",
        ),
        (
            config("llama3-8b", hidden_size=4097),
            "$.num_attention_heads: expected a divisor of hidden_size 4097 where there is no head_dim, got 32",
        ),
        (config("llama3-8b", tie_word_embeddings="no"), '$.tie_word_embeddings: expected true or false, got "no"'),
        (config("mixtral-8x7b", num_local_experts=...), '$: the key "num_local_experts" of a mixture of experts'),
        (config("mixtral-8x7b", num_experts_per_tok=...), '$: the key "num_experts_per_tok" of a mixture of experts'),
        (
            config("mixtral-8x7b", num_experts_per_tok=9),
            "$.num_experts_per_tok: expected at most the 8 experts that there are, got 9 [too-large]",
        ),
        (config("qwen3-30b-a3b", moe_intermediate_size=...), '$: the key "moe_intermediate_size" of a mixture'),
        (config("deepseek-v3", kv_lora_rank=...), '$: the key "kv_lora_rank" of its latent attention is missing'),
        (
            config("gemma-2-9b", layer_types=["full_attention"]),
            "$.layer_types: expected one entry for each of the 42 layers, got 1 [wrong-length]",
        ),
        (
            config("gemma-2-9b", layer_types=["linear_attention"] * 42),
            "$.layer_types[0]: this kind of layer is not modelled: expected full_attention or sliding_attention, got "
            '"linear_attention" [unsupported-layer]',
        ),
        (
            config("llama3-8b", layer_types=["sliding_attention"] * 32),
            '$: the key "sliding_window" of layers with sliding_attention is missing [missing-key]',
        ),
    ],
)
def test_wrong_configurations(document: object, expected: str) -> None:
    """What is missing, wrong or not modelled is refused with its path, the rule and the value."""
    assert faults(document)[0].startswith(expected)


def test_all_faults_at_once() -> None:
    """Every fault of a configuration is told, in the order of the file."""
    document = config("llama3-8b", hidden_size=-1, vocab_size="many", num_hidden_layers=0, mlp_bias=3)
    codes = [fault.rpartition("[")[2] for fault in faults(document)]
    assert codes == ["too-small]", "too-small]", "wrong-type]", "wrong-type]"]


def test_hints() -> None:
    """A model type that is nearly one, and a text model inside another, get a hint."""
    for document, hint in (
        (config("llama3-8b", model_type="qwen3-moe"), 'did you mean "qwen3_moe"?'),
        ({"model_type": "llava", "text_config": {}}, "the object text_config: import that alone"),
    ):
        with pytest.raises(InputError, match="unsupported-model") as caught:
            parsed(document)
        assert hint in str(caught.value.diagnostics[0].hint)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 64), st.integers(1, 500), st.integers(1, 6), st.booleans())
def test_parameters_add_up(groups: int, share: int, width: int, vocabulary: int, layers: int, tied: bool) -> None:
    """Whatever the sizes: all parameters are those of the layers, an embedding, a norm, and a head if it is its own."""
    hidden = groups * share * width
    document = config(
        "llama3-8b",
        hidden_size=hidden,
        num_attention_heads=groups * share,
        num_key_value_heads=groups,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
    )
    layer = hidden * hidden * 2 + 2 * hidden * groups * width + 3 * hidden * 3 * width + 2 * hidden
    assert parsed(document).parameters == layers * layer + (2 - tied) * vocabulary * hidden + hidden
