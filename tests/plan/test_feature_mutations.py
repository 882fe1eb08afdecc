"""Tests that the validator catches every small change of plans with pairs, flows, a step, recomputation and copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import pytest
from flow_problems import draw_flows
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from oracle.orders import random_schedule
from oracle.paired import draw_paired
from plan_edits import edit_op, edit_problem, insert_op, remove_op, set_ops
from random_offloads import draw_offering, draw_offloads
from random_plans import draw_problem

from cpipe.ir import Group, Instruction, Plan, Problem
from cpipe.plan import safe_transports, validate
from cpipe.profile import RecomputeSpec
from cpipe.profile.recompute import recomputing
from cpipe.units import Ns

FIELDS = ("stage", "mb", "backward_stage", "backward_mb", "channel", "group", "start_ns", "end_ns")


@cache
def made(seed: int) -> tuple[Plan, Problem]:
    """Return a random plan and its problem, with most of what a plan may have."""
    draw = Random(900 + seed)
    problem = draw_flows(draw, shared=draw.random() < 0.5) if draw.random() < 0.5 else draw_problem(draw, windows=False)
    stages = []
    for stage in problem.stages:
        pair = draw.choice((None, Ns(2), Ns(5)))
        spec = RecomputeSpec(
            activation_bytes=draw.randint(0, stage.activation_bytes), extra_ms=draw.randint(0, 2) / 1e6
        )
        stage = recomputing(stage, spec) if draw.random() < 0.3 else stage
        stages.append(replace(stage, forward_backward_ns=pair))
    problem = replace(problem, stages=tuple(stages), step_ns=Ns(draw.choice((0, 3))))
    schedule = draw_paired(draw, problem, random_schedule(problem, draw))
    if seed % 2:
        problem = draw_offering(draw, problem)
        schedule = draw_offloads(draw, problem, schedule)
    problem.verify()
    plan = plan_of(problem, schedule)
    assert_plan_ok(plan, problem)
    assert validate(plan) == ()
    return plan, problem


def places(plan: Plan) -> Iterator[tuple[int, int, Instruction]]:
    """Yield every instruction with its place and index."""
    for place, program in enumerate(plan.ranks):
        for index, step in enumerate(program.ops):
            yield place, index, step


def drop(draw: Random, plan: Plan) -> Plan:
    """Leave one instruction out."""
    place, index, _ = draw.choice([*places(plan)])
    return remove_op(plan, place, index)


def duplicate(draw: Random, plan: Plan) -> Plan:
    """Repeat one instruction somewhere in a program, its own or that of another rank."""
    _, _, step = draw.choice([*places(plan)])
    place = draw.randrange(len(plan.ranks))
    return insert_op(plan, place, draw.randint(0, len(plan.ranks[place].ops)), step)


def change(draw: Random, plan: Plan) -> Plan:
    """Change one number of one instruction."""
    place, index, name, value = draw.choice(
        [
            (place, index, name, value)
            for place, index, step in places(plan)
            for name in FIELDS
            if (value := getattr(step, name)) is not None
        ]
    )
    return edit_op(plan, place, index, **{name: value + draw.choice((-2, -1, 1, 2))})


def toggle(draw: Random, plan: Plan) -> Plan:
    """Give one instruction a field that it lacks, or take one away."""
    place, index, step = draw.choice([*places(plan)])
    name = draw.choice((*FIELDS, "copy"))
    added = draw.choice(("OFFLOAD", "RELOAD")) if name == "copy" else draw.randint(0, 2)
    return edit_op(plan, place, index, **{name: added if getattr(step, name) is None else None})


def state_step(draw: Random, plan: Plan) -> Plan:
    """Change when one rank says that the step is, or give it times where it has none."""
    place = draw.randrange(len(plan.ranks))
    last = len(plan.ranks[place].ops) - 1
    end = plan.claims.makespan_ns + draw.randint(1, 3)
    return edit_op(plan, place, last, start_ns=draw.randint(0, end), end_ns=end)


def recompute(draw: Random, plan: Plan) -> Plan:
    """Say of one more or one less stage that it recomputes, or of one twice."""
    stage, stages = draw.randrange(plan.problem.stages), plan.problem.recompute
    if stage in stages and draw.random() < 0.5:
        return edit_problem(plan, recompute=tuple(sorted((*stages, stage))))
    return edit_problem(plan, recompute=tuple(sorted({*stages} ^ {stage})))


def claim(draw: Random, plan: Plan) -> Plan:
    """Change one claim."""
    claims = plan.claims
    fields: dict[str, Any] = draw.choice(
        (
            {"makespan_ns": claims.makespan_ns + draw.choice((-1, 1))},
            {"lower_bound_ns": -1},
            {"lower_bound_ns": claims.makespan_ns + 1},
            {"proved_by": "me"},
            {"objective": "span"},
            {"span_ns": claims.makespan_ns + 1},
            {"gap_ppm": (claims.gap_ppm or 0) + draw.choice((-1, 1))},
            {"status": "feasible" if claims.status == "optimal" else "optimal"},
            {"transports": ("mail",)},
            {"peak_bytes": (*claims.peak_bytes[:-1], claims.peak_bytes[-1] + draw.choice((-1, 1)))},
        )
    )
    return replace(plan, claims=replace(claims, **fields))


def regroup(draw: Random, plan: Plan) -> Plan:
    """Change one group, or leave it out, or make one up."""
    groups = [*plan.groups]
    if not groups:
        return replace(plan, groups=(Group(id=0, kind="data_parallel", stages=(draw.randrange(plan.problem.stages),)),))
    index = draw.randrange(len(groups))
    group = groups[index]
    kind = "data_parallel" if group.kind == "weight_copies" else "weight_copies"
    fields: tuple[dict[str, Any], ...] = (
        {"id": group.id + 1},
        {"kind": kind},
        {"stages": group.stages[1:]},
        {"stages": (*group.stages, group.stages[0])},
    )
    if kind == "weight_copies" and len(group.stages) == 1 == plan.problem.stages:
        fields = fields[:1]  # the only stage is its own copy
    groups[index : index + 1] = [replace(group, **draw.choice(fields))] if draw.random() < 0.8 else []
    return replace(plan, groups=tuple(groups))


def move_reduction(draw: Random, plan: Plan) -> Plan:
    """Put the wait for a collective, where there is one, to the front of its program."""
    found = [
        (place, index, step) for place, index, step in places(plan) if step.op == "WAIT" and step.group is not None
    ]
    if not found:
        return drop(draw, plan)
    place, index, step = draw.choice(found)
    return set_ops(plan, place, [step, *(op for at, op in enumerate(plan.ranks[place].ops) if at != index)])


MUTATORS: tuple[Callable[[Random, Plan], Plan], ...] = (
    drop,
    duplicate,
    change,
    change,
    toggle,
    state_step,
    recompute,
    claim,
    regroup,
    move_reduction,
)


@pytest.mark.parametrize("seed", range(40))
def test_every_mutation_is_caught(seed: int) -> None:
    """Of 1000 changes of one thing each, signed like a plan that was made so, every one is told against the problem."""
    plan, problem = made(seed)
    draw = Random(seed)
    for _ in range(25):
        mutate = draw.choice(MUTATORS)
        changed = mutate(draw, plan)
        assert changed == plan or validate(signed(changed), problem), mutate.__name__
        safe_transports(changed)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_alone_tells_its_structure(seed: int) -> None:
    """Without a problem, too, what is dropped, repeated, regrouped or has other fields is told, and so is a step."""
    plan, _ = made(seed)
    draw = Random(seed)
    for _ in range(25):
        mutate = draw.choice((drop, duplicate, toggle, state_step, regroup, move_reduction))
        changed = mutate(draw, plan)
        assert changed == plan or validate(signed(changed)), mutate.__name__


def test_every_field_of_an_instruction_is_changed() -> None:
    """The mutations know all fields: a new one is to be added here."""
    assert set(Instruction.__struct_fields__) == {"op", "copy", *FIELDS}
