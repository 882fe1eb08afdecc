"""Cases that practitioners hit, with their proven answers: reached and proven by `auto`."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import assert_plan_ok
from msgspec.structs import replace
from oracle.cases import case

from cpipe.errors import InfeasibleError, UsageError
from cpipe.ir import Bound, Hop, MadeBy, Problem
from cpipe.plan import lower
from cpipe.sim import memory_peaks, simulate
from cpipe.solve import solve
from cpipe.units import Bytes

LOOP, WAVE = [0, 1, 0, 1], [0, 1, 1, 0]


def line(p: int, n: int, **costs: Any) -> Problem:
    """Return p stages in line, unit times, everything freed at D unless `held` says otherwise."""
    return case(n, list(range(p)), message=0, **costs)


def slow_hop(cap: int, latency: int) -> Problem:
    """Return four stages of F = D = W = 2 with a latency on the middle hop only."""
    return line(4, 8, forward=2, input_grad=2, weight_grad=2, capacity=cap, latency=[0, latency, 0])


def assert_optimal(problem: Problem, optimum: int) -> None:
    """Solve by `auto`: the optimum is met, proven, replayed, and its plan is valid."""
    result = solve(problem)
    assert (result.makespan_ns, result.status) == (optimum, "optimal")
    plan = lower(
        problem,
        result.schedule,
        simulate(problem, result.schedule),
        bound=result.bound,
        resident_peaks=memory_peaks(problem, result.schedule.orders),
        made_by=MadeBy(cpipe="0", method="auto", seed=0, limits={}),
    )
    assert_plan_ok(plan, problem)


@pytest.mark.parametrize(
    ("p", "n", "optimum"),
    [
        (1, 4, 12),
        (2, 1, 5),
        (2, 2, 7),
        (2, 4, 13),
        (3, 1, 7),
        (3, 2, 9),
        (3, 3, 11),
        (3, 4, 14),
        (3, 6, 20),
        (4, 2, 11),  # fewer microbatches than stages is legal
        (4, 3, 13),
        (4, 4, 15),
    ],
)
def test_unit_times(p: int, n: int, optimum: int) -> None:
    """F = D = W = 1, free links: the exact small optima."""
    assert_optimal(line(p, n), optimum)


@pytest.mark.parametrize(
    ("caps", "optimum"),
    [
        ([3, 3, 3], 20),
        ([2, 3, 3], 21),
        ([1, 3, 3], 37),
        ([3, 1, 3], 27),
        ([3, 2, 1], 20),
        (1, 37),
        (2, 21),
        (3, 20),
        (4, 20),
        (6, 20),
    ],
)
def test_memory_limits_are_per_device(caps: list[int] | int, optimum: int) -> None:
    """One global memory number hides which device is short; per-device caps change the optimum."""
    assert_optimal(line(3, 6, capacity=caps), optimum)


@pytest.mark.parametrize(("held", "tight"), [(0, 21), (1, 25), (2, 25)])
def test_memory_held_until_w_counts(held: int, tight: int) -> None:
    """What W still needs is not free after D: room for three costs nothing, room for two does."""
    assert_optimal(line(3, 6, activation=2, held=held, capacity=6), 20)
    assert_optimal(line(3, 6, activation=2, held=held, capacity=4), tight)


def test_a_transient_of_d_decides_feasibility() -> None:
    """D that needs four more while it runs fits in five but not in four, and the device is named."""
    problem = line(2, 2, input_grad_transient=4, capacity=4)
    with pytest.raises(InfeasibleError, match=r"device 'g0' needs 5 bytes for one microbatch .* short by 1"):
        solve(problem)
    assert solve(line(2, 2, input_grad_transient=4, capacity=5)).status == "optimal"


@pytest.mark.parametrize(
    ("costs", "n", "optimum"),
    [
        ([8, 8, 8, 10], 6, 204),
        ([8, 8, 8, 8], 6, 8 * (3 + 3 * 6)),
        ([1, 1, 1, 2], 4, 27),
        ([1, 0, 1], 4, 13),  # an empty stage passes its messages on
        ([3, 3, 3, 5], 4, 69),
        ([3, 3, 4, 4], 4, 58),
        ([4, 3, 4, 3], 4, 57),
    ],
)
def test_uneven_stages(costs: list[int], n: int, optimum: int) -> None:
    """Stages of different weight, F = D = W on each."""
    problem = line(len(costs), n, forward=costs, input_grad=costs, weight_grad=costs)
    assert_optimal(problem, optimum)


@pytest.mark.parametrize(
    ("costs", "n", "optimum"),
    [
        ({"input_grad": [0, 1, 1], "weight_grad": [2, 1, 1]}, 4, 14),  # the first stage has no input gradient
        ({"weight_grad": [1, 0, 1]}, 4, 14),  # a frozen stage has no weight gradient
        ({"weight_grad": 3}, 6, 32),
        ({"forward": 2, "input_grad": 2}, 6, 34),
        ({"input_grad": 2, "capacity": 3}, 6, 28),
        ({"input_grad": 2}, 6, 26),  # with memory for all
    ],
)
def test_kinds_of_different_weight(costs: dict[str, Any], n: int, optimum: int) -> None:
    """Mixed devices, frozen stages and a first stage without input gradient."""
    assert_optimal(line(3, n, **costs), optimum)


@pytest.mark.parametrize(("cap", "optima"), [(4, (54, 58, 62, 86)), (6, (54, 56, 58, 78)), (8, (54, 56, 58, 66))])
def test_memory_buys_latency_hiding(cap: int, optima: tuple[int, ...]) -> None:
    """One slow hop costs 1F1B a round trip per microbatch; an order that knows it hides it as far as memory allows."""
    for latency, optimum in zip((0, 2, 4, 10), optima, strict=True):
        assert_optimal(slow_hop(cap, latency), optimum)


@pytest.mark.parametrize(("latency", "makespan"), [(0, 66), (2, 82), (4, 98), (10, 146)])
def test_1f1b_pays_a_slow_hop_per_microbatch(latency: int, makespan: int) -> None:
    """1F1B's makespan is 66 + 8 L on the slow hop."""
    assert solve(slow_hop(8, latency), "1f1b").makespan_ns == makespan


