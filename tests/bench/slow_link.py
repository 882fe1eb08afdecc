"""Measure steps over a slow link: ``PYTHONPATH=tests python -m bench.slow_link [--latency 2] [--forward-ms 30]``.

Four ranks on two sites, joined by real TCP over namespaces and a router with latency (`wan`; needs root). The stages
sleep as long as their ops cost. The same order of compute runs three ways: by cpipe's executor, in torch's runtime with
the plan's messages, and in torch's runtime with its own placement of messages. Each row gives the step in units of a
forward: predicted by the simulator, measured (median), and their ratio. Seconds are those of this machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from runtime_workers import run_ranks
from wan import DEVICE, Link, Wan, enter, open_wan, why_not

from cpipe.compiler import SolveOptions, compile_profile, import_table, simulate_plan
from cpipe.ir import Plan, Problem
from cpipe.plan.exchange import read_torch_csv, torch_csv
from cpipe.profile import Profile, parse_profile

__all__ = ["main"]

RANKS = 4
_MESSAGE_BYTES = 64  # of the sleep model: its tensors are small, so that latency alone counts
_LEAD_S = 2.0  # from agreeing on a start to the start [s]


def job(forward_ms: float, latency: float, microbatches: int) -> Profile:
    """Return the profile: F = D = W on every stage, the first without D, `latency` forwards between the sites."""
    stages = [
        {
            "id": f"s{rank}",
            "device": f"g{rank}",
            "forward_ms": forward_ms,
            "input_grad_ms": forward_ms if rank else 0,
            "weight_grad_ms": forward_ms if rank else 2 * forward_ms,
            "output_bytes": _MESSAGE_BYTES,
        }
        for rank in range(RANKS)
    ]
    document = {
        "format": "cpipe.profile",
        "version": 1,
        "name": "slow-link",
        "microbatches": microbatches,
        "devices": [{"id": f"g{rank}", "site": "east" if rank < RANKS // 2 else "west"} for rank in range(RANKS)],
        "stages": stages,
        "links": [{"between": ["east", "west"], "latency_ms": forward_ms * latency}],
    }
    return parse_profile(json.dumps(document).encode(), "slow-link")


def run_rank(
    rank: int, world_size: int, wan: Wan, store: str, plan: Plan, table: str, layout: str, steps: int
) -> list[tuple[float, float]]:
    """Run steps, after one to warm up; return the start and this rank's end of each, on the common clock [s].

    Ranks start by the clock: a barrier over the slow link would let some start a latency later than others.
    """
    import os

    import torch
    import torch.distributed as dist

    from cpipe.runtime import PlanExecutor
    from cpipe.runtime.models import Job, SleepModel
    from cpipe.runtime.torch_schedule import TorchSchedule

    enter(wan.namespaces[rank])
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=limit)
    model = SleepModel(Job(num_stages=RANKS, microbatches=plan.problem.microbatches, plan=plan))
    stages = {rank: model.stage(rank)}
    inputs, targets = model.inputs(0), model.targets(0)
    if not table:
        executor = PlanExecutor(plan, stages, model.loss_fn)

        def step() -> None:
            executor.step(inputs if rank == 0 else None, targets if rank == RANKS - 1 else None)
    else:
        file = Path(f"{store}-{rank}.csv")
        file.write_text(table, encoding="utf-8")
        schedule = TorchSchedule(
            file,
            stages,
            num_stages=RANKS,
            microbatches=plan.problem.microbatches,
            loss_fn=model.loss_fn,
            layout=layout,
            example=inputs[0],
        )

        def step() -> None:
            schedule.step(torch.cat(inputs) if rank == 0 else None, torch.cat(targets) if rank == RANKS - 1 else None)

    step()
    times = []
    for _ in range(steps):
        dist.barrier()
        start = torch.tensor([time.monotonic() + _LEAD_S], dtype=torch.float64)
        dist.broadcast(start, 0)
        time.sleep(float(start) - time.monotonic())
        step()
        times.append((float(start), time.monotonic()))
    return times


def measure(wan: Wan, plan: Plan, table: str, layout: str, steps: int) -> list[float]:
    """Return how long each step took, from the common start to the last rank's end [s]."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        times = run_ranks(run_rank, RANKS, wan, store, plan, table, layout, steps, backend=None, timeout=180)
    return [max(end for _, end in step) - step[0][0] for step in zip(*times, strict=True)]


def torch_prediction(plan: Plan, problem: Problem, profile: Profile) -> int:
    """Return what the simulator says of the plan's compute order with torch's placement of messages [ns].

    It is too little: on a slow link a receive that is posted late costs the way of its ready note besides, which the
    model leaves out as the plan's own receives are posted early enough.
    """
    from cpipe.runtime.torch_schedule import torch_messages

    table = torch_messages(torch_csv(plan), problem.microbatches)
    imported, found = import_table(read_torch_csv(table.encode(), "torch"), profile)
    if any(fault.severity == "error" for fault in found):
        raise RuntimeError("; ".join(map(str, found)))
    return simulate_plan(imported, problem).makespan_ns


def rows(forward_ms: float, latency: float, microbatches: int, steps: int) -> list[dict[str, Any]]:
    """Return one row a way of running."""
    profile = job(forward_ms, latency, microbatches)
    compiled = compile_profile(profile, SolveOptions())
    plan, problem = compiled.plan, compiled.problem
    slow = Link(forward_ms * latency / 1e3)
    sites = [rank < RANKS // 2 for rank in range(RANKS)]
    links = {(a, b): slow if sites[a] != sites[b] else Link(0.0) for a in range(RANKS) for b in range(RANKS) if a != b}
    late_ns = torch_prediction(plan, problem, profile)
    ways = [
        ("cpipe executor", "", "", plan.claims.makespan_ns),
        (
            "torch, the plan's messages",
            torch_csv(plan, layout="compute_comms"),
            "compute_comms",
            plan.claims.makespan_ns,
        ),
        ("torch, its own messages", torch_csv(plan), "compute_only", late_ns),
    ]
    found = []
    with open_wan(RANKS, links) as wan:
        for name, table, layout, predicted_ns in ways:
            took = measure(wan, plan, table, layout, steps)
            median = statistics.median(took) * 1e3
            row = {
                "way": name,
                "latency_forwards": latency,
                "predicted_forwards": round(predicted_ns / 1e6 / forward_ms, 2),
                "measured_forwards": round(median / forward_ms, 2),
                "spread_forwards": round((max(took) - min(took)) * 1e3 / forward_ms, 2),
                "ratio": round(median / (predicted_ns / 1e6), 3),
            }
            print(json.dumps(row), flush=True)
            found.append(row)
    return found


def main() -> int:
    """Run the measurement and print one JSON object a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forward-ms", type=float, default=30.0, help="length of a forward [ms]")
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0, 1.0, 2.0], help="one way, in forwards")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    if why_not():
        print(f"no network can be made here: {why_not()}")
        return 1
    for latency in arguments.latency:
        rows(arguments.forward_ms, latency, arguments.microbatches, arguments.steps)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
