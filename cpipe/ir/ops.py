"""Compute operations: F, D, W and B on one stage for one microbatch, as dense integer ids.

An op id packs kind, stage and microbatch so that a search can index flat lists by it::

    op = (stage * microbatches + microbatch) * 4 + kind
"""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["KINDS", "Op", "OpKind", "decode_op", "encode_op"]

KINDS = 4


class OpKind(enum.IntEnum):
    """Kind of a compute op; the values are part of the op id."""

    F = 0
    """Forward."""
    D = 1
    """Input gradient."""
    W = 2
    """Weight gradient."""
    B = 3
    """Full backward: D and W as one op."""


class Op(NamedTuple):
    """A decoded op: `kind` on stage `stage` for microbatch `microbatch`."""

    kind: OpKind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """Return the text form, stage first: ``2F0`` is the forward of microbatch 0 on stage 2."""
        return f"{self.stage}{self.kind.name}{self.microbatch}"


def encode_op(kind: int, stage: int, microbatch: int, microbatches: int) -> int:
    """Return the id of an op in a problem of `microbatches` microbatches."""
    return (stage * microbatches + microbatch) * KINDS + kind


def decode_op(op: int, microbatches: int) -> Op:
    """Return kind, stage and microbatch of the op id `op`."""
    slot, kind = divmod(op, KINDS)
    stage, microbatch = divmod(slot, microbatches)
    return Op(OpKind(kind), stage, microbatch)