@pytest.mark.parametrize(("latency", "one_f_one_b", "two", "four"), [(4, 31, 27, 19), (8, 47, 43, 27)])
def test_two_stages_over_a_slow_link(latency: int, one_f_one_b: int, two: int, four: int) -> None:
    """Room for two microbatches, and for four, against 1F1B."""
    assert solve(line(2, 4, latency=latency), "1f1b").makespan_ns == one_f_one_b
    assert_optimal(line(2, 4, latency=latency, capacity=2), two)
    assert_optimal(line(2, 4, latency=latency, capacity=4), four)


@pytest.mark.parametrize(("occupancy", "full", "half"), [(1, 14, 14), (2, 15, 19), (3, 20, 27)])
def test_duplex_is_part_of_the_link(occupancy: int, full: int, half: int) -> None:
    """Two transfers at once on a half-duplex link wait for each other."""
    assert_optimal(line(2, 4, occupancy=occupancy, capacity=4), full)
    assert_optimal(line(2, 4, occupancy=occupancy, capacity=4, half_duplex=True), half)


@pytest.mark.parametrize(("n", "optimum"), [(3, 19), (4, 25), (5, 31)])
def test_interleaving_needs_no_divisibility(n: int, optimum: int) -> None:
    """Two stages a device in a loop, any number of microbatches."""
    assert_optimal(case(n, LOOP, capacity=8, message=0), optimum)


@pytest.mark.parametrize(("latency", "wave", "loop"), [(0, 25, 25), (1, 26, 26), (4, 33, 39)])
def test_a_v_crosses_a_slow_link_less_often(latency: int, wave: int, loop: int) -> None:
    """Adjacent stages on one device hand over locally; on a slow link the V wins."""
    assert_optimal(case(4, WAVE, latency=latency, message=0), wave)
    assert_optimal(case(4, LOOP, latency=latency, message=0), loop)
    messages = [
        len(simulate(problem, solve(problem).schedule).messages)
        for problem in (case(4, WAVE, message=0), case(4, LOOP, message=0))
    ]
    assert messages == [16, 24]


@pytest.mark.parametrize(
    ("placement", "cap", "optimum"), [(LOOP, 18, 25), (LOOP, 22, 25), (WAVE, 22, 27), (WAVE, 18, None)]
)
def test_static_memory_is_per_stage(placement: list[int], cap: int, optimum: int | None) -> None:
    """Embedding and head on one device: the V is infeasible where the loop fits, and says which device."""
    problem = case(4, placement, static=[10, 2, 2, 10], capacity=cap, message=0)
    if optimum is None:
        with pytest.raises(InfeasibleError, match=r"device 'g0' needs 22 bytes .* and has 18: short by 4"):
            solve(problem)
    else:
        assert_optimal(problem, optimum)


