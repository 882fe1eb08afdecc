"""What cpipe tells users when something is wrong.

Every fault is a `Diagnostic`; every exception carries the diagnostics that caused it::

    CpipeError                 exit code
    ├── UsageError             2   the call itself is wrong (options that do not fit together)
    ├── InputError             3   a file cannot be read or is not valid
    │   ├── ProfileError
    │   └── PlanError
    ├── InfeasibleError        4   proven: no schedule exists
    └── NoSolutionError        5   nothing acceptable within the limits
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

__all__ = [
    "CpipeError",
    "Diagnostic",
    "InfeasibleError",
    "InputError",
    "NoSolutionError",
    "PlanError",
    "ProfileError",
    "UsageError",
]


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault: where it is, which rule it breaks and the value that breaks it.

    Attributes
    ----------
    code
        The rule, in kebab-case (``negative-duration``); stable across releases.
    message
        What was expected and what was found, one sentence without a full stop.
    severity
        ``error`` or ``warning``.
    file
        The file as the user named it (``-`` is standard input).
    path
        JSON path of the value (``$.stages[3].forward_ms``).
    line, column
        One-based position of a syntax error.
    hint
        What to do about it.
    """

    code: str
    message: str
    severity: Literal["error", "warning"] = "error"
    file: str | None = None
    path: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        """Return the one-line form: ``error: FILE: PATH: MESSAGE [CODE]``."""
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}:{self.column}"
        parts = [self.severity, *(part for part in (place, self.path) if part), self.message]
        return ": ".join(parts) + f" [{self.code}]"


class CpipeError(Exception):
    """Base of everything cpipe raises for a user's mistake or a limit that was met.

    Parameters
    ----------
    diagnostics
        The faults, in file order; or one message.
    hint
        What to do next, shown once below all faults.
    code
        Rule of the single diagnostic made when `diagnostics` is a plain message.
    """

    exit_code: ClassVar[int] = 70
    status: ClassVar[str] = "error"

    def __init__(
        self, diagnostics: Sequence[Diagnostic] | str, *, hint: str | None = None, code: str = "error"
    ) -> None:
        if isinstance(diagnostics, str):
            diagnostics = (Diagnostic(code=code, message=diagnostics),)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        self.hint = hint
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))


class UsageError(CpipeError):
    """The call is wrong: options that do not exist or do not fit together."""

    exit_code = 2


class InputError(CpipeError):
    """A file cannot be read, decoded, or breaks a rule of its format."""

    exit_code = 3


class ProfileError(InputError):
    """A profile is not valid."""


class PlanError(InputError):
    """A plan cannot be read at all (a readable plan that is wrong is a *no*, exit code 1)."""


class InfeasibleError(CpipeError):
    """It is proven that no schedule exists."""

    exit_code = 4
    status = "infeasible"


class NoSolutionError(CpipeError):
    """No acceptable answer was found within the limits."""

    exit_code = 5
    status = "no_solution"
