"""Plans written by hand, op by op, for the tests of the validator.

A program is a list of words: ``F0.1`` is F of stage 0 for microbatch 1; ``S0.1@2``, ``R``, ``?`` are SEND, RECV and
WAIT on channel 2; ``F0.1:3-5`` has times. Ops without times get consecutive nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from cpipe.ir import Channel, Claims, Instruction, MadeBy, Plan, ProblemSummary, RankProgram
from cpipe.plan import plan_digest

__all__ = ["hand_plan", "link", "parse_program"]

_WORD = re.compile(r"([A-Z?]+)(\d+)\.(\d+)(?:@(\d+))?(?::(\d+)-(\d+))?")
_SHORT = {"S": "SEND", "R": "RECV", "?": "WAIT"}


def parse_program(words: str) -> tuple[Instruction, ...]:
    """Return the instructions of a program; ``STEP`` is added."""
    ops: list[Instruction] = []
    clock = 0
    for word in words.split():
        match = _WORD.fullmatch(word)
        assert match is not None, word
        name, stage, mb, channel, start, end = match.groups()
        if channel is None:
            clock, begin = (clock + 1, clock) if end is None else (int(end), int(start))
            times = {"start_ns": begin, "end_ns": clock}
        else:
            times = {"channel": int(channel)}
        op: object = _SHORT.get(name, name)
        ops.append(Instruction(op=op, stage=int(stage), mb=int(mb), **times))  # type: ignore[arg-type]
    return (*ops, Instruction(op="STEP"))


def link(
    source: int, target: int, carries: Literal["activation", "gradient"], window: int = 1
) -> tuple[int, int, Literal["activation", "gradient"], int]:
    """Return a channel for `hand_plan`."""
    return source, target, carries, window


def hand_plan(
    placement: Sequence[int],
    microbatches: int,
    programs: Sequence[str],
    channels: Sequence[tuple[int, int, Literal["activation", "gradient"], int]] = (),
    makespan_ns: int = 0,
) -> Plan:
    """Return a plan with these programs, rank by rank, and a right digest; whether it is valid is up to the caller."""
    plan = Plan(
        format="cpipe.plan",
        version=1,
        digest="",
        made_by=MadeBy(cpipe="0.1.0", method="hand", seed=0, limits={}),
        problem=ProblemSummary(
            digest="sha256:0",
            name="hand",
            devices=len(programs),
            stages=len(placement),
            microbatches=microbatches,
            placement=tuple(placement),
        ),
        claims=Claims(
            makespan_ns=makespan_ns,
            lower_bound_ns=0,
            proved_by="bound",
            peak_bytes=tuple(
                sum(window for _, target, _, window in channels if target == rank) for rank in range(len(programs))
            ),
        ),
        channels=tuple(
            Channel(id=index, source=source, target=target, carries=carries, message_bytes=1, window=window)
            for index, (source, target, carries, window) in enumerate(channels)
        ),
        groups=(),
        ranks=tuple(
            RankProgram(rank=rank, device=f"g{rank}", ops=parse_program(words)) for rank, words in enumerate(programs)
        ),
    )
    return replace(plan, digest=plan_digest(plan))
