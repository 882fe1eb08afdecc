"""Tests of which activations go to host memory: against every order and every choice, and what a plan claims of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest
from helpers import assert_plan_ok, plan_of
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace
from oracle.cases import case
from oracle.orders import all_schedules, random_schedule
from random_offloads import draw_offering, draw_offloads
from random_plans import draw_problem, draw_schedule
from strategies import profiles

from cpipe.cli.validate import closed_bound
from cpipe.compiler import Compiled, SolveOptions, compile_profile, problem_for_plan, simulate_plan
from cpipe.compiler.claims import bound_of_delayed
from cpipe.compiler.offload import fitted, offloads_of
from cpipe.errors import InfeasibleError, NoSolutionError, PlanError, UsageError
from cpipe.ir import Bound, Offload, OpKind, Problem, Schedule, encode_op
from cpipe.plan import encode_plan, validate
from cpipe.plan.copies import has_offloads
from cpipe.profile import Profile, normalize, parse_profile
from cpipe.profile.offload import unloaded
from cpipe.sim import DeadlockError, Simulator, simulate
from cpipe.sim.memory import fits
from cpipe.solve import Stop
from cpipe.solve.bounds import lower_bound, span_bound
from cpipe.units import Bytes, Ns


def load(document: dict[str, Any]) -> Profile:
    """Return the profile of a plain dict."""
    return parse_profile(json.dumps(document).encode(), "p.json")


def line(num_stages: int, microbatches: int, memory: int | None, **stage: Any) -> dict[str, Any]:
    """Return a profile of one stage a device, all alike: 10 bytes an activation, of which 8 may go in 1 ms."""
    costs = {
        "forward_ms": 2,
        "input_grad_ms": 2,
        "weight_grad_ms": 2,
        "activation_bytes": 10,
        "held_for_weight_grad_bytes": 2,
        "offload": {"bytes": 8, "latency_ms": 1},
        **stage,
    }
    limit = {} if memory is None else {"memory_bytes": memory}
    return {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": microbatches,
        "devices": [{"id": f"g{index}", **limit} for index in range(num_stages)],
        "stages": [
            {key: value for key, value in {"id": f"s{i}", "device": f"g{i}", **costs}.items() if value is not None}
            for i in range(num_stages)
        ],
    }


def draw_tiny(seed: int) -> Problem:
    """Return one or two stages, each on a device of scarce memory, and few microbatches."""
    draw = Random(seed)
    num_stages = draw.choice((1, 2, 2))
    problem = case(
        draw.randint(2, 3) if num_stages == 2 else 3,
        tuple(range(num_stages)),
        forward=[draw.randint(1, 3) for _ in range(num_stages)],
        full=[draw.randint(1, 4) for _ in range(num_stages)],
        split=False,
        latency=draw.randint(0, 3),
        activation=4,
        capacity=[draw.randint(4, 9) for _ in range(num_stages)],
    )
    stages = tuple(
        replace(stage, offload_bytes=Bytes(draw.randint(1, 4)), offload_ns=Ns(draw.randint(0, 3)))
        for stage in problem.stages
    )
    return replace(problem, stages=stages)


def all_offloads(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedule with every choice of activations and positions."""
    n = problem.microbatches
    ways: list[list[Offload | None]] = []
    for stage, costs in enumerate(problem.stages):
        order = schedule.orders[costs.device]
        for mb in range(n):
            first = order.index(encode_op(OpKind.F, stage, mb, n))
            last = order.index(encode_op(OpKind.B, stage, mb, n))
            ways.append([None])
            ways[-1] += [
                Offload(stage=stage, microbatch=mb, freed_before=freed, reloaded_before=reloaded)
                for freed in range(first + 1, last + 1)
                for reloaded in range(freed + 1, last + 1)
            ]
    for choice in product(*ways):
        yield replace(schedule, offloads=tuple(entry for entry in choice if entry is not None))


def best_of_all(problem: Problem) -> tuple[int | None, int | None]:
    """Return the shortest makespan of all orders without, and with every choice of offloads [ns]."""
    simulator = Simulator(problem)
    plain: list[int] = []
    moved: list[int] = []
    for schedule in all_schedules(problem):
        for way in all_offloads(problem, schedule):
            if not fits(problem, way.orders, (), way.offloads):
                continue
            try:
                makespan = simulator.run(way).makespan_ns
            except DeadlockError:
                break
            moved.append(makespan)
            if not way.offloads:
                plain.append(makespan)
    return min(plain, default=None), min(moved, default=None)


SEEDS = range(10)


