"""Time `cpipe solve` on the shipped cases: ``python tests/bench/bench_cases.py [OPTION OF SOLVE]...``.

One line a case: how long the whole command took, start-up included, what it found and how good that is proven to be.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent.parent
_ROW = "{:<34} {:>8} {:>12} {:>8} {:>10}  {}"


def _measure(profile: Path, options: list[str]) -> str:
    """Return the row of one case."""
    command = [str(Path(sys.executable).parent / "cpipe"), "solve", str(profile), "--json", *options]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    report = json.loads(done.stdout) if done.stdout else {}
    makespan, gap = report.get("makespan_ms"), report.get("gap")
    return _ROW.format(
        profile.parent.name,
        f"{seconds:.2f} s",
        "-" if makespan is None else f"{makespan:.3f} ms",
        "-" if gap is None else f"{gap:.2%}",
        report.get("status", "error"),
        report.get("method", f"exit code {done.returncode}"),
    )


def main(options: list[str]) -> int:
    """Print a table of all cases; return 1 when there is none."""
    profiles = sorted((ROOT / "plans").glob("*/profile.json"))
    print(_ROW.format("case", "time", "makespan", "gap", "status", "method"))
    for profile in profiles:
        print(_measure(profile, options), flush=True)
    return 0 if profiles else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
