"""Tests that the validator catches every small change of a right plan, and survives every large one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import edit_op, insert_op, remove_op, swap_ops
from random_plans import draw_problem, draw_schedule

from cpipe.ir import Plan, Problem
from cpipe.plan import TRANSPORTS, decode_plan, encode_plan, lift, validate
from cpipe.sim import DeadlockError, simulate

Made = tuple[Plan, Problem]
NUM_PLANS = 50
MUTATIONS_A_PLAN = 20


@cache
def made(seed: int) -> Made:
    """Return a random plan and its problem."""
    draw = Random(5000 + seed)
    while True:
        problem = draw_problem(draw)
        try:
            plan = plan_of(problem, draw_schedule(draw, problem))
        except DeadlockError:  # a receive window can make an order impossible
            continue
        if len(plan.channels) > 1:
            assert_plan_ok(plan, problem)
            return plan, problem


def pick(draw: Random, plan: Plan) -> tuple[int, int]:
    """Return a random instruction as place and index."""
    places = [(place, index) for place, program in enumerate(plan.ranks) for index in range(len(program.ops))]
    return draw.choice(places)


def drop(draw: Random, plan: Plan) -> Plan:
    """Leave one instruction out."""
    return remove_op(plan, *pick(draw, plan))


def duplicate(draw: Random, plan: Plan) -> Plan:
    """Repeat one instruction somewhere in its program."""
    place, index = pick(draw, plan)
    ops = plan.ranks[place].ops
    return insert_op(plan, place, draw.randint(0, len(ops)), ops[index])


def retarget(draw: Random, plan: Plan) -> Plan:
    """Change one number of one instruction."""
    while True:
        place, index = pick(draw, plan)
        step = plan.ranks[place].ops[index]
        fields = [name for name in step.__struct_fields__[1:] if getattr(step, name) is not None]
        if fields:
            name = draw.choice(fields)
            return edit_op(plan, place, index, **{name: getattr(step, name) + draw.choice((-2, -1, 1, 2))})


def rename(draw: Random, plan: Plan) -> Plan:
    """Turn one instruction into another kind."""
    place, index = pick(draw, plan)
    kinds = ("F", "D", "W", "B", "SEND", "RECV", "WAIT", "STEP", "ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE")
    old = plan.ranks[place].ops[index].op
    return edit_op(plan, place, index, op=draw.choice([kind for kind in kinds if kind != old]))


def swap(draw: Random, plan: Plan) -> Plan:
    """Exchange two neighbours."""
    while True:
        place, index = pick(draw, plan)
        if index:
            return swap_ops(plan, place, index - 1, index)


MUTATORS: tuple[Callable[[Random, Plan], Plan], ...] = (drop, duplicate, retarget, rename, swap)


@pytest.mark.parametrize("seed", range(NUM_PLANS))
def test_every_mutation_is_caught(seed: int) -> None:
    """Of 1000 single mutations, all are caught: by their effect, or where they have none, by the digest."""
    plan, problem = made(seed)
    draw = Random(seed)
    for _ in range(MUTATIONS_A_PLAN):
        mutate = draw.choice(MUTATORS)
        changed = mutate(draw, plan)
        if changed == plan:  # the neighbours were equal
            continue
        assert "plan-digest" in {fault.code for fault in validate(changed, problem)}
        if not validate(signed(changed), problem):
            assert mutate is swap, f"{mutate.__name__} went unnoticed"
            assert same_behaviour(plan, changed, problem)


def same_behaviour(plan: Plan, changed: Plan, problem: Problem) -> bool:
    """Return whether two plans do the same: same order on every channel, same time of every op by the simulator.

    Independent ops of no duration may run in either order.
    """
    return streams(changed) == streams(plan) and op_ends(changed, problem) == op_ends(plan, problem)


def op_ends(plan: Plan, problem: Problem) -> dict[int, int]:
    """Return when each op ends by the simulator [ns]."""
    schedule, gates = lift(plan)
    ends = simulate(problem, schedule, gates).ends
    return {
        op: end for order, row in zip(schedule.orders, ends, strict=True) for op, end in zip(order, row, strict=True)
    }


def streams(plan: Plan) -> dict[tuple[int | None, str], list[tuple[int | None, int | None]]]:
    """Return what each channel's ends do, in order."""
    found: dict[tuple[int | None, str], list[tuple[int | None, int | None]]] = {}
    for program in plan.ranks:
        for step in program.ops:
            if step.op in ("SEND", "RECV"):
                found.setdefault((step.channel, step.op), []).append((step.stage, step.mb))
    return found


def numbers(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every integer of a JSON tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from numbers(value, (*path, key))
    if isinstance(tree, int):
        yield path


def put(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set the value at a path of a JSON tree."""
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


@pytest.mark.parametrize("seed", range(20))
def test_every_number_of_the_header_is_checked(seed: int) -> None:
    """Every number outside the programs is held against the rest; only seed and lower bound are free."""
    plan, problem = made(seed)
    text = encode_plan(plan)
    header = {key: value for key, value in json.loads(text).items() if key not in ("ranks", "version", "made_by")}
    for path in numbers(header):
        if path == ("claims", "lower_bound_ns"):
            continue
        for step in (-1, 1):
            tree = json.loads(text)
            value: Any = header
            for key in path:
                value = value[key]
            put(tree, path, value + step)
            changed = signed(decode_plan(json.dumps(tree).encode(), "plan.json"))
            assert validate(changed, problem), path


@pytest.mark.parametrize("seed", range(25))
def test_garbage_never_raises(seed: int) -> None:
    """Whatever can be decoded can be validated: many wild numbers and torn lists give faults, never an exception."""
    plan, problem = made(seed)
    draw = Random(seed)
    for _ in range(6):
        tree = json.loads(encode_plan(plan))
        for path in draw.sample(list(numbers(tree)), draw.randint(1, 12)):
            if path != ("version",):
                put(tree, path, draw.choice((-1, -(2**62), 0, 1, 3, 10**18, 2**62)))
        for name in ("channels", "groups", "ranks"):
            if draw.random() < 0.2 and tree[name]:
                tree[name].pop(draw.randrange(len(tree[name])))
            if draw.random() < 0.2 and tree[name]:
                tree[name].append(draw.choice(tree[name]))
        if draw.random() < 0.3:
            tree["problem"]["placement"] = [draw.choice((-1, 0, 1, 2, 99)) for _ in range(draw.randint(0, 7))]
        if draw.random() < 0.2:
            tree["claims"]["peak_bytes"] = []
        for program in tree["ranks"]:
            if draw.random() < 0.3:
                draw.shuffle(program["ops"])
        wild = decode_plan(json.dumps(tree).encode(), "plan.json")
        for transport in TRANSPORTS:
            assert validate(wild, problem, transport=transport)
            assert validate(wild, transport=transport)


def test_empty_plan_is_not_valid() -> None:
    """A plan without ranks and stages has faults, not an exception."""
    plan, problem = made(0)
    bare = replace(plan, ranks=(), channels=(), groups=(), problem=replace(plan.problem, placement=()))
    assert {fault.code for fault in validate(signed(bare), problem)} >= {"count", "other-problem"}
