"""Tests of fused pairs in the IR and the simulator: one op, two inputs, two outputs."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from oracle.cases import case
from oracle.orders import all_schedules, random_schedule
from oracle.paired import draw_paired, naive_makespan, pairings

from cpipe.ir import InvariantError, Problem, Schedule
from cpipe.schedules import static_schedule
from cpipe.sim import DeadlockError, Simulator, memory_peaks, simulate
from cpipe.sim.memory import fits
from cpipe.solve.bounds import lower_bound, span_bound
from cpipe.units import Bytes, Ns


def schedule(problem: Problem, *lines: str) -> Schedule:
    """Return the schedule of one line a device, verified."""
    made = Schedule.from_text("\n".join(lines), problem.microbatches)
    made.verify(problem)
    return made


V = case(3, (0, 1, 1, 0), full=3)
V_ORDER = schedule(
    V,
    "0F0 0F1 3F0 0F2+3B0 3F1 3B1 3F2 3B2 0B0 0B1 0B2",
    "1F0 2F0 1F1 2F1 1F2+2B0 2F2 1B0 2B1 1B1 2B2 1B2",
)


def test_pair_waits_for_both_inputs() -> None:
    """A pair starts when the later of its inputs is there, and takes F + B."""
    problem = case(2, (0, 1, 1, 0), full=3, latency=10)
    order = schedule(problem, "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1", "1F0 2F0 1F1+2B0 2F1 1B0 2B1 1B1")
    timeline = simulate(problem, order)
    timeline.verify(order)
    arrivals = {(run.kind, run.stage, run.microbatch): run.arrival_ns for run in timeline.messages}
    assert (arrivals["activation", 0, 1], arrivals["gradient", 3, 0]) == (12, 37)
    assert (timeline.starts[1][2:4], timeline.ends[1][2:4]) == ((37, 37), (41, 41))


def test_both_outputs_leave_at_the_end() -> None:
    """What the forward makes is no earlier than what the backward makes: the end of the pair."""
    timeline = simulate(V, V_ORDER)
    end = timeline.ends[0][3]
    ready = {(run.kind, run.stage, run.microbatch): run.ready_ns for run in timeline.messages}
    assert ready["activation", 0, 2] == ready["gradient", 3, 0] == end
    assert timeline.starts[1][4] >= end


@pytest.mark.parametrize(("measured", "length"), [(None, 4), (5, 5), (2, 3), (0, 3)])
def test_duration_of_a_pair(measured: int | None, length: int) -> None:
    """A pair takes what was measured for the forward's stage, never less than a part of it, else both in turn."""
    fused = None if measured is None else Ns(measured)
    problem = replace(V, stages=(replace(V.stages[0], forward_backward_ns=fused), *V.stages[1:]))
    timeline = simulate(problem, V_ORDER)
    assert timeline.ends[0][3] - timeline.starts[0][3] == length == problem.pair_ns(0, 3)


def test_memory_of_a_pair() -> None:
    """While a pair runs its forward holds an activation and its backward has freed nothing; transients add up."""
    problem = case(2, (0, 0), activation=[5, 7], static=[1, 2])
    first, second = problem.stages
    problem = replace(
        problem,
        stages=(
            replace(first, forward_transient_bytes=Bytes(10)),
            replace(second, input_grad_transient_bytes=Bytes(100)),
        ),
    )
    fused = schedule(problem, "0F0 1F0 0F1+1B0 0B0 1F1 1B1 0B1")
    assert memory_peaks(problem, fused.orders, fused.pairs) == (3 + 5 + 7 + 5 + 10 + 100,)
    assert memory_peaks(problem, fused.orders) == (3 + 5 + 7 + 5 + 100,)
    tight = replace(problem, devices=(replace(problem.devices[0], capacity_bytes=Bytes(129)),))
    assert fits(tight, fused.orders) and not fits(tight, fused.orders, fused.pairs)


def test_pairs_are_atomic() -> None:
    """Two pairs of which each needs an output of the other wait for ever; as four ops in the same order they finish."""
    problem = case(2, (0, 1, 1, 0))
    order = schedule(problem, "0F0 0F1 3F0 3F1+3B0 3B1 0B0 0B1", "1F0 1F1 2F0 2F1+2B0 2B1 1B0 1B1")
    with pytest.raises(DeadlockError, match=r"device 0 at 3F1\+3B0 waits for 2F1 on device 1") as caught:
        simulate(problem, order)
    assert caught.value.blocked[1] == (1, "2F1+2B0", "3D0 or 3B0 on device 0")
    assert Simulator(problem).makespan(order.orders, order.pairs) is None
    assert Simulator(problem).makespan(order.orders) is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0F0+0B0 1F0 1B0", r"pair 0F0\+0B0: the B needs that F"),
        ("0F0 1F0+1D0 1W0 0B0", r"pair 1F0\+1D0 is no F with a B"),
        ("0F0 1F0 1B0+0B0", r"pair 1B0\+0B0 is no F with a B"),
    ],
)
def test_wrong_pairs_are_refused(line: str, message: str) -> None:
    """A pair is an F and a full backward of another slot."""
    with pytest.raises(InvariantError, match=message):
        schedule(case(1, (0, 0)), line)


