"""``cpipe doctor``: what is installed, what of it works, and what to do about the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.cli.checkup import Part

__all__ = ["doctor"]


def doctor(
    full: Annotated[
        bool, typer.Option("--full", help="Also import the optional libraries, torch among them; takes seconds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
) -> int:
    """Say what is installed, what works, and how to get the rest.

    Exits with 0 when the core works, whatever else is missing, and with 1 when something in it is broken.
    """
    import platform

    from cpipe import __version__
    from cpipe.cli.checkup import checkup

    facts = {"cpipe": __version__, "python": platform.python_version(), "platform": platform.platform()}
    parts = list(checkup(full=full))
    sick = any(part.needed == "core" and part.state in ("missing", "broken") for part in parts)
    printer = Printer()
    if as_json:
        printer.artefact(_document(facts, parts, sick))
    else:
        printer.answer(_text(facts, parts, sick))
    return int(sick)


def _document(facts: dict[str, str], parts: list[Part], sick: bool) -> bytes:
    """Return the report; without msgspec, which may be what is broken, the same by the standard library."""
    try:
        from cpipe.report.document import encode_report
        from cpipe.report.health import PartReport, doctor_report

        return encode_report(doctor_report(**facts, parts=[PartReport(**_fields(part)) for part in parts]))
    except Exception:
        import json

        head = {"format": "cpipe.report", "version": 1, "command": "doctor", "status": "broken" if sick else "healthy"}
        document = {**head, **facts, "parts": [_fields(part) for part in parts], "diagnostics": []}
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _fields(part: Part) -> dict[str, Any]:
    return part._asdict()


def _text(facts: dict[str, str], parts: list[Part], sick: bool) -> str:
    lines = [f"cpipe {facts['cpipe']}, Python {facts['python']}, {facts['platform']}", ""]
    rows = [(part.name, part.version or "", part.state, part.needed) for part in parts]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row, part in zip(rows, parts, strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"{cells}  {part.message}".rstrip())
        if part.command is not None:
            lines.append(f"    {part.command}")
    return "\n".join([*lines, "", "the core is broken" if sick else "the core works"])
