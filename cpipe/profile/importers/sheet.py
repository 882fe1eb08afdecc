"""A sheet of times per layer: text with one layer a line, as a spreadsheet saves it.

The first line names the columns. Cells are separated by a tab, a semicolon or a comma, whichever that line has; where
they are not separated by commas, a comma may stand for the decimal point. A byte order mark and any line ends will do.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cpipe.errors import Diagnostic, InputError
from cpipe.jsontext import Format, shown
from cpipe.profile.importers.layers import Layer
from cpipe.profile.schema import MAX_BYTES, MAX_MS

__all__ = ["COLUMNS", "MAX_LAYERS", "SHEET_FORMAT", "parse_sheet"]

SHEET_FORMAT = Format("csv", 1, "sheet", InputError, max_bytes=2**24)

MAX_LAYERS = 2_048
_REQUIRED = ("forward_ms",)
_NUMBER = re.compile(r"[+-]?([0-9]+([.,][0-9]*)?|[.,][0-9]+)([eE][+-]?[0-9]{1,3})?")
_NAMES = {"layer": "name", "count": "count"} | {name: name for name in Layer.__struct_fields__ if name != "name"}
COLUMNS = tuple(_NAMES)
"""Names of the columns: ``layer`` names it, ``count`` says of how many equal layers the line is, the rest are costs."""


class _Cell(NamedTuple):
    line: int
    column: int
    text: str


def parse_sheet(data: bytes, file: str) -> tuple[Layer, ...]:
    """Return the layers of a sheet, in its order.

    Parameters
    ----------
    data
        UTF-8 text.
    file
        Name to show in diagnostics.

    Raises
    ------
    InputError
        With every fault: its line, its column (the number of the cell), the rule and the value.
    """
    text = _decode(data, file)
    faults: list[Diagnostic] = []
    separator = _separator(text)
    rows = _rows(text, separator, file)
    header = next(rows, None)
    if header is None:
        raise InputError([Diagnostic(code="empty-file", message="expected a line of column names", file=file)])
    columns = _columns(header, faults)
    if faults:
        raise InputError([_in_file(fault, file) for fault in faults], hint=_hint(faults))
    layers: list[Layer] = []
    for row in rows:
        if any(cell.text for cell in row):
            layers += _layers(row, columns, separator, faults)
        if len(layers) > MAX_LAYERS:
            faults.append(_fault("too-many-layers", f"expected at most {MAX_LAYERS} layers, got more", row[0]))
            break
    if not layers and not faults:
        message = "expected a line for each layer below the column names, got none"
        faults.append(_fault("empty-list", message, header[0]))
    if faults:
        faults.sort(key=lambda fault: (fault.line or 0, fault.column or 0))
        raise InputError([_in_file(fault, file) for fault in faults], hint=_hint(faults))
    return tuple(layers)


def _decode(data: bytes, file: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"expected UTF-8, got the byte 0x{data[error.start]:02x}"
        hint = "save the sheet as CSV UTF-8"
        fault = Diagnostic(code="not-utf8", message=message, file=file, line=line, column=1, hint=hint)
        raise InputError([fault], hint=hint) from None
    return text.replace("\x00", "\ufffd")  # the reader of CSV stops at NUL; here it is a cell that is no number


def _separator(text: str) -> str:
    head = next((line for line in text.splitlines() if line.strip()), "")
    return next((mark for mark in "\t;" if mark in head), ",")


def _rows(text: str, separator: str, file: str) -> Iterator[list[_Cell]]:
    """Yield the cells of each row that has any; a row's line is that of its end."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            if row:
                yield [_Cell(reader.line_num, column, cell.strip()) for column, cell in enumerate(row, start=1)]
    except csv.Error as error:
        message = f"expected cells separated by {shown(separator)}: {error}"
        fault = Diagnostic(code="bad-csv", message=message, file=file, line=max(1, reader.line_num), column=1)
        raise InputError([fault]) from None


