"""Devices on several sites: unequal splits, links that wrap around, one pipe for all that a site sends another."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import combinations, pairwise
from typing import Any

import pytest
from helpers import assert_plan_ok, plan_of

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.errors import ProfileError
from cpipe.ir import MessageRun, Problem, Timeline
from cpipe.profile import Profile, normalize, parse_profile
from cpipe.schedules import static_schedule
from cpipe.schedules.placements import loop_placement, wave_placement
from cpipe.sim import simulate
from cpipe.solve import solve

MS = 1_000_000
LAYOUTS = ("a", "aab", "abb", "aaab", "aabb", "abc", "aabc", "abbc", "abcc", "abcd", "abab", "abca")


def profile_of(
    layout: str, placement: tuple[int, ...], n: int, *, occupancy_ms: float = 0, latency_ms: float = 0, **changes: Any
) -> Profile:
    """Return F = D = W = 1 ms; device k on the site ``layout[k]``, every two sites linked alike."""
    document = {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": n,
        "devices": [{"id": f"g{index}", "site": site} for index, site in enumerate(layout)],
        "stages": [
            {"id": f"s{index}", "device": f"g{device}", "forward_ms": 1, "input_grad_ms": 1, "weight_grad_ms": 1}
            | {"output_bytes": 1}
            for index, device in enumerate(placement)
        ],
        "links": [
            {"between": list(ends), "latency_ms": latency_ms, "beta_ns_per_byte": occupancy_ms * MS}
            for ends in combinations(sorted(set(layout)), 2)
        ],
    } | changes
    return parse_profile(json.dumps(document).encode(), "p.json")


def by_pipe(problem: Problem, timeline: Timeline) -> dict[str, list[MessageRun]]:
    """Return the messages of each pipe in order of time."""
    runs: dict[str, list[MessageRun]] = defaultdict(list)
    for run in sorted(timeline.messages, key=lambda run: run.start_ns):
        runs[problem.pipes[run.pipe]].append(run)
    return runs


def crossings(layout: str, placement: tuple[int, ...]) -> set[str]:
    """Return the directed pairs of sites that some message crosses: activations one way, gradients back."""
    pairs = [(layout[source], layout[target]) for source, target in pairwise(placement)]
    return {f"{a}->{b}" for first, second in pairs for a, b in ((first, second), (second, first)) if a != b}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", ["line", "loop", "wave"])
def test_a_pair_of_sites_has_one_pipe_a_direction(layout: str, shape: str) -> None:
    """However the devices are split over sites, all messages from one site to another take turns on one pipe."""
    p = len(layout)
    placement = {"line": tuple(range(p)), "loop": loop_placement(2 * p, p), "wave": wave_placement(2 * p, p)}[shape]
    problem = normalize(profile_of(layout, placement, 3, occupancy_ms=0.75, latency_ms=0.5))
    name = {"line": "1f1b", "loop": "looped-bfs", "wave": "zb-v"}[shape]
    schedule = static_schedule(name, problem)
    timeline = simulate(problem, schedule)
    runs = by_pipe(problem, timeline)
    assert {name for name in runs if "g" not in name} == crossings(layout, placement)
    for messages in runs.values():
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(messages))
    assert_plan_ok(plan_of(problem, schedule), problem)


@pytest.mark.parametrize("layout", ["aab", "aaab", "aabb", "abc", "abbc", "abcd"])
def test_the_wrap_of_a_loop_shares_the_pipe_of_the_gradients(layout: str) -> None:
    """From the last site back to the first: the wrap's activations and, with two sites, the middle's gradients."""
    p = len(layout)
    problem = normalize(profile_of(layout, loop_placement(2 * p, p), 2, occupancy_ms=1))
    wrap = problem.forward_hops[p - 1]
    assert wrap is not None
    assert (wrap.source, wrap.target, problem.pipes[wrap.pipe]) == (p - 1, 0, f"{layout[-1]}->a")
    sharing = {(hop.source, hop.target) for hop in problem.backward_hops if hop is not None and hop.pipe == wrap.pipe}
    middle = {(k + 1, k) for k in range(p - 1) if (layout[k + 1], layout[k]) == (layout[-1], "a")}
    assert sharing == middle
    assert bool(sharing) == (len(set(layout)) == 2)


def test_the_wrap_and_the_gradients_wait_for_each_other() -> None:
    """Two senders of one site: the message that is ready first goes, the other waits until the pipe is free."""
    problem = normalize(profile_of("abb", loop_placement(6, 3), 6, occupancy_ms=3))
    timeline = simulate(problem, static_schedule("interleaved-1f1b", problem))
    back = by_pipe(problem, timeline)["b->a"]
    assert {(run.kind, run.source) for run in back} == {("activation", 2), ("gradient", 1)}
    held = [(before, after) for before, after in pairwise(back) if after.ready_ns < before.end_ns]
    assert {(before.kind, after.kind) for before, after in held} >= {
        ("activation", "gradient"),
        ("gradient", "activation"),
    }
    for before, after in held:
        assert after.start_ns == before.end_ns
        assert (before.source == after.source) or before.ready_ns <= after.ready_ns


@pytest.mark.parametrize(("shared", "start"), [(True, 13), (False, 11)])
def test_several_devices_of_a_site_share_its_pipe(shared: bool, start: int) -> None:
    """Stages zigzag between two sites: the third stage's first message waits for the first stage's last.

    F 1, a message holds the pipe for 4: g0 sends at 1, 5 and 9; g1 has its first activation at 10, is done with it at
    11, and finds the pipe taken until 13. With links of their own it sends at once.
    """
    own = [
        {"between": [first, second], "beta_ns_per_byte": 4 * MS}
        for first, second in (("g0", "g2"), ("g2", "g1"), ("g1", "g3"))
    ]
    changes: dict[str, Any] = {} if shared else {"links": own}
    problem = normalize(profile_of("aabb", (0, 2, 1, 3), 3, occupancy_ms=4, **changes))
    schedule = static_schedule("gpipe", problem)
    timeline = simulate(problem, schedule)
    sent = [run.start_ns for run in timeline.messages if run.kind == "activation" and run.source == 1]
    assert sent[0] == start * MS
    assert_plan_ok(plan_of(problem, schedule), problem)


@pytest.mark.parametrize(
    ("layout", "optimum"),
    [("aaa", 14), ("aab", 17), ("abb", 17), ("abc", 21)],
)
def test_every_crossing_costs_a_round_trip(layout: str, optimum: int) -> None:
    """Three stages, four microbatches, 2 ms between sites: where the cut is does not matter, their number does.

    With L = 2 ms a cut in all, the last stage starts at 2 + L and ends its four F and D at 10 + L; then a gradient
    travels for L, and D of two stages and one W follow: 13 + 2L. Without cuts the last stage works until 14.
    """
    problem = normalize(profile_of(layout, (0, 1, 2), 4, latency_ms=2))
    result = solve(problem)
    assert (result.makespan_ns, result.status) == (optimum * MS, "optimal")
    assert_plan_ok(plan_of(problem, result.schedule), problem)


@pytest.mark.parametrize("layout", ["aab", "aaab", "abbc", "abcd"])
@pytest.mark.parametrize("placement", ["ud", "loop", "wave"])
def test_a_plan_for_every_placement(layout: str, placement: str) -> None:
    """Unequal sites are searched like any other, in line, in a loop and in a wave."""
    p = len(layout)
    profile = profile_of(layout, tuple(range(p)) * 2, 4, occupancy_ms=0.5, latency_ms=1)
    compiled = compile_profile(profile, SolveOptions(method="greedy", placement=placement))
    assert_plan_ok(compiled.plan, compiled.problem)
    assert compiled.placement == placement


def test_a_loop_over_sites_in_a_row_needs_the_link_back() -> None:
    """Three sites in a row are enough for a line; the wrap of a loop needs the last joined with the first."""
    row = [{"between": ["a", "b"]}, {"between": ["b", "c"]}]
    normalize(profile_of("abc", (0, 1, 2), 2, links=row))
    with pytest.raises(ProfileError, match=r'no link joins site "c" and site "a", between stages "s2" and "s3"'):
        profile_of("abc", (0, 1, 2, 0, 1, 2), 2, links=row)
