"""Canonical text of a plan: one instruction a line, fixed key order, the same bytes on every machine."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from cpipe.ir import Channel, Group, Instruction, Plan, RankProgram

__all__ = ["plan_text"]


def plan_text(plan: Plan, digest: str) -> str:
    """Return the canonical JSON text of `plan`, ending in a newline, with `digest` in place of its own.

    Raises
    ------
    ValueError
        When `limits` or `extensions` hold a number that is not finite.
    """
    header = (
        f'{{"format": {_value(plan.format)}, "version": {plan.version},',
        f' "digest": {_value(digest)},',
        f' "made_by": {_struct(plan.made_by)},',
        f' "problem": {_struct(plan.problem)},',
        f' "claims": {_struct(plan.claims)},',
        f' "channels": {_table(plan.channels)},',
        f' "groups": {_table(plan.groups)},',
    )
    ranks = ",\n".join(map(_rank, plan.ranks))
    body = f' "ranks": [\n{ranks}]' if ranks else ' "ranks": []'
    if plan.extensions is not msgspec.UNSET:
        body += f',\n "extensions": {_value(plan.extensions)}'
    return "\n".join((*header, body)) + "}\n"


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)


def _struct(value: msgspec.Struct) -> str:
    """Return the fields in their order; one that has a default and stands at it is left out."""
    fields = (
        f'"{field.name}": {_value(item)}'
        for field in msgspec.structs.fields(value)
        if (item := getattr(value, field.name)) != field.default
    )
    return "{" + ", ".join(fields) + "}"


def _table(rows: Iterable[Channel | Group]) -> str:
    lines = ",\n  ".join(map(_struct, rows))
    return f"[\n  {lines}]" if lines else "[]"


def _rank(program: RankProgram) -> str:
    head = f'{{"rank": {program.rank}, "device": {_value(program.device)}, "ops": ['
    lines = ",\n".join(map(_instruction, program.ops))
    return f"{head}\n{lines}]}}" if lines else f"{head}]}}"


def _instruction(step: Instruction) -> str:
    text = f'{{"op": "{step.op}"'
    if step.stage is not None:
        text += f', "stage": {step.stage}'
    if step.mb is not None:
        text += f', "mb": {step.mb}'
    if step.backward_stage is not None:
        text += f', "backward_stage": {step.backward_stage}'
    if step.backward_mb is not None:
        text += f', "backward_mb": {step.backward_mb}'
    if step.channel is not None:
        text += f', "channel": {step.channel}'
    if step.group is not None:
        text += f', "group": {step.group}'
    if step.copy is not None:
        text += f', "copy": "{step.copy}"'
    if step.start_ns is not None:
        text += f', "start_ns": {step.start_ns}'
    if step.end_ns is not None:
        text += f', "end_ns": {step.end_ns}'
    return text + "}"
