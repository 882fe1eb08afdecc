"""One worker process per rank on this machine: start them, watch them, end them all when one fails.

Workers find each other through a file in a directory of their own, so no port can be taken. What a worker prints goes
to a log in that directory; how it failed, to a file that `Failure` reads. torch is loaded by the workers alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from cpipe.errors import CpipeError, Diagnostic, NoSolutionError, UsageError

__all__ = ["Failure", "launch", "refuse_timeout", "require_torch", "under_launcher"]

RUN_DIR = "CPIPE_RUN_DIR"
"""Environment variable: the directory that the workers of one launch share."""
_POLL_S = 0.02
_GRACE_S = 0.5
_STOP_S = 3.0
_LOG_LINES = 20


class Failure(NamedTuple):
    """How one rank failed.

    `exit_code` is that of the table in `cpipe.cli.failures`; `story` is what the rank has to say, many lines.
    """

    rank: int
    exit_code: int
    diagnostics: tuple[Diagnostic, ...]
    story: str
    hint: str | None = None


def require_torch() -> None:
    """Check that torch is there, without loading it.

    Raises
    ------
    UsageError
        Saying how to get it.
    """
    if importlib.util.find_spec("torch") is None:
        message = "this command runs plans with torch, which is not installed"
        raise UsageError(message, code="torch-missing", hint="install it with: pip install 'cpipe[torch]'")


def under_launcher(environ: Mapping[str, str] | None = None) -> bool:
    """Say whether another launcher, such as torchrun, has started this process as one rank of several."""
    environ = os.environ if environ is None else environ
    return "RANK" in environ and "WORLD_SIZE" in environ


def refuse_timeout(timeout_s: float | None) -> None:
    """Check that no limit is given to a rank of another launcher, which ends its ranks itself.

    Raises
    ------
    UsageError
        Naming the option.
    """
    if timeout_s is not None:
        message = "--timeout: the launcher that started this rank minds the time"
        raise UsageError(message, code="timeout-under-launcher", hint="give the limit to that launcher")


def launch(
    module: str,
    arguments: Sequence[str],
    *,
    num_ranks: int,
    directory: Path,
    timeout_s: float | None,
    note: Callable[[str], None],
) -> dict[int, str]:
    """Run ``python -m MODULE ARGUMENTS`` once per rank and wait for all.

    Parameters
    ----------
    module, arguments
        What every rank runs; it learns its rank from RANK and WORLD_SIZE.
    num_ranks
        How many.
    directory
        An empty directory for what the ranks share.
    timeout_s
        End them all after this time [s]; None waits as long as it takes.
    note
        Is told, line by line, what a rank that fails has to say.

    Returns
    -------
    dict
        What each rank printed.

    Raises
    ------
    CpipeError
        When a rank fails, with the exit code of the first that did; the others are ended at once.
    NoSolutionError
        When they are not done in time.
    SystemExit
        When this process is to end (SIGTERM, SIGHUP), so that the caller can clean up.
    """
    with _signals_exit():
        return _launch([sys.executable, "-m", module, *arguments], num_ranks, directory, timeout_s, note)


def _launch(
    command: Sequence[str], num_ranks: int, directory: Path, timeout_s: float | None, note: Callable[[str], None]
) -> dict[int, str]:
    workers = []
    try:
        for rank in range(num_ranks):
            with _log(directory, rank).open("wb") as log:
                environ = _environment(rank, num_ranks, directory)
                workers.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environ))
        late = _wait(workers, timeout_s)
        if late:
            for rank in late:
                _tell(rank, _tail(_log(directory, rank)), note)
            raise _late(late, num_ranks, timeout_s or 0.0)
        if any(worker.poll() for worker in workers):
            time.sleep(_GRACE_S)  # let the rank that failed first have its say, whichever is seen first
            first = _failures(workers, directory)[0]
            _tell(first.rank, first.story, note)
            raise _error(first)
    finally:
        _stop(workers)
    return {rank: _log(directory, rank).read_text(errors="replace") for rank in range(num_ranks)}


@contextlib.contextmanager
def _signals_exit() -> Iterator[None]:
    """Turn the first SIGTERM or SIGHUP into SystemExit with the code that a shell gives it; ignore what follows."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets no other thread handle signals
        return
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in (getattr(signal, name) for name in names)}
    handled = [number for number, handler in previous.items() if handler == signal.SIG_DFL]  # nohup's stays ignored

    def end(number: int, frame: FrameType | None) -> None:
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _environment(rank: int, num_ranks: int, directory: Path) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // num_ranks)
    defaults = {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        RUN_DIR: str(directory),
    }
    return {**defaults, **os.environ, **own}


