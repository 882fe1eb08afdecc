"""`solve` with its defaults, but no exact solver, finds what is known to be best."""

from __future__ import annotations

import pytest
from jittered import NUM_INSTANCES, jittered_optima, jittered_problem
from known_cases import (
    HEAD_ROOM,
    HELD_LINK,
    PEERS,
    GridCase,
    PeerProfile,
    grid_cases,
    grid_problem,
    head_room_problem,
    held_link_problem,
    peer_problem,
    sized_problem,
)

from cpipe.ir import Problem
from cpipe.sim.memory import fits
from cpipe.solve import SolveLimits, solve
from cpipe.solve.bounds import lower_bound
from cpipe.solve.refute import tightened_bound

HARD = {  # in a V, tight: what is missing to the best that is known [ns]
    "wave p4 n8 (25,200) 1x": 41,
    "wave p4 n8 (25,200) 2x": 10,
    "wave p4 n8 (200,25) 1x": 10,
    "wave p4 n8 (0,0) 1x": 10,
}
LONG_CELLS = ((16, 4), (32, 5))  # of `HEAD_ROOM`


def found(problem: Problem) -> int:
    """Return the makespan that static schedules, greedy passes and local search find, checked."""
    result = solve(problem, "auto", SolveLimits(node_limit=0))
    result.schedule.verify(problem)
    assert fits(problem, result.schedule.orders)
    return result.makespan_ns


@pytest.mark.parametrize("grid", [grid for grid in grid_cases() if grid.name not in HARD], ids=lambda grid: grid.name)
def test_the_grid_is_solved(grid: GridCase) -> None:
    """Wherever the optimum is known it is found."""
    assert found(grid_problem(grid)) == grid.best_known


@pytest.mark.slow
@pytest.mark.parametrize("grid", [grid for grid in grid_cases() if grid.name in HARD], ids=lambda grid: grid.name)
def test_the_hard_ones_are_within_a_percent(grid: GridCase) -> None:
    """Two stages a device and tight memory or a slow link: within a hundredth of the best that anybody found."""
    missing = found(grid_problem(grid)) - grid.best_known
    assert missing <= HARD[grid.name] <= grid.best_known // 100


@pytest.mark.parametrize("cell", [cell for cell in HEAD_ROOM if cell not in LONG_CELLS], ids=str)
def test_one_cut_is_solved_in_every_cell(cell: tuple[int, int]) -> None:
    """Four devices, one cut of latency 1, 2, 4 or 8: the proven optimum with every memory."""
    n, memory = cell
    makespans = tuple(found(head_room_problem(n, memory, latency)) // 1000 for latency in (1, 2, 4, 8))
    assert makespans == HEAD_ROOM[cell]


@pytest.mark.slow
@pytest.mark.parametrize("cell", LONG_CELLS, ids=str)
def test_one_cut_is_solved_where_that_takes_long(cell: tuple[int, int]) -> None:
    """The same for the cells in which greedy orders are not optimal, or not proven so by closed forms."""
    n, memory = cell
    makespans = tuple(found(head_room_problem(n, memory, latency)) // 1000 for latency in (1, 2, 4, 8))
    assert makespans == HEAD_ROOM[cell]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_peers_are_not_better_with_one_stage_a_device(peer: PeerProfile) -> None:
    """On the profiles of other schedulers the proven optimum is found, with memory for p and for 2 p activations."""
    assert tuple(found(peer_problem(peer, memory)) for memory in (1, 2)) == peer.best


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_peers_are_not_better_in_a_v(peer: PeerProfile) -> None:
    """With two stages a device in a V nothing that others found is shorter, at equal memory."""
    for memory, best in zip((1, 2), peer.best_v, strict=True):
        assert found(peer_problem(peer, memory, 2)) <= best


@pytest.mark.parametrize("memory", [4, 8])
@pytest.mark.parametrize("chunks", [1, 2])
def test_held_links_are_searched_for(chunks: int, memory: int) -> None:
    """Where messages hold a link, orders made with that in mind are shorter than any made without."""
    assert found(held_link_problem(chunks, memory)) < HELD_LINK[chunks, memory]


@pytest.mark.slow
@pytest.mark.parametrize(("latency", "occupancy"), [(0, 0), (200, 25), (25, 200)])
@pytest.mark.parametrize("memory", [1, 2])
def test_larger_lines_are_close_to_their_bound(latency: int, occupancy: int, memory: int) -> None:
    """Sixteen devices and 64 microbatches: within 1.5 % of what is proven, within 0.35 % where memory is ample."""
    problem = sized_problem("ud", 16, 64, latency, occupancy, memory)
    result = solve(problem, "auto", SolveLimits(node_limit=0))
    assert result.gap <= (0.015, 0.0035)[memory - 1]


@pytest.mark.slow
def test_random_problems_are_solved() -> None:
    """Of 92 small problems with random costs, memory and links, all but two are solved to their proven optimum."""
    missed = [known.number for known in jittered_optima() if found(jittered_problem(known.number)) != known.makespan]
    assert len(missed) <= 2


def test_optima_of_random_problems_are_proven_by_an_exact_solver() -> None:
    """All 92 references were closed by CP-SAT on its own: no bound of ours is part of them."""
    assert [known.number for known in jittered_optima()] == list(range(NUM_INSTANCES))
    assert all(known.by == "cpsat" and known.makespan == known.bound for known in jittered_optima())


def test_no_bound_exceeds_a_proven_optimum() -> None:
    """On every third random problem our bounds, shaving included, are at most the optimum that CP-SAT proved."""
    for known in jittered_optima()[::3]:
        problem = jittered_problem(known.number)
        bound = lower_bound(problem)
        assert bound.value_ns <= tightened_bound(problem, bound, 2 * known.makespan, 20_000).value_ns <= known.makespan
