"""``python -m cpipe.runtime PLAN``: one rank of a run; start one process per rank, by torchrun for example.

Rank 0 writes the result as one JSON document, to stdout or to ``--result``. Loads neither typer nor a solver.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from cpipe.plan import load_plan
from cpipe.runtime.emulate import Emulation
from cpipe.runtime.failure import reported
from cpipe.runtime.worker import RunOptions, run_plan

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank.

    Returns
    -------
    int
        0: done; 1: done, but the gradients are wrong, without ``--result``; otherwise as `cpipe run` would exit.
    """
    parser = argparse.ArgumentParser(prog="python -m cpipe.runtime", description="Run one rank of a plan.")
    parser.add_argument("plan")
    parser.add_argument("--model", default="transformer", help="transformer, sleep or MODULE:FACTORY")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-scale", type=float, default=1.0, help="seconds slept for a second of the plan")
    parser.add_argument("--emulation", type=Path, help="delays of messages, as Emulation.to_builtins gives them")
    parser.add_argument("--no-check", action="store_true", help="leave out the comparison of the gradients")
    parser.add_argument("--trace", type=Path, help="write the timeline of the reported step here")
    parser.add_argument("--result", type=Path, help="write the result here instead of to stdout")
    options = parser.parse_args(arguments)
    emulation = None
    if options.emulation is not None:
        emulation = Emulation.from_builtins(json.loads(options.emulation.read_text(encoding="utf-8")))
    chosen = RunOptions(
        model=options.model,
        steps=options.steps,
        seed=options.seed,
        time_scale=options.time_scale,
        emulation=emulation,
        check=not options.no_check,
        trace=options.trace,
    )
    result = run_plan(load_plan(options.plan), chosen)
    if result is None:
        return 0
    text = json.dumps(result) + "\n"
    if options.result is not None:  # whoever asked for the file judges what is in it
        options.result.write_text(text, encoding="utf-8")
        return 0
    sys.stdout.write(text)
    return 0 if all(check["equal"] for check in result["gradients"]) else 1


if __name__ == "__main__":
    reported(main)
