"""The name of the file in faults that were found after it was read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from cpipe.errors import InfeasibleError, InputError

__all__ = ["faults_of"]


@contextmanager
def faults_of(file: str) -> Iterator[None]:
    """Put `file` into every fault of an input, and every proof that it has no schedule, that names no file yet."""
    try:
        yield
    except (InputError, InfeasibleError) as error:
        named = [fault if fault.file is not None else replace(fault, file=file) for fault in error.diagnostics]
        raise type(error)(named, hint=error.hint) from error
