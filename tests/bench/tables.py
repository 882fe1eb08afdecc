"""Compare the model with Tables 5 and 6 of CrossPipe (ATC'25): ``make tables``.

Seconds per microbatch of M70 over two (Table 5) and four (Table 6) datacenters: measured by the paper, simulated here.
The block times were fitted to these same values, so this shows how well a plain model can follow them, not that it
predicts. The static columns were measured with receives posted late, which the model does not have.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import NamedTuple

from m70 import PAPER_DELAYS, Delays, m70_profile, problem_of

from cpipe.ir import Problem, Schedule
from cpipe.schedules import static_schedule
from cpipe.sim import Simulator
from cpipe.solve.crosspipe import crosspipe_greedy

__all__ = ["COLUMNS", "ENTRIES", "Column", "Entry", "main", "order_of", "paper_entries", "table_problem"]


class Column(NamedTuple):
    """A column of the tables: its title, the method here, and the memory limit in units of 1F1B's activations."""

    title: str
    method: str
    memory: int


COLUMNS = (
    Column("1F1B", "1f1b", 1),
    Column("ZBH1", "zb-h1", 1),
    Column("UDSub case 1", "greedy-crosspipe", 1),
    Column("UDSub case 3", "greedy-crosspipe", 2),
)

# (paper's seconds per microbatch, error of the fitted model in percent of it), by datacenters and row, in column order
_TABLES: dict[int, tuple[tuple[tuple[str, int], ...], ...]] = {
    2: (
        (("0.151", 0), ("0.133", 7), ("0.137", 3), ("0.121", 0)),
        (("0.168", 1), ("0.150", 4), ("0.149", 0), ("0.123", -1)),
        (("0.241", -2), ("0.230", -3), ("0.181", -7), ("0.144", -12)),
        (("0.242", -2), ("0.229", -2), ("0.160", 5), ("0.127", -2)),
        (("0.321", -5), ("0.309", -6), ("0.198", -6), ("0.145", -11)),
    ),
    4: (
        (("0.149", 1), ("0.133", 7), ("0.138", 2), ("0.123", -1)),
        (("0.177", 0), ("0.158", 4), ("0.155", 2), ("0.126", -2)),
        (("0.269", 2), ("0.249", 5), ("0.216", 1), ("0.158", -13)),
        (("0.268", 2), ("0.248", 5), ("0.200", 9), ("0.138", -1)),
        (("0.359", 3), ("0.338", 6), ("0.268", 2), ("0.178", -7)),
    ),
}


class Entry(NamedTuple):
    """A value of the tables.

    Attributes
    ----------
    num_sites, delays, column
        Its place: datacenters, row and column.
    paper_s
        Measured by the paper [s per microbatch].
    fitted_s
        What an independent simulator and greedy with the same block times gave [s per microbatch].
    """

    num_sites: int
    delays: Delays
    column: Column
    paper_s: Fraction
    fitted_s: Fraction


def paper_entries() -> tuple[Entry, ...]:
    """Return the 40 values, table by table, row by row."""
    return tuple(
        Entry(num_sites, delays, column, Fraction(paper), Fraction(paper) * (100 + error) / 100)
        for num_sites, rows in _TABLES.items()
        for delays, row in zip(PAPER_DELAYS, rows, strict=True)
        for column, (paper, error) in zip(COLUMNS, row, strict=True)
    )


ENTRIES = paper_entries()


def table_problem(entry: Entry) -> Problem:
    """Return the problem of a value: 16 microbatches, or 32 with twice the memory (case 3)."""
    return problem_of(m70_profile(entry.delays, entry.column.memory, entry.num_sites))


def order_of(problem: Problem, method: str) -> Schedule:
    """Return the order of a static schedule or of CrossPipe's greedy."""
    if method != "greedy-crosspipe":
        return static_schedule(method, problem)
    schedule = crosspipe_greedy(problem, Simulator(problem).tables)
    assert schedule is not None, "with one stage on a device the greedy never gets stuck"
    return schedule


def model_s(entry: Entry) -> float:
    """Return the model's value of an entry [s per microbatch]."""
    problem = table_problem(entry)
    makespan = Simulator(problem).makespan(order_of(problem, entry.column.method).orders)
    assert makespan is not None
    return makespan / problem.microbatches / 1e9


def main() -> int:
    """Print both tables, and the largest and the root mean square error."""
    errors = []
    for num_sites in _TABLES:
        print(f"Table {5 if num_sites == 2 else 6}: {num_sites} datacenters, s per microbatch (paper, cpipe, error)")
        print(f"{'lat bw / T_F':<14}" + "".join(f"{column.title:>26}" for column in COLUMNS))
        for delays in PAPER_DELAYS:
            row = f"{delays.latency:>5} {delays.bandwidth:>5}   "
            for entry in (entry for entry in ENTRIES if (entry.num_sites, entry.delays) == (num_sites, delays)):
                ours = model_s(entry)
                errors.append(ours / float(entry.paper_s) - 1)
                row += f"{float(entry.paper_s):10.3f} {ours:7.4f} {errors[-1]:+7.1%}"
            print(row)
        print()
    root_mean_square = (sum(error**2 for error in errors) / len(errors)) ** 0.5
    print(f"error: root mean square {root_mean_square:.1%}, largest {max(errors, key=abs):+.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
