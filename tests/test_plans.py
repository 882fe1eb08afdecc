"""The shipped cases: profiles are what they say they come from, pins are valid, canonical and as good as documented."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import assert_plan_ok
from m70 import profile_text, shipped_profiles

from cpipe.compiler import compile_profile
from cpipe.ir import Plan, Problem
from cpipe.plan import encode_plan, load_plan, problem_digest
from cpipe.profile import load_profile, normalize, profile_warnings
from cpipe.sim import Simulator
from cpipe.solve.bounds import lower_bound
from cpipe.solve.crosspipe import crosspipe_greedy

PLANS = Path(__file__).resolve().parent.parent / "plans"
CASES = tuple(sorted(path.parent.name for path in PLANS.glob("*/profile.json")))
QUICK = "llama3-8b-a100-gh200"
"""A case that is solved within a second."""

LAYERS_MS = {
    "a100": [(2.3, 0.0), *[(88.6, 178.4)] * 32, (0.7, 2.4), (47.8, 91.1)],
    "gh200": [(1.199, 0.002), *[(13.344, 29.018)] * 32, (0.354, 1.056), (4.088, 8.271)],
}
"""Measured forward and backward times of Llama 3 8B's 35 layers on four GPUs [ms]: embedding, blocks, norm, head."""
SPLIT = (2, 1, 1, 1, 7, 7, 7, 9)
"""Layers of each stage of the shipped case, four A100 groups before four GH200 groups."""


class Stated(NamedTuple):
    """What plans/README.md says of a case."""

    makespan_ms: float
    bound_ms: float
    gap_percent: float


@cache
def problem_of_case(name: str) -> Problem:
    """Return the problem of a shipped profile."""
    return normalize(load_profile(PLANS / name / "profile.json"))


@cache
def plan_of_case(name: str) -> Plan:
    """Return a shipped plan."""
    return load_plan(str(PLANS / name / "plan.json"))


def stated() -> dict[str, Stated]:
    """Return the figures in the table of plans/README.md."""
    text = (PLANS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) % \|", text, flags=re.MULTILINE)
    return {name: Stated(float(makespan), float(bound), float(gap)) for name, makespan, bound, gap in rows}


def test_every_case_is_documented() -> None:
    """The table of plans/README.md has the shipped cases, each once, and no other."""
    assert sorted(stated()) == list(CASES)


@pytest.mark.parametrize("name", sorted(shipped_profiles()))
def test_profile_is_the_models(name: str) -> None:
    """A profile that comes from a model is, byte for byte, what the model gives."""
    assert (PLANS / name / "profile.json").read_text(encoding="utf-8") == profile_text(shipped_profiles()[name])


@pytest.mark.parametrize("name", CASES)
def test_profile_is_clean(name: str) -> None:
    """A shipped profile is named after its folder, says where it comes from, and raises no warning."""
    profile = load_profile(PLANS / name / "profile.json")
    assert profile.name == name
    assert profile.extensions is not None
    assert profile.extensions["source"]
    assert profile_warnings(profile) == ()


@pytest.mark.parametrize("name", CASES)
def test_pin_is_valid(name: str) -> None:
    """A pin is made for its profile as it stands, by default options, and the validator and the replay accept it."""
    plan, problem = plan_of_case(name), problem_of_case(name)
    assert plan.problem.digest == problem_digest(problem)
    assert (plan.made_by.method, plan.made_by.seed, plan.made_by.limits) == ("auto", 0, {})
    assert_plan_ok(plan, problem)


@pytest.mark.parametrize("name", CASES)
def test_pin_is_canonical(name: str) -> None:
    """A pin is written as the encoder writes it."""
    assert encode_plan(plan_of_case(name)) == (PLANS / name / "plan.json").read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_pin_claims_a_proven_bound(name: str) -> None:
    """The bound that a pin claims is the closed-form one, or the solver that raised it is named."""
    claims, closed_form = plan_of_case(name).claims, lower_bound(problem_of_case(name)).value_ns
    assert closed_form <= claims.lower_bound_ns <= claims.makespan_ns
    assert (claims.proved_by == "bound") == (claims.lower_bound_ns == closed_form)


