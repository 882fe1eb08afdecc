"""Points solved on a Dask cluster that is already there (extra ``cpipe[dask]``)."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

import cpipe
from cpipe.errors import NoSolutionError, UsageError
from cpipe.study.sweep.grid import Point, Settings
from cpipe.study.sweep.solve_point import Outcome, failed, point_outcome
from cpipe.study.sweep.workers import Task

__all__ = ["check_dask_library", "solve_on_cluster"]

_POLL_S = 2.0
"""How often it is looked whether the cluster is still there [s]."""
_IN_FLIGHT = 1024
"""Points that the scheduler knows of at once; waiting for one of them takes longer the more there are."""


def check_dask_library() -> None:
    """Raise a `UsageError` where Dask's client is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "--dask needs the package distributed, which is not installed",
            code="dask-library",
            hint="pip install 'cpipe[dask]'",
        ) from error


def solve_on_cluster(
    tasks: Sequence[Task], data: bytes, settings: Settings, address: str, patience_s: float
) -> Generator[tuple[int, Outcome], None, None]:
    """Yield the place and the outcome of every task, as they are finished.

    Closing the iterator takes back what is not finished.

    Parameters
    ----------
    tasks
        Handed out in this order.
    data, settings
        See `point_outcome`.
    address
        Of the scheduler.
    patience_s
        How long to wait for the scheduler, and for a worker while there is none [s].

    Raises
    ------
    UsageError
        When the scheduler cannot be reached, there is no worker, or workers have other versions.
    NoSolutionError
        When the scheduler or all workers are lost on the way.
    """
    check_dask_library()
    import distributed

    client = _connected(distributed, address, patience_s)
    run = uuid4().hex

    def submit(task: Task) -> Any:
        name = f"cpipe-sweep-{run}-{task.place}"
        return client.submit(_solve_there, data, task.point, settings, key=name, pure=False, priority=-task.place)

    try:
        yield from _collected(distributed, client, tasks, submit, address, patience_s)
    finally:
        client.close(timeout=patience_s)


def _connected(distributed: Any, address: str, patience_s: float) -> Any:
    """Return a client of a cluster that has a worker."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions are compared here, on every reply
            client = distributed.Client(address, timeout=patience_s, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        message = f"--dask {address}: no scheduler answers within {patience_s:g} s: {_line(error)}"
        raise UsageError(message, code="dask-unreachable", hint="an address looks like tcp://HOST:8786") from error
    try:
        client.wait_for_workers(1, timeout=patience_s)
    except TimeoutError as error:
        client.close(timeout=patience_s)
        message = f"--dask {address}: the scheduler has no workers, and none came within {patience_s:g} s"
        raise UsageError(message, code="dask-no-workers") from error
    return client


def _collected(
    distributed: Any,
    client: Any,
    tasks: Iterable[Task],
    submit: Callable[[Task], Any],
    address: str,
    patience_s: float,
) -> Generator[tuple[int, Outcome], None, None]:
    waiting = iter(tasks)
    futures = {submit(task): task for task in islice(waiting, _IN_FLIGHT)}
    alone_s = 0.0
    try:
        while futures:
            try:
                with client.as_current():
                    done, _ = distributed.wait(list(futures), timeout=_POLL_S, return_when="FIRST_COMPLETED")
            except TimeoutError:
                alone_s = 0.0 if client.scheduler_info()["workers"] else alone_s + _POLL_S
                if client.status != "running" or alone_s > patience_s:
                    raise _lost(address, "the workers are gone") from None
                continue
            for future in sorted(done, key=lambda future: futures[future].place):
                yield futures[future].place, _outcome(future, address)
                del futures[future]
                futures |= {submit(task): task for task in islice(waiting, 1)}
    finally:
        if futures and client.status == "running":
            client.cancel(list(futures), force=True)


def _outcome(future: Any, address: str) -> Outcome:
    """Return what a finished future holds."""
    if future.status in ("cancelled", "lost"):
        raise _lost(address, "the scheduler is gone")
    error = future.exception()
    if isinstance(error, ImportError):
        message = f"--dask {address}: a worker cannot import cpipe: {_line(error)}"
        raise UsageError(message, code="dask-versions", hint="install the same cpipe on every worker")
    if error is not None:
        return failed(f"on the cluster: {type(error).__name__}: {error}")
    theirs, outcome = future.result()
    if theirs != (ours := _versions()):
        differences = ", ".join(f"{name} {theirs[name]} there, {ours[name]} here" for name in ours)
        message = f"--dask {address}: versions of a worker are not those here: {differences}"
        raise UsageError(message, code="dask-versions", hint="install the same versions on every worker")
    found: Outcome = outcome
    return found


def _lost(address: str, what: str) -> NoSolutionError:
    message = f"--dask {address}: {what}"
    hint = "what was finished is in the output file; the same call goes on from there"
    return NoSolutionError(message, code="dask-lost", hint=hint)


def _versions() -> dict[str, str]:
    """Return what must be the same everywhere for the same results."""
    return {"cpipe": cpipe.__version__, "python": ".".join(platform.python_version_tuple()[:2])}


def _solve_there(data: bytes, point: Point, settings: Settings) -> tuple[dict[str, str], Outcome]:
    """Solve a point on the cluster."""
    return _versions(), point_outcome(data, point, settings)


def _line(error: BaseException) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__
