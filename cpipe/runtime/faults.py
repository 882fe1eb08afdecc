"""What goes wrong while a plan runs, told in the same words on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from cpipe.errors import CpipeError, Diagnostic

__all__ = ["RuntimeFault"]


class RuntimeFault(CpipeError):
    """A plan cannot be run, or a run was ended; raised on every rank with the same story.

    Parameters
    ----------
    diagnostics
        The faults; or one message.
    code
        Rule of the fault, in kebab-case; of the first diagnostic when several are given.
    rank
        Pipeline rank where it happened, or None when it concerns several.
    stage, microbatch
        What that rank was working on, where this is known.
    hint
        What to do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        diagnostics: Sequence[Diagnostic] | str,
        *,
        code: str = "runtime",
        rank: int | None = None,
        stage: int | None = None,
        microbatch: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(diagnostics, hint=hint, code=code)
        self.code = self.diagnostics[0].code if self.diagnostics else code
        self.rank = rank
        self.stage = stage
        self.microbatch = microbatch

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with everything, so that a launcher gets the fault of its workers as it was."""
        return _rebuilt, (self.diagnostics, self.rank, self.stage, self.microbatch, self.hint)


def _rebuilt(
    diagnostics: tuple[Diagnostic, ...], rank: int | None, stage: int | None, microbatch: int | None, hint: str | None
) -> RuntimeFault:
    return RuntimeFault(diagnostics, rank=rank, stage=stage, microbatch=microbatch, hint=hint)
