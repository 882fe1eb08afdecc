"""Tests of the choice of stages that recompute: against every choice and every order, and what the plan claims."""

from __future__ import annotations

import json
from itertools import combinations
from random import Random
from typing import Any

import pytest
from helpers import assert_plan_ok
from hypothesis import HealthCheck, given, settings
from oracle.exhaustive import OutOfScopeError, shortest_makespan
from strategies import profiles

from cpipe.compiler import SolveOptions, compile_profile, problem_for_plan, simulate_plan
from cpipe.compiler.recompute import asked_choice, least_bound, rank_choices, worth_it
from cpipe.errors import InfeasibleError, NoSolutionError, ProfileError, UsageError
from cpipe.plan import encode_plan, validate
from cpipe.profile import Profile, lightest, normalize, parse_profile
from cpipe.profile.recompute import offers
from cpipe.solve import SolveLimits, Stop
from cpipe.solve.bounds import lower_bound, span_bound


def load(document: dict[str, Any]) -> Profile:
    """Return the profile of a plain dict."""
    return parse_profile(json.dumps(document).encode(), "p.json")


def line(num_stages: int, microbatches: int, memory: int | None, **stage: Any) -> dict[str, Any]:
    """Return a profile of one stage a device, all alike, with 10 bytes an activation of which 2 can be kept."""
    costs = {
        "forward_ms": 10,
        "input_grad_ms": 10,
        "weight_grad_ms": 10,
        "activation_bytes": 10,
        "held_for_weight_grad_bytes": 5,
        "recompute": {"activation_bytes": 2, "extra_ms": 4},
        **stage,
    }
    limit = {} if memory is None else {"memory_bytes": memory}
    return {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": microbatches,
        "devices": [{"id": f"g{index}", **limit} for index in range(num_stages)],
        "stages": [
            {
                key: value
                for key, value in {"id": f"s{index}", "device": f"g{index}", **costs}.items()
                if value is not ...
            }
            for index in range(num_stages)
        ],
    }


def draw_profile(seed: int) -> Profile:
    """Return a small profile, most of whose stages may recompute, with memory that is scarce."""
    draw = Random(seed)
    num_stages = draw.choice((1, 2, 2, 3))
    document = line(num_stages, draw.randint(2, 3), 0)
    for index, stage in enumerate(document["stages"]):
        activation = draw.randint(2, 6)
        stage |= {
            "forward_ms": draw.randint(1, 4),
            "input_grad_ms": 0 if index == 0 and draw.random() < 0.5 else draw.randint(1, 4),
            "weight_grad_ms": draw.randint(0, 4),
            "activation_bytes": activation,
            "held_for_weight_grad_bytes": draw.randint(0, 7),
            "weight_grad_transient_bytes": draw.choice((0, 0, 2)),
            "recompute": {"activation_bytes": draw.randint(0, activation - 1), "extra_ms": draw.randint(0, 2)},
        }
        if draw.random() < 0.2:
            del stage["recompute"]
        document["devices"][index]["memory_bytes"] = max(activation, 7) + draw.randint(0, 2 * activation)
    return load(document)


def best_of_all(profile: Profile) -> int | None:
    """Return the shortest makespan of every choice and every order; None where nothing fits."""
    found = []
    for count in range(len(offers(profile)) + 1):
        for choice in combinations(offers(profile), count):
            best = shortest_makespan(normalize(profile, recompute=choice, prove_memory=False))
            found += [] if best is None else [best]
    return min(found, default=None)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 40))])
def test_against_every_choice_and_every_order(seed: int) -> None:
    """On small jobs the plan is the shortest of all choices and orders, and no bound of any is above it."""
    profile = draw_profile(seed)
    best = best_of_all(profile)
    if best is None:
        with pytest.raises((InfeasibleError, NoSolutionError), match="bytes"):
            compile_profile(profile)
        return
    compiled = compile_profile(profile)
    assert_plan_ok(compiled.plan, compiled.problem)
    assert compiled.result.makespan_ns == best
    assert compiled.plan.claims.lower_bound_ns <= best
    free = normalize(profile, prove_memory=False)
    assert lower_bound(lightest(free, profile)).value_ns <= best


