"""What distinguishes the model families, beyond the numbers in their configurations."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["FAMILIES", "Family"]


class Family(NamedTuple):
    """Traits of one `model_type`.

    Attributes
    ----------
    norms
        Norms of the width of the residual stream in a layer.
    qkv_bias
        Whether queries, keys and values always have a bias.
    qk_norm
        Whether the heads of queries and keys are normed, with weights that the heads share.
    window
        Which layers a sliding window is for: none, all, every second from the first, or those from
        `max_window_layers` on where `use_sliding_window` says so.
    experts
        Keys that may hold the number of experts; empty for a dense model.
    latent
        Whether the attention is multi-head latent attention.
    router_bias
        Whether each expert has a bias in the router.
    tied
        Whether the head is the embedding unless the configuration says otherwise.
    head_dim
        Key width of a head where the configuration has none and it is not hidden / heads.
    """

    norms: int = 2
    qkv_bias: bool = False
    qk_norm: bool = False
    window: Literal["none", "all", "alternate", "upper"] = "none"
    experts: tuple[str, ...] = ()
    latent: bool = False
    router_bias: bool = False
    tied: bool = False
    head_dim: int | None = None


FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(experts=("n_routed_experts",), latent=True),
    "deepseek_v3": Family(experts=("n_routed_experts",), latent=True, router_bias=True),
    "gemma": Family(tied=True, head_dim=256),
    "gemma2": Family(norms=4, window="alternate", tied=True, head_dim=256),
    "llama": Family(),
    "mistral": Family(window="all"),
    "mixtral": Family(window="all", experts=("num_local_experts", "num_experts")),
    "phi3": Family(window="all"),
    "qwen2": Family(qkv_bias=True, window="upper"),
    "qwen2_moe": Family(qkv_bias=True, window="upper", experts=("num_experts",)),
    "qwen3": Family(qk_norm=True, window="upper", head_dim=128),
    "qwen3_moe": Family(qk_norm=True, window="upper", experts=("num_experts",)),
}
"""Model type -> its traits, as the published implementations of these models have them."""
