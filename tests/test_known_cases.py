"""The known cases are built as they were meant: what is known of them holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.problems import PROBLEMS
from bench.run import main
from known_cases import PEERS, GridCase, PeerProfile, grid_cases, grid_problem, line_problem, peer_problem

from cpipe.schedules import static_schedule
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve import solve
from cpipe.solve.bounds import lower_bound

PEER_TIMES = {
    "P1": (33_000, 27_000),
    "P2": (346_000, 282_000),
    "P3": (1_455_300, 1_309_500),
    "P4": (49_000, 41_000),
    "P5": (251_800, 213_000),
    "P6": (99_720, 93_300),
}
"""Makespans of 1F1B and ZB-H1, published orders replayed independently."""


def test_grid_is_complete() -> None:
    """The grid has 36 cases with one stage a device and 6 in a V, all different, none with its bound above its best."""
    grid = grid_cases()
    assert [case.placement for case in grid] == ["ud"] * 36 + ["wave"] * 6
    assert len({case.name for case in grid}) == len(grid)
    assert all(case.lower_bound <= case.best_known for case in grid)


@pytest.mark.parametrize("grid", grid_cases(), ids=lambda grid: grid.name)
def test_grid_bounds_hold(grid: GridCase) -> None:
    """No closed-form bound is above what somebody reached, no greedy order below what somebody proved."""
    problem = grid_problem(grid)
    assert lower_bound(problem).value_ns <= grid.best_known
    assert solve(problem, "greedy-crosspipe").makespan_ns >= grid.lower_bound


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_peer_times_are_exact(peer: PeerProfile) -> None:
    """1F1B and ZB-H1 take exactly what peers' orders of the same name take, and fit in memory for p activations."""
    problem = peer_problem(peer, 1)
    orders = [static_schedule(name, problem).orders for name in ("1f1b", "zb-h1")]
    assert all(fits(problem, order) for order in orders)
    assert tuple(map(Simulator(problem).makespan, orders)) == PEER_TIMES[peer.name]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_peer_bounds_hold(peer: PeerProfile) -> None:
    """No closed-form bound is above the proven optimum, with memory for p or for 2 p activations."""
    for memory, best in enumerate(peer.best, start=1):
        assert lower_bound(peer_problem(peer, memory)).value_ns <= best


def test_line_problem_is_1f1b_tight() -> None:
    """The large problem of the benchmark has memory for 1F1B and for no activation more."""
    problem = line_problem(8, 16)
    assert fits(problem, static_schedule("1f1b", problem).orders)
    assert not fits(problem, static_schedule("gpipe", problem).orders)


def test_bench_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The benchmark prints a row a case and writes the same as JSON; none is behind what other schedulers reach."""
    report = tmp_path / "bench.json"
    main(["--quick", "--only", "peers", "--method", "greedy", "--json", str(report)])
    rows = json.loads(report.read_text(encoding="utf-8"))["peers"]
    known = {case.name: case.best_known for case in PROBLEMS["peers"]()}
    assert [row["case"] for row in rows] == list(known)[::7]
    assert all(row["bound"] <= row["found"] <= known[row["case"]] for row in rows)
    printed = capsys.readouterr().out.splitlines()[3:]  # behind an empty line, the section and the head
    for line, row in zip(printed, rows, strict=False):
        start = [*row["case"].split(), str(row["best_known"]), str(row["found"])]
        assert line.split()[: len(start)] == start
