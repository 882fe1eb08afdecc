"""How a worker says why it failed: to the launcher through a file, to everybody on stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from cpipe.errors import CpipeError, Diagnostic, NoSolutionError
from cpipe.runtime.faults import RuntimeFault

__all__ = ["RUN_DIR", "WorkerFailure", "exits_are_failures", "failure_of", "reported"]

RUN_DIR = "CPIPE_RUN_DIR"
"""Environment variable: a directory that all workers of a launch share; without it, they meet as torchrun says."""
_PARENT_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class WorkerFailure:
    """What a launcher is told; `time_s` on CLOCK_MONOTONIC [s] says which rank failed first."""

    time_s: float
    exit_code: int
    diagnostics: tuple[Diagnostic, ...]
    story: str
    hint: str | None


def failure_of(error: BaseException, rank: str) -> WorkerFailure:
    """Return what `error`, raised on `rank`, means: a fault of the call keeps its code, a run that broke has code 5."""
    story, hint = "", None
    if isinstance(error, RuntimeFault):
        code, diagnostics, hint = NoSolutionError.exit_code, error.diagnostics, error.hint
        if error.__cause__ is not None and not isinstance(error.__cause__, CpipeError):
            story = "".join(traceback.format_exception(error.__cause__))  # of the rank where it happened alone
    elif isinstance(error, CpipeError):
        code, diagnostics, hint = error.exit_code, error.diagnostics, error.hint
        if isinstance(error.__cause__, SystemExit):
            story = "".join(traceback.format_exception(error.__cause__))  # where the model called exit
    else:
        code, story = NoSolutionError.exit_code, "".join(traceback.format_exception(error))
        text = " ".join(f"{type(error).__name__}: {error}".split())
        diagnostics = (Diagnostic(code="rank-failed", message=f"rank {rank}: {text}"),)
    return WorkerFailure(time_s=time.monotonic(), exit_code=code, diagnostics=diagnostics, story=story, hint=hint)


@contextmanager
def exits_are_failures(rank: int) -> Iterator[None]:
    """Let no model end its rank with an exit code of its own: the others would be left alone, and 0 look like success.

    Raises
    ------
    NoSolutionError
        In place of SystemExit.
    """
    try:
        yield
    except SystemExit as error:
        message = f"rank {rank}: the model's code ended the process: SystemExit({error.code!r})"
        raise NoSolutionError(message, code="rank-failed") from error


def reported(work: Callable[[], int]) -> NoReturn:
    """Run a worker's main function and exit with its code; tell the launcher, if there is one, how it failed.

    A worker ends by itself when its launcher has gone. It leaves without winding up the interpreter: threads of the
    transport may hang on ranks that are gone, and some abort the process when they are destroyed at exit.
    """
    directory, rank = os.environ.get(RUN_DIR), os.environ.get("RANK", "?")
    if directory is not None:
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    try:
        code = work()
    except SystemExit:  # argparse has said why
        raise
    except BaseException as error:
        failure = failure_of(error, rank)
        sys.stderr.write(failure.story + "".join(f"{found}\n" for found in failure.diagnostics))
        if directory is not None:
            path = Path(directory) / f"failure-{rank}.json"
            part = path.with_suffix(".part")
            part.write_bytes(msgspec.json.encode(failure))
            part.replace(path)  # the launcher sees all of it or nothing
        code = failure.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(NoSolutionError.exit_code)
