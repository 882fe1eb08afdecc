"""Plans of every kind timed anew on another profile and back: pairs, flows, collectives, recompute, a last step."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

import pytest
from command_line import profile_document
from flow_problems import flow_document
from helpers import assert_plan_ok
from msgspec.structs import replace

from cpipe.compiler import SolveOptions, compile_profile, problem_for_plan, simulate_plan
from cpipe.compiler.retime import retimed
from cpipe.ir import Plan
from cpipe.plan import lift
from cpipe.profile import Profile, parse_profile
from cpipe.report.diff import compare_plans

Document = dict[str, Any]


class Case(NamedTuple):
    """A job and how its plan is made."""

    document: Document
    options: SolveOptions


def parsed(document: Document) -> Profile:
    """Return the profile of a document."""
    return parse_profile(json.dumps(document).encode(), "profile.json")


def vee(num_devices: int) -> Document:
    """Return a job of two stages a device."""
    document = profile_document(2 * num_devices, 4)
    document["devices"] = document["devices"][:num_devices]
    for index, stage in enumerate(document["stages"]):
        stage["device"] = f"g{min(index, 2 * num_devices - 1 - index)}"
        stage["static_bytes"] = 10_000_000_000
    names = {device["id"] for device in document["devices"]}
    document["links"] = [link for link in document["links"] if {link["from"], link["to"]} <= names]
    return document


def recomputing() -> Document:
    """Return a job of which every stage may recompute."""
    document = profile_document(3)
    for stage in document["stages"]:
        stage["recompute"] = {"activation_bytes": 200_000_000, "extra_ms": 0.5}
    return document


def parallel(mode: str) -> Document:
    """Return a job with data parallelism whose collectives take time."""
    return profile_document(3, data_parallel={"mode": mode, "replicas": 2, "latency_ms": 1})


CASES: dict[str, Case] = {
    "split": Case(profile_document(3), SolveOptions(method="zb-h1")),
    "whole": Case(profile_document(3), SolveOptions(method="1f1b")),
    "searched": Case(profile_document(3), SolveOptions(method="greedy")),
    "span": Case(profile_document(3), SolveOptions(method="greedy", objective="span")),
    "narrow": Case(profile_document(3), SolveOptions(method="greedy", receive_window=1)),
    "loop": Case(vee(2), SolveOptions(method="interleaved-1f1b", placement="loop")),
    "vee": Case(vee(2), SolveOptions(method="zb-v")),
    "pairs": Case(vee(2), SolveOptions(method="dualpipe-v")),
    "flows": Case(flow_document(2, 4), SolveOptions(method="chimera")),
    "ddp": Case(parallel("ddp"), SolveOptions(method="greedy")),
    "zero1": Case(parallel("zero1"), SolveOptions(method="1f1b-split")),
    "recompute": Case(recomputing(), SolveOptions(method="1f1b", recompute="all")),
    "some recompute": Case(recomputing(), SolveOptions(method="greedy", recompute="0,2")),
    "step": Case(profile_document(3) | {"step_ms": 4}, SolveOptions(method="1f1b")),
}


@cache
def made(name: str) -> Plan:
    """Return the plan of a case."""
    case = CASES[name]
    compiled = compile_profile(parsed(case.document), case.options)
    assert_plan_ok(compiled.plan, compiled.problem)
    return compiled.plan


def slower(document: Document) -> Document:
    """Return the job with other times of ops, links and collectives, and larger messages."""
    document = json.loads(json.dumps(document))
    for index, stage in enumerate(document["stages"]):
        for field in ("forward_ms", "input_grad_ms", "weight_grad_ms", "full_backward_ms"):
            if field in stage:
                stage[field] += 0.25 * (index % 3)
        if "output_bytes" in stage:
            stage["output_bytes"] = stage["output_bytes"] * 2
        if "recompute" in stage:
            stage["recompute"]["extra_ms"] = 1.5
    for link in document["links"]:
        link["latency_ms"] = link.get("latency_ms", 0) + 1.5
    if "data_parallel" in document:
        document["data_parallel"]["latency_ms"] = 3
    return document


def timed_on(plan: Plan, document: Document) -> Plan:
    """Return the plan timed anew on a job; it is valid there."""
    problem = problem_for_plan(plan, parsed(document))
    new = retimed(plan, problem, simulate_plan(plan, problem))
    assert_plan_ok(new, problem)
    return new


@pytest.mark.parametrize("name", CASES)
def test_own_job_changes_nothing(name: str) -> None:
    """On its own job a plan of any kind is returned as it is."""
    plan = made(name)
    assert timed_on(plan, CASES[name].document) is plan


@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str) -> None:
    """On another job only times, claims, sizes and problem change; back on its own all of them are what they were."""
    plan = made(name)
    there = timed_on(plan, slower(CASES[name].document))
    assert lift(there) == lift(plan)
    difference = compare_plans(plan, there)
    assert set(difference.sections) <= {"times", "claims", "channels", "problem", "made_by"}
    assert {"times", "claims", "problem"} <= set(difference.sections)
    assert {field.name.split(".")[1] for field in difference.fields if field.section == "channels"} <= {"message_bytes"}
    assert {field.name for field in difference.fields if field.section == "problem"} == {"digest"}
    back = timed_on(there, CASES[name].document)
    assert compare_plans(plan, back).sections == ("made_by",)
    assert back.made_by.found_by == plan.made_by.found_by
    assert replace(back, made_by=plan.made_by, digest=plan.digest) == plan


def test_last_step_goes_and_comes() -> None:
    """Where the other job has no last step STEP has no times, and it gets them where there is one."""
    plan = made("step")
    without = timed_on(plan, profile_document(3))
    assert {step.end_ns for rank in without.ranks for step in rank.ops if step.op == "STEP"} == {None}
    assert plan.claims.makespan_ns - without.claims.makespan_ns == 4_000_000
    again = timed_on(without, CASES["step"].document)
    assert compare_plans(plan, again).sections == ("made_by",)


def test_kinds_are_there() -> None:
    """The cases hold what they are named after: fused pairs, flows, collectives, stages that recompute."""
    ops = {name: {step.op for rank in made(name).ranks for step in rank.ops} for name in CASES}
    assert "FB" in ops["pairs"]
    assert "ALL_REDUCE" in ops["ddp"]
    assert {"ALL_GATHER", "REDUCE_SCATTER", "D", "W"} <= ops["zero1"]
    assert made("flows").problem.flows == 2
    assert (made("recompute").problem.recompute, made("some recompute").problem.recompute) == ((0, 1, 2), (0, 2))
    assert {channel.window for channel in made("narrow").channels} == {1}


def test_labels_of_pairs_and_collectives() -> None:
    """A difference names fused pairs by both ops, and collectives by stage and group."""
    plan = made("pairs")
    place, index = next(
        (place, index)
        for place, rank in enumerate(plan.ranks)
        for index, step in enumerate(rank.ops)
        if step.op == "FB"
    )
    step = plan.ranks[place].ops[index]
    ops = list(plan.ranks[place].ops)
    ops[index] = replace(step, mb=(step.mb or 0) + 9)
    ranks = list(plan.ranks)
    ranks[place] = replace(ranks[place], ops=tuple(ops))
    (found,) = compare_plans(plan, replace(plan, ranks=tuple(ranks))).orders
    assert found.a == f"{step.stage}F{step.mb}+{step.backward_stage}B{step.backward_mb}"
    assert found.b == f"{step.stage}F{(step.mb or 0) + 9}+{step.backward_stage}B{step.backward_mb}"
    plan = made("ddp")
    cut = replace(plan.ranks[0], ops=tuple(step for step in plan.ranks[0].ops if step.op != "ALL_REDUCE"))
    (missing,) = compare_plans(plan, replace(plan, ranks=(cut, *plan.ranks[1:]))).messages
    assert missing.a == "ALL_REDUCE 0 group 0"