@pytest.mark.parametrize("method", ["cpsat", "milp"])
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 16))])
def test_exact_models(method: str, seed: int) -> None:
    """The exact models know the memory of stages that recompute: they prove the shortest of every order."""
    profile = draw_profile(seed)
    best = shortest_makespan(normalize(profile, recompute=offers(profile), prove_memory=False))
    options = SolveOptions(method=method, recompute="all")
    if best is None:
        with pytest.raises((InfeasibleError, NoSolutionError), match="bytes"):
            compile_profile(profile, options)
        return
    compiled = compile_profile(profile, options)
    assert_plan_ok(compiled.plan, compiled.problem)
    assert (compiled.result.makespan_ns, compiled.result.status) == (best, "optimal")
    assert compiled.problem.recompute == offers(profile)


@pytest.mark.slow
def test_seeds_make_different_jobs() -> None:
    """The drawn jobs have choices that are taken and choices that are not."""
    kinds: set[bool | None] = set()
    for seed in range(24):
        profile = draw_profile(seed)
        try:
            kinds.add(bool(compile_profile(profile, SolveOptions(method="greedy")).problem.recompute))
        except (InfeasibleError, NoSolutionError):
            kinds.add(None)
    assert kinds >= {True, False}


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(profiles(max_microbatches=4))
def test_option_never_makes_a_plan_worse(document: dict[str, Any]) -> None:
    """A plan that may recompute is never longer than one that may not, and claims no more than any choice allows."""
    profile = load(document)
    try:
        without = compile_profile(profile, SolveOptions(method="greedy", recompute="none"))
    except (InfeasibleError, NoSolutionError):
        return
    compiled = compile_profile(profile, SolveOptions(method="greedy"))
    assert_plan_ok(compiled.plan, compiled.problem)
    assert compiled.result.makespan_ns <= without.result.makespan_ns
    assert compiled.plan.claims.lower_bound_ns <= compiled.result.makespan_ns


def test_off_gives_the_plan_without_the_field() -> None:
    """With none the plan is, but for its limits, that of a profile without the field; auto adds no limit."""
    with_field, without = line(3, 4, 25), line(3, 4, 25, recompute=...)
    ours = compile_profile(load(with_field), SolveOptions(method="greedy", recompute="none")).plan
    theirs = compile_profile(load(without), SolveOptions(method="greedy")).plan
    assert ours.made_by.limits == {"recompute": "none"}
    assert theirs.made_by.limits == {}
    assert (ours.problem, ours.claims, ours.ranks) == (theirs.problem, theirs.claims, theirs.ranks)
    text = encode_plan(theirs).decode()
    assert "recompute" not in text


def test_scarce_memory() -> None:
    """Where memory holds few microbatches recomputing wins, and the proof is one over all choices."""
    profile = load(line(3, 6, 25))
    plain, compiled = (compile_profile(profile, SolveOptions(recompute=how)) for how in ("none", "auto"))
    assert compiled.problem.recompute
    assert compiled.result.makespan_ns < plain.result.makespan_ns
    best_bound = min(
        lower_bound(normalize(profile, recompute=choice)).value_ns
        for count in range(4)
        for choice in combinations(range(3), count)
    )
    assert compiled.plan.claims.lower_bound_ns >= best_bound
    assert_plan_ok(compiled.plan, compiled.problem)


def test_ample_memory() -> None:
    """Where everything fits nothing recomputes, and nothing is looked at beyond the plan without."""
    profile = load(line(3, 4, 1000))
    assert worth_it(normalize(profile), profile) == ()
    compiled = compile_profile(profile)
    assert compiled.problem.recompute == ()
    assert worth_it(normalize(load(line(3, 4, None))), load(line(3, 4, None))) == ()


def test_scarcest_memory_first() -> None:
    """Stages stand in the order of their devices' scarcity."""
    document = line(4, 8, 100)
    for device, memory in zip(document["devices"], (90, 30, 1000, 50), strict=True):
        device["memory_bytes"] = memory
    profile = load(document)
    assert worth_it(normalize(profile), profile) == (1, 3, 0)


def test_job_that_fits_only_recomputing() -> None:
    """A job of which not two stages fit a device fits when the right one recomputes."""
    document = line(2, 3, 14)
    document["devices"] = document["devices"][:1]
    document["stages"][1]["device"] = "g0"
    profile = load(document)
    with pytest.raises(InfeasibleError, match="needs 20 bytes for one microbatch") as error:
        compile_profile(profile, SolveOptions(recompute="none"))
    assert "let more stages recompute" in str(error.value.hint)
    compiled = compile_profile(profile)
    assert compiled.problem.recompute
    assert_plan_ok(compiled.plan, compiled.problem)
    assert max(compiled.plan.claims.peak_bytes) <= 14