@pytest.mark.parametrize(
    ("placement", "cap", "optimum"), [(LOOP, 4, 25), (LOOP, 3, 26), (WAVE, 2, 27), (LOOP, 1, None), (WAVE, 1, None)]
)
def test_chunks_at_equal_memory(placement: list[int], cap: int, optimum: int | None) -> None:
    """Each resident chunk needs at least one activation."""
    problem = case(4, placement, capacity=cap, message=0)
    if optimum is None:
        with pytest.raises(InfeasibleError, match="short by 1"):
            solve(problem)
    else:
        assert_optimal(problem, optimum)


def per_link(p: int, n: int, times: tuple[Any, Any, Any], latency: Any, memory: int) -> Problem:
    """Return a peers' profile: memory released at W, `memory` activations of room."""
    f, d, w = times
    return line(p, n, forward=f, input_grad=d, weight_grad=w, latency=latency, held=1, activation=1, capacity=memory)


@pytest.mark.parametrize(
    ("problem", "optimum"),
    [
        (per_link(4, 8, (1, 1, 1), 0, 4), 27),
        (per_link(4, 8, (1, 1, 1), 0, 8), 27),
        (per_link(4, 8, (10, 10, 10), 1, 4), 282),
        (per_link(4, 8, (10, 10, 10), 1, 8), 273),
        (per_link(4, 8, (1, 1, 1), [0, 2, 0], 4), 35),
        (per_link(4, 8, (1, 1, 1), [0, 2, 0], 8), 29),
        (per_link(4, 16, ([100, 120, 120, 200], [100, 120, 120, 200], [80, 96, 96, 160]), 10, 4), 9330),
        (per_link(4, 16, ([100, 120, 120, 200], [100, 120, 120, 200], [80, 96, 96, 160]), 10, 8), 9330),
        (per_link(8, 24, (185, 181, 93), 6, 8), 13095),
        (per_link(8, 24, (185, 181, 93), 6, 16), 12353),
    ],
)
def test_the_peers_profiles(problem: Problem, optimum: int) -> None:
    """The proved optima of common profiles, one stage per device, memory p and 2p."""
    assert_optimal(problem, optimum)


@pytest.mark.parametrize(
    ("reduce", "unsplit", "split"),
    [
        ([0, 0, 0], 18, 14),
        ([0, 0, 4], 18, 18),
        ([0, 0, 5], 19, None),
        ([0, 2, 0], 18, 15),
        ([2, 0, 0], 20, None),
        ([4, 0, 0], 22, 18),
        ([2, 2, 2], None, 16),
        ([6, 6, 6], None, 20),
    ],
)
def test_only_some_stages_hide_their_reduce(reduce: list[int], unsplit: int | None, split: int | None) -> None:
    """Gradient all-reduces overlap with the drain where their stage finishes early."""
    if unsplit is not None:
        problem = line(3, 4, full=2, split=False, reduce=reduce, capacity=3)
        assert_optimal(problem, unsplit)
    if split is not None:
        assert_optimal(line(3, 4, reduce=reduce, capacity=3), split)


def test_a_split_schedule_needs_split_times() -> None:
    """A stage that cannot be split says so when a split schedule is asked."""
    with pytest.raises(
        UsageError, match="zb-h1 needs input_grad_ms and weight_grad_ms, stage 's0' has only full_backward_ms"
    ):
        solve(line(2, 2, split=False), "zb-h1")


def test_posted_receives_count_in_memory() -> None:
    """The peak on a receiver is what is in flight plus one buffer per posted receive."""
    problem = case(4, [0, 1], message=1)
    plans = {}
    for window in (1, 2, 4):
        windowed = replace(problem, receive_window=window)
        result = solve(windowed)
        plan = lower(
            windowed,
            result.schedule,
            result.timeline,
            bound=Bound(value_ns=0),
            resident_peaks=memory_peaks(windowed, result.schedule.orders),
            made_by=MadeBy(cpipe="0", method="auto", seed=0, limits={}),
        )
        assert_plan_ok(plan, windowed)
        incoming = sum(channel.window for channel in plan.channels if channel.target == 1)
        assert incoming <= window
        assert plan.claims.peak_bytes[1] == memory_peaks(windowed, result.schedule.orders)[1] + incoming
        plans[window] = plan.claims.makespan_ns
    assert plans[1] >= plans[2] >= plans[4]


def test_the_wrap_link_of_a_loop_is_a_message_of_its_own() -> None:
    """A loop sends from its last device to its first; the hop costs like any other."""
    problem = case(2, [0, 1, 0, 1], latency=5, message=1)
    hops = [hop for hop in (*problem.forward_hops, *problem.backward_hops) if isinstance(hop, Hop)]
    assert {(hop.source, hop.target) for hop in hops} == {(0, 1), (1, 0)}
    assert all(hop.message_bytes == Bytes(1) for hop in hops)
    assert_optimal(problem, solve(problem).makespan_ns)
