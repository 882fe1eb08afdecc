"""A model's `config.json`, as Hugging Face's transformers writes it, as an architecture.

Only what the counts need is looked at; of that, everything that is missing, wrong or not modelled is told at once.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from msgspec import Meta
from msgspec import inspect as mi

from cpipe.errors import Diagnostic, InputError
from cpipe.ir.base import Frozen
from cpipe.jsontext import Builder, Format, JsonObject, parse_json, scan, shown
from cpipe.profile.importers.architecture import Architecture, LayerShape
from cpipe.profile.importers.families import FAMILIES, Family
from cpipe.profile.importers.shapes import attention, dense_block, expert_block, layer_of

__all__ = ["HF_FORMAT", "MODEL_TYPES", "HfConfig", "parse_hf_config"]

HF_FORMAT = Format("config.json", 1, "model configuration", InputError, max_bytes=2**24)
MODEL_TYPES = tuple(sorted(FAMILIES))
"""The values of `model_type` that are understood."""

_MAX_LAYERS = 2_048
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window")

Count = Annotated[int, Meta(ge=1, le=10**9)]
Index = Annotated[int, Meta(ge=0, le=10**9)]


class HfConfig(Frozen, frozen=True, kw_only=True):
    """The keys of a `config.json` that are read; all others are ignored, `null` is an absent one."""

    hidden_size: Count
    num_hidden_layers: Annotated[int, Meta(ge=1, le=_MAX_LAYERS)]
    num_attention_heads: Count
    vocab_size: Count
    intermediate_size: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    num_local_experts: Count | None = None
    num_experts: Count | None = None
    n_routed_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = None
    n_shared_experts: Index | None = None
    shared_expert_intermediate_size: Count | None = None
    decoder_sparse_step: Count | None = None
    mlp_only_layers: tuple[Index, ...] | None = None
    first_k_dense_replace: Index | None = None
    moe_layer_freq: Count | None = None
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    sliding_window: Count | None = None
    max_window_layers: Index | None = None
    num_nextn_predict_layers: Index | None = None
    layer_types: tuple[str, ...] | None = None


def parse_hf_config(data: bytes, file: str) -> Architecture:
    """Return the architecture that a `config.json` describes.

    Parameters
    ----------
    data
        UTF-8 JSON text.
    file
        Name to show in diagnostics.

    Raises
    ------
    InputError
        With every fault: keys that are missing or wrong, a model type or a kind of layer that is not modelled.
    """
    tree = parse_json(data, file, HF_FORMAT)
    if not isinstance(tree, JsonObject):
        fault = Diagnostic(code="wrong-type", message=f"expected an object, got {shown(tree)}", file=file, path="$")
        raise InputError([fault])
    order, faults = scan(tree, file, HF_FORMAT)
    family = _family(tree, file)
    known = JsonObject({key: value for key, value in tree.items() if key in HfConfig.__struct_fields__})
    builder = Builder(file, nulls=True)
    config: HfConfig = builder.build(mi.type_info(HfConfig), known, "$")
    faults += builder.faults
    reader = _Reader(config, family, tree, file)
    reader.check_flags()
    if not faults:  # rules that join keys would only repeat what is wrong with one of them
        reader.check()
    faults += reader.faults
    if faults:
        faults.sort(key=lambda fault: order.get(fault.path or "$", 0))
        raise InputError(faults, hint=next((fault.hint for fault in faults if fault.hint), None))
    return reader.architecture()


def _family(tree: JsonObject, file: str) -> Family:
    name = tree.get("model_type")
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    if name is None:
        message, path = 'the required key "model_type" is missing', "$"
        raise InputError([Diagnostic(code="missing-key", message=message, file=file, path=path)])
    hint = None
    if isinstance(tree.get("text_config"), dict):
        hint = "its text model is described by the object text_config: import that alone"
    elif isinstance(name, str) and (close := difflib.get_close_matches(name, MODEL_TYPES, n=1)):
        hint = f"did you mean {shown(close[0])}?"
    message = f"this kind of model is not modelled: expected one of {', '.join(MODEL_TYPES)}, got {shown(name)}"
    fault = Diagnostic(code="unsupported-model", message=message, file=file, path="$.model_type", hint=hint)
    raise InputError([fault])


class _Reader:
    """Reads one configuration; `check` notes what is wrong with it, `architecture` is for one without faults."""

    def __init__(self, config: HfConfig, family: Family, tree: JsonObject, file: str) -> None:
        self._config, self._family, self._tree, self._file = config, family, tree, file
        self.faults: list[Diagnostic] = []

    def check_flags(self) -> None:
        """Note every flag that is none."""
        for name in _FLAGS:
            value = self._tree.get(name)
            if value is not None and not isinstance(value, bool):
                self._note("wrong-type", f"expected true or false, got {shown(value)}", name)

    def check(self) -> None:
        """Note every fault that joins several keys."""
        config, family = self._config, self._family
        if not family.experts or family.latent or config.mlp_only_layers or config.decoder_sparse_step not in (None, 1):
            self._require("intermediate_size", "")
        if family.latent:
            for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
                self._require(name, "of its latent attention ")
        else:
            self._check_heads()
        if family.experts:
            if self._experts() is None:
                self._missing(family.experts[0], "of a mixture of experts ")
            self._require("num_experts_per_tok", "of a mixture of experts ")
            self._check_experts()
        self._check_layer_types()

    def _check_heads(self) -> None:
        config = self._config
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        if groups is not None and heads % groups:
            message = f"expected a divisor of num_attention_heads {heads}, got {groups}"
            self._note("not-a-divisor", message, "num_key_value_heads")
        if config.head_dim is None and self._family.head_dim is None and config.hidden_size % heads:
            message = f"expected a divisor of hidden_size {config.hidden_size} where there is no head_dim, got {heads}"
            self._note("not-a-divisor", message, "num_attention_heads")

    def _check_experts(self) -> None:
        experts, active = self._experts(), self._config.num_experts_per_tok
        if experts is not None and active is not None and active > experts:
            message = f"expected at most the {experts} experts that there are, got {active}"
            self._note("too-large", message, "num_experts_per_tok")
        if self._expert_width() is None:
            self._missing("moe_intermediate_size", "of a mixture of experts ")

    def _check_layer_types(self) -> None:
        types = self._config.layer_types
        if types is None:
            return
        if len(types) != self._config.num_hidden_layers:
            message = f"expected one entry for each of the {self._config.num_hidden_layers} layers, got {len(types)}"
            self._note("wrong-length", message, "layer_types")
        known = ("full_attention", "sliding_attention")
        for index, kind in enumerate(types):
            if kind not in known:
                message = f"this kind of layer is not modelled: expected {' or '.join(known)}, got {shown(kind)}"
                self._note("unsupported-layer", message, f"layer_types[{index}]")
        if "sliding_attention" in types and self._config.sliding_window is None:
            self._missing("sliding_window", "of layers with sliding_attention ")

    def _experts(self) -> int | None:
        found = (getattr(self._config, name) for name in self._family.experts)
        return next((count for count in found if count is not None), None)

    def _expert_width(self) -> int | None:
        """Return the width of one expert; Mixtral has no key of its own for it."""
        config = self._config
        own = config.moe_intermediate_size
        return config.intermediate_size if own is None and "num_local_experts" in self._family.experts else own

    def _flag(self, name: str, default: bool = False) -> bool:
        value: Any = self._tree.get(name)
        return default if value is None else bool(value)

    def _require(self, name: str, owner: str) -> None:
        if getattr(self._config, name) is None:
            self._missing(name, owner)

    def _missing(self, name: str, owner: str) -> None:
        self.faults.append(
            Diagnostic(
                code="missing-key", message=f"the key {shown(name)} {owner}is missing", file=self._file, path="$"
            )
        )

    def _note(self, code: str, message: str, name: str) -> None:
        self.faults.append(Diagnostic(code=code, message=message, file=self._file, path=f"$.{name}"))

    def architecture(self) -> Architecture:
        """Return the architecture of a configuration without faults."""
        config = self._config
        extra = config.num_nextn_predict_layers or 0
        return Architecture(
            name=str(self._tree["model_type"]),
            hidden=config.hidden_size,
            vocabulary=config.vocab_size,
            tied=self._flag("tie_word_embeddings", self._family.tied),
            layers=tuple(self._layer(index) for index in range(config.num_hidden_layers)),
            uncounted=(f"{extra} layers for multi-token prediction",) if extra else (),
        )

    def _layer(self, index: int) -> LayerShape:
        config, family = self._config, self._family
        core = attention(config, family, bias=self._flag("attention_bias"))
        if self._is_sparse(index):
            block = expert_block(
                hidden=config.hidden_size,
                width=self._expert_width() or 0,
                experts=self._experts() or 0,
                active=config.num_experts_per_tok or 0,
                shared=self._shared_width(),
                shared_gate=config.shared_expert_intermediate_size is not None,
                router_bias=family.router_bias,
            )
        else:
            block = dense_block(config.hidden_size, config.intermediate_size or 0, bias=self._flag("mlp_bias"))
        norms = family.norms * config.hidden_size
        return layer_of(core, block, hidden=config.hidden_size, norms=norms, window=self._window(index))

    def _shared_width(self) -> int:
        config = self._config
        if config.shared_expert_intermediate_size is not None:
            return config.shared_expert_intermediate_size
        return (config.n_shared_experts or 0) * (config.moe_intermediate_size or 0)

    def _is_sparse(self, index: int) -> bool:
        config, family = self._config, self._family
        if not family.experts:
            return False
        if family.latent:
            return index >= (config.first_k_dense_replace or 0) and index % (config.moe_layer_freq or 1) == 0
        return index not in (config.mlp_only_layers or ()) and (index + 1) % (config.decoder_sparse_step or 1) == 0

    def _window(self, index: int) -> int | None:
        config = self._config
        if config.layer_types is not None:
            slides = config.layer_types[index] == "sliding_attention"
        elif self._family.window == "upper":
            slides = self._flag("use_sliding_window") and index >= (config.max_window_layers or 0)
        else:
            slides = self._family.window == "all" or (self._family.window == "alternate" and index % 2 == 0)
        return config.sliding_window if slides else None
