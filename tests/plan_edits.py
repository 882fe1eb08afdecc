"""Edits of plans, for tests that break them: every function returns a new plan and leaves its digest as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from cpipe.ir import Instruction, Plan

__all__ = ["edit_channel", "edit_op", "edit_problem", "insert_op", "remove_op", "set_ops", "swap_ops"]


def set_ops(plan: Plan, place: int, ops: Sequence[Instruction]) -> Plan:
    """Replace the program at ``$.ranks[place]``."""
    ranks = list(plan.ranks)
    ranks[place] = replace(ranks[place], ops=tuple(ops))
    return replace(plan, ranks=tuple(ranks))


def edit_op(plan: Plan, place: int, index: int, **fields: Any) -> Plan:
    """Change fields of one instruction."""
    ops = list(plan.ranks[place].ops)
    ops[index] = replace(ops[index], **fields)
    return set_ops(plan, place, ops)


def remove_op(plan: Plan, place: int, index: int) -> Plan:
    """Drop one instruction."""
    ops = list(plan.ranks[place].ops)
    del ops[index]
    return set_ops(plan, place, ops)


def insert_op(plan: Plan, place: int, index: int, step: Instruction) -> Plan:
    """Put an instruction before the one at `index`."""
    ops = list(plan.ranks[place].ops)
    ops.insert(index, step)
    return set_ops(plan, place, ops)


def swap_ops(plan: Plan, place: int, first: int, second: int) -> Plan:
    """Exchange two instructions of a program."""
    ops = list(plan.ranks[place].ops)
    ops[first], ops[second] = ops[second], ops[first]
    return set_ops(plan, place, ops)


def edit_channel(plan: Plan, index: int, **fields: Any) -> Plan:
    """Change fields of one channel."""
    channels = list(plan.channels)
    channels[index] = replace(channels[index], **fields)
    return replace(plan, channels=tuple(channels))


def edit_problem(plan: Plan, **fields: Any) -> Plan:
    """Change fields of the problem's summary."""
    return replace(plan, problem=replace(plan.problem, **fields))
