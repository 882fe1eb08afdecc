"""What of a torch table no plan of it shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from cpipe.errors import Diagnostic
from cpipe.plan.exchange.cells import Cell, TorchTable

__all__ = ["table_warnings"]


def table_warnings(table: TorchTable, *, file: str | None = None) -> tuple[Diagnostic, ...]:
    """Return what a plan of the table does not show.

    In a table with messages torch would stumble over blank cells, which it does not load, and over stages whose
    gradients it does not scale after their last W or B: they stay too large by the number of microbatches. And where
    forwards are numbered from 1, the table may be torch's own 1F1B.
    """
    found = list(_off_by_one(table, file))
    if not table.has_messages:
        return tuple(found)
    found += [
        Diagnostic(
            code="blank-cell",
            message=f"rank {row}: a blank cell: torch loads none in a table with messages",
            severity="warning",
            file=file,
            line=row + 1,
            column=column + 1,
        )
        for row, column in table.blanks
    ]
    last = {cell.stage: cell for cell in table.cells() if cell.action in ("W", "B")}
    reduces: dict[int, list[Cell]] = defaultdict(list)
    for cell in table.cells():
        if cell.action == "REDUCE_GRAD":
            reduces[cell.stage].append(cell)
    for stage, cell in last.items():
        places = reduces[stage]
        if len(places) != 1 or places[0] < cell:
            message = f"stage {stage} needs one REDUCE_GRAD after this, its last W or B; it has {len(places)}"
            found.append(cell.fault("reduce-grad", message, file, "warning"))
    return tuple(found)


def _off_by_one(table: TorchTable, file: str | None) -> Iterator[Diagnostic]:
    """Yield a warning for each stage with the forwards F1..Fn and the backwards B0..Bn-1.

    So torch 2.13 describes the last rank of its `Schedule1F1B`, which runs F0..Fn-1.
    """
    forwards: dict[int, list[Cell]] = defaultdict(list)
    backwards: dict[int, list[int]] = defaultdict(list)
    for cell in table.cells():
        if cell.action == "F":
            forwards[cell.stage].append(cell)
        elif cell.action in ("B", "I"):
            backwards[cell.stage].append(cell.mb)
    for stage, cells in forwards.items():
        n = len(cells)
        if [cell.mb for cell in cells] == [*range(1, n + 1)] and backwards[stage] == [*range(n)]:
            ran = f"F0..F{n - 1}"
            message = f"F1..F{n} with B0..B{n - 1}: so torch 2.13 describes the last rank of its 1F1B, which runs {ran}"
            yield cells[0].fault("torch-1f1b", message, file, "warning")
