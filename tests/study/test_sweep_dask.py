"""Tests of cpipe.study.sweep.dask_cluster: the same results on a cluster, and clusters with faults."""

from __future__ import annotations

import builtins
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from sweep_cases import in_processes, known, small_sweep, tasks_of

from cpipe.errors import NoSolutionError, UsageError
from cpipe.study.sweep import Settings, dask_cluster, run_sweep
from cpipe.study.sweep.dask_cluster import check_dask_library, solve_on_cluster
from cpipe.study.sweep.run import Runner
from cpipe.study.sweep.workers import Task

distributed = pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Dask warns of many things; none is ours
PATIENCE_S = 20.0


@contextmanager
def cluster(*, workers: int = 1, processes: bool = False) -> Iterator[str]:
    """Give the address of a scheduler with workers in this process, or in processes of their own."""
    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=processes,
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
        protocol="tcp",
    ) as local:
        yield local.scheduler_address


def there_on(address: str) -> Runner:
    """Return what solves points on that cluster."""
    return lambda tasks, data, settings: solve_on_cluster(tasks, data, settings, address, PATIENCE_S)


def closed_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("processes", [False, True])
def test_same_results_as_here(processes: bool) -> None:
    """A cluster of threads or of processes gives what processes of this machine give, point for point."""
    sweep = small_sweep()
    here = {point.key: point for point in run_sweep(sweep, in_processes(1))}
    with cluster(processes=processes) as address:
        there = list(run_sweep(sweep, there_on(address)))
    assert {point.key: point for point in there} == here
    assert sweep.report(there).status == "done"


def test_nobody_there() -> None:
    """A scheduler that does not answer is given up after the time that was allowed."""
    address = f"tcp://127.0.0.1:{closed_port()}"
    with pytest.raises(UsageError, match=r"no scheduler answers within 1 s: .* \[dask-unreachable\]"):
        list(solve_on_cluster(tasks_of(2), b"", Settings(), address, 1.0))


def test_no_address() -> None:
    """What is no address is told like what does not answer."""
    with pytest.raises(UsageError, match=r"--dask nowhere://x: .* \[dask-unreachable\]"):
        list(solve_on_cluster(tasks_of(2), b"", Settings(), "nowhere://x", 1.0))


def test_no_workers() -> None:
    """A scheduler without workers is not waited for longer than allowed."""
    with (
        cluster(workers=0) as address,
        pytest.raises(UsageError, match=r"the scheduler has no workers, and none came within 1 s \[dask-no-workers\]"),
    ):
        list(solve_on_cluster(tasks_of(2), b"", Settings(), address, 1.0))


class FakeFuture:
    """A finished future."""

    def __init__(self, status: str, value: Any = None, error: BaseException | None = None) -> None:
        self.status = status
        self._value = value
        self._error = error

    def exception(self) -> BaseException | None:
        """Return what went wrong."""
        return self._error

    def result(self) -> Any:
        """Return what came back."""
        return self._value


def test_other_versions() -> None:
    """A worker of another version is refused, as its results might be others."""
    theirs = dask_cluster._versions() | {"cpipe": "0.0.1"}
    with pytest.raises(
        UsageError, match=r"versions of a worker .*: cpipe 0\.0\.1 there, .* here, .* \[dask-versions\]"
    ):
        dask_cluster._outcome(FakeFuture("finished", (theirs, None)), "tcp://x")


def test_worker_without_cpipe() -> None:
    """A worker on which cpipe is not installed is told as that."""
    error = ModuleNotFoundError("No module named 'cpipe'")
    with pytest.raises(UsageError, match=r"a worker cannot import cpipe: No module .* \[dask-versions\]") as caught:
        dask_cluster._outcome(FakeFuture("error", error=error), "tcp://x")
    assert caught.value.hint == "install the same cpipe on every worker"


def test_a_lost_worker_costs_one_point() -> None:
    """A point whose workers died again and again has failed; its reason names the error."""
    outcome = dask_cluster._outcome(FakeFuture("error", error=RuntimeError("worker\ndied")), "tcp://x")
    assert (outcome.status, outcome.reason) == ("failed", "on the cluster: RuntimeError: worker died")


@pytest.mark.parametrize("status", ["cancelled", "lost"])
def test_lost_scheduler(status: str) -> None:
    """When the scheduler is gone, the sweep ends and says how to go on."""
    with pytest.raises(NoSolutionError, match=r"the scheduler is gone \[dask-lost\]") as caught:
        dask_cluster._outcome(FakeFuture(status), "tcp://x")
    assert caught.value.hint == "what was finished is in the output file; the same call goes on from there"


class FakeClient:
    """A client whose scheduler knows some workers; `cancelled` is what was taken back."""

    def __init__(self, status: str, workers: dict[str, object]) -> None:
        self.status = status
        self.as_current = nullcontext
        self.cancelled: list[Any] = []
        self._workers = workers

    def scheduler_info(self) -> dict[str, object]:
        """Return what the scheduler knows."""
        return {"workers": self._workers}

    def cancel(self, futures: list[Any], force: bool) -> None:
        """Take futures back."""
        self.cancelled += futures


class FakeLibrary:
    """Dask, with futures that are finished after some looks at them."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def wait(self, pending: list[Any], timeout: float, return_when: str) -> tuple[list[Any], list[Any]]:
        """Wait once more."""
        self._looks -= 1
        if self._looks > 0:
            raise TimeoutError
        return pending, []


@pytest.mark.parametrize(("status", "workers"), [("running", {}), ("closed", {"tcp://w": 1})])
def test_workers_or_scheduler_leave(status: str, workers: dict[str, object]) -> None:
    """When all workers are gone for longer than allowed, or the scheduler is, the sweep ends."""
    client, library, future = FakeClient(status, workers), FakeLibrary(looks=9), FakeFuture("pending")
    with pytest.raises(NoSolutionError, match=r"the workers are gone \[dask-lost\]"):
        list(dask_cluster._collected(library, client, tasks_of(2), lambda task: future, "tcp://x", 3.0))
    assert client.cancelled == ([future] if status == "running" else [])


def finished(task: Task) -> FakeFuture:
    """Return a future that holds an outcome."""
    return FakeFuture("finished", (dask_cluster._versions(), known(b"", task.point, Settings())))


def test_long_points_are_waited_for() -> None:
    """As long as there is a worker, a point may take what it takes."""
    client, library = FakeClient("running", {"tcp://w": 1}), FakeLibrary(looks=9)
    ((place, outcome),) = dask_cluster._collected(library, client, tasks_of(2), finished, "tcp://x", 3.0)
    assert (place, outcome.makespan_ms) == (0, 2.0)
    assert client.cancelled == []


def test_large_grids_are_handed_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler knows of some points at a time; each is handed out once, and comes back once."""
    monkeypatch.setattr(dask_cluster, "_IN_FLIGHT", 3)
    client, library, open_at_once = FakeClient("running", {"tcp://w": 1}), FakeLibrary(looks=1), []
    handed: list[int] = []

    def submit(task: Task) -> FakeFuture:
        handed.append(task.place)
        return finished(task)

    back: list[int] = []
    for place, _ in dask_cluster._collected(library, client, tasks_of(*range(1, 11)), submit, "tcp://x", 3.0):
        open_at_once.append(len(handed) - len(back))
        back.append(place)
    assert sorted(back) == handed == list(range(10))
    assert max(open_at_once) == 3


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Dask the command to install it is told."""
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "distributed":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=r"--dask needs the package distributed.* \[dask-library\]") as caught:
        check_dask_library()
    assert caught.value.hint == "pip install 'cpipe[dask]'"
