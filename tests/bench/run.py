"""Measure cpipe: ``make bench``, or ``PYTHONPATH=tests python -m bench.run [--quick] [--json FILE]``.

What is found against what is known, on the grid of small cases, on the profiles of other schedulers and on the shipped
cases; then how fast the simulator, a large compilation and the start of the command are. Makespans are the same
everywhere; seconds are those of this machine, and of whatever else it does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from known_cases import PEERS, grid_cases, grid_problem, line_problem, peer_problem

import cpipe
from cpipe.ir import MadeBy, Problem
from cpipe.plan import encode_plan, lower, validate
from cpipe.schedules import static_schedule
from cpipe.sim import Simulator, memory_peaks
from cpipe.solve import solve

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent.parent
LARGE = (64, 512)
"""Stages and microbatches of the large problem."""
_STARTS = 7
_REPLAYS = 3

Row = dict[str, Any]


def _solved(name: str, problem: Problem, best_known: int) -> Row:
    """Solve a problem whose best makespan is known."""
    start = time.perf_counter()
    result = solve(problem)
    return {
        "case": name,
        "best_known": best_known,
        "found": result.makespan_ns,
        "excess": f"{result.makespan_ns / best_known - 1:+.2%}",
        "bound": result.bound.value_ns,
        "gap": f"{result.gap:.2%}",
        "evaluations": result.evaluations,
        "found_by": result.found_by,
        "seconds": round(time.perf_counter() - start, 2),
    }


def grid_rows(quick: bool) -> Iterator[Row]:
    """Yield the small cases; quickly, only those of eight stages and tight memory."""
    for grid in grid_cases():
        if not quick or (grid.p, grid.n, grid.memory) == (8, 16, 1):
            yield _solved(grid.name, grid_problem(grid), grid.best_known)


def peer_rows(quick: bool) -> Iterator[Row]:
    """Yield the profiles on which other schedulers were compared."""
    for peer in PEERS[:2] if quick else PEERS:
        for memory, best in enumerate(peer.best, start=1):
            yield _solved(f"{peer.name} {memory}x", peer_problem(peer, memory), best)


def shipped_rows(quick: bool) -> Iterator[Row]:
    """Yield the shipped cases, by the command, start-up and writing included."""
    profiles = sorted((ROOT / "plans").glob("*/profile.json"))
    for profile in profiles[:1] if quick else profiles:
        start = time.perf_counter()
        done = subprocess.run([_command(), "solve", str(profile), "--json"], capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        yield {
            "case": profile.parent.name,
            "makespan_ms": report["makespan_ms"],
            "gap": f"{report['gap']:.2%}",
            "status": report["status"],
            "seconds": round(time.perf_counter() - start, 2),
        }


def simulator_rows(quick: bool) -> Iterator[Row]:
    """Yield how many ops the simulator times in a second, on 1F1B of the large problem."""
    problem = line_problem(*LARGE)
    simulator, orders = Simulator(problem), static_schedule("1f1b", problem).orders
    num_ops = sum(map(len, orders))
    seconds = min(_seconds(lambda: simulator.makespan(orders)) for _ in range(1 if quick else _REPLAYS))
    yield {"case": "1F1B p{} n{}".format(*LARGE), "ops": num_ops, "ops_per_s": round(num_ops / seconds)}


def large_rows(quick: bool) -> Iterator[Row]:
    """Yield the stages of a large compilation, in a process of its own for its peak memory."""
    if not quick:
        command = [sys.executable, "-m", "bench.run", "--large"]
        yield json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def start_rows(quick: bool) -> Iterator[Row]:
    """Yield how long the command takes to say hello, beside an interpreter that does nothing."""
    commands = {"interpreter": [sys.executable, "-c", "pass"], "cpipe --help": [_command(), "--help"]}
    times = {name: min(_process(command) for _ in range(2 if quick else _STARTS)) for name, command in commands.items()}
    for name, seconds in times.items():
        yield {"case": name, "ms": round(seconds * 1000, 1), "ratio": round(seconds / times["interpreter"], 2)}


SECTIONS: dict[str, Callable[[bool], Iterable[Row]]] = {
    "grid": grid_rows,
    "peers": peer_rows,
    "shipped": shipped_rows,
    "simulator": simulator_rows,
    "large": large_rows,
    "start": start_rows,
}


def compile_large() -> Row:
    """Take the large problem from solve to bytes; return seconds of each step and the process's peak memory."""
    problem = line_problem(*LARGE)
    clock = [time.perf_counter()]
    result = solve(problem)
    clock.append(time.perf_counter())
    peaks = memory_peaks(problem, result.schedule.orders)
    made_by = MadeBy(cpipe=cpipe.__version__, method="auto", seed=0, limits={})
    plan = lower(problem, result.schedule, result.timeline, bound=result.bound, resident_peaks=peaks, made_by=made_by)
    clock.append(time.perf_counter())
    faults = validate(plan, problem)
    clock.append(time.perf_counter())
    data = encode_plan(plan)
    clock.append(time.perf_counter())
    steps = zip(("solve", "lower", "validate", "encode"), clock, clock[1:], strict=False)
    return {
        "case": "p{} n{}".format(*LARGE),
        **{f"{step}_s": round(end - start, 2) for step, start, end in steps},
        "total_s": round(clock[-1] - clock[0], 2),
        "gap": f"{result.gap:.2%}",
        "faults": len(faults),
        "plan_mb": round(len(data) / 1e6, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),  # of KiB, as Linux counts
    }


def main(arguments: list[str]) -> int:
    """Run the sections, print each as a table, and write them all as JSON where asked."""
    parser = argparse.ArgumentParser(prog="bench.run", description="Measure cpipe.")
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    parser.add_argument("--only", choices=SECTIONS, help="run one section")
    parser.add_argument("--large", action="store_true", help="print the figures of the large problem and stop")
    options = parser.parse_args(arguments)
    if options.large:
        print(json.dumps(compile_large()))
        return 0
    document: dict[str, Any] = {"python": platform.python_version(), "cpus": os.cpu_count(), "quick": options.quick}
    for name, rows in SECTIONS.items():
        if options.only in (None, name):
            print(f"\n{name}")
            document[name] = list(_printed(rows(options.quick)))
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _printed(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows, each printed as soon as it is there, under a head of its fields."""
    widths: dict[str, int] = {}
    for row in rows:
        if not widths:
            widths = {name: max(len(name), 30 if name == "case" else 11) for name in row}
            print("  ".join(name.ljust(width) for name, width in widths.items()).rstrip())
        print("  ".join(str(row[name]).ljust(width) for name, width in widths.items()).rstrip(), flush=True)
        yield row


def _command() -> str:
    return str(Path(sys.executable).parent / "cpipe")


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _process(command: list[str]) -> float:
    return _seconds(lambda: subprocess.run(command, capture_output=True, check=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
