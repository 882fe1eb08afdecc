"""Data parallelism beside the pipeline: which collectives hide, which do not, and the orders that hide them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from helpers import assert_plan_ok, plan_of
from oracle.cases import case
from oracle.exhaustive import shortest_makespan
from oracle.orders import serial_schedule

from cpipe.ir import Bound, CollectiveRun, OpKind, Problem, Schedule, decode_op
from cpipe.sim import simulate
from cpipe.solve import SolveLimits, solve
from cpipe.solve.chains import gathered_times
from cpipe.solve.cpsat import solve_cpsat
from cpipe.solve.cpsat import solver_problem as cpsat_problem
from cpipe.solve.milp import solve_milp

NOTHING = Bound(value_ns=0)
Exact = Callable[[Problem], tuple[int, int]]


def line(p: int, n: int, **costs: Any) -> Problem:
    """Return p stages in line, unit times, room for p activations."""
    return case(n, list(range(p)), message=0, **({"capacity": p} | costs))


def by_milp(problem: Problem) -> tuple[int, int]:
    """Return the makespan and the bound that the MILP reaches from nothing but the serial order."""
    outcome = solve_milp(problem, serial_schedule(problem), lower_bound=NOTHING, node_limit=20_000)
    assert outcome.schedule is not None
    return simulate(problem, outcome.schedule).makespan_ns, outcome.dual_bound_ns


def by_cpsat(problem: Problem) -> tuple[int, int]:
    """Return the makespan and the bound that CP-SAT reaches from nothing but the serial order."""
    if (missing := cpsat_problem()) is not None:
        pytest.skip(missing)
    outcome = solve_cpsat(problem, serial_schedule(problem), lower_bound=NOTHING, work_limit=20)
    assert outcome.schedule is not None
    return simulate(problem, outcome.schedule).makespan_ns, outcome.dual_bound_ns


def solved(problem: Problem, method: str = "auto") -> tuple[int, str]:
    """Return makespan and status of a solve whose plan is valid."""
    result = solve(problem, method)
    assert_plan_ok(plan_of(problem, result.schedule), problem)
    return result.makespan_ns, result.status


UNSPLIT = [
    ([0, 0, 0], 18),
    ([0, 0, 4], 18),  # hidden behind the way back of the last gradient
    ([0, 0, 5], 19),
    ([0, 2, 0], 18),
    ([2, 0, 0], 20),  # the first stage finishes last and hides nothing
    ([4, 0, 0], 22),
]
SPLIT = [([0, 0, 0], 14), ([2, 2, 2], 16), ([6, 6, 6], 20), ([0, 2, 0], 15), ([4, 0, 0], 18), ([0, 0, 4], 18)]


def reduced(reduce: list[int], *, split: bool) -> Problem:
    """Return three stages, four microbatches, D and W apart or a B of 2."""
    return line(3, 4, reduce=reduce, **({} if split else {"full": 2, "split": False}))


@pytest.mark.parametrize(("reduce", "optimum"), UNSPLIT)
def test_unsplit_reductions(reduce: list[int], optimum: int) -> None:
    """F 1, B 2: everything ever tried, the search of `auto` and its proof agree."""
    problem = reduced(reduce, split=False)
    assert shortest_makespan(problem) == optimum
    assert solved(problem) == (optimum, "optimal")


@pytest.mark.parametrize(("reduce", "optimum"), SPLIT)
def test_split_reductions(reduce: list[int], optimum: int) -> None:
    """F, D, W 1: weight gradients that fill bubbles put off the reductions; `auto` finds and proves the best."""
    assert solved(reduced(reduce, split=True)) == (optimum, "optimal")


@pytest.mark.slow
@pytest.mark.parametrize("exact", [by_milp, by_cpsat])
@pytest.mark.parametrize(
    ("reduce", "optimum", "split"),
    [(*UNSPLIT[2], False), (*SPLIT[1], True), (*SPLIT[3], True), (*SPLIT[4], True)],
)
def test_exact_models_need_no_help(exact: Exact, reduce: list[int], optimum: int, split: bool) -> None:
    """From the serial order and no bound each exact model finds the same optimum and proves it."""
    assert exact(reduced(reduce, split=split)) == (optimum, optimum)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "optimum"),
    [
        ({"half_duplex": True}, 19),
        ({"half_duplex": True, "reduce": [0, 4]}, 19),  # on a network of its own
        ({"half_duplex": True, "reduce": [0, 4], "contends": True}, 21),  # on the pipeline's slow link
        ({}, 15),
        ({"reduce": [0, 4]}, 19),
    ],
)
def test_a_link_shared_with_messages(changes: dict[str, Any], optimum: int) -> None:
    """Two stages, a message takes 2 of the link: a reduction of 4 on that link waits for messages and they for it."""
    problem = line(2, 4, capacity=4, occupancy=2, **changes)
    assert solved(problem) == (optimum, "optimal")
    if cpsat_problem() is None:
        assert by_cpsat(problem) == (optimum, optimum)


def last_weights(schedule: Schedule, microbatches: int, device: int) -> list[int]:
    """Return the stages of a device in the order in which their gradients are complete."""
    ops = [decode_op(op, microbatches) for op in schedule.orders[device]]
    last = {op.stage: place for place, op in enumerate(ops) if op.kind in (OpKind.W, OpKind.B)}
    return sorted(last, key=lambda stage: last[stage])


@pytest.mark.parametrize("method", ["auto", "greedy", "milp", "cpsat"])
@pytest.mark.parametrize(("reduce", "first"), [([9, 0], 0), ([0, 9], 1)])
def test_the_longest_reduction_goes_first(method: str, reduce: list[int], first: int) -> None:
    """Two stages on one device: the one with the long reduction is done with its weights first, the other hides it."""
    problem = case(3, [0, 0], weight_grad=3, message=0, reduce=reduce)
    if method == "cpsat" and (missing := cpsat_problem()) is not None:
        pytest.skip(missing)
    result = solve(problem, method)
    assert result.makespan_ns == shortest_makespan(problem)
    assert last_weights(result.schedule, 3, 0)[0] == first
    assert_plan_ok(plan_of(problem, result.schedule), problem)


def gathers(problem: Problem, schedule: Schedule) -> list[CollectiveRun]:
    """Return the all-gathers of a schedule in order of time."""
    runs = [run for run in simulate(problem, schedule).collectives if run.kind == "ALL_GATHER"]
    return sorted(runs, key=lambda run: run.start_ns)


def test_parameters_are_gathered_in_the_order_of_their_first_forward() -> None:
    """On a V one device holds the first and the last stage: the first is gathered first, the last meanwhile.

    The bound knows that the two take turns: the last F cannot start before 12.
    """
    problem = case(1, [0, 1, 1, 0], gather=[4, 1, 1, 8], reduce=1)
    result = solve(problem)
    runs = [run for run in gathers(problem, result.schedule) if run.device == 0]
    assert [(run.stage, run.start_ns, run.end_ns) for run in runs] == [(0, 0, 4), (3, 4, 12)]
    assert result.makespan_ns == result.bound.value_ns == shortest_makespan(problem)
    assert result.bound.proved_by == "bound"
    assert_plan_ok(plan_of(problem, result.schedule), problem)


@pytest.mark.parametrize("method", ["greedy", "greedy-crosspipe"])
def test_a_pass_knows_when_parameters_are_there(method: str) -> None:
    """A greedy pass that holds the second stage of a device ready too soon would wait for it with work at hand."""
    problem = case(4, [0, 1, 1, 0], gather=[6, 0, 0, 6], reduce=0, latency=1)
    result = solve(problem, method)
    assert gathered_times(problem) == [6, 0, 0, 12]
    assert result.makespan_ns <= solve(problem, "zb-v").makespan_ns
    assert_plan_ok(plan_of(problem, result.schedule), problem)


@pytest.mark.parametrize(
    ("gather", "optimum"),
    [([0, 0, 0], 14), ([2, 0, 0], 16), ([0, 0, 2], 14), ([0, 1, 2], 14), ([0, 0, 3], 15), ([3, 4, 5], 17)],
)
def test_late_stages_gather_while_early_ones_work(gather: list[int], optimum: int) -> None:
    """ZeRO-1: stage s has s forwards' time to gather its parameters; what is longer delays everything behind it."""
    assert solved(line(3, 4, reduce=0, gather=gather)) == (optimum, "optimal")


