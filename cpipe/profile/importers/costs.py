"""From an architecture and figures of a GPU to what its layers cost.

One device is a tensor-parallel group that acts as one: times are divided over its GPUs, bytes are those of all of them.

Sources: Korthikanti et al. 2022 (arXiv 2205.05198) for what the backward keeps; Qi et al. 2023 (arXiv 2401.10241),
table 1, for what the weight gradient still needs; Dao 2023 (arXiv 2307.08691), section 3.1, for attention; Rajbhandari
et al. 2019 (arXiv 1910.02054), section 3.1, for the bytes of mixed-precision training.
"""

from __future__ import annotations

from cpipe.ir.base import Frozen
from cpipe.profile.importers.architecture import Architecture, LayerShape
from cpipe.profile.importers.assumptions import Assumption
from cpipe.profile.importers.layers import Layer

__all__ = ["ATTENTIONS", "DTYPES", "RECOMPUTES", "Costing", "attention_flops", "costing_assumptions", "model_layers"]

DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Type of parameters, activations and messages -> bytes of an element."""
ATTENTIONS = ("flash", "standard")
RECOMPUTES = ("none", "selective", "full")

_BACKWARD = {"flash": 2.5, "standard": 2.0}


class Costing(Frozen, frozen=True, kw_only=True):
    """How a model is trained, and how fast its devices are.

    Attributes
    ----------
    microbatch_size, sequence
        Sequences of a microbatch, and tokens of each.
    tensor_parallel
        GPUs that act as one device.
    gpu_tflops
        What one of them achieves [10^12 operations/s].
    dtype
        A key of `DTYPES`.
    attention
        ``flash``: the scores are never kept; ``standard``: they are.
    attention_backward
        Operations of the backward of the attention core for each of its forward; None: 2.5 with flash, which computes
        the scores again, else 2.
    recompute
        ``selective``: the attention core's forward again in D; ``full``: the whole layer's.
    sequence_parallel
        Whether norms and residuals are divided over the tensor-parallel group too.
    main_gradient_bytes, optimizer_bytes
        Of one parameter: the gradient that is added up; master copy and moments [bytes].
    zero
        1: the optimizer's state is divided over the replicas; 0: each has all of it.
    replicas
        Of the pipeline.
    activation_factor, held_factor
        In place of the counts from shapes: bytes for each token and feature that a layer keeps for the backward, and
        of them between D and W.
    """

    microbatch_size: int = 1
    sequence: int = 4096
    tensor_parallel: int = 1
    gpu_tflops: float = 400.0
    dtype: str = "bf16"
    attention: str = "flash"
    attention_backward: float | None = None
    recompute: str = "none"
    sequence_parallel: bool = True
    main_gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    zero: int = 1
    replicas: int = 1
    activation_factor: float | None = None
    held_factor: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch [count]."""
        return self.microbatch_size * self.sequence

    @property
    def element_bytes(self) -> int:
        """Size of one element [bytes]."""
        return DTYPES[self.dtype]

    @property
    def backward_ratio(self) -> float:
        """Operations of the attention core's backward for each of its forward."""
        return _BACKWARD[self.attention] if self.attention_backward is None else self.attention_backward

    @property
    def static_bytes_per_parameter(self) -> float:
        """Parameter, gradient and this replica's share of the optimizer's state [bytes]."""
        share = self.replicas if self.zero else 1
        return self.element_bytes + self.main_gradient_bytes + self.optimizer_bytes / share


def attention_flops(shape: LayerShape, costing: Costing) -> float:
    """Return the operations of one forward of the attention core over a microbatch.

    Scores and weighted values take 2 x width operations for each pair of tokens. Each token attends to those before it:
    s^2 / 2 pairs, or w s - w^2 / 2 within a window of w.
    """
    tokens = costing.sequence
    window = min(tokens, shape.window or tokens)
    pairs = window * tokens - window * window / 2
    return costing.microbatch_size * pairs * 2 * (shape.score_width + shape.value_width)


def model_layers(model: Architecture, costing: Costing) -> tuple[Layer, ...]:
    """Return what embedding, layers and head cost, in this order.

    Forward, D and W of a matrix product take 2 operations for each of its weights and tokens; W has no attention core.
    """
    made: dict[LayerShape, Layer] = {}
    for shape in model.layers:
        if shape not in made:
            made[shape] = _transformer_layer(shape, costing)
    inner = [_named(made[shape], f"layer{index}") for index, shape in enumerate(model.layers)]
    return (_embedding(model, costing), *inner, _head(model, costing))


