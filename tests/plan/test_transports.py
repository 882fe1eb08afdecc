"""Tests of the transports that a plan claims: found by the compiler, stated in the plan, checked by the validator."""

from __future__ import annotations

import json
from random import Random

import pytest
from command_line import profile_document
from hand_plans import hand_plan, link
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import swap_ops
from random_plans import draw_problem, draw_schedule
from sample_plans import make_problem, one_f_one_b

from cpipe.compiler import compile_profile
from cpipe.ir import Plan
from cpipe.plan import TRANSPORTS, decode_plan, encode_plan, safe_transports, validate
from cpipe.profile import parse_profile

FACING = hand_plan(
    [0, 1, 0, 1],
    2,
    ["F0.1 S0.1@0 R2.0@1 ?2.0@1 F2.0", "F1.0 S1.0@1 R1.1@0 ?1.1@0 F1.1"],
    [link(0, 1, "activation"), link(1, 0, "activation")],
)
"""A fragment in which two sends face each other: it hangs where a rank's messages share a queue."""

CROSSED = hand_plan(
    [0, 1, 1, 0],
    2,
    ["F0.0 S0.0@0 B3.0 S3.0@1 F0.1 S0.1@0", "R1.0@0 ?1.0@0 F1.0 R1.1@0 R2.0@1 ?2.0@1 B2.0 ?1.1@0 F1.1"],
    [link(0, 1, "activation", 1), link(0, 1, "gradient")],
)
"""A fragment whose activation is received before the gradient that is sent before it."""


def claiming(plan: Plan, *transports: str) -> Plan:
    """Return the plan with these transports stated, and a right digest."""
    return signed(replace(plan, claims=replace(plan.claims, transports=transports)))


def one_by_one(plan: Plan) -> tuple[str, ...]:
    """Return the transports under which the validator, asked for each alone, finds neither a swap nor a hang."""
    wrong = {"swapped", "deadlock"}
    return tuple(name for name in TRANSPORTS if not wrong & {fault.code for fault in validate(plan, transport=name)})


def test_compiled_plans_state_their_transports() -> None:
    """A plan that the compiler makes states every transport under which the validator finds nothing."""
    profile = parse_profile(json.dumps(profile_document(3, 4)).encode(), "profile.json")
    compiled = compile_profile(profile)
    assert_plan_ok(compiled.plan, compiled.problem)
    assert compiled.plan.claims.transports == one_by_one(compiled.plan)
    assert compiled.plan.claims.transports[:2] == ("channels", "gloo")


@pytest.mark.parametrize("seed", range(40))
def test_safe_transports_are_those_found_one_by_one(seed: int) -> None:
    """Concluding from a strict transport to looser ones gives what each gives alone, with receives moved at random."""
    draw = Random(seed)
    problem = draw_problem(draw, windows=False)
    plan = plan_of(problem, draw_schedule(draw, problem))
    assert_plan_ok(plan, problem)
    assert safe_transports(plan) == one_by_one(plan)
    for _ in range(6):
        place = draw.randrange(len(plan.ranks))
        receives = [index for index, step in enumerate(plan.ranks[place].ops) if step.op == "RECV"]
        if len(receives) > 1:
            plan = swap_ops(plan, place, *draw.sample(receives, 2))
    assert safe_transports(plan) == one_by_one(plan)


@pytest.mark.parametrize(
    ("plan", "safe", "wrong", "reason"),
    [
        (FACING, ("channels", "gloo"), "nccl-pair", "wait cycle under nccl-pair: rank 0 ops[1] SEND .* [deadlock]"),
        (CROSSED, ("channels", "nccl-dir2"), "gloo", "rank 1 ops[3] RECV .* swapped, silent data corruption [swapped]"),
    ],
)
def test_claimed_transports_are_checked(plan: Plan, safe: tuple[str, ...], wrong: str, reason: str) -> None:
    """A claimed transport under which the plan hangs or swaps is a fault of the claim, with its first reason."""
    assert safe_transports(plan) == safe == one_by_one(plan)
    claims = claiming(plan, *safe, wrong)
    (fault,) = [fault for fault in validate(claims) if fault.code == "wrong-transport"]
    assert fault.path == f"$.claims.transports[{len(safe)}]"
    start, end = reason.split(" .* ")
    assert fault.message.startswith(f"the plan claims to be right under {wrong}, but: {start}")
    assert fault.message.endswith(end)


def test_unknown_transports_are_refused() -> None:
    """A claimed transport that does not exist is named, with those that do."""
    problem = make_problem(2, 2)
    plan = claiming(plan_of(problem, one_f_one_b(problem)), "channels", "carrier-pigeon")
    (fault,) = validate(plan, problem)
    assert fault.code == "wrong-transport"
    assert fault.path == "$.claims.transports[1]"
    assert "no transport 'carrier-pigeon', known are channels, gloo" in fault.message


def test_no_claim_leaves_no_trace() -> None:
    """A plan without claimed transports has the text it had before the field existed; one with them comes back."""
    problem = make_problem(2, 2)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    assert b"transports" not in encode_plan(plan)
    stated = claiming(plan, "channels", "gloo")
    assert_plan_ok(stated, problem)
    assert b', "transports": ["channels", "gloo"], ' in encode_plan(stated)
    assert decode_plan(encode_plan(stated), "plan.json") == stated
    assert validate(stated, problem) == ()