def random_job(seed: int) -> Problem:
    """Return a small problem with collectives: one to three stages a device, in line, loop and wave."""
    draw = Random(seed)
    placement = draw.choice(((0, 1), (0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 0), (0, 0), (0, 0, 0)))

    def each(low: int, high: int) -> list[int]:
        return [draw.randint(low, high) for _ in placement]

    return case(
        draw.choice((2, 3)) if len(placement) < 4 else 2,
        placement,
        forward=each(1, 3),
        input_grad=each(1, 3),
        weight_grad=each(1, 3),
        latency=draw.choice((0, 2)),
        reduce=each(0, 6),
        gather=each(0, 6) if draw.random() < 0.5 else None,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_searches_without_a_solver_reach_the_optimum(seed: int) -> None:
    """Greedy family and local search find what trying everything finds; the bound never passes it."""
    problem = random_job(seed)
    result = solve(problem, limits=SolveLimits(node_limit=0))
    optimum = shortest_makespan(problem)
    assert result.bound.value_ns <= result.makespan_ns == optimum
    assert_plan_ok(plan_of(problem, result.schedule), problem)


@pytest.mark.parametrize(("mode", "longer"), [("ddp", 6), ("zero1", 18)])
def test_more_data_parallel_work_is_never_faster(mode: str, longer: int) -> None:
    """A proven optimum does not fall when a collective grows, and grows by no more than all that was added."""
    optima = []
    for length in (0, 1, 3, 6):
        gather = [length, 0, length] if mode == "zero1" else None
        problem = line(3, 4, reduce=[length, 0, 1], gather=gather)
        makespan, status = solved(problem)
        assert status == "optimal"
        optima.append(makespan)
    assert optima == sorted(optima)
    assert optima[-1] - optima[0] <= longer
