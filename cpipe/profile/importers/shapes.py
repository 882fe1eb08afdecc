"""The parts of a transformer layer: attention of the usual and of the latent kind, dense and expert blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cpipe.profile.importers.architecture import LayerShape, Linear

if TYPE_CHECKING:
    from cpipe.profile.importers.families import Family
    from cpipe.profile.importers.hf_config import HfConfig

__all__ = ["Attention", "Block", "attention", "dense_block", "expert_block", "layer_of"]


class Attention(NamedTuple):
    """The attention of a layer; sizes as in `LayerShape`, without the norm before it."""

    heads: int
    linears: tuple[Linear, ...]
    other_parameters: int
    score_width: int
    value_width: int
    input_elements: int
    kept_elements: int


class Block(NamedTuple):
    """The feed-forward block of a layer; sizes as in `LayerShape`, without the norm before it."""

    linears: tuple[Linear, ...]
    other_parameters: int
    input_elements: int
    kept_elements: int


def attention(config: HfConfig, family: Family, *, bias: bool) -> Attention:
    """Return the attention that a configuration describes.

    Parameters
    ----------
    config
        Without faults.
    family
        Traits of its model type.
    bias
        Whether it says that its products have biases.
    """
    if family.latent:
        return _latent(config, bias)
    hidden, heads = config.hidden_size, config.num_attention_heads
    width = config.head_dim or family.head_dim or hidden // heads
    queries, keys = heads * width, (config.num_key_value_heads or heads) * width
    biases = (queries + 2 * keys) * (bias or family.qkv_bias) + hidden * bias
    return Attention(
        heads=heads,
        linears=(
            Linear(inputs=hidden, outputs=queries),
            Linear(inputs=hidden, outputs=keys, copies=2, active=2),
            Linear(inputs=queries, outputs=hidden),
        ),
        other_parameters=biases + 2 * width * family.qk_norm,
        score_width=queries,
        value_width=queries,
        input_elements=hidden + queries,
        kept_elements=queries + 2 * keys + (queries + keys) * family.qk_norm,
    )


def _latent(config: HfConfig, bias: bool) -> Attention:
    """Return multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Queries, and keys with values, pass through a low rank with a norm; a part of each key, shared by the heads, keeps
    the position.
    """
    hidden, heads = config.hidden_size, config.num_attention_heads
    rank, rope = config.kv_lora_rank or 0, config.qk_rope_head_dim or 0
    nope, value = config.qk_nope_head_dim or 0, config.v_head_dim or 0
    queries, values, low = heads * (nope + rope), heads * value, config.q_lora_rank
    ways: tuple[Linear, ...] = (Linear(inputs=hidden, outputs=queries),)
    if low is not None:
        ways = (Linear(inputs=hidden, outputs=low), Linear(inputs=low, outputs=queries))
    squeezed = (low or 0) + rank
    return Attention(
        heads=heads,
        linears=(
            *ways,
            Linear(inputs=hidden, outputs=rank + rope),
            Linear(inputs=rank, outputs=heads * (nope + value)),
            Linear(inputs=values, outputs=hidden),
        ),
        other_parameters=squeezed + ((low or 0) + rank + rope + hidden) * bias,
        score_width=queries,
        value_width=values,
        input_elements=hidden + squeezed + values,
        kept_elements=squeezed + 2 * queries + values,
    )


def dense_block(hidden: int, width: int, *, bias: bool = False) -> Block:
    """Return a gated block: two products up, their gated product, one product down."""
    return Block(
        linears=(
            Linear(inputs=hidden, outputs=width, copies=2, active=2),
            Linear(inputs=width, outputs=hidden),
        ),
        other_parameters=(2 * width + hidden) * bias,
        input_elements=hidden + width,
        kept_elements=2 * width,
    )


def expert_block(
    *, hidden: int, width: int, experts: int, active: int, shared: int, shared_gate: bool, router_bias: bool
) -> Block:
    """Return a block of gated experts behind a router, with an expert for all tokens if `shared` is not 0.

    Each token is copied to `active` experts, and their outputs are kept to be weighed by the router.
    """
    linears = [
        Linear(inputs=hidden, outputs=experts),
        Linear(inputs=hidden, outputs=width, copies=2 * experts, active=2 * active),
        Linear(inputs=width, outputs=hidden, copies=experts, active=active),
    ]
    if shared:
        linears += dense_block(hidden, shared).linears
    if shared and shared_gate:
        linears.append(Linear(inputs=hidden, outputs=1))
    return Block(
        linears=tuple(linears),
        other_parameters=experts * router_bias,
        input_elements=hidden + active * (hidden + width) + shared,
        kept_elements=experts + active * (2 * width + hidden) + 2 * shared,
    )


def layer_of(core: Attention, block: Block, *, hidden: int, norms: int, window: int | None) -> LayerShape:
    """Return the layer of an attention and a block with `norms` weights of norms around them, whose inputs are kept."""
    linears = core.linears + block.linears
    return LayerShape(
        hidden=hidden,
        heads=core.heads,
        linears=linears,
        other_parameters=core.other_parameters + block.other_parameters + norms,
        score_width=core.score_width,
        value_width=core.value_width,
        window=window,
        input_elements=core.input_elements + block.input_elements,
        kept_elements=norms + core.kept_elements + block.kept_elements,
        output_elements=sum(linear.outputs * linear.active for linear in linears),
    )
