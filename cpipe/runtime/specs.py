"""What travels between stages: number, shapes and dtypes of the tensors, the same in every microbatch and step."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["MessageSpec", "TensorSpec", "as_tensors", "decode_spec", "encode_spec", "gradients_of", "moved", "spec_of"]

_ALIGNMENT = 64


class TensorSpec(NamedTuple):
    """Shape and dtype of one tensor, and whether a gradient comes back for it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool = False

    def __str__(self) -> str:
        """Return the form for messages: ``float32[4, 16]``."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}" + (" with grad" * self.requires_grad)

    @property
    def num_bytes(self) -> int:
        """Size [bytes], rounded up so that the next tensor in a buffer is aligned."""
        return -(-math.prod(self.shape) * self.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


MessageSpec = tuple[TensorSpec, ...]


def spec_of(tensors: Sequence[Tensor]) -> MessageSpec:
    """Return what the tensors are."""
    return tuple(TensorSpec(tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in tensors)


def gradients_of(spec: MessageSpec) -> MessageSpec:
    """Return the gradients that come back for an activation: of those tensors that require one, in order."""
    return tuple(TensorSpec(tensor.shape, tensor.dtype) for tensor in spec if tensor.requires_grad)


def encode_spec(spec: MessageSpec) -> str:
    """Return a text form, equal exactly when the specs are."""
    return json.dumps([[list(item.shape), str(item.dtype).removeprefix("torch."), item.requires_grad] for item in spec])


def decode_spec(text: str | bytes) -> MessageSpec:
    """Read the form that `encode_spec` writes."""
    return tuple(TensorSpec(tuple(shape), getattr(torch, dtype), grad) for shape, dtype, grad in json.loads(text))


def as_tensors(value: Any) -> tuple[Tensor, ...] | None:
    """Return a tensor or a flat sequence of tensors as a tuple; None when it is something else."""
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, tuple | list) and value and all(isinstance(item, Tensor) for item in value):
        return tuple(value)
    return None


def moved(value: Any, device: torch.device) -> Any:
    """Return a value with its tensors on `device`: a sequence as a tuple; what is neither stays as it is."""
    if isinstance(value, tuple | list):
        return tuple(moved(part, device) for part in value)
    return value.to(device) if isinstance(value, Tensor) else value