def test_job_that_never_fits() -> None:
    """Where not even the kept parts fit, that is proven; whether or not any stage recomputes."""
    with pytest.raises(InfeasibleError, match=r"needs 3 bytes .*has 1, short by 2 \[memory-too-small\]"):
        compile_profile(
            load(
                line(
                    2,
                    2,
                    1,
                    activation_bytes=3,
                    held_for_weight_grad_bytes=0,
                    recompute={"activation_bytes": 3, "extra_ms": 0},
                )
            )
        )


def test_choice_that_is_not_found() -> None:
    """Where no choice that was tried fits, and that proves nothing, the answer is not infeasible."""
    # W needs the whole activation again, which D would have freed: recomputing needs more here, and less elsewhere
    document = line(1, 1, 6, input_grad_ms=0, activation_bytes=8, held_for_weight_grad_bytes=0)
    with pytest.raises(NoSolutionError, match=r"needs 8 bytes .*has 6.*\[memory-too-small\]") as error:
        compile_profile(load(document))
    assert "no choice of stages" in str(error.value.hint)


@pytest.mark.parametrize("method", ["1f1b", "zb-h1", "greedy-crosspipe", "cpsat", "milp"])
def test_methods(method: str) -> None:
    """Every method has the choice: a schedule of the field that does not fit fits recomputing."""
    profile = load(line(3, 4, 25))
    compiled = compile_profile(profile, SolveOptions(method=method))
    assert_plan_ok(compiled.plan, compiled.problem)
    if method == "1f1b":
        assert compiled.problem.recompute
        with pytest.raises(NoSolutionError, match="1f1b does not fit in memory"):
            compile_profile(profile, SolveOptions(method=method, recompute="none"))


def test_span() -> None:
    """The span has the choice too, and a bound over all choices."""
    profile = load(line(2, 4, 25))
    plain, compiled = (
        compile_profile(profile, SolveOptions(method="greedy-crosspipe", objective="span", recompute=how))
        for how in ("none", "auto")
    )
    assert compiled.result.objective_ns <= plain.result.objective_ns
    light = lightest(normalize(profile), profile)
    assert compiled.plan.claims.lower_bound_ns >= span_bound(light).value_ns
    assert_plan_ok(compiled.plan, compiled.problem)


def test_placement_with_choice() -> None:
    """Placements and recomputation are chosen together, in both directions too."""
    document = line(4, 4, 25)
    compiled = compile_profile(load(document), SolveOptions(method="greedy-crosspipe", placement="bidirectional"))
    assert_plan_ok(compiled.plan, compiled.problem)
    assert set(compiled.problem.recompute) <= set(range(8))
    both = compile_profile(
        load(document), SolveOptions(method="greedy-crosspipe", placement="bidirectional", recompute="1")
    )
    assert both.problem.recompute == (1, 5)
    loop = line(4, 4, 50)
    loop["devices"] = loop["devices"][:2]
    for index, stage in enumerate(loop["stages"]):
        stage["device"] = f"g{index // 2}"
    compiled = compile_profile(load(loop), SolveOptions(method="greedy-crosspipe", placement="auto"))
    assert_plan_ok(compiled.plan, compiled.problem)


def test_plan_tells_its_problem() -> None:
    """From plan and profile alone the same problem is rebuilt, and the plan is valid and replays on it."""
    profile = load(line(3, 4, 25))
    compiled = compile_profile(profile, SolveOptions(method="greedy", recompute="0,2"))
    assert compiled.plan.problem.recompute == (0, 2)
    problem = problem_for_plan(compiled.plan, profile)
    assert problem == compiled.problem
    assert validate(compiled.plan, problem) == ()
    assert simulate_plan(compiled.plan, problem).makespan_ns == compiled.plan.claims.makespan_ns


def test_plan_for_a_profile_that_does_not_offer() -> None:
    """A plan that recomputes is not one for a profile whose stages do not offer it."""
    plan = compile_profile(load(line(3, 4, 25)), SolveOptions(method="greedy", recompute="all")).plan
    with pytest.raises(
        ProfileError, match=r"the plan recomputes stage 0, .* offer it \[recompute-not-offered\]"
    ) as error:
        problem_for_plan(plan, load(line(3, 4, 25, recompute=...)))
    assert [fault.code for fault in error.value.diagnostics] == ["recompute-not-offered"] * 3


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("none", ()), ("all", (0, 2)), ("auto", None), ("2,0", (0, 2)), ("0, 2", (0, 2)), ("2", (2,)), ("0,0", (0,))],
)
def test_asked_choice(asked: str, expected: tuple[int, ...] | None) -> None:
    """A choice is a word or a list of numbers."""
    document = line(3, 2, None)
    del document["stages"][1]["recompute"]
    assert asked_choice(load(document), asked, 1) == expected
    if expected is not None:
        assert asked_choice(load(document), asked, 2) == (*expected, *(stage + 3 for stage in expected))
    assert asked_choice(load(line(3, 2, None, recompute=...)), "auto", 1) == ()


