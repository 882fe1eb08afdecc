"""Collects faults and hands them back in file order."""

from __future__ import annotations

import re

import msgspec

from cpipe.errors import Diagnostic
from cpipe.ir.plan import Channel, Claims, Group, MadeBy, Plan, ProblemSummary

__all__ = ["Report"]

_STEP = re.compile(r"\w+|\[\d+\]")
_KINDS: dict[str, type[msgspec.Struct]] = {
    "": Plan,
    "made_by": MadeBy,
    "problem": ProblemSummary,
    "claims": Claims,
    "channels": Channel,
    "groups": Group,
}
_PLACE = {
    (owner, field.name): place
    for owner, kind in _KINDS.items()
    for place, field in enumerate(msgspec.structs.fields(kind))
}
"""Where a field stands in its object in the canonical text, by the field that holds the object."""


class Report:
    """The faults of one plan.

    Parameters
    ----------
    file
        The file as the user named it, or None.
    """

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._found: list[tuple[tuple[int, ...], Diagnostic]] = []

    def header(self, code: str, path: str, message: str) -> None:
        """Record a fault outside the programs."""
        self._add(_order(path), code, path, message)

    def rank(self, code: str, place: int, message: str) -> None:
        """Record a fault of a whole program; `place` is its index in ``$.ranks``."""
        self._add(_order(path := f"$.ranks[{place}]"), code, path, message)

    def step(self, code: str, place: int, index: int, message: str, field: str = "") -> None:
        """Record a fault of one instruction, or of one field of it."""
        path = f"$.ranks[{place}].ops[{index}]"
        self._add(_order(path), code, path + (f".{field}" if field else ""), message)

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return everything found in the order of the canonical text; of one op, in the order found."""
        return tuple(fault for _, fault in sorted(self._found, key=lambda item: item[0]))

    def __len__(self) -> int:
        """Return the number of faults."""
        return len(self._found)

    def _add(self, order: tuple[int, ...], code: str, path: str, message: str) -> None:
        self._found.append((order, Diagnostic(code=code, message=message, file=self._file, path=path)))


def _order(path: str) -> tuple[int, ...]:
    """Return a key that sorts paths as they stand in the file; what is said of a whole object comes before its parts.

    Inside a rank, faults are of ``ops`` alone.
    """
    places, owner = [], ""
    for step in _STEP.findall(path):
        if step.startswith("["):
            places.append(int(step[1:-1]))
        else:
            places.append(_PLACE.get((owner, step), 0))
            owner = step
    return tuple(places)