def _named(layer: Layer, name: str) -> Layer:
    from msgspec.structs import replace

    return replace(layer, name=name)


def _ms(flops: float, costing: Costing) -> float:
    return round(flops / (costing.gpu_tflops * 1e9 * costing.tensor_parallel), 6)


def _parameter_sizes(parameters: int, costing: Costing) -> dict[str, int]:
    return {
        "static_bytes": round(parameters * costing.static_bytes_per_parameter),
        "parameter_bytes": parameters * costing.element_bytes,
        "gradient_bytes": round(parameters * costing.main_gradient_bytes),
    }


def _message_bytes(hidden: int, costing: Costing) -> int:
    return costing.tokens * hidden * costing.element_bytes


def _transformer_layer(shape: LayerShape, costing: Costing) -> Layer:
    linear = 2.0 * shape.active_parameters * costing.tokens
    core = attention_flops(shape, costing)
    kept, held = _kept_bytes(shape, costing), _held_bytes(shape, costing)
    message = _message_bytes(shape.hidden, costing)
    full = costing.recompute == "full"
    again, transient = 0.0, 0
    if full:
        again, transient = linear + core, kept
    elif costing.recompute == "selective" and costing.attention == "standard":  # flash does so by itself
        again, transient = core, _score_bytes(shape, costing)
    return Layer(
        name="layer",
        forward_ms=_ms(linear + core, costing),
        input_grad_ms=_ms(linear + core * costing.backward_ratio + again, costing),
        weight_grad_ms=_ms(linear, costing),
        activation_bytes=message if full else kept,
        held_for_weight_grad_bytes=held,
        input_grad_transient_bytes=transient,
        output_bytes=message,
        **_parameter_sizes(shape.parameters, costing),
    )


def _kept_bytes(shape: LayerShape, costing: Costing) -> int:
    """Return what a layer keeps for its backward [bytes], all GPUs of the device together."""
    if costing.activation_factor is not None:
        return round(costing.activation_factor * costing.tokens * shape.hidden)
    # Inputs and outputs of both norms: copied on each GPU without sequence parallelism.
    copies = 1 if costing.sequence_parallel else costing.tensor_parallel
    elements = shape.input_elements + shape.kept_elements + 4 * shape.hidden * (copies - 1)
    scores = _score_bytes(shape, costing) if costing.attention == "standard" and costing.recompute != "selective" else 0
    return costing.tokens * elements * costing.element_bytes + scores


def _score_bytes(shape: LayerShape, costing: Costing) -> int:
    """Return the size of the attention's weights [bytes]: one for each head and pair of tokens, causal or not."""
    return costing.tokens * costing.sequence * shape.heads * costing.element_bytes


def _held_bytes(shape: LayerShape, costing: Costing) -> int:
    """Return what W needs of a layer [bytes]: the inputs of its matrix products and the gradients of their outputs."""
    if costing.held_factor is not None:
        return round(costing.held_factor * costing.tokens * shape.hidden)
    return costing.tokens * (shape.input_elements + shape.output_elements) * costing.element_bytes


def _embedding(model: Architecture, costing: Costing) -> Layer:
    """Return the embedding: a look-up, which takes no operations; token ids of 8 bytes are kept."""
    ids = 8 * costing.tokens
    return Layer(
        name="embedding",
        forward_ms=0.0,
        input_grad_ms=0.0,
        weight_grad_ms=0.0,
        activation_bytes=ids,
        held_for_weight_grad_bytes=ids,
        output_bytes=_message_bytes(model.hidden, costing),
        **_parameter_sizes(model.embedding_parameters, costing),
    )


def _head(model: Architecture, costing: Costing) -> Layer:
    """Return final norm, head and loss: the norm's input and output, and the logits in fp32, are kept."""
    linear = 2.0 * model.vocabulary * model.hidden * costing.tokens
    message, logits = _message_bytes(model.hidden, costing), 4 * costing.tokens * model.vocabulary
    return Layer(
        name="head",
        forward_ms=_ms(linear, costing),
        input_grad_ms=_ms(linear, costing),
        weight_grad_ms=_ms(linear, costing),
        activation_bytes=2 * message + logits,
        held_for_weight_grad_bytes=message + logits,
        **_parameter_sizes(model.head_parameters, costing),
    )


