"""Measure cpipe: ``make bench``, or ``PYTHONPATH=tests python -m bench.run [--quick] [--json FILE]``.

What is found against what is known and what is proven, on every kind of problem; then how fast the simulator, a large
compilation and the start of the command are. Makespans are the same everywhere; seconds are those of this machine, and
of whatever else it does. The run is compared with a stored one and ends with 1 where it is worse.
"""

from __future__ import annotations

import argparse
import itertools
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

from bench.baseline import changes, speed_of_this_machine, store, stored
from bench.problems import PROBLEMS
from known_cases import line_problem

import cpipe
from cpipe.ir import MadeBy
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


def solved_rows(name: str, quick: bool, method: str) -> Iterator[Row]:
    """Yield the cases of a section of `PROBLEMS`, solved; quickly, every seventh of them."""
    for bench_case in itertools.islice(PROBLEMS[name](), None, None, 7 if quick else 1):
        start = time.perf_counter()
        result = solve(bench_case.problem, method)
        known = bench_case.best_known
        yield {
            "case": bench_case.name,
            "best_known": known or "-",
            "found": result.makespan_ns,
            "excess": f"{result.makespan_ns / known - 1:+.2%}" if known else "-",
            "bound": result.bound.value_ns,
            "gap": f"{result.gap:.2%}",
            "proved_by": result.bound.proved_by if result.gap == 0 else "-",
            "evaluations": result.evaluations,
            "found_by": result.found_by,
            "seconds": round(time.perf_counter() - start, 2),
        }


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


MEASURED: dict[str, Callable[[bool], Iterable[Row]]] = {
    "shipped": shipped_rows,
    "simulator": simulator_rows,
    "largest": large_rows,
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
    parser.add_argument("--only", choices=[*PROBLEMS, *MEASURED], action="append", help="run this section; repeatable")
    parser.add_argument("--method", default="auto", help="for the cases that are solved here")
    parser.add_argument("--update-baseline", action="store_true", help="keep this run as what later ones compare with")
    parser.add_argument("--large", action="store_true", help="print the figures of the largest problem and stop")
    options = parser.parse_args(arguments)
    if options.large:
        print(json.dumps(compile_large()))
        return 0
    unit_s = speed_of_this_machine()
    wanted = options.only or [*PROBLEMS, *MEASURED]
    solved, measured = {}, {}
    for name in wanted:
        print(f"\n{name}")
        if name in PROBLEMS:
            solved[name] = list(_printed(solved_rows(name, options.quick, options.method)))
        else:
            measured[name] = list(_printed(MEASURED[name](options.quick)))
    if options.json:
        about = {"python": platform.python_version(), "cpus": os.cpu_count(), "unit_s": unit_s, "quick": options.quick}
        Path(options.json).write_text(json.dumps(about | solved | measured, indent=1) + "\n", encoding="utf-8")
    if options.update_baseline:
        store(solved, unit_s)
    worse = _compared(solved, unit_s)
    return 1 if worse else 0


def _compared(solved: dict[str, list[Row]], unit_s: float) -> bool:
    """Print what changed against the baseline; return whether anything is worse."""
    baseline = stored()
    if baseline is None or not solved:
        return False
    lines = list(changes(solved, unit_s, baseline))
    print("\nagainst the baseline" + ("" if lines else ": no change"))
    print("".join(f"  {line}\n" for line in lines), end="")
    return any(line.startswith("WORSE") for line in lines)


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
