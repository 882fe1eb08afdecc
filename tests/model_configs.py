"""Configurations of published models, as far as the import of a `config.json` reads them."""

from __future__ import annotations

from typing import Any

__all__ = ["CONFIGS", "PARAMETERS", "config"]


def _dense(
    model_type: str, hidden: int, intermediate: int, layers: int, heads: int, groups: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocab,
        **more,
    }


def _deepseek(model_type: str, query_rank: int | None, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "q_lora_rank": query_rank,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_layer_freq": 1,
        "tie_word_embeddings": False,
        **more,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "llama3-8b": _dense("llama", 4096, 14336, 32, 32, 8, 128256, tie_word_embeddings=False),
    "llama3-70b": _dense("llama", 8192, 28672, 80, 64, 8, 128256, tie_word_embeddings=False),
    "llama3-405b": _dense("llama", 16384, 53248, 126, 128, 8, 128256, tie_word_embeddings=False),
    "llama3.2-1b": _dense("llama", 2048, 8192, 16, 32, 8, 128256, head_dim=64, tie_word_embeddings=True),
    "mistral-7b": _dense("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=4096),
    "mixtral-8x7b": _dense(
        "mixtral", 4096, 14336, 32, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2, sliding_window=None
    ),
    "qwen2.5-0.5b": _dense(
        "qwen2", 896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True, use_sliding_window=False, sliding_window=32768
    ),
    "qwen2.5-7b": _dense("qwen2", 3584, 18944, 28, 28, 4, 152064, use_sliding_window=False, sliding_window=131072),
    "qwen3-8b": _dense("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128, attention_bias=False),
    "qwen3-30b-a3b": _dense(
        "qwen3_moe",
        2048,
        6144,
        48,
        32,
        4,
        151936,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    ),
    "qwen1.5-moe-a2.7b": _dense(
        "qwen2_moe",
        2048,
        5632,
        24,
        16,
        16,
        151936,
        num_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
        decoder_sparse_step=1,
    ),
    "gemma-2-9b": _dense("gemma2", 3584, 14336, 42, 16, 8, 256000, head_dim=256, sliding_window=4096),
    "phi-3-mini": _dense("phi3", 3072, 8192, 32, 32, 32, 32064, sliding_window=2047),
    "deepseek-v2-lite": _deepseek(
        "deepseek_v2",
        None,
        hidden_size=2048,
        intermediate_size=10944,
        num_hidden_layers=27,
        num_attention_heads=16,
        vocab_size=102400,
        n_routed_experts=64,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        n_shared_experts=2,
        first_k_dense_replace=1,
    ),
    "deepseek-v3": _deepseek(
        "deepseek_v3",
        1536,
        hidden_size=7168,
        intermediate_size=18432,
        num_hidden_layers=61,
        num_attention_heads=128,
        vocab_size=129280,
        n_routed_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        n_shared_experts=1,
        first_k_dense_replace=3,
        num_nextn_predict_layers=1,
    ),
}

PARAMETERS: dict[str, int] = {
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "gemma-2-9b": 9_241_705_984,
    "phi-3-mini": 3_821_079_552,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
}
"""Published number of parameters of each, as in its weights."""


def config(name: str, **changes: Any) -> dict[str, Any]:
    """Return a copy of a configuration with changes; a key of value `...` is taken out."""
    merged = CONFIGS[name] | changes
    return {key: value for key, value in merged.items() if value is not ...}