@pytest.mark.parametrize("seed", SEEDS)
def test_against_every_choice(seed: int) -> None:
    """No choice beats the bound of the unloaded job, and the greedy choice on the best orders is never better."""
    problem = draw_tiny(seed)
    plain, moved = best_of_all(problem)
    assert moved is not None
    assert lower_bound(unloaded(problem)).value_ns <= moved
    assert plain is None or moved <= plain
    found = [made for schedule in all_schedules(problem) if (made := fitted(problem, schedule, "makespan")) is not None]
    assert found
    assert min(made.value for made in found) >= moved


@pytest.mark.slow
def test_greedy_is_mostly_best() -> None:
    """Over the tiny cases the greedy choice finds the best of all choices nearly always."""
    hits = 0
    for seed in SEEDS:
        problem = draw_tiny(seed)
        found = [made.value for order in all_schedules(problem) if (made := fitted(problem, order, "makespan"))]
        hits += min(found) == best_of_all(problem)[1]
    assert hits >= len(SEEDS) - 3


def test_fitted_schedules_fit() -> None:
    """What is made to fit fits, is a right schedule and says its own makespan; an order that fits is left alone."""
    made_any = 0
    for seed in range(16):
        draw = Random(seed)
        problem = case(3, (0, 1, 1, 0), held=1, activation=4, capacity=[draw.randint(9, 20)] * 2, latency=1)
        stages = tuple(replace(stage, offload_bytes=Bytes(3), offload_ns=Ns(1)) for stage in problem.stages)
        problem = replace(problem, stages=stages)
        schedule = random_schedule(problem, draw)
        made = fitted(problem, schedule, "makespan")
        if fits(problem, schedule.orders):
            assert made is not None and made.schedule == schedule and made.evaluations == 1
        elif made is not None:
            made_any += 1
            made.schedule.verify(problem)
            assert made.schedule.offloads and fits(problem, schedule.orders, (), made.schedule.offloads)
            assert_plan_ok(plan_of(problem, made.schedule), problem)
            assert made.value == made.timeline.makespan_ns
    assert made_any > 3


def test_furthest_goes_first_and_comes_back_early() -> None:
    """What is needed last goes where memory is needed; it comes back as early as memory and the policy allow."""
    problem = case(3, (0,), split=False, activation=10, capacity=22)
    problem = replace(problem, stages=(replace(problem.stages[0], offload_bytes=Bytes(8), offload_ns=Ns(1)),))
    schedule = Schedule.from_text("0F0 0F1 0F2 0B0 0B1 0B2", 3)
    late = Offload(stage=0, microbatch=1, freed_before=2, reloaded_before=4)
    assert offloads_of(problem, schedule, [(0, 1 << 30)]) == (late,)
    roomy = replace(problem, devices=(replace(problem.devices[0], capacity_bytes=Bytes(29)),))
    assert offloads_of(roomy, schedule, [(0, 1 << 30)]) == (late,)
    longer = Schedule.from_text("0F0 0F1 0B0 0F2 0B1 0B2", 3)
    assert offloads_of(problem, longer, [(0, 1)]) == ()
    small = replace(problem, devices=(replace(problem.devices[0], capacity_bytes=Bytes(13)),))
    assert offloads_of(small, schedule, [(0, 1)]) is None


def test_early_return_is_bounded_by_policy() -> None:
    """An activation comes back at most so many ops before its backward."""
    problem = case(5, (0,), split=False, activation=10, capacity=42)
    problem = replace(problem, stages=(replace(problem.stages[0], offload_bytes=Bytes(10), offload_ns=Ns(1)),))
    schedule = Schedule.from_text("0F0 0F1 0F2 0F3 0F4 0B0 0B1 0B2 0B3 0B4", 5)
    for ahead, back in ((1, 7), (2, 6), (4, 6), (1 << 30, 6)):
        expected = Offload(stage=0, microbatch=3, freed_before=4, reloaded_before=back)
        assert offloads_of(problem, schedule, [(0, ahead)]) == (expected,)


