"""Small random problems whose optimum is known: stages in line or in a V, every number jittered by up to 40 %.

``python tests/jittered.py`` makes ``tests/data/jittered.json`` anew, in several minutes: CP-SAT solves every instance
to its end, hinted the best order of the heuristics but told no lower bound of ours. What it cannot prove so within
`SECONDS` it tries once more from our bound, which is then part of the proof or all of it; ``by`` says which it was.
"""

from __future__ import annotations

import json
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from oracle.cases import case

from cpipe.ir import Bound, Problem
from cpipe.sim import simulate

__all__ = ["NUM_INSTANCES", "JitteredOptimum", "jittered_optima", "jittered_problem"]

NUM_INSTANCES = 92
SECONDS = 60.0
_FILE = Path(__file__).parent / "data" / "jittered.json"
_LINE_SIZES = ((2, 4), (2, 6), (3, 4), (3, 6), (4, 4), (4, 6))  # devices, microbatches
_V_SIZES = ((2, 2), (2, 3), (2, 4), (3, 3))  # as large as CP-SAT proves without help


class JitteredOptimum(NamedTuple):
    """What the file says of an instance: best makespan and proven bound [ns], and what proved it.

    `by` is ``cpsat``, ``with our bound`` or, where makespan and bound differ, ``unproven``.
    """

    number: int
    makespan: int
    bound: int
    by: str


def jittered_problem(number: int) -> Problem:
    """Return instance `number`: 2 to 4 devices, 2 to 6 microbatches; every second one has two stages a device, in a V.

    F, D and W take about 100, 110 and 90 a device, an activation about 10 bytes, of which D frees about 3. Memory is
    for 1 to 2 p activations (at least one microbatch), each link has a random latency and occupancy or none.
    """
    draw = Random(1000 + number)
    chunks = 1 + number % 2
    p, n = draw.choice(_LINE_SIZES if chunks == 1 else _V_SIZES)

    def jitter(mean: int) -> int:
        return max(1, mean * draw.randint(60, 140) // 100)

    line = list(range(p))
    placement = line + line[::-1] * (chunks - 1)
    size = len(placement)
    activation = [jitter(10) for _ in range(size)]
    held = [min(amount - 1, jitter(7)) for amount in activation]
    slow = draw.choice(((0, 0), (60, 10), (200, 25), (25, 100)))
    delays = [(jitter(slow[0]), jitter(slow[1])) if draw.random() < 0.6 and slow[0] else (0, 0) for _ in line[1:]]
    hops = delays + [(0, 0)] * (chunks - 1) + delays[::-1] * (chunks - 1)
    needed = [sum(activation[stage] for stage in range(size) if placement[stage] == device) for device in line]
    return case(
        n,
        placement,
        forward=[jitter(100 // chunks) for _ in range(size)],
        input_grad=[jitter(110 // chunks) for _ in range(size)],
        weight_grad=[jitter(90 // chunks) for _ in range(size)],
        latency=[latency for latency, _ in hops],
        occupancy=[occupancy for _, occupancy in hops],
        capacity=[max(amount, amount * p * draw.randint(50, 200) // 100) for amount in needed],
        activation=activation,
        held=held,
        message=0,
    )


@cache
def jittered_optima() -> tuple[JitteredOptimum, ...]:
    """Return what is known of every instance."""
    return tuple(JitteredOptimum(**entry) for entry in json.loads(_FILE.read_text("utf-8"))["cases"])


def _solved(number: int) -> JitteredOptimum:
    from cpipe.solve import SolveLimits, solve
    from cpipe.solve.bounds import lower_bound
    from cpipe.solve.cpsat import solve_cpsat

    problem = jittered_problem(number)
    start = solve(problem, "auto", SolveLimits(node_limit=0))
    makespan, bound = start.makespan_ns, 0
    for known, by in ((Bound(value_ns=0), "cpsat"), (lower_bound(problem), "with our bound")):
        # no bound is met before it starts, so the solver runs even where the heuristics are at theirs
        found = solve_cpsat(
            problem, start.schedule, lower_bound=known, work_limit=inf, time_limit=SECONDS, progress=None
        )
        assert found.schedule is not None and not found.warnings, found
        makespan = simulate(problem, found.schedule).makespan_ns
        bound = found.dual_bound_ns
        if makespan == bound:
            return JitteredOptimum(number, makespan, bound, by)
    return JitteredOptimum(number, makespan, bound, "unproven")


def main() -> None:
    """Solve all instances and write the file."""
    cases = []
    for number in range(NUM_INSTANCES):
        cases.append(_solved(number))
    about = "Optima of tests/jittered.py (ns) as CP-SAT proved them; a proof by cpsat alone uses no bound of ours."
    lines = ",\n  ".join(json.dumps(entry._asdict()) for entry in cases)
    _FILE.write_text(f'{{"about": {json.dumps(about)},\n "cases": [\n  {lines}]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