@pytest.mark.parametrize("name", CASES)
def test_pin_is_as_good_as_documented(name: str) -> None:
    """No makespan or gap is larger, and no bound smaller, than plans/README.md says."""
    claims, words = plan_of_case(name).claims, stated()[name]
    makespan, bound = claims.makespan_ns, claims.lower_bound_ns
    assert round(makespan / 1e6, 3) <= words.makespan_ms
    assert round(bound / 1e6, 3) >= words.bound_ms
    assert round(100 * (makespan - bound) / makespan, 2) <= words.gap_percent


@pytest.mark.parametrize("name", CASES)
def test_pin_is_not_above_the_greedy(name: str) -> None:
    """A pin takes no longer than the order of CrossPipe's greedy."""
    simulator = Simulator(problem_of_case(name))
    greedy = crosspipe_greedy(simulator.problem, simulator.tables)
    assert greedy is not None
    makespan = simulator.makespan(greedy.orders)
    assert makespan is not None
    assert plan_of_case(name).claims.makespan_ns <= makespan


def test_pin_is_what_solve_gives() -> None:
    """Solving a shipped profile anew gives the pin, byte for byte."""
    compiled = compile_profile(load_profile(PLANS / QUICK / "profile.json"))
    assert encode_plan(compiled.plan) == (PLANS / QUICK / "plan.json").read_bytes()


def test_405b_is_near_the_papers_ratio() -> None:
    """At 64 GB/s the pipeline over two datacenters takes about 1.3 times the ideal, as CrossPipe's section 5.2 says."""
    plan, problem = plan_of_case("llama3-405b-2dc-64GBps"), problem_of_case("llama3-405b-2dc-64GBps")
    stage = problem.stages[0]
    ideal = problem.microbatches * (stage.forward_ns + stage.input_grad_ns + stage.weight_grad_ns)
    assert 1.25 <= plan.claims.makespan_ns / ideal < 1.35


def busy_ms(groups: Sequence[str]) -> list[list[Fraction]]:
    """Return, for each group of GPUs, what each layer takes there for one microbatch, both ways [ms]."""
    exact = {
        group: [Fraction(str(forward)) + Fraction(str(backward)) for forward, backward in layers]
        for group, layers in LAYERS_MS.items()
    }
    return [exact[group] for group in groups]


def fastest_splits(costs: Sequence[Sequence[Fraction]]) -> tuple[Fraction, int]:
    """Return the least time of the slowest stage over all splits into runs of >= 1 layer, and how many reach it."""
    num_layers = len(costs[0])
    best = {0: Fraction(0)}
    for row in costs:
        best = {
            end: min(max(value, sum(row[start:end], Fraction(0))) for start, value in best.items() if start < end)
            for end in range(min(best) + 1, num_layers + 1)
        }
    slowest = best[num_layers]
    ways = {0: 1}
    for row in costs:
        ways = {
            end: sum(count for start, count in ways.items() if start < end and sum(row[start:end]) <= slowest)
            for end in range(1, num_layers + 1)
        }
    return slowest, ways[num_layers]


def test_8b_is_split_best() -> None:
    """No other contiguous split has a slowest stage as fast, nor has any with the GH200 site first."""
    groups = ["a100"] * 4 + ["gh200"] * 4
    costs = busy_ms(groups)
    starts = [sum(SPLIT[:index]) for index in range(len(SPLIT))]
    slowest = max(sum(row[start : start + size]) for row, start, size in zip(costs, starts, SPLIT, strict=True))
    assert sum(SPLIT) == len(LAYERS_MS["a100"])
    assert fastest_splits(costs) == (slowest, 1)
    assert fastest_splits(busy_ms(groups[::-1]))[0] > slowest


def test_8b_stages_add_up() -> None:
    """Each stage takes the sum of its layers; its backward is halved, but the first stage sends no gradient."""
    profile = load_profile(PLANS / QUICK / "profile.json")
    first = 0
    for index, (stage, size) in enumerate(zip(profile.stages, SPLIT, strict=True)):
        layers = LAYERS_MS[stage.device.split("-")[0]][first : first + size]
        forward, backward = (sum(times) for times in zip(*layers, strict=True))
        assert stage.forward_ms == pytest.approx(forward, abs=1e-6)
        input_grad = 0 if index == 0 else backward / 2
        assert stage.input_grad_ms == pytest.approx(input_grad, abs=1e-6)
        assert stage.weight_grad_ms == pytest.approx(backward - input_grad, abs=1e-6)
        first += size