def costing_assumptions(model: Architecture, costing: Costing) -> tuple[Assumption, ...]:
    """Return everything that `model_layers` took for granted, each with what overrides it."""
    rows = [*_speed_rows(costing), *_memory_rows(model, costing)]
    rows += [
        ("not_counted", part, "", "named by the configuration, left out of every cost", "the profile's fields")
        for part in model.uncounted
    ]
    return tuple(
        Assumption(name=name, value=value, unit=unit, source=source, option=option)
        for name, value, unit, source, option in rows
    )


_Row = tuple[str, "float | int | str", str, str, str]


def _speed_rows(costing: Costing) -> list[_Row]:
    ratio = "flash computes the scores again, Dao 2023 3.1" if costing.attention == "flash" else "two products for each"
    return [
        ("microbatch_size", costing.microbatch_size, "sequences", "one is the least", "--microbatch-size"),
        ("sequence", costing.sequence, "tokens", "of the training job", "--sequence"),
        ("tensor_parallel", costing.tensor_parallel, "GPUs", "act as one device", "--tensor-parallel"),
        (
            "gpu_tflops",
            costing.gpu_tflops,
            "TFLOP/s",
            "achieved by one GPU, waiting for its tensor-parallel peers included; H100 in bf16: 380 to 430 (arXiv "
            "2407.21783, table 4)",
            "--gpu-tflops",
        ),
        (
            "flops",
            "2 x weights x tokens for each of F, D and W, and the attention core",
            "",
            "matrix products alone; norms, activations and the embedding's look-up take no time",
            "--gpu-tflops",
        ),
        (
            "attention_pairs",
            "causal: s^2 / 2, within a window w s - w^2 / 2",
            "",
            "each token attends to those before it; 2 x width operations for scores and for values",
            "the profile's forward_ms",
        ),
        ("attention", costing.attention, "", "flash keeps no scores", "--attention"),
        ("attention_backward", costing.backward_ratio, "forwards of the core", ratio, "--attention-backward"),
        ("full_backward", "D + W", "", "no saving where both run as one", "the profile's full_backward_ms"),
    ]


def _memory_rows(model: Architecture, costing: Costing) -> list[_Row]:
    counted = "counted from the shapes as in Korthikanti et al. 2022, 4.1, without dropout, activation functions fused"
    needed = "inputs of the products and gradients of their outputs, Qi et al. 2023, table 1"
    unit = model.hidden * costing.tokens
    first = model.layers[-1]
    share = f" / {costing.replicas} replicas" if costing.zero and costing.replicas > 1 else ""
    return [
        ("dtype", costing.dtype, "", "of parameters, activations and messages", "--dtype"),
        ("recompute", costing.recompute, "", "forwards that D runs again", "--recompute"),
        (
            "sequence_parallel",
            "yes" if costing.sequence_parallel else "no",
            "",
            "norms divided over the tensor-parallel group",
            "--no-sequence-parallel" if costing.sequence_parallel else "--sequence-parallel",
        ),
        (
            "activation_factor",
            round(_kept_bytes(first, costing) / unit, 6),
            "bytes for each token and feature of the last layer",
            counted if costing.activation_factor is None else "given",
            "--activation-factor",
        ),
        (
            "held_factor",
            round(_held_bytes(first, costing) / unit, 6),
            "bytes for each token and feature of the last layer",
            needed if costing.held_factor is None else "given",
            "--held-factor",
        ),
        (
            "message",
            _message_bytes(model.hidden, costing),
            "bytes/microbatch",
            "tokens x features x element, one copy for all GPUs of a device",
            "the profile's output_bytes",
        ),
        (
            "logits",
            4,
            "bytes for each token and entry of the vocabulary",
            "kept in fp32 for the loss, Korthikanti et al. 2022, 4.3",
            "the profile's activation_bytes of the last stage",
        ),
        (
            "static_bytes",
            round(costing.static_bytes_per_parameter, 6),
            "bytes/parameter",
            f"{costing.dtype} parameter {costing.element_bytes} + gradient {costing.main_gradient_bytes:g} + optimizer "
            f"{costing.optimizer_bytes:g}{share} (fp32 master copy and two Adam moments: 12, Rajbhandari et al. 2019, "
            "3.1)",
            "--gradient-bytes, --optimizer-bytes, --zero",
        ),
        ("transients", 0, "bytes", "no workspace counted" + _recomputed(costing), "the profile's ..._transient_bytes"),
        (
            "tied_embedding",
            "a copy on the first and on the last stage" if model.tied else "no",
            "",
            "adding up the gradients of both is not modelled" if model.tied else "the configuration",
            "the profile's static_bytes",
        ),
    ]


def _recomputed(costing: Costing) -> str:
    return ", but a layer that is run again" if costing.recompute == "full" else ""
