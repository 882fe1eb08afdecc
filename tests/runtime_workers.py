"""Start the ranks of a test as processes of their own and collect what they return.

The processes are forked from a server that has torch loaded, so that a launch takes a fraction of a second.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

__all__ = ["RankError", "run_ranks"]

_GRACE_S = 8.0
_CONTEXT = multiprocessing.get_context("forkserver")
# torch imports the last two in the first backward and the first step of an optimizer
_CONTEXT.set_forkserver_preload(
    ["torch", "torch.distributed", "cpipe.runtime", "torch.fx.experimental.symbolic_shapes", "torch._dynamo"]
)


class RankError(AssertionError):
    """A rank raised, died or did not finish.

    Attributes
    ----------
    outcomes
        Rank -> what it returned, the exception it raised, or None when it died or did not finish.
    """

    def __init__(self, message: str, outcomes: dict[int, Any]) -> None:
        super().__init__(message)
        self.outcomes = outcomes


def run_ranks(
    worker: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 60.0,
    backend: str | None = "gloo",
    allow_errors: bool = False,
) -> list[Any]:
    """Run ``worker(rank, world_size, *args)`` in `world_size` processes joined by a process group.

    Parameters
    ----------
    worker
        A function at the top level of a file; it need not be importable by name. Arguments and results travel by
        pickle, so they are tensors and plain values.
    timeout
        Limit on the whole launch [s]; the ranks still running then are killed and named in the error.
    backend
        Of the default process group, over 127.0.0.1; None leaves it to the worker.
    allow_errors
        Return the exception of a rank in the place of its result, and None for a rank that died, instead of raising.

    Returns
    -------
    list
        What each rank returned.

    Raises
    ------
    RankError
        When a rank raised (with its traceback), died or did not finish.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = pickle.dumps(args)
        source = (worker.__code__.co_filename, worker.__name__)
        processes = [
            _CONTEXT.Process(target=_rank, args=(source, rank, world_size, job, folder, backend, timeout), daemon=True)
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        unfinished = _join(processes, timeout, _never if allow_errors else lambda: _any_failed(processes, folder))
        outcomes: dict[int, Any] = {}
        stories = [f"ranks {unfinished} did not finish within {timeout:g} s"] if unfinished else []
        for rank, process in enumerate(processes):
            outcome, story = _outcome(Path(folder, f"{rank}.pickle"), rank, process.exitcode)
            outcomes[rank] = outcome
            if story and rank not in unfinished:
                stories.append(story)
            process.close()
    if unfinished or (stories and not allow_errors):
        raise RankError("\n".join(stories), outcomes)
    return [outcomes[rank] for rank in range(world_size)]


def _join(processes: list[ForkServerProcess], timeout: float, failed: Callable[[], bool]) -> list[int]:
    """Wait for the processes; kill and return those that are still running at the end, soon once one has failed."""
    deadline = time.monotonic() + timeout
    running = list(processes)
    while running and time.monotonic() < deadline:
        wait([process.sentinel for process in running], 1.0)
        running = [process for process in running if process.is_alive()]
        if running and failed():
            deadline = min(deadline, time.monotonic() + _GRACE_S)
            failed = _never
    unfinished = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in unfinished:
        processes[rank].kill()
        processes[rank].join()
    return unfinished


def _never() -> bool:
    return False


def _any_failed(processes: list[ForkServerProcess], folder: str) -> bool:
    """Return whether a process has ended without a result."""
    ended = [rank for rank, process in enumerate(processes) if not process.is_alive()]
    return any(_outcome(Path(folder, f"{rank}.pickle"), rank, processes[rank].exitcode)[1] for rank in ended)


def _outcome(file: Path, rank: int, exit_code: int | None) -> tuple[Any, str]:
    if not file.exists():
        return None, f"rank {rank} died with exit code {exit_code} before it returned anything"
    succeeded, value, trace = pickle.loads(file.read_bytes())
    return value, "" if succeeded else f"rank {rank} raised:\n{trace}"


def _rank(
    source: tuple[str, str], rank: int, world_size: int, job: bytes, folder: str, backend: str | None, timeout: float
) -> None:
    """Run one rank and leave its outcome in a file, whatever it is."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        worker = _load(*source)
        if backend is not None:
            store = dist.FileStore(str(Path(folder, "store")), world_size)  # type: ignore[attr-defined]
            limit = timedelta(seconds=timeout)
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)
        outcome = (True, worker(rank, world_size, *pickle.loads(job)), "")
    except BaseException as error:
        outcome = (False, _portable(error), traceback.format_exc())
    part = Path(folder, f"{rank}.part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(Path(folder, f"{rank}.pickle"))
    # no ordinary exit: a peer that is gone may keep the destructors of communicators waiting
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _portable(error: BaseException) -> BaseException:
    """Return the exception if it survives pickling, otherwise one with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _load(file: str, name: str) -> Callable[..., Any]:
    """Import the file of a worker by its name if that finds it, otherwise under a name of its own."""
    module_name = Path(file).stem
    found = importlib.util.find_spec(module_name)
    if found is None or found.origin != file:
        module_name = f"_worker_{module_name}"
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[module_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module_name])
    function: Callable[..., Any] = getattr(importlib.import_module(module_name), name)
    return function