def _columns(header: Sequence[_Cell], faults: list[Diagnostic]) -> dict[int, str]:
    """Return the field of each column, by the column's number."""
    columns: dict[int, str] = {}
    for cell in header:
        name = _NAMES.get(cell.text.lower().replace(" ", "_"))
        if name is None:
            close = difflib.get_close_matches(cell.text.lower(), _NAMES, n=1)
            hint = f"did you mean {shown(close[0])}?" if close else f"the columns are {', '.join(_NAMES)}"
            faults.append(_fault("unknown-column", f"unknown column {shown(cell.text)}", cell, hint))
        elif name in columns.values():
            faults.append(_fault("duplicate-column", f"the column {shown(cell.text)} stands here more than once", cell))
        else:
            columns[cell.column] = name
    known = set(columns.values())
    for name in _REQUIRED:
        if name not in known and not faults:
            faults.append(_fault("missing-column", f"the required column {shown(name)} is missing", header[0]))
    if not faults and "full_backward_ms" not in known and not {"input_grad_ms", "weight_grad_ms"} <= known:
        message = "expected the columns input_grad_ms and weight_grad_ms, or full_backward_ms"
        faults.append(_fault("missing-column", message, header[0]))
    return columns


def _layers(row: Sequence[_Cell], columns: Mapping[int, str], separator: str, faults: list[Diagnostic]) -> list[Layer]:
    """Return the layers of one row; none when something in it is wrong."""
    before = len(faults)
    values: dict[str, Any] = {}
    for cell in row:
        name = columns.get(cell.column)
        if name is None:
            if cell.text:
                message = f"expected {len(columns)} cells, as many as there are columns, got {len(row)}"
                faults.append(_fault("wrong-length", message, cell))
                break
        elif name == "name":
            values[name] = cell.text
        elif cell.text:
            values[name] = _value(name, cell, separator, faults)
    count = values.pop("count", 1)
    start = row[0]
    if "forward_ms" not in values:
        faults.append(_fault("missing-value", "forward_ms: expected a number >= 0, got an empty cell", start))
    halves = [name for name in ("input_grad_ms", "weight_grad_ms") if name in values]
    if len(halves) == 1:
        absent = "weight_grad_ms" if halves[0] == "input_grad_ms" else "input_grad_ms"
        faults.append(_fault("incomplete-split", f"{halves[0]} is given without {absent}", start))
    elif not halves and "full_backward_ms" not in values:
        message = "expected input_grad_ms and weight_grad_ms, or full_backward_ms, got none of them"
        faults.append(_fault("missing-backward", message, start))
    if len(faults) > before:
        return []
    values.setdefault("name", f"line{start.line}")
    return [Layer(**values)] * min(count, MAX_LAYERS + 1)


def _value(name: str, cell: _Cell, separator: str, faults: list[Diagnostic]) -> float | int:
    """Return the number in a cell, 1 after noting what is wrong with it."""
    whole = not name.endswith("_ms")
    expected = "an integer >= 1" if name == "count" else "an integer >= 0" if whole else "a number >= 0"
    got = f"{name}: expected {expected}, got {shown(cell.text)}"
    if not _NUMBER.fullmatch(cell.text):
        faults.append(_fault("not-a-number", got, cell, "leave out units and separators of thousands"))
        return 1
    if separator == "," and "," in cell.text:
        hint = "write a decimal point, or separate the cells by semicolons or tabs"
        faults.append(_fault("decimal-comma", got, cell, hint))
        return 1
    value = float(cell.text.replace(",", "."))
    least, most = int(name == "count"), MAX_MS if not whole else MAX_BYTES if name != "count" else MAX_LAYERS
    if value < least:
        code = "negative-duration" if not whole else "negative-size" if name != "count" else "too-small"
        faults.append(_fault(code, got, cell))
    elif value > most:
        faults.append(_fault("too-large", f"{name}: expected at most {most}, got {shown(cell.text)}", cell))
    elif whole and value != int(value):
        faults.append(_fault("not-an-integer", got, cell))
    else:
        return _exact(cell.text, value) if whole else value + 0.0
    return 1


def _exact(text: str, value: float) -> int:
    """Return an integer without the loss that a float brings beyond 2^53."""
    return int(text) if re.fullmatch(r"\+?[0-9]+", text) else int(value)


def _fault(code: str, message: str, cell: _Cell, hint: str | None = None) -> Diagnostic:
    return Diagnostic(code=code, message=message, line=cell.line, column=cell.column, hint=hint)


def _in_file(fault: Diagnostic, file: str) -> Diagnostic:
    from msgspec.structs import replace

    return replace(fault, file=file)


def _hint(faults: Sequence[Diagnostic]) -> str | None:
    return next((fault.hint for fault in faults if fault.hint), None)