def test_pairs_stand_together_once() -> None:
    """The B of a pair stands right behind its F, and an op is in one pair only."""
    first, second = V_ORDER.pairs
    torn = Schedule(orders=V_ORDER.orders, pairs=(first, (second[0], V_ORDER.orders[1][-1])))
    with pytest.raises(InvariantError, match="pair 1F2\\+1B2: the B needs that F"):
        torn.verify(V)
    torn = Schedule(orders=V_ORDER.orders, pairs=(first, (V_ORDER.orders[0][0], second[1])))
    with pytest.raises(InvariantError, match="pair 0F0\\+2B0: the B does not stand right behind the F"):
        torn.verify(V)
    with pytest.raises(InvariantError, match="an op is in two pairs"):
        Schedule(orders=V_ORDER.orders, pairs=(first, first)).verify(V)
    with pytest.raises(InvariantError, match="not a pair: '0F0\\+0F1\\+0B0'"):
        Schedule.from_text("0F0+0F1+0B0", 2)


def test_text_of_pairs() -> None:
    """A pair is one word, and the text reads back."""
    text = V_ORDER.to_text(3)
    assert text.split("\n")[0].split()[3] == "0F2+3B0"
    assert Schedule.from_text(text, 3) == V_ORDER
    assert sum(map(len, V_ORDER.units()[0])) == len(V_ORDER.orders[0])


def test_torn_times_are_refused() -> None:
    """A timeline whose pair does not run at once is no timeline of the schedule."""
    timeline = simulate(V, V_ORDER)
    torn = [list(ends) for ends in timeline.ends]
    torn[0][3] -= 1
    with pytest.raises(InvariantError, match="device 0: a fused pair is torn apart"):
        replace(timeline, ends=tuple(map(tuple, torn))).verify(V_ORDER)


@pytest.mark.parametrize("seed", range(60))
def test_any_pairs_against_a_replay_of_its_own(seed: int) -> None:
    """With random pairs the simulator agrees with a sweep over the devices that shares no code with it."""
    draw = Random(seed)
    placement = draw.choice([(0, 1, 1, 0), (0, 1, 0, 1), (0, 0, 1), (0, 1, 2, 2, 1, 0)])
    problem = case(
        draw.randint(2, 4),
        placement,
        forward=[draw.randint(0, 4) for _ in placement],
        full=[draw.randint(0, 5) for _ in placement],
        latency=draw.choice((0, 0, 3)),
        occupancy=draw.choice((0, 1, 2)),
    )
    stages = [replace(stage, forward_backward_ns=draw.choice((None, Ns(3), Ns(6)))) for stage in problem.stages]
    problem = replace(problem, stages=tuple(stages))
    paired = draw_paired(draw, problem, random_schedule(problem, draw))
    paired.verify(problem)
    timeline = simulate(problem, paired)
    timeline.verify(paired)
    assert timeline.makespan_ns == naive_makespan(problem, paired)
    assert Simulator(problem).makespan(paired.orders, paired.pairs) == timeline.makespan_ns
    assert Simulator(problem, "span").value(paired.orders, paired.pairs) == timeline.span_ns


def test_no_pairs_is_the_fast_path() -> None:
    """An empty list of pairs changes nothing: same times as without the argument."""
    problem = case(4, (0, 1, 2))
    order = random_schedule(problem, Random(3))
    simulator = Simulator(problem)
    assert simulator.is_direct
    assert simulator.replay(order.orders, ()) == simulator.replay(order.orders)


@pytest.mark.parametrize("fused", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("costs", [(1, 2), (2, 1), (2, 2)])
def test_bounds_hold_with_short_pairs(fused: int, costs: tuple[int, int]) -> None:
    """No schedule with any pairs, of all that there are, beats the lower bound; pairs that save time lower it."""
    forward, full = costs
    problem = case(2, (0, 1), forward=forward, full=full, split=False)
    problem = replace(
        problem, stages=tuple(replace(stage, forward_backward_ns=Ns(max(fused, forward))) for stage in problem.stages)
    )
    simulator, spans = Simulator(problem), Simulator(problem, "span")
    found = [paired for order in all_schedules(problem) for paired in pairings(problem, order)]
    times = [simulator.value(paired.orders, paired.pairs) for paired in found]
    assert min(time for time in times if time is not None) >= lower_bound(problem).value_ns
    lengths = [spans.value(paired.orders, paired.pairs) for paired in found]
    assert min(length for length in lengths if length is not None) >= span_bound(problem).value_ns
    assert problem.pairs_save_time == (problem.pair_ns(0, 0) < forward + full)


@pytest.mark.parametrize("seed", range(40))
def test_bounds_hold_for_random_pairs(seed: int) -> None:
    """On V placements with pairs of any measured length no random paired order beats the bound."""
    draw = Random(900 + seed)
    problem = case(draw.randint(2, 4), (0, 1, 1, 0), forward=2, full=draw.randint(1, 4), split=draw.random() < 0.5)
    stages = [replace(stage, forward_backward_ns=Ns(draw.randint(2, 6))) for stage in problem.stages]
    problem = replace(problem, stages=tuple(stages))
    for _ in range(10):
        paired = draw_paired(draw, problem, random_schedule(problem, draw))
        assert simulate(problem, paired).makespan_ns >= lower_bound(problem).value_ns


@pytest.mark.parametrize(("ranks", "microbatches", "bubble"), [(4, 8, 6), (4, 12, 6), (8, 16, 14)])
def test_dualpipev_bubble_needs_atomic_pairs(ranks: int, microbatches: int, bubble: int) -> None:
    """With F = D = W DualPipeV's bubble is (p - 1)(FB + B - 3W) on p ranks; with pairs as two ops each, half of it."""
    problem = case(microbatches, (*range(ranks), *reversed(range(ranks))))
    made = static_schedule("dualpipe-v", problem)
    made.verify(problem)
    assert made.pairs
    work = 2 * microbatches * 3
    assert simulate(problem, made).makespan_ns - work == bubble == (ranks - 1) * (3 + 2 - 3)
    assert simulate(problem, Schedule(orders=made.orders)).makespan_ns - work == bubble // 2
