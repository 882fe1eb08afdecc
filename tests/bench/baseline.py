"""A benchmark run against a stored one: makespans as they are, times in units of a loop timed in the same run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["BASELINE", "changes", "speed_of_this_machine", "store", "stored"]

BASELINE = Path(__file__).with_name("baseline.json")
SLOWER = 1.6
"""A section counts as slower from this ratio on; two runs on one machine differ by up to 1.3."""
_LOOP = 2_000_000

Row = Mapping[str, Any]


def speed_of_this_machine() -> float:
    """Return the seconds of a fixed loop, the best of three: the unit in which times are compared."""

    def loop() -> float:
        start, total = time.perf_counter(), 0
        for number in range(_LOOP):
            total += number & 7
        return time.perf_counter() - start

    return min(loop() for _ in range(3))


def changes(sections: Mapping[str, Sequence[Row]], unit_s: float, baseline: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for every case whose makespan or bound changed, and every section that became slower.

    Parameters
    ----------
    sections
        Rows by section; those with ``found`` and ``bound`` are compared.
    unit_s
        `speed_of_this_machine`.
    baseline
        What `stored` returns.
    """
    for name, rows in sections.items():
        before = baseline["cases"].get(name, {})
        common = [row for row in rows if row["case"] in before]
        for row in common:
            old = before[row["case"]]
            for what, better in (("found", -1), ("bound", 1)):
                if row[what] != old[what]:
                    word = "better" if (row[what] - old[what]) * better > 0 else "WORSE"
                    change = row[what] / old[what] - 1
                    yield f"{word}: {name}, {row['case']}: {what} {old[what]} -> {row[what]} ({change:+.2%})"
        ours, theirs = (sum(some) for some in ([row["seconds"] for row in common], _units(before, common)))
        if common and theirs and (ratio := ours / unit_s / theirs) > SLOWER:
            yield f"WORSE: {name}: takes {ratio:.2f} times as long as in the baseline"


def _units(before: Mapping[str, Row], common: Sequence[Row]) -> list[float]:
    return [before[row["case"]]["units"] for row in common]


def stored() -> dict[str, Any] | None:
    """Return the stored run, or None."""
    return json.loads(BASELINE.read_text("utf-8")) if BASELINE.exists() else None


def store(sections: Mapping[str, Sequence[Row]], unit_s: float) -> None:
    """Keep this run as the baseline."""
    cases = {
        name: {
            row["case"]: {
                "found": row["found"],
                "bound": row["bound"],
                "evaluations": row["evaluations"],
                "units": round(row["seconds"] / unit_s, 2),
            }
            for row in rows
        }
        for name, rows in sections.items()
    }
    BASELINE.write_text(json.dumps({"cases": cases}, indent=1) + "\n", encoding="utf-8")