def test_shorter_than_without() -> None:
    """Where memory binds, offloading makes the plan shorter, and the plan says so in all its words."""
    profile = load(line(4, 8, 25))
    without = compile_profile(profile, SolveOptions(offload="none"))
    found = compile_profile(profile)
    assert_plan_ok(found.plan, found.problem)
    assert found.result.makespan_ns < without.result.makespan_ns
    assert found.result.schedule.offloads and has_offloads(found.plan) and not has_offloads(without.plan)
    assert found.plan.made_by.limits == {} and without.plan.made_by.limits == {"offload": "none"}
    problem = problem_for_plan(found.plan, profile)
    assert problem == found.problem
    assert simulate_plan(found.plan, problem).makespan_ns == found.plan.claims.makespan_ns
    assert found.plan.claims.lower_bound_ns == lower_bound(unloaded(problem)).value_ns
    assert closed_bound(found.plan, problem) == found.plan.claims.lower_bound_ns
    assert encode_plan(compile_profile(profile).plan) == encode_plan(found.plan)


def test_free_copies_are_as_good_as_memory() -> None:
    """With copies that take no time the job is as fast as with memory for what is left, and proven optimal."""
    stage = {"offload": {"bytes": 10}}
    found = compile_profile(load(line(4, 8, 25, **stage)))
    roomy = compile_profile(load(line(4, 8, 1000, offload=None)))
    assert found.result.status == "optimal"
    assert found.result.makespan_ns == roomy.result.makespan_ns


def test_slow_copies_are_left_alone() -> None:
    """Where copies only hold the device up, the plan is the one without, and claims what holds for every choice."""
    profile = load(line(3, 4, 25, offload={"bytes": 8, "latency_ms": 1000}))
    found, without = compile_profile(profile), compile_profile(profile, SolveOptions(offload="none"))
    assert found.result.schedule == without.result.schedule
    assert found.result.bound.value_ns <= without.result.bound.value_ns
    assert_plan_ok(found.plan, found.problem)


@pytest.mark.parametrize("changes", [{"memory": None}, {"memory": 25, "offload": None}, {"memory": 1000}])
def test_the_option_is_free(changes: dict[str, Any]) -> None:
    """Without a limit on memory, or without the field, or with memory for all, the plan is that of `none`."""
    profile = load(line(3, 4, **changes))
    found, without = compile_profile(profile), compile_profile(profile, SolveOptions(offload="none"))
    assert replace(found.plan, digest="", made_by=without.plan.made_by) == replace(without.plan, digest="")


def test_what_fits_only_with_offloads() -> None:
    """Two stages of a device that do not fit together run when one activation can go; without, that is an error."""
    document = line(2, 2, 15)
    for index, stage in enumerate([*document["stages"], *document["stages"]]):
        if index >= 2:
            document["stages"].append({**stage, "id": f"s{index}", "device": f"g{3 - index}"})
    profile = load(document)
    with pytest.raises(InfeasibleError, match="memory-too-small"):
        compile_profile(profile, SolveOptions(offload="none"))
    found = compile_profile(profile)
    assert_plan_ok(found.plan, found.problem)
    assert found.result.schedule.offloads


def test_infeasible_whatever_is_offloaded() -> None:
    """Less memory than one running op needs is proven too little."""
    with pytest.raises(InfeasibleError, match=r"needs 10 bytes for one microbatch .* \[memory-too-small\]"):
        compile_profile(load(line(2, 2, 9)))


def test_static_schedules() -> None:
    """A schedule of the field that does not fit is made to fit, with its orders kept."""
    profile = load(line(4, 8, 25))
    with pytest.raises(NoSolutionError, match="1f1b"):
        compile_profile(profile, SolveOptions(method="1f1b", offload="none"))
    found = compile_profile(profile, SolveOptions(method="1f1b"))
    assert_plan_ok(found.plan, found.problem)
    roomy = compile_profile(load(line(4, 8, 1000)), SolveOptions(method="1f1b"))
    assert found.result.schedule.orders == roomy.result.schedule.orders
    assert found.result.schedule.offloads


def test_with_messages_in_memory() -> None:
    """Buffers of posted receives are set aside; a cap on them is kept."""
    document = line(3, 5, 40, output_bytes=3)
    for cap in (None, 2):
        profile = load(document)
        found = compile_profile(profile, SolveOptions(receive_window=cap))
        assert_plan_ok(found.plan, found.problem)
        assert all(cap is None or channel.window <= cap for channel in found.plan.channels)
        assert max(found.plan.claims.peak_bytes) <= 40
        without = compile_profile(profile, SolveOptions(receive_window=cap, offload="none"))
        assert found.result.makespan_ns <= without.result.makespan_ns


