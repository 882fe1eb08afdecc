"""The JSON report of `export`: what was written for which program, or why it cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cpipe.errors import Diagnostic
from cpipe.ir.base import Frozen
from cpipe.report.document import DiagnosticReport, diagnostic_reports

__all__ = ["ExportReport", "export_report"]


class ExportReport(Frozen, frozen=True, kw_only=True):
    """What `cpipe export` wrote.

    Attributes
    ----------
    status
        ``done``; ``refused``: the target cannot run the plan as it is, and nothing was written; ``error``: the plan
        could not be read.
    target
        The kind of file.
    output
        The file that was written; null when there is none.
    text
        What would be in the file; null when there is one, or nothing was written.
    diagnostics
        Errors and warnings.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["export"] = "export"
    status: Literal["done", "refused", "error"]
    target: str | None = None
    output: str | None = None
    text: str | None = None
    diagnostics: tuple[DiagnosticReport, ...] = ()


def export_report(target: str, text: str | None, output: str | None, diagnostics: Sequence[Diagnostic]) -> ExportReport:
    """Return the report of an export; `text` is None of a plan that was refused."""
    return ExportReport(
        status="refused" if text is None else "done",
        target=target,
        output=None if text is None else output,
        text=text if output is None else None,
        diagnostics=diagnostic_reports(diagnostics),
    )