def _wait(workers: Sequence[subprocess.Popen[bytes]], timeout_s: float | None) -> list[int]:
    """Wait until all workers are done or one has failed; return the ranks that still run when time is up."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        codes = [worker.poll() for worker in workers]
        if any(codes) or None not in codes:
            return []
        if end is not None and time.monotonic() > end:
            return [rank for rank, code in enumerate(codes) if code is None]
        time.sleep(_POLL_S)


def _stop(workers: Iterable[subprocess.Popen[bytes]]) -> None:
    """End what still runs: politely first."""
    running = [worker for worker in workers if worker.poll() is None]
    for worker in running:
        with contextlib.suppress(ProcessLookupError):
            worker.send_signal(signal.SIGTERM)
    end = time.monotonic() + _STOP_S
    for worker in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(max(0.0, end - time.monotonic()))
        if worker.poll() is None:
            worker.kill()
            worker.wait()


def _failures(workers: Sequence[subprocess.Popen[bytes]], directory: Path) -> list[Failure]:
    """Return how ranks failed, the one where it began first.

    A mistake in the call is never another rank's doing, so it comes first. A rank that ended without a word was not
    told of another's failure, so it comes before those that were; then those that know where it happened; then the
    earlier.
    """
    found: list[tuple[int, float, Failure]] = []
    for rank, worker in enumerate(workers):
        code, path = worker.poll(), directory / f"failure-{rank}.json"
        if path.is_file():
            document = json.loads(path.read_text(encoding="utf-8"))
            own = document["exit_code"] != NoSolutionError.exit_code
            found.append((0 if own else 2 if document["story"] else 3, document["time_s"], _told(rank, document)))
        elif code:
            found.append((1, 0.0, _silent(rank, code, _log(directory, rank))))
    return [failure for _, _, failure in sorted(found, key=lambda item: item[:2])]


def _told(rank: int, document: dict[str, Any]) -> Failure:
    diagnostics = tuple(Diagnostic(**entry) for entry in document["diagnostics"])
    return Failure(rank, document["exit_code"], diagnostics, document["story"], document["hint"])


def _silent(rank: int, code: int, log: Path) -> Failure:
    """Return the failure of a rank that could not say a word, such as one that was killed."""
    ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    diagnostic = Diagnostic(code="rank-failed", message=f"rank {rank} {ending}")
    return Failure(rank, NoSolutionError.exit_code, (diagnostic,), _tail(log))


def _tell(rank: int, story: str, note: Callable[[str], None]) -> None:
    for line in story.splitlines():
        note(f"rank {rank}: {line}")


def _error(failure: Failure) -> CpipeError:
    kinds = (kind for kind in CpipeError.__subclasses__() if kind.exit_code == failure.exit_code)
    return next(kinds, NoSolutionError)(failure.diagnostics, hint=failure.hint)


def _late(ranks: Sequence[int], num_ranks: int, timeout_s: float) -> NoSolutionError:
    names = ", ".join(map(str, ranks))
    message = f"not done after {timeout_s:g} s; of {num_ranks} ranks still running: {names}"
    return NoSolutionError(message, code="run-timeout", hint="give it more time with --timeout")


def _log(directory: Path, rank: int) -> Path:
    return directory / f"log-{rank}.txt"


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