@pytest.mark.slow
def test_beside_recomputation() -> None:
    """Stages may offer both; whatever is chosen is no worse than either alone, and the bound holds for all."""
    both = line(2, 4, 22, recompute={"activation_bytes": 4, "extra_ms": 2})
    profile = load(both)
    found = compile_profile(profile)
    assert_plan_ok(found.plan, found.problem)
    for options in (SolveOptions(offload="none"), SolveOptions(recompute="none"), SolveOptions(recompute="all")):
        other = compile_profile(profile, options)
        assert_plan_ok(other.plan, other.problem)
        assert found.plan.claims.lower_bound_ns <= other.result.makespan_ns
        if options.recompute != "all":
            assert found.result.makespan_ns <= other.result.makespan_ns


def test_lateness_may_help() -> None:
    """On a pipe of two senders a wait for a copy may help: an order with offloads is faster than without any."""
    draw = Random(125)
    problem = draw_offering(draw, draw_problem(draw, windows=False))
    moved = draw_offloads(draw, problem, draw_schedule(draw, problem))
    assert simulate(problem, moved).makespan_ns < simulate(problem, replace(moved, offloads=())).makespan_ns


def test_proofs_hold_for_late_ops() -> None:
    """What solvers prove of ops that never wait is claimed of ops that do only where waiting cannot help."""
    proof = Bound(value_ns=1_000, proved_by="cpsat")
    own = case(3, (0, 1), latency=1, occupancy=1)
    hops = [replace(hop, pipe=0) for hop in (*own.forward_hops, *own.backward_hops) if hop is not None]
    common = replace(own, pipes=("p",), forward_hops=(hops[0],), backward_hops=(hops[1],))
    assert bound_of_delayed(own, proof, "makespan") == proof
    for problem, objective in ((common, "makespan"), (own, "span"), (common, "span")):
        bound = bound_of_delayed(problem, proof, objective)  # type: ignore[arg-type]
        least = span_bound(problem) if objective == "span" else lower_bound(problem)
        assert (bound.proved_by, bound.value_ns) == ("bound", least.value_ns)
        assert bound_of_delayed(problem, least, objective) == least  # type: ignore[arg-type]


@pytest.mark.slow
def test_span() -> None:
    """The span can be the objective, of a plan with offloads too."""
    profile = load(line(3, 4, 25))
    found = compile_profile(profile, SolveOptions(objective="span", method="greedy"))
    assert_plan_ok(found.plan, found.problem)
    without = compile_profile(profile, SolveOptions(objective="span", method="greedy", offload="none"))
    assert found.result.objective_ns <= without.result.objective_ns


def test_two_flows() -> None:
    """Pipelines in both directions offload like one."""
    found = compile_profile(load(line(2, 4, 45)), SolveOptions(placement="bidirectional"))
    assert_plan_ok(found.plan, found.problem)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(document=profiles(offload=True, max_devices=3, max_stages=4, max_microbatches=4))
def test_drawn_profiles(document: dict[str, Any]) -> None:
    """On any profile the option never makes a plan worse, and no plan beats the bound that is claimed."""
    profile = load(document)
    results: list[Compiled | None] = []
    for offload in ("none", "auto"):
        try:
            results.append(compile_profile(profile, SolveOptions(method="greedy", offload=offload)))
        except (InfeasibleError, NoSolutionError):
            results.append(None)
    without, found = results
    if found is None:
        assert without is None
        return
    assert_plan_ok(found.plan, found.problem)
    assert validate(found.plan, found.problem, closed_bound_ns=closed_bound(found.plan, found.problem)) == ()
    if without is not None:
        assert found.plan.claims.lower_bound_ns <= found.result.makespan_ns <= without.result.makespan_ns


def test_stopped() -> None:
    """A search that is stopped still gives the plan without offloads, marked."""
    stop = Stop()
    stop.requested = True
    found = compile_profile(load(line(3, 5, 25)), stop=stop)
    assert_plan_ok(found.plan, found.problem)
    assert found.plan.made_by.limits["interrupted"] == "yes"


def test_unknown_word() -> None:
    """Only `auto` and `none` are known."""
    with pytest.raises(UsageError, match=r"unknown offload 'all'; known: auto, none \[offload-choice\]"):
        compile_profile(load(line(2, 2, 25)), SolveOptions(offload="all"))


def test_another_profile() -> None:
    """A plan that offloads is not for a profile whose stages do not offer it."""
    profile = load(line(4, 8, 25))
    plan = compile_profile(profile).plan
    plain = load(line(4, 8, 25, offload=None))
    problem = problem_for_plan(plan, plain)
    with pytest.raises(PlanError, match=r"the profile does not offer it \[copy-not-offered\]"):
        simulate_plan(plan, problem)
    assert "copy-not-offered" in {fault.code for fault in validate(plan, normalize(plain, prove_memory=False))}
