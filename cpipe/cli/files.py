"""Writing a result: checked before the work starts, atomic, with ordinary permissions, never over an input."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from cpipe.errors import Diagnostic, UsageError

__all__ = ["STANDARD_STREAM", "OutputFile", "is_standard_output", "read_once"]

STANDARD_STREAM = "-"
_DESCRIPTOR = re.compile(r"/(?:dev/fd|proc/self/fd)/(\d{1,9})")
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}


def is_standard_output(path: str | None) -> bool:
    """Return whether an output is standard output, by the name ``-`` or by that of its device."""
    return path is not None and (path == STANDARD_STREAM or _descriptor(path) == 1)


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
        written in place, and so is an open descriptor (``/dev/stdout``, the ``/dev/fd/63`` of a shell's ``>(...)``).
    inputs
        Files that must not be overwritten; ``-`` is standard input.
    option
        The option that names `path`, for what is said about it.

    Raises
    ------
    UsageError
        When `path` cannot be written, or is one of the inputs by whatever name.
    """

    def __init__(self, path: str, inputs: Sequence[str], option: str = "--output") -> None:
        self._path = path
        self._descriptor = _descriptor(path)
        try:
            if self._descriptor is not None:
                os.fstat(self._descriptor)
                return
            _check_no_input(path, inputs, option)
            self._target = _target(path)
        except (OSError, RuntimeError, ValueError) as error:  # pathlib calls a loop of links a RuntimeError
            raise _unwritable(path, _reason(error)) from error

    def write(self, data: bytes) -> None:
        """Replace the file by `data`: either all of it is there afterwards, or nothing has changed.

        Raises
        ------
        UsageError
            When the system refuses.
        """
        try:
            if self._descriptor is not None:
                with open(self._descriptor, "wb", closefd=False) as stream:
                    stream.write(data)
            elif self._target.exists() and not self._target.is_file():
                self._target.write_bytes(data)
            else:
                self._replace(data)
        except OSError as error:
            raise _unwritable(self._path, _reason(error)) from error

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


def _descriptor(path: str) -> int | None:
    """Return the number of the open descriptor that `path` names, None for any other file."""
    match = _DESCRIPTOR.fullmatch(path)
    return int(match[1]) if match else _STREAMS.get(path)


def _target(path: str) -> Path:
    """Return the file behind `path`, which can be written as far as can be told beforehand."""
    if not path:
        raise ValueError("empty file name")
    found = _stat(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise ValueError("is a directory")
    if found is not None and not stat.S_ISREG(found.st_mode):
        target = place = Path(path)  # a device or a pipe is written itself, and need not have a name behind its links
    else:
        target = Path(path).resolve()
        place = target.parent  # a file is replaced, so its directory must be writable
        if not place.is_dir():
            raise ValueError("no such directory")
    if not os.access(place, os.W_OK):
        raise ValueError("permission denied")
    return target


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_no_input(path: str, inputs: Sequence[str], option: str) -> None:
    mine = _stat(path)
    if mine is None or not stat.S_ISREG(mine.st_mode):
        return
    for source in inputs:
        with contextlib.suppress(OSError):
            theirs = os.fstat(0) if source == STANDARD_STREAM else os.stat(source)
            if os.path.samestat(mine, theirs):
                named = "standard input" if source == STANDARD_STREAM else source
                message = f"{option} is the same file as the input {named}"
                raise UsageError([Diagnostic(code="output-is-input", message=message, file=path)])


def _reason(error: Exception) -> str:
    return (
        "a loop of symbolic links" if isinstance(error, RuntimeError) else getattr(error, "strerror", "") or str(error)
    )


def _unwritable(path: str, reason: str) -> UsageError:
    message = f"cannot be written: {reason[:1].lower()}{reason[1:]}"
    return UsageError([Diagnostic(code="output-not-writable", message=message, file=path)])
