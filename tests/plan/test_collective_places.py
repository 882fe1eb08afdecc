"""Collectives in the wrong place: before the delayed weight gradients, behind the first forward, on another stage."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from helpers import assert_plan_ok, plan_of, signed
from oracle.cases import case
from plan_edits import set_ops

from cpipe.ir import Instruction, Plan, Problem
from cpipe.plan import validate
from cpipe.schedules import static_schedule

DDP = case(3, [0, 1], message=0, reduce=[2, 1])
ZERO1 = case(3, [0, 1, 1, 0], message=0, reduce=[2, 1, 1, 2], gather=[1, 2, 3, 4])


def made(problem: Problem) -> Plan:
    """Return a plan whose weight gradients are delayed."""
    plan = plan_of(problem, static_schedule("zb-v" if problem.num_stages > 2 else "zb-h1", problem))
    assert_plan_ok(plan, problem)
    return plan


def moved(ops: Sequence[Instruction], name: str, stage: int, shift: int) -> list[Instruction]:
    """Return the ops with one collective `shift` places further."""
    changed = list(ops)
    place = next(index for index, step in enumerate(changed) if (step.op, step.stage) == (name, stage))
    changed.insert(place + shift, changed.pop(place))
    return changed


def last(ops: Sequence[Instruction], name: str, stage: int) -> int:
    """Return the place of the last op of a name and stage."""
    return max(index for index, step in enumerate(ops) if (step.op, step.stage) == (name, stage))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("problem", "name"), [(DDP, "ALL_REDUCE"), (ZERO1, "REDUCE_SCATTER")])
def test_no_reduction_before_the_last_weight_gradient(problem: Problem, name: str, known: bool) -> None:
    """On every stage: one place too early, its sum lacks the last microbatch."""
    plan = made(problem)
    for stage, rank in enumerate(problem.placement):
        ops = plan.ranks[rank].ops
        back = last(ops, "W", stage) - last(ops, name, stage)
        assert back < 0
        early = signed(set_ops(plan, rank, moved(ops, name, stage, back)))
        told = [fault.message for fault in validate(early, problem if known else None)]
        where = last(ops, "W", stage) + 1
        expected = f"rank {rank}: {name} of stage {stage} comes before W of stage {stage} mb 2, at ops[{where}]: "
        assert expected + "gradients are incomplete" in told


def test_no_forward_before_its_parameters() -> None:
    """An all-gather that is waited for behind the first forward of its stage is told, on every stage."""
    plan = made(ZERO1)
    for stage, rank in enumerate(ZERO1.placement):
        ops = list(plan.ranks[rank].ops)
        wait = next(
            index
            for index, step in enumerate(ops)
            if (step.op, step.stage) == ("WAIT", stage) and step.group is not None
        )
        first = next(index for index, step in enumerate(ops) if (step.op, step.stage) == ("F", stage))
        assert wait < first
        ops.insert(first, ops.pop(wait))
        codes = [fault.code for fault in validate(signed(set_ops(plan, rank, ops)), ZERO1)]
        assert "collective-order" in codes


def test_no_step_before_the_collectives() -> None:
    """A STEP that stands before a reduction, or before its WAIT, does not end the program."""
    plan = made(DDP)
    ops = list(plan.ranks[0].ops)
    ops.insert(last(ops, "ALL_REDUCE", 0), ops.pop())
    codes = [fault.code for fault in validate(signed(set_ops(plan, 0, ops)), DDP)]
    assert codes.count("early-step") == 1
