"""The JSON report of `doctor`: what is installed, and what of it works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cpipe.ir.base import Frozen
from cpipe.report.document import DiagnosticReport

__all__ = ["DoctorReport", "PartReport", "doctor_report"]


class PartReport(Frozen, frozen=True, kw_only=True):
    """One library, or something that cpipe does with it.

    Attributes
    ----------
    name
        Of the library (``highspy``), or what was tried (``solve by HiGHS``).
    needed
        ``core``: nothing works without it; or what it is for.
    state
        ``works``; ``present``: there, not tried; ``missing``; ``broken``: there, and unusable.
    version
        Installed; null when there is none, or of what was tried.
    message
        What was found.
    command
        What to do about it; null when there is nothing to do.
    """

    name: str
    needed: str
    state: Literal["works", "present", "missing", "broken"]
    version: str | None = None
    message: str = ""
    command: str | None = None


class DoctorReport(Frozen, frozen=True, kw_only=True):
    """How cpipe is doing on this machine: ``healthy``, ``broken`` when something of the core is, or ``error``."""

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["doctor"] = "doctor"
    status: Literal["healthy", "broken", "error"]
    cpipe: str | None = None
    python: str | None = None
    platform: str | None = None
    parts: tuple[PartReport, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


def doctor_report(cpipe: str, python: str, platform: str, parts: Sequence[PartReport]) -> DoctorReport:
    """Return the report of these parts; it is healthy unless one of the core is missing or broken."""
    sick = any(part.needed == "core" and part.state in ("missing", "broken") for part in parts)
    return DoctorReport(
        status="broken" if sick else "healthy", cpipe=cpipe, python=python, platform=platform, parts=tuple(parts)
    )
