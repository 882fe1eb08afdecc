"""Small random problems whose optimum is known: stages in line or in a V, every number jittered by up to 40 %.

``python tests/jittered.py`` makes ``tests/data/jittered.json`` anew: every instance is solved by CP-SAT with a long
limit, started from the best order of the heuristics. Only proven optima are kept as such.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from oracle.cases import case

from cpipe.ir import Problem

__all__ = ["NUM_INSTANCES", "jittered_optima", "jittered_problem"]

NUM_INSTANCES = 92
_FILE = Path(__file__).parent / "data" / "jittered.json"
_SIZES = ((2, 4), (2, 6), (3, 4), (3, 6), (4, 4), (4, 6), (4, 8))  # devices, microbatches


def jittered_problem(number: int) -> Problem:
    """Return instance `number`: 2 to 4 devices, 4 to 8 microbatches; every second one has two stages a device, in a V.

    F, D and W take about 100, 110 and 90 a device, an activation about 10 bytes, of which D frees about 3. Memory is
    for 1 to 2 p activations (at least one microbatch), each link has a random latency and occupancy or none.
    """
    draw = Random(1000 + number)
    chunks = 1 + number % 2
    p, n = _SIZES[draw.randrange(len(_SIZES) - 2 * (chunks - 1))]

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
def jittered_optima() -> tuple[tuple[int, int], ...]:
    """Return the best makespan and the proven bound of every instance [ns]; equal where the optimum is proven."""
    cases = json.loads(_FILE.read_text("utf-8"))["cases"]
    return tuple((entry["makespan"], entry["bound"]) for entry in cases)


def _solved(number: int) -> dict[str, Any]:
    from cpipe.solve import SolveLimits, TimeLimit, solve

    problem = jittered_problem(number)
    best = solve(problem, "auto", SolveLimits(node_limit=0))
    if best.status != "optimal":
        exact = solve(problem, "cpsat", SolveLimits(time_limit=TimeLimit(25)), starts=[best.schedule])
        best = min(best, exact, key=lambda result: (result.makespan_ns, -result.bound.value_ns))
    return {"number": number, "makespan": best.makespan_ns, "bound": best.bound.value_ns, "by": best.bound.proved_by}


def main() -> None:
    """Solve all instances and write the file."""
    cases = []
    for number in range(NUM_INSTANCES):
        cases.append(_solved(number))
    about = "Optima of tests/jittered.py: best makespan and proven bound (ns), by closed forms or CP-SAT."
    lines = ",\n  ".join(json.dumps(entry) for entry in cases)
    _FILE.write_text(f'{{"about": {json.dumps(about)},\n "cases": [\n  {lines}]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
