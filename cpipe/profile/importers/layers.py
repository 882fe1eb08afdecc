"""Layers with their costs, and how they become stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from cpipe.ir.base import Frozen
from cpipe.profile.schema import RecomputeSpec, StageSpec
from cpipe.units import ms_to_ns

__all__ = ["Layer", "layer_load_ns", "stages_of", "unit_counts"]


class Layer(Frozen, frozen=True, kw_only=True):
    """Costs of one layer for one microbatch; units and meanings are those of `StageSpec`.

    A backward is `input_grad_ms` with `weight_grad_ms`, or `full_backward_ms`, or all three.
    """

    name: str
    forward_ms: float
    input_grad_ms: float | None = None
    weight_grad_ms: float | None = None
    full_backward_ms: float | None = None
    activation_bytes: int = 0
    held_for_weight_grad_bytes: int | None = None
    static_bytes: int = 0
    forward_transient_bytes: int = 0
    input_grad_transient_bytes: int = 0
    weight_grad_transient_bytes: int = 0
    output_bytes: int = 0
    parameter_bytes: int = 0
    gradient_bytes: int = 0

    @property
    def can_split(self) -> bool:
        """Whether D and W have times of their own."""
        return self.input_grad_ms is not None and self.weight_grad_ms is not None


def layer_load_ns(layers: Iterable[Layer]) -> int:
    """Return how long one microbatch keeps the layers busy [ns]: forward and whole backward."""
    return sum(ms_to_ns(layer.forward_ms) + ms_to_ns(_backward_ms(layer)) for layer in layers)


def unit_counts(parts: Sequence[int], lead: int = 0, tail: int = 0) -> tuple[int, ...]:
    """Return how many layers each stage holds when the ends bring layers of their own.

    Parameters
    ----------
    parts
        Layers of each stage, without those at the ends.
    lead, tail
        Layers that stand before the first and behind the last of them (an embedding, a head).
    """
    counts = list(parts)
    counts[0] += lead
    counts[-1] += tail
    return tuple(counts)


def stages_of(
    layers: Sequence[Layer],
    counts: Sequence[int],
    devices: Sequence[str],
    *,
    whole_first: bool = True,
    offer_recompute: bool = False,
    input_bytes: int = 0,
) -> tuple[StageSpec, ...]:
    """Return the stages that runs of layers make.

    Times and sizes of a stage are the sums over its layers, its transients the largest, its output the last layer's.

    Parameters
    ----------
    layers
        In flow order.
    counts
        Layers of each stage, each >= 1, in sum all of them.
    devices
        Id of the device of each stage.
    whole_first
        The first stage sends no gradient, so its D takes no time and its W is the whole backward, as torch runs it.
    offer_recompute
        Each stage may keep its input alone and run its forward again in the backward.
    input_bytes
        Input of the first stage [bytes]; that of the others is what the layer before sends.
    """
    stages, start = [], 0
    for index, (count, device) in enumerate(zip(counts, devices, strict=True)):
        stage = _stage(layers[start : start + count], index, device, whole=whole_first and index == 0)
        kept = layers[start - 1].output_bytes if start else input_bytes
        if offer_recompute and kept < stage.activation_bytes:
            stage = replace(stage, recompute=RecomputeSpec(activation_bytes=kept, extra_ms=stage.forward_ms))
        stages.append(stage)
        start += count
    return tuple(stages)


def _stage(layers: Sequence[Layer], index: int, device: str, *, whole: bool) -> StageSpec:
    split = all(layer.can_split for layer in layers)
    parts = sum(_ns(layer.input_grad_ms) for layer in layers), sum(_ns(layer.weight_grad_ms) for layer in layers)
    full = sum(ms_to_ns(_backward_ms(layer)) for layer in layers)
    activation = sum(layer.activation_bytes for layer in layers)
    helds = [layer.held_for_weight_grad_bytes for layer in layers]
    held = None if None in helds else sum(size or 0 for size in helds)
    transients = [max(getattr(layer, f"{op}_transient_bytes") for layer in layers) for op in _OPS]
    if whole and split:
        parts, held, transients = (0, full), activation, [transients[0], 0, max(transients[1:])]
    return StageSpec(
        id=f"s{index}",
        device=device,
        forward_ms=_ms(sum(ms_to_ns(layer.forward_ms) for layer in layers)),
        input_grad_ms=_ms(parts[0]) if split else None,
        weight_grad_ms=_ms(parts[1]) if split else None,
        full_backward_ms=None if split and full == sum(parts) else _ms(full),
        activation_bytes=activation,
        held_for_weight_grad_bytes=held if split else None,
        static_bytes=sum(layer.static_bytes for layer in layers),
        forward_transient_bytes=transients[0],
        input_grad_transient_bytes=transients[1],
        weight_grad_transient_bytes=transients[2],
        output_bytes=layers[-1].output_bytes,
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        gradient_bytes=sum(layer.gradient_bytes for layer in layers),
    )


_OPS = ("forward", "input_grad", "weight_grad")


def _backward_ms(layer: Layer) -> float:
    if layer.full_backward_ms is not None:
        return layer.full_backward_ms
    return (layer.input_grad_ms or 0.0) + (layer.weight_grad_ms or 0.0)


def _ns(milliseconds: float | None) -> int:
    return ms_to_ns(milliseconds or 0.0)


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 6)
