"""Torch's schedule table, as `torch.distributed.pipelining` 2.13 has it: one row a rank, one cell an action.

A cell is ``<stage><ACTION><microbatch>``: ``0F3``, ``2I1`` (input gradient), ``2W1``, ``1B0``, ``0SEND_F3``,
``1RECV_F3``, ``1SEND_B0``, ``0RECV_B0``; without a microbatch ``0UNSHARD``, ``0RESHARD``, ``0REDUCE_GRAD``; or
``(0F2;3B0)OVERLAP_F_B``, a forward and a full backward, which a plan has as one FB. The stage of a SEND or RECV is the
one that executes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from cpipe.errors import Diagnostic, PlanError

__all__ = ["COLLECTIVES", "COMPUTE", "MESSAGES", "Cell", "TorchTable", "read_torch_csv", "units_of"]

COMPUTE = ("F", "I", "W", "B")
MESSAGES = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
COLLECTIVES = ("UNSHARD", "RESHARD", "REDUCE_GRAD")

_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_CELL = re.compile(rf"([0-9]+)(?:({'|'.join((*COMPUTE, *MESSAGES))})([0-9]+)|({'|'.join(COLLECTIVES)}))")
_LINE_END = re.compile(r"\r\n|\r|\n")
_MAX_DIGITS = 9  # of a number: anything longer is no stage and no microbatch


class Cell(NamedTuple):
    """One action; `row` and `column` count from 0, `mb` is -1 where the action has none.

    The F and the B of an ``OVERLAP_F_B`` stand one behind the other in their row, both `fused`.
    """

    row: int
    column: int
    stage: int
    action: str
    mb: int = -1
    fused: bool = False

    def __str__(self) -> str:
        """Return the text of the cell."""
        return f"{self.stage}{self.action}" + (f"{self.mb}" if self.mb >= 0 else "")

    def fault(
        self, code: str, message: str, file: str | None, severity: Literal["error", "warning"] = "error"
    ) -> Diagnostic:
        """Return a fault of this cell, at its row and column as people count them."""
        text = f"rank {self.row}: {self}: {message}"
        return Diagnostic(
            code=code, message=text, file=file, line=self.row + 1, column=self.column + 1, severity=severity
        )


class TorchTable(NamedTuple):
    """The actions of each rank; `blanks` are the places of empty cells, row and column from 0."""

    rows: tuple[tuple[Cell, ...], ...]
    blanks: tuple[tuple[int, int], ...] = ()

    @property
    def has_messages(self) -> bool:
        """Whether messages stand in it, as in the layout ``compute_comms``."""
        return any(cell.action in MESSAGES for cell in self.cells())

    def cells(self) -> Iterator[Cell]:
        """Yield all cells, row by row."""
        for row in self.rows:
            yield from row

    def placement(self, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rank of each stage: the first row that computes it, as torch infers it, else the `default`."""
        placement = dict(enumerate(default))
        found: set[int] = set()
        for cell in self.cells():
            if cell.action in COMPUTE and cell.stage not in found and cell.stage in placement:
                found.add(cell.stage)
                placement[cell.stage] = cell.row
        return tuple(placement.values())


def read_torch_csv(data: bytes, file: str) -> TorchTable:
    """Read a table in either layout of torch.

    Parameters
    ----------
    data
        Text in UTF-8; rows may differ in length, cells may be blank, quoted or have blanks around them, and a
        spreadsheet's byte order mark may stand before them.
    file
        Name for the messages.

    Raises
    ------
    PlanError
        With every cell that is no action. What torch's own parser lets pass (``0F0xyz`` is 0F0 to it) is refused.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanError([Diagnostic(code="encoding", message=f"not UTF-8 at byte {error.start}", file=file)]) from error
    rows: list[tuple[Cell, ...]] = []
    blanks: list[tuple[int, int]] = []
    faults: list[Diagnostic] = []
    for row, line in enumerate(_LINE_END.split(text.rstrip("\r\n"))):
        cells: list[Cell] = []
        for column, word in enumerate(map(_unquoted, line.split(",") if line.strip() else ())):
            found = _parse(row, column, word)
            if not word:
                blanks.append((row, column))
            elif found is None:
                message = f"rank {row}: expected an action such as 0F3, 2I1 or 1SEND_B0, got {word[:40]!r}"
                at = Diagnostic(code="unknown-op", message=message, file=file, line=row + 1, column=column + 1)
                faults.append(at)
            else:
                cells += found
        rows.append(tuple(cells))
    if not faults and not any(rows):
        faults.append(Diagnostic(code="empty-file", message="the table has no action", file=file))
    if faults:
        raise PlanError(faults)
    return TorchTable(tuple(rows), tuple(blanks))


def units_of(row: Sequence[Cell]) -> Iterator[tuple[Cell, ...]]:
    """Yield the actions of a row as they run: one each, or the two of an ``OVERLAP_F_B``."""
    for place, cell in enumerate(row):
        if not cell.fused:
            yield (cell,)
        elif cell.action == "F":
            yield cell, row[place + 1]


def _unquoted(word: str) -> str:
    """Return a cell without the blanks and the pair of quotes around it."""
    word = word.strip()
    return word[1:-1].strip() if len(word) > 1 and word[0] == word[-1] == '"' else word


def _parse(row: int, column: int, word: str) -> list[Cell] | None:
    """Return the actions of one cell, or None when it is no action."""
    overlap = _OVERLAP.fullmatch(word)
    if overlap is not None:
        parts = [_parse_one(row, column, part.strip()) for part in overlap.group(1).split(";")]
        inner = [part for part in parts if part is not None and part.action in COMPUTE]
        if len(inner) != len(parts):
            return None
        if sorted(part.action for part in inner) == ["B", "F"]:
            inner.sort(key=lambda part: part.action, reverse=True)
            inner = [part._replace(fused=True) for part in inner]
        return inner
    cell = _parse_one(row, column, word)
    return None if cell is None else [cell]


def _parse_one(row: int, column: int, word: str) -> Cell | None:
    match = _CELL.fullmatch(word)
    if match is None:
        return None
    stage, action, mb, collective = match.groups()
    if max(len(stage), len(mb or "")) > _MAX_DIGITS:
        return None
    return Cell(row, column, int(stage), collective or action, int(mb) if mb else -1)
