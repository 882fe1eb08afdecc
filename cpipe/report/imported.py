"""The JSON report of `import`: what was made of somebody else's file, and what had to be assumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from cpipe.errors import Diagnostic
from cpipe.ir.base import Frozen
from cpipe.profile import Profile
from cpipe.profile.importers import Assumption
from cpipe.report.document import DiagnosticReport, diagnostic_reports

__all__ = ["ImportReport", "plan_import_report", "profile_import_report"]


class ImportReport(Frozen, frozen=True, kw_only=True):
    """What `cpipe import` made.

    Attributes
    ----------
    status
        ``done``; ``invalid``: a schedule was read, but is not valid; ``error``: the file could not be read.
    kind
        What the file is.
    parameters
        Of the whole model, tied ones once [count]; null where it is not known.
    layers
        Layers of each stage; empty where no layers were read.
    assumptions
        Everything that the file does not say, with what was taken for it and how to take something else.
    profile
        The profile, as its file has it; null where a plan was made.
    diagnostics
        Errors and warnings.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["import"] = "import"
    status: Literal["done", "invalid", "error"]
    kind: str | None = None
    parameters: int | None = None
    layers: tuple[int, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    profile: dict[str, Any] | None = None
    diagnostics: tuple[DiagnosticReport, ...] = ()


def plan_import_report(kind: str, diagnostics: Sequence[Diagnostic]) -> ImportReport:
    """Return the report of a schedule that was read from a file of `kind`; warnings alone leave it valid."""
    faulty = any(found.severity == "error" for found in diagnostics)
    return ImportReport(status="invalid" if faulty else "done", kind=kind, diagnostics=diagnostic_reports(diagnostics))


def profile_import_report(
    kind: str,
    profile: Profile,
    *,
    parameters: int | None,
    layers: Sequence[int],
    assumptions: Sequence[Assumption],
    diagnostics: Sequence[Diagnostic],
) -> ImportReport:
    """Return the report of a profile that was made of a file of `kind`."""
    return ImportReport(
        status="done",
        kind=kind,
        parameters=parameters,
        layers=tuple(layers),
        assumptions=tuple(assumptions),
        profile=msgspec.to_builtins(profile),
        diagnostics=diagnostic_reports(diagnostics),
    )
