"""Plans as bytes: canonical text out, any equivalent JSON in."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

import msgspec

from cpipe.errors import Diagnostic, PlanError
from cpipe.ir import Plan
from cpipe.ir.plan import PLAN_FORMAT, PLAN_VERSION
from cpipe.jsontext import MAX_DEPTH, Builder, Format, check_envelope, parse_json, read_bytes, scan
from cpipe.plan.text import plan_text

__all__ = ["decode_plan", "encode_plan", "load_plan", "read_plan"]

_FORMAT = Format(
    PLAN_FORMAT,
    PLAN_VERSION,
    "plan",
    PlanError,
    max_bytes=2**30,
    newer_hint="update cpipe, or make the plan again with this one",
)
_RANK_PATH = re.compile(r"\$\.ranks\[(\d+)\]\.ops")


def encode_plan(plan: Plan) -> bytes:
    """Return the canonical UTF-8 text of `plan`; the same plan gives the same bytes.

    Raises
    ------
    ValueError
        When `limits` or `extensions` hold a number that is not finite.
    """
    return plan_text(plan, plan.digest).encode()


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan from a file, or from standard input when `path` is ``-``.

    Raises
    ------
    PlanError
        When it cannot be read or decoded. Whether the plan is *right* is the business of `cpipe.plan.validate`.
    """
    return decode_plan(read_plan(path), os.fspath(path))


def read_plan(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a plan's file, or of standard input when `path` is ``-``, as `decode_plan` takes them.

    Raises
    ------
    PlanError
        When it cannot be read.
    """
    return read_bytes(path, _FORMAT)


def decode_plan(data: bytes, file: str) -> Plan:
    """Decode a plan; white space and key order are free.

    Parameters
    ----------
    data
        JSON in UTF-8; a byte order mark is accepted.
    file
        Name for the messages.

    Raises
    ------
    PlanError
        With every fault in file order: syntax with line and column, duplicate keys, wrong types with their paths.
    """
    plan: Plan | None = None
    with suppress(ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        plan = msgspec.json.decode(data, type=Plan)
        if _is_shallow([plan.extensions, [plan.made_by.limits]], MAX_DEPTH + 1) and encode_plan(plan) == data:
            return plan
    # msgspec stops at the first error, and lets the last of two equal keys win: whatever it refused, and all that
    # is not canonical (and so might repeat a key), is read once more
    tree = parse_json(data, file, _FORMAT)
    check_envelope(tree, file, _FORMAT)
    order, faults = scan(tree, file, _FORMAT)
    if plan is None:
        builder = Builder(file, nulls=True)
        plan = builder.build(msgspec.inspect.type_info(Plan), tree, "$")
        faults += builder.faults
    if faults:
        faults.sort(key=lambda fault: order.get(fault.path or "$", 0))
        hint = next((fault.hint for fault in faults if fault.hint), None)
        raise PlanError([_name_rank(fault, tree) for fault in faults], hint=hint)
    return plan


def _is_shallow(value: Any, levels: int) -> bool:
    """Return whether a JSON value is nested at most `levels` deep."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(child, levels - 1) for child in children)


def _name_rank(fault: Diagnostic, tree: Any) -> Diagnostic:
    """Say which rank a fault inside a program belongs to."""
    match = _RANK_PATH.match(fault.path or "")
    if match is None:
        return fault
    rank = tree["ranks"][int(match.group(1))].get("rank")
    shown_rank = rank if type(rank) is int else "?"
    return msgspec.structs.replace(fault, message=f"rank {shown_rank}: {fault.message}")
