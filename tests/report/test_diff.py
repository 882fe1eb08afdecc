"""Tests of cpipe.report.diff: the first difference of each rank, parts told apart, and symmetry."""

from __future__ import annotations

from random import Random

import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import edit_channel, edit_op, edit_problem, remove_op, set_ops
from random_plans import draw_problem, draw_schedule
from sample_plans import MS, make_problem, one_f_one_b

from cpipe.ir import Group, Plan
from cpipe.report.diff import SECTIONS, FieldDifference, PlanDifference, compare_plans

PROBLEM = make_problem(2, 4)


def made() -> Plan:
    """Return 1F1B's plan of two devices and four microbatches."""
    plan = plan_of(PROBLEM, one_f_one_b(PROBLEM))
    assert_plan_ok(plan, PROBLEM)
    return plan


def moved(plan: Plan, place: int, source: int, target: int) -> Plan:
    """Return the plan with one step of a program at another index."""
    ops = list(plan.ranks[place].ops)
    ops.insert(target, ops.pop(source))
    return set_ops(plan, place, ops)


def find(plan: Plan, place: int, op: str, number: int = 0) -> int:
    """Return the index of an op's nth step in a program."""
    return [index for index, step in enumerate(plan.ranks[place].ops) if step.op == op][number]


def test_equal_plans() -> None:
    """A plan does not differ from itself."""
    assert compare_plans(made(), made()) == PlanDifference()
    assert compare_plans(made(), made()).sections == ()


def test_orders() -> None:
    """A rank in another order has the first op that differs, its place among compute ops, and how many differ."""
    plan = made()
    other = moved(plan, 0, find(plan, 0, "F", 1), find(plan, 0, "F", 0))
    difference = compare_plans(plan, other)
    assert difference.sections == ("orders",)
    (rank,) = difference.orders
    assert (rank.rank, rank.position, rank.a, rank.b) == (0, 0, "0F0", "0F1")
    assert (rank.num_different, rank.num_ops) == (2, 8)


def test_shorter_order() -> None:
    """A program that ends early has nothing there: null."""
    plan = made()
    other = remove_op(plan, 1, find(plan, 1, "B", 3))
    (rank,) = compare_plans(plan, other).orders
    assert (rank.rank, rank.position, rank.a, rank.b) == (1, 7, "1B3", None)
    assert compare_plans(other, plan).orders[0].b == "1B3"


def test_messages() -> None:
    """The same order with a receive posted elsewhere differs in messages alone, at the index of the program."""
    plan = made()
    source = find(plan, 0, "RECV", 1)
    other = moved(plan, 0, source, source - 1)
    difference = compare_plans(plan, other)
    assert difference.sections == ("messages",)
    (rank,) = difference.messages
    assert (rank.rank, rank.position, rank.num_different) == (0, source - 1, 2)
    assert rank.b == f"RECV 0.1 channel {plan.ranks[0].ops[source].channel}"


def test_times() -> None:
    """Equal orders at other times are told apart from other orders, with the first op and the largest shift [ms]."""
    plan = made()
    first, last = find(plan, 1, "F", 1), find(plan, 1, "B", 3)
    other = edit_op(plan, 1, first, start_ns=(plan.ranks[1].ops[first].start_ns or 0) + MS)
    other = edit_op(other, 1, last, end_ns=(plan.ranks[1].ops[last].end_ns or 0) + 3 * MS)
    difference = compare_plans(plan, other)
    assert difference.sections == ("times",)
    (rank,) = difference.times
    assert (rank.rank, rank.op, rank.num_different, rank.largest_ms) == (1, "1F1", 2, 3.0)
    assert rank.b_start_ms == pytest.approx((rank.a_start_ms or 0) + 1)
    assert rank.a_end_ms == rank.b_end_ms


def test_times_that_are_not_stated() -> None:
    """A time that only one plan states is null for the other."""
    plan = made()
    other = edit_op(plan, 0, find(plan, 0, "F"), start_ns=None)
    (rank,) = compare_plans(plan, other).times
    assert (rank.a_start_ms, rank.b_start_ms) == (0.0, None)


def test_fields() -> None:
    """Claims, channels, groups, devices, problem, origin and extensions are named field by field."""
    plan = made()
    other = edit_problem(edit_channel(plan, 0, window=9), name="other", microbatches=5)
    other = replace(
        other,
        claims=replace(plan.claims, lower_bound_ns=1),
        groups=(Group(id=0, kind="data_parallel", stages=(0,)),),
        made_by=replace(plan.made_by, seed=4, limits={"max_gap": 0.5}),
        ranks=(plan.ranks[0], replace(plan.ranks[1], device="x")),
        extensions={"note": [1]},
    )
    difference = compare_plans(plan, other)
    sections = ("claims", "channels", "groups", "devices", "problem", "made_by", "extensions")
    assert difference.sections == sections
    found = {(field.section, field.name): (field.a, field.b) for field in difference.fields}
    assert found == {
        ("claims", "lower_bound_ns"): (0, 1),
        ("channels", "0 -> 1 activation.window"): (plan.channels[0].window, 9),
        ("groups", "group 0"): (None, {"id": 0, "kind": "data_parallel", "stages": (0,)}),
        ("devices", "rank 1"): ("g1", "x"),
        ("problem", "name"): ("sample", "other"),
        ("problem", "microbatches"): (4, 5),
        ("made_by", "seed"): (0, 4),
        ("made_by", "limits.max_gap"): (None, 0.5),
        ("extensions", "note"): (None, [1]),
    }


def test_digest_alone() -> None:
    """Digests differ with everything, so they count only when nothing else does."""
    plan = made()
    other = replace(plan, digest="sha256:0")
    expected = FieldDifference(section="digest", name="digest", a=plan.digest, b="sha256:0")
    assert compare_plans(plan, other).fields == (expected,)
    changed = signed(replace(plan, made_by=replace(plan.made_by, seed=1)))
    assert compare_plans(plan, changed).sections == ("made_by",)


def test_missing_rank() -> None:
    """A rank that only one plan has is said once, as a device."""
    plan = made()
    difference = compare_plans(plan, replace(plan, ranks=plan.ranks[:1]))
    assert difference.fields == (FieldDifference(section="devices", name="rank 1", a="g1", b=None),)


def test_order_of_ranks_does_not_matter() -> None:
    """Programs are matched by rank, not by their place in the file."""
    plan = made()
    assert compare_plans(plan, replace(plan, ranks=plan.ranks[::-1])).orders == ()


@pytest.mark.parametrize("seed", range(30))
def test_random_pairs_are_symmetric(seed: int) -> None:
    """Exchanging the plans exchanges a and b and nothing else; two orders of one problem differ where they do."""
    draw = Random(seed)
    problem = draw_problem(draw, windows=False)
    first, second = (plan_of(problem, draw_schedule(draw, problem)) for _ in range(2))
    for plan in (first, second):
        assert_plan_ok(plan, problem)
    there, back = compare_plans(first, second), compare_plans(second, first)
    assert there.sections == back.sections == tuple(name for name in SECTIONS if name in there.sections)
    assert [(rank.rank, rank.position, rank.a, rank.b) for rank in there.orders] == [
        (rank.rank, rank.position, rank.b, rank.a) for rank in back.orders
    ]
    assert {(field.name, repr(field.a), repr(field.b)) for field in there.fields} == {
        (field.name, repr(field.b), repr(field.a)) for field in back.fields
    }
    assert ("problem" in there.sections) is False
    assert (first == second) == (there.sections == ())
