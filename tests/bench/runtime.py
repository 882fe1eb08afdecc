"""Measure how well the simulator predicts the runtime: ``make bench-runtime``, or ``python -m bench.runtime``.

Four ranks, eight microbatches, stages that sleep 30 ms an op, and a middle link between two sites that is emulated with
a latency of 0, 1 and 2 forwards. Then, at the largest latency, what the search gains over 1F1B within the memory that
1F1B itself needs: on each device its own peak, and the largest of the peaks on all. Times are those of this machine, of
whatever else it does, and of the fastest of a few steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.ir import Plan
from cpipe.plan import encode_plan
from cpipe.profile import Profile, encode_profile, parse_profile

__all__ = ["main"]

FORWARD_MS = 30
DELAYS = (0, 1, 2)
METHODS = ("1f1b", "zb-h1", "auto")
NUM_DEVICES, MICROBATCHES = 4, 8
ACTIVATION = 10**9
GOAL_RATIO, GOAL_GAIN = 1.06, 1.25

Row = dict[str, Any]


def bench_profile(delay: int, memory: Sequence[int] | None = None) -> Profile:
    """Return the job: F = D = W = 30 ms, B = 60 ms, `delay` forwards of latency between the second and third device.

    The first stage has no input gradient, so its W is the whole backward; D frees nothing, as in torch. `memory` is in
    activations, by device.
    """
    document = {
        "format": "cpipe.profile",
        "version": 1,
        "name": f"sleep-delay{delay}",
        "microbatches": MICROBATCHES,
        "devices": [
            {"id": f"g{device}", "site": "ab"[device // 2]}
            | ({} if memory is None else {"memory_bytes": memory[device] * ACTIVATION})
            for device in range(NUM_DEVICES)
        ],
        "stages": [
            {
                "id": f"s{stage}",
                "device": f"g{stage}",
                "forward_ms": FORWARD_MS,
                "input_grad_ms": FORWARD_MS if stage else 0,
                "weight_grad_ms": FORWARD_MS if stage else 2 * FORWARD_MS,
                "full_backward_ms": 2 * FORWARD_MS,
                "activation_bytes": ACTIVATION,
                "held_for_weight_grad_bytes": ACTIVATION,
            }
            for stage in range(NUM_DEVICES)
        ],
        "links": [{"between": ["a", "b"], "latency_ms": delay * FORWARD_MS}],
    }
    return parse_profile(json.dumps(document).encode(), "bench")


def run_plan(plan: Plan, profile: Profile, steps: int) -> dict[str, Any]:
    """Run a plan with the sleep model and the links of `profile`; return the report."""
    with tempfile.TemporaryDirectory() as name:
        plan_file, profile_file = Path(name) / "plan.json", Path(name) / "profile.json"
        plan_file.write_bytes(encode_plan(plan))
        profile_file.write_bytes(encode_profile(profile))
        command = [sys.executable, "-m", "cpipe.cli", "run", str(plan_file), "--model", "sleep", "--no-check"]
        command += ["--emulate", str(profile_file), "--steps", str(steps), "--timeout", "120", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def measured_row(case: str, delay: int, method: str, profile: Profile, steps: int) -> Row:
    """Compile, run and compare one case."""
    compiled = compile_profile(profile, SolveOptions(method=method))
    report = run_plan(compiled.plan, profile, steps)
    predicted, measured = report["predicted_ms"], report["makespan_ms"]
    return {
        "case": case,
        "delay": f"{delay} TF",
        "method": method,
        "predicted_ms": round(predicted, 1),
        "measured_ms": round(measured, 1),
        "ratio": round(measured / predicted, 3),
        "bound_ms": round(compiled.plan.claims.lower_bound_ns / 1e6, 1),
        "peak": "/".join(str(peak // ACTIVATION) for peak in compiled.plan.claims.peak_bytes),
    }


def prediction_rows(quick: bool, steps: int) -> Iterator[Row]:
    """Yield measured against predicted, for every method and delay."""
    for delay in DELAYS[2:] if quick else DELAYS:
        for method in METHODS:
            yield measured_row("prediction", delay, method, bench_profile(delay), steps)


def gain_rows(steps: int) -> Iterator[Row]:
    """Yield 1F1B, and the search within the memory of 1F1B, at the largest delay; with the gain, measured."""
    delay = DELAYS[-1]
    profile = bench_profile(delay)
    baseline = measured_row("1F1B", delay, "1f1b", profile, steps)
    peaks = [int(peak) for peak in baseline["peak"].split("/")]
    yield {**baseline, "gain": 1.0, "best_possible_gain": ""}
    for case, memory in (("its own peaks", peaks), ("its largest peak", [max(peaks)] * len(peaks))):
        row = measured_row(case, delay, "auto", bench_profile(delay, memory), steps)
        gain = round(baseline["measured_ms"] / row["measured_ms"], 3)
        yield {**row, "gain": gain, "best_possible_gain": round(baseline["predicted_ms"] / row["bound_ms"], 3)}


def main(arguments: list[str]) -> int:
    """Print both tables, and whether the goals are met; write them as JSON where asked."""
    parser = argparse.ArgumentParser(prog="bench.runtime", description="Measure the runtime against the simulator.")
    parser.add_argument("--quick", action="store_true", help="the largest delay alone")
    parser.add_argument("--steps", type=int, default=4, help="steps of a run, of which the first warms up")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    options = parser.parse_args(arguments)
    print("measured / predicted, sleeping stages, emulated link")
    predictions = list(_printed(prediction_rows(options.quick, options.steps)))
    worst = max(row["ratio"] for row in predictions)
    print(f"largest ratio {worst:.3f}, goal {GOAL_RATIO}: {'met' if worst <= GOAL_RATIO else 'MISSED'}")
    print("\nthe search against 1F1B, within the memory of 1F1B")
    gains = list(_printed(gain_rows(options.steps)))
    for row in gains[1:]:
        verdict = "met" if row["gain"] >= GOAL_GAIN else f"MISSED, the bound allows {row['best_possible_gain']}"
        print(f"{row['case']}: gain {row['gain']:.3f}, goal {GOAL_GAIN}: {verdict}")
    if options.json:
        document = {"predictions": predictions, "gains": gains}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _printed(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows, each printed as soon as it is there, under a head of its fields."""
    widths: dict[str, int] = {}
    for row in rows:
        if not widths:
            widths = {name: max(len(name), 16 if name == "case" else 9) for name in row}
            print("  ".join(name.ljust(width) for name, width in widths.items()).rstrip())
        print("  ".join(str(row[name]).ljust(width) for name, width in widths.items()).rstrip(), flush=True)
        yield row


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
