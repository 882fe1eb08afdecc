"""Collects faults and hands them back in file order."""

from __future__ import annotations

from cpipe.errors import Diagnostic

__all__ = ["Report"]

_HEADER = (-1, -1)


class Report:
    """The faults of one plan.

    Parameters
    ----------
    file
        The file as the user named it, or None.
    """

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._found: list[tuple[tuple[int, int], Diagnostic]] = []

    def header(self, code: str, path: str, message: str) -> None:
        """Record a fault outside the programs."""
        self._add(_HEADER, code, path, message)

    def rank(self, code: str, place: int, message: str) -> None:
        """Record a fault of a whole program; `place` is its index in ``$.ranks``."""
        self._add((place, -1), code, f"$.ranks[{place}]", message)

    def step(self, code: str, place: int, index: int, message: str, field: str = "") -> None:
        """Record a fault of one instruction, or of one field of it."""
        path = f"$.ranks[{place}].ops[{index}]" + (f".{field}" if field else "")
        self._add((place, index), code, path, message)

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return everything found: the header's first, then rank by rank, op by op."""
        return tuple(fault for _, fault in sorted(self._found, key=lambda item: item[0]))

    def __len__(self) -> int:
        """Return the number of faults."""
        return len(self._found)

    def _add(self, order: tuple[int, int], code: str, path: str, message: str) -> None:
        self._found.append((order, Diagnostic(code=code, message=message, file=self._file, path=path)))