@pytest.mark.parametrize("asked", ["some", "", "0,", "-1", "1.0", "0;2", "²"])
def test_choice_that_is_none(asked: str) -> None:
    """Anything else is refused."""
    with pytest.raises(UsageError, match=r"expected auto, none, all or stage numbers like 0,3,5, got .*choice\]"):
        compile_profile(load(line(3, 2, None)), SolveOptions(recompute=asked))


def test_stage_that_is_none() -> None:
    """A list names stages of the profile that offer it."""
    document = line(3, 2, None)
    del document["stages"][1]["recompute"]
    with pytest.raises(UsageError, match=r"expected stages below 3, got 3 \[recompute-choice\]"):
        compile_profile(load(document), SolveOptions(recompute="0,3"))
    with pytest.raises(UsageError, match=r"stage 1 .* offers no recomputation \[recompute-not-offered\]"):
        compile_profile(load(document), SolveOptions(recompute="0,1"))


def test_many_stages() -> None:
    """Beyond a few stages choices are searched by flips, within counted work, and better than all or none."""
    document = line(6, 4, 35, recompute={"activation_bytes": 2, "extra_ms": 3})
    profile = load(document)
    problem = normalize(profile)
    stages = worth_it(problem, profile)
    assert len(stages) == 6
    options = SolveOptions(method="greedy")
    ranked = rank_choices(lambda choice: normalize(profile, recompute=choice), stages, options, SolveLimits())
    values = {one.choice: one.value for one in ranked}
    assert 2 < len(values) <= 40
    assert [one.value for one in ranked] == sorted(values.values())
    assert ranked[0].value <= min(values[()], values[tuple(range(6))])
    assert ranked == rank_choices(lambda choice: normalize(profile, recompute=choice), stages, options, SolveLimits())
    assert least_bound(lambda choice: normalize(profile, recompute=choice), stages, {}, "makespan") is None


def test_least_bound() -> None:
    """The least bound is that of the choice with the smallest; what is known counts; what does not fit does not."""
    profile = load(line(2, 3, 25))
    bounds = {choice: lower_bound(normalize(profile, recompute=choice)).value_ns for choice in ((), (0,), (1,), (0, 1))}
    problem_of = lambda choice: normalize(profile, recompute=choice)  # noqa: E731
    assert least_bound(problem_of, (0, 1), {}, "makespan") == min(bounds.values())
    known: dict[tuple[int, ...], int] = {choice: value + 7 for choice, value in bounds.items()}
    assert least_bound(problem_of, (0, 1), known, "makespan") == min(bounds.values()) + 7

    def none_fits(choice: tuple[int, ...]) -> Any:
        raise InfeasibleError("no", code="memory-too-small")

    assert least_bound(none_fits, (0, 1), {}, "makespan") is None


def test_interrupted_choice() -> None:
    """A search that is stopped before it looks at choices keeps the plan that it has, and claims what holds."""
    profile = load(line(3, 6, 25))
    stop = Stop()
    stop.request()
    compiled = compile_profile(profile, stop=stop)
    assert_plan_ok(compiled.plan, compiled.problem)
    assert compiled.problem.recompute == ()
    light = lower_bound(lightest(normalize(profile), profile)).value_ns
    assert compiled.plan.claims.lower_bound_ns <= light
    assert any(warning.code == "interrupted" for warning in compiled.result.warnings)


def test_same_choice_again() -> None:
    """The same profile gives the same plan, byte by byte."""
    profile = load(line(2, 3, 25))
    plans = [encode_plan(compile_profile(profile, SolveOptions(method="greedy")).plan) for _ in range(2)]
    assert plans[0] == plans[1]


def test_scope_of_the_exhaustive_search() -> None:
    """The drawn jobs are all within what the exhaustive search covers."""
    for seed in range(24):
        profile = draw_profile(seed)
        try:
            shortest_makespan(normalize(profile, prove_memory=False))
        except OutOfScopeError:
            pytest.fail(f"seed {seed}")
