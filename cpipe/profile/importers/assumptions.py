"""What an import took for granted."""

from __future__ import annotations

from cpipe.ir.base import Frozen

__all__ = ["Assumption"]


class Assumption(Frozen, frozen=True, kw_only=True):
    """One number or choice that the input does not give.

    Attributes
    ----------
    name
        What it is, in snake case.
    value
        What was taken.
    unit
        Of the value; empty for a choice.
    source
        The formula, or where the value comes from.
    option
        How to take another value: an option of the command, or a field of the profile.
    """

    name: str
    value: float | int | str
    unit: str
    source: str
    option: str

    def __str__(self) -> str:
        """Return one line: ``name = value unit: source (option)``."""
        value = f"{self.value:,}" if isinstance(self.value, int) else str(self.value)
        return f"{self.name} = {value}{self.unit and ' '}{self.unit}: {self.source} ({self.option})"
