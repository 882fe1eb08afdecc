"""Tests of cpipe.cli.sweep and sweep_axes: grids, results files that go on, pictures, and every wrong option."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import ROOT, call, write_json
from sweep_cases import two_sites_document

from cpipe.cli import sweep as command
from cpipe.report.document import report_schema
from cpipe.study.sweep.solve_point import Outcome, failed

GRID = ("--latency-tf", "0,1.5", "--microbatches", "2,4", "--method", "1f1b")
HEAVY = ROOT / "plans" / "m70-2dc-lat2-bw2-1x" / "profile.json"
"""1F1B is timed at once there, while a whole search takes long."""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Return a profile of two devices in two sites."""
    return write_json(tmp_path / "profile.json", two_sites_document())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have every point solved here, at once: its makespan is its place. Return the places that were solved."""
    places: list[int] = []

    def runner(*options: object) -> Any:
        def solve(tasks: Any, data: bytes, settings: Any) -> Iterator[tuple[int, Outcome]]:
            for task in tasks:
                places.append(task.place)
                yield task.place, Outcome(status="feasible", makespan_ms=task.place + 1.0, peak_bytes=(1, 2), gap=0.5)

        return solve

    monkeypatch.setattr(command, "_runner", runner)
    return places


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["csv", "json"])
def test_same_bytes_for_any_number_of_jobs(
    profile: Path, tmp_path: Path, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One process or three: the same file, byte for byte, with every point in it."""
    files = [tmp_path / f"jobs{jobs}.{end}" for jobs in (1, 3)]
    for jobs, file in zip((1, 3), files, strict=True):
        assert call(capsys, "sweep", profile, *GRID, "--jobs", jobs, "-o", file).code == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    if end == "csv":
        found = [(row["microbatches"], row["latency_tf"], row["status"]) for row in rows(files[0])]
        assert found == [(number, latency, "feasible") for number in ("2", "4") for latency in ("0", "1.5")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dask's own
def test_same_bytes_on_a_cluster(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Dask cluster gives the same file as processes of this machine."""
    distributed = pytest.importorskip("distributed")
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    assert call(capsys, "sweep", profile, *GRID, "--jobs", 1, "-o", here).code == 0
    with distributed.LocalCluster(
        n_workers=1, processes=False, dashboard_address=None, silence_logs=50, protocol="tcp"
    ) as cluster:
        ended = call(capsys, "sweep", profile, *GRID, "--dask", cluster.scheduler_address, "-o", there)
    assert ended.code == 0, ended.err
    assert there.read_bytes() == here.read_bytes()


def test_goes_on_where_it_ended(
    profile: Path, tmp_path: Path, quick: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Points that a file has are kept, in the order of the grid; the rest is solved, and then nothing is left."""
    whole, part = tmp_path / "whole.csv", tmp_path / "part.csv"
    call(capsys, "sweep", profile, *GRID, "-o", whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    part.write_bytes(lines[0] + lines[3])
    quick.clear()
    ended = call(capsys, "sweep", profile, *GRID, "-o", part)
    assert quick == [0, 1, 3]
    assert part.read_bytes() == whole.read_bytes()
    assert ended.err.splitlines()[0] == "4 of 4 points: 4 feasible; 1 were there already"
    quick.clear()
    assert call(capsys, "sweep", profile, *GRID, "-o", part).code == 0
    assert quick == []
    assert part.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("end", ["csv", "json"])
def test_a_grid_may_grow(
    profile: Path, tmp_path: Path, quick: list[int], end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """More values on an axis go on from the points that are there."""
    file = tmp_path / f"r.{end}"
    call(capsys, "sweep", profile, "--microbatches", "2", "--latency-tf", "1", "-o", file)
    quick.clear()
    assert call(capsys, "sweep", profile, "--microbatches", "2,3", "--latency-tf", "0,1", "-o", file).code == 0
    assert quick == [0, 2, 3]


@pytest.mark.parametrize("content", ["key,microbatches\nabc,2\n", "my notes\n", '{"format": "cpipe.plan"}', "\x00\x01"])
def test_other_files_stay(
    profile: Path, tmp_path: Path, quick: list[int], content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is not of this sweep is refused before anything is solved, and not touched."""
    for end in ("csv", "json"):
        file = tmp_path / f"r.{end}"
        file.write_text(content)
        ended = call(capsys, "sweep", profile, *GRID, "-o", file)
        assert (ended.code, ended.out, file.read_text(), quick) == (2, "", content, [])
        assert "[sweep-other-file]" in ended.err


def test_another_profile_is_another_sweep(
    profile: Path, tmp_path: Path, quick: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """When the profile was changed, its old results are neither used nor overwritten."""
    file = tmp_path / "r.csv"
    call(capsys, "sweep", profile, *GRID, "-o", file)
    before = file.read_bytes()
    write_json(profile, two_sites_document(name="changed"))
    ended = call(capsys, "sweep", profile, *GRID, "-o", file)
    assert ended.code == 2
    assert "has 4 of 4 points that are not of this sweep" in ended.err
    assert file.read_bytes() == before


def test_table_goes_to_stdout(profile: Path, quick: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file the table goes to stdout as CSV, and the summary to stderr."""
    for more in ((), ("-o", "-")):
        ended = call(capsys, "sweep", profile, *GRID, *more)
        found = list(csv.DictReader(ended.out.splitlines()))
        assert [row["makespan_ms"] for row in found] == ["1", "2", "3", "4"]
        assert ended.err.startswith("4 of 4 points: 4 feasible\nfastest: 0.500 ms per microbatch")
    assert call(capsys, "sweep", profile, *GRID, "-q").err == ""


def test_json_report(profile: Path, tmp_path: Path, quick: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """The report has every point, and is what a results file in JSON has."""
    file = tmp_path / "r.json"
    document = call(capsys, "sweep", profile, *GRID, "--json", "-o", file).document
    assert {name: document[name] for name in ("format", "command", "status", "num_points", "links")} == {
        "format": "cpipe.report",
        "command": "sweep",
        "status": "done",
        "num_points": 4,
        "links": ["east<->west"],
    }
    assert [point["makespan_ms"] for point in document["points"]] == [1, 2, 3, 4]
    assert document == json.loads(file.read_bytes())
    jsonschema.validate(document, report_schema())


def test_failed_points(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Points that failed are in the table with their reason, the exit code is 1, and the next call tries them again."""
    file = tmp_path / "r.csv"
    outcomes = [failed("the process was ended by SIGKILL"), Outcome(status="infeasible", reason="too small")]

    def runner(*options: object) -> Any:
        return lambda tasks, data, settings: ((task.place, outcomes[task.place]) for task in tasks)

    monkeypatch.setattr(command, "_runner", runner)
    options = ("--microbatches", "2,3", "--json", "-o", file)
    ended = call(capsys, "sweep", profile, *options)
    assert (ended.code, ended.document["status"]) == (1, "incomplete")
    assert [row["reason"] for row in rows(file)] == ["the process was ended by SIGKILL", "too small"]
    outcomes[0] = Outcome(status="optimal", makespan_ms=7.0)
    ended = call(capsys, "sweep", profile, *options)
    assert (ended.code, ended.document["status"]) == (0, "done")
    assert [row["status"] for row in rows(file)] == ["optimal", "infeasible"]


def test_pictures(profile: Path, tmp_path: Path, quick: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """Heat maps are written beside the table, or to stdout in its place."""
    svg = tmp_path / "h.svg"
    assert call(capsys, "sweep", profile, *GRID, "-q", "-o", tmp_path / "r.csv", "--svg", svg).code == 0
    assert call(capsys, "sweep", profile, *GRID, "-q", "--svg", "-").out == svg.read_text()
    slow = call(capsys, "sweep", profile, *GRID, "-q", "--svg", "-", "--cells", "slowdown").out
    assert "over the smallest of the sweep" in slow
    assert slow != svg.read_text()


def test_progress_for_those_who_ask(profile: Path, quick: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """With --verbose a bar is a line; where stderr is no terminal, there is none otherwise."""
    lines = call(capsys, "sweep", profile, *GRID, "-v").err.splitlines()
    assert lines[0] == f"[{'.' * 30}] 0 of 4 points"
    assert lines[2] == f"[{'#' * 15}{'.' * 15}] 2 of 4 points"
    assert "of 4 points\n[" not in call(capsys, "sweep", profile, *GRID).err


def test_interrupt_keeps_what_is_finished(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends the sweep with 130; points that were finished are in the file."""

    def runner(*options: object) -> Any:
        def solve(tasks: Any, data: bytes, settings: Any) -> Iterator[tuple[int, Outcome]]:
            yield 1, Outcome(status="feasible", makespan_ms=5.0)
            yield 0, Outcome(status="feasible", makespan_ms=6.0)
            raise KeyboardInterrupt

        return solve

    monkeypatch.setattr(command, "_runner", runner)
    file = tmp_path / "r.csv"
    assert call(capsys, "sweep", profile, *GRID, "-o", file).code == 130
    assert [row["makespan_ms"] for row in rows(file)] == ["6", "5"]


BAD = [
    (("--latency-ms", "1,x"), "--latency-ms: expected numbers in [0, 1e+12], got 'x' [sweep-values]"),
    (("--latency-ms", ""), "--latency-ms: expected numbers in [0, 1e+12], got '' [sweep-values]"),
    (("--latency-tf", "-1"), "--latency-tf: expected numbers in [0, 1e+12], got '-1' [sweep-values]"),
    (("--latency-factor", "nan"), "--latency-factor: expected numbers in [0, 1e+12], got 'nan' [sweep-values]"),
    (("--latency-ms", "1,1.0"), "--latency-ms: 1.0 is given twice [sweep-values]"),
    (("--bandwidth-gbit-s", "0"), "--bandwidth-gbit-s: expected numbers in (0, 1e+09], got '0' [sweep-values]"),
    (("--bandwidth-factor", "inf"), "--bandwidth-factor: expected numbers in (0, 1e+09], got 'inf' [sweep-values]"),
    (("--bandwidth-tf", "-0.5"), "--bandwidth-tf: expected numbers in [0, 1e+12], got '-0.5' [sweep-values]"),
    (("--memory-factor", "0"), "--memory-factor: expected numbers in (0, 1e+09], got '0' [sweep-values]"),
    (("--microbatches", "4,0"), "--microbatches: expected whole numbers in [1, 65536], got '0' [sweep-values]"),
    (("--microbatches", "2.5"), "--microbatches: expected whole numbers in [1, 65536], got '2.5' [sweep-values]"),
    (("--chunks", "two"), "--chunks: expected whole numbers in [1, 1024], got 'two' [sweep-values]"),
    (("--method", "auto,gredy"), "--method: expected one of auto, "),
    (("--method", "auto:wve"), "--method: expected one of profile, ud, loop, wave, bidirectional, auto, got 'wve'"),
    (("--placement", "wave,"), "--placement: expected one of profile, ud, loop, wave, bidirectional, auto, got ''"),
    (("--latency-ms", "1", "--latency-tf", "1"), "--latency-ms and --latency-tf exclude each other [sweep-two-units]"),
    (
        ("--bandwidth-tf", "1", "--bandwidth-factor", "1"),
        "--bandwidth-factor and --bandwidth-tf exclude each other [sweep-two-units]",
    ),
    (("--latency-ms", "1", "--links", "a<->b"), "--links: the profile has no link 'a<->b'; it has east<->west"),
    (("--jobs", "0"), "--jobs: expected a number in [1, 1024], got 0 [value-out-of-range]"),
    (("--max-gap", "1"), "--max-gap: expected a share in [0, 1), got 1 [value-out-of-range]"),
    (("--seed", "-1"), "--seed: expected a number in [0, 2147483647], got -1 [value-out-of-range]"),
    (("--time-limit", "0"), "--time-limit: expected seconds > 0, got 0 [value-out-of-range]"),
    (("--dask-timeout", "0"), "--dask-timeout: expected seconds > 0, got 0 [value-out-of-range]"),
    (
        ("--jobs", "2", "--dask", "tcp://x"),
        "--jobs is for processes of this machine, --dask for those of a cluster [jobs-and-dask]",
    ),
    (("--cells", "heat"), "--cells: expected one of per-microbatch, slowdown, got 'heat' [unknown-value]"),
    (("-o", "r.txt"), "--output: expected a file that ends in .csv or .json, got 'r.txt' [sweep-format]"),
    (("-o", "/nowhere/r.csv"), "/nowhere/r.csv: cannot be written: no such directory [output-not-writable]"),
    (("-o", "-", "--json"), "--output and --json both want standard output [stdout-twice]"),
    (("--svg", "-", "--json"), "--svg and --json both want standard output [stdout-twice]"),
    (("-o", "x.csv", "--svg", "./x.csv"), "two files would be written to x.csv [output-twice]"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[" ".join(options) for options, _ in BAD])
def test_wrong_options(
    profile: Path, quick: list[int], options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong value is told with its option, the rule and the value; nothing is solved, the exit code is 2."""
    ended = call(capsys, "sweep", profile, *options)
    assert (ended.code, ended.out if "--json" not in options else "", quick) == (2, "", [])
    assert f"error: {message}" in ended.err


def test_all_faults_at_once(profile: Path, quick: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong values of several axes are told together."""
    ended = call(capsys, "sweep", profile, "--latency-ms", "x", "--chunks", "0", "--method", "y", "--microbatches", "z")
    codes = [line.rpartition("[")[2] for line in ended.err.splitlines() if line.startswith("error")]
    assert codes == ["sweep-values]", "unknown-value]", "sweep-values]", "sweep-values]"]


def test_output_is_no_input(profile: Path, quick: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """The profile is never overwritten."""
    ended = call(capsys, "sweep", profile, *GRID, "-o", profile)
    assert (ended.code, json.loads(profile.read_text())["name"]) == (2, "sample")
    assert "[output-is-input]" in ended.err


def test_faulty_profile_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile that is not valid ends the call with 3 and a report that says so."""
    ended = call(capsys, "sweep", write_json(tmp_path / "p.json", {"format": "cpipe.profile"}), "--json")
    assert ended.code == 3
    assert (ended.document["command"], ended.document["status"]) == ("sweep", "error")
    assert ended.document["diagnostics"]


def test_nobody_at_the_address(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster that cannot be reached is a clear error within the time allowed, and no file is made."""
    pytest.importorskip("distributed")
    file = tmp_path / "r.csv"
    options = ("--dask", "tcp://127.0.0.1:9", "--dask-timeout", "0.5", "-o", file)
    ended = call(capsys, "sweep", profile, *GRID, *options)
    assert ended.code == 2
    assert "[dask-unreachable]" in ended.err
    assert not file.exists()


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command line beside us; it is ended in any case."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cpipe.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail(f"waited in vain: {what}")


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes that solve points for another."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def is_alive(process: int) -> bool:
    """Return whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes in /proc")
LONG = ("--method", "1f1b,auto", "--microbatches", "16", "--jobs", "1", "-q")


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ended_in_the_middle(tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep that is interrupted or killed leaves a file to go on from, and no process behind."""
    file, fresh = tmp_path / "r.csv", tmp_path / "fresh.csv"
    with running("sweep", HEAVY, *LONG, "-o", file) as process:
        eventually(lambda: file.exists() and len(rows(file)) >= 1, "the first point")
        workers = workers_of(process)
        process.send_signal(number)
        assert process.wait(60) == (130 if number == signal.SIGINT else -number)
    eventually(lambda: not any(map(is_alive, workers)), "the end of the workers")
    assert workers
    options = ("--method", "1f1b", "--microbatches", "16", "--jobs", "1")
    ended = call(capsys, "sweep", HEAVY, *options, "-o", file)
    assert "1 were there already" in ended.err
    call(capsys, "sweep", HEAVY, *options, "-o", fresh)
    assert file.read_bytes() == fresh.read_bytes()


@needs_proc
@pytest.mark.slow
def test_killed_worker(tmp_path: Path) -> None:
    """A worker that the system kills costs the point that it was at; the others are solved, the exit code is 1."""
    file = tmp_path / "r.csv"
    with running("sweep", HEAVY, "--method", "auto,1f1b", "--jobs", "1", "-q", "-o", file) as process:
        eventually(lambda: bool(workers_of(process)), "a worker")
        os.kill(workers_of(process)[0], signal.SIGKILL)
        assert process.wait(120) == 1
    found = {row["method"]: (row["status"], row["reason"]) for row in rows(file)}
    assert found == {
        "auto": ("failed", "the process that solved it was ended by SIGKILL"),
        "1f1b": ("feasible", ""),
    }


def test_bar_is_full_at_the_end() -> None:
    """The bar is as long as the share of points that are finished."""
    assert [command._bar(done, 3).count("#") for done in range(4)] == [0, 10, 20, 30]
