"""Writing a result: checked before the work starts, atomic, with ordinary permissions, never over an input."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from cpipe.errors import Diagnostic, UsageError

__all__ = ["STANDARD_STREAM", "OutputFile", "read_once"]

STANDARD_STREAM = "-"


def read_once(*inputs: str | None) -> None:
    """Check that at most one input is standard input.

    Raises
    ------
    UsageError
        When two are.
    """
    if inputs.count(STANDARD_STREAM) > 1:
        raise UsageError("standard input can be read only once, but '-' is given twice", code="stdin-twice")


class OutputFile:
    """A file to be written once the answer is known.

    Parameters
    ----------
    path
        As the user named it. Symbolic links are followed; what is no regular file (a pipe, ``/dev/null``) is
        written in place.
    inputs
        Files that must not be overwritten; ``-`` is standard input.

    Raises
    ------
    UsageError
        When `path` cannot be written, or is one of the inputs by whatever name.
    """

    def __init__(self, path: str, inputs: Sequence[str]) -> None:
        self._path = path
        self._target = Path(path).resolve()
        _check_writable(path, self._target)
        _check_no_input(path, self._target, inputs)

    def write(self, data: bytes) -> None:
        """Replace the file by `data`: either all of it is there afterwards, or nothing has changed.

        Raises
        ------
        UsageError
            When the system refuses.
        """
        try:
            if self._target.exists() and not self._target.is_file():
                self._target.write_bytes(data)
            else:
                self._replace(data)
        except OSError as error:
            raise _unwritable(self._path, error.strerror or str(error)) from error

    def _replace(self, data: bytes) -> None:
        temporary = self._target.with_name(f".cpipe-{secrets.token_hex(8)}.tmp")
        # os.open applies the umask, as a shell redirection would; tempfile would make the file private.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(self._target.stat().st_mode))
            os.replace(temporary, self._target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _check_writable(path: str, target: Path) -> None:
    if not path or target.is_dir():
        raise _unwritable(path, "is a directory" if path else "empty file name")
    if not target.parent.is_dir():
        raise _unwritable(path, "no such directory")
    # A file is replaced, so its directory must be writable; a device or pipe is written itself.
    place = target if target.exists() and not target.is_file() else target.parent
    if not os.access(place, os.W_OK):
        raise _unwritable(path, "permission denied")


def _check_no_input(path: str, target: Path, inputs: Sequence[str]) -> None:
    if not target.is_file():
        return
    mine = target.stat()
    for source in inputs:
        with contextlib.suppress(OSError):
            theirs = os.fstat(0) if source == STANDARD_STREAM else os.stat(source)
            if os.path.samestat(mine, theirs):
                named = "standard input" if source == STANDARD_STREAM else source
                message = f"--output is the same file as the input {named}"
                raise UsageError([Diagnostic(code="output-is-input", message=message, file=path)])


def _unwritable(path: str, reason: str) -> UsageError:
    message = f"cannot be written: {reason[:1].lower()}{reason[1:]}"
    return UsageError([Diagnostic(code="output-not-writable", message=message, file=path)])
