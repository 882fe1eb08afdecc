"""Common base of the IR types and the error their verifiers raise."""

from __future__ import annotations

import msgspec

__all__ = ["Frozen", "InvariantError"]


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Immutable and strict: the base of every IR type (which says `kw_only` itself: msgspec does not inherit it)."""


class InvariantError(ValueError):
    """A value of the IR breaks its own invariant; the caller built it wrong."""
