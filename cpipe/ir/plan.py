"""The plan: the rank-by-rank program, as it stands in the file (format `cpipe.plan`, version 1)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from cpipe.ir.base import Frozen

__all__ = [
    "PLAN_FORMAT",
    "PLAN_VERSION",
    "Channel",
    "Claims",
    "Group",
    "Instruction",
    "MadeBy",
    "Plan",
    "ProblemSummary",
    "RankProgram",
]

PLAN_FORMAT = "cpipe.plan"
PLAN_VERSION = 1

InstructionName = Literal[
    "F", "D", "W", "B", "SEND", "RECV", "WAIT", "ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE", "STEP"
]


class Instruction(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a rank's host program.

    Attributes
    ----------
    op
        F D W B run on the compute stream; SEND and RECV are posted and do not block; WAIT makes the compute
        stream wait for a receive or a collective; collectives are posted on their group; STEP ends the iteration.
    stage
        The stage *on this rank* that computes, sends or receives; absent in STEP.
    mb
        Microbatch; absent in collectives, their WAIT, and STEP.
    channel
        Of SEND, RECV and the WAIT of a receive.
    group
        Of a collective and its WAIT.
    start_ns, end_ns
        Expected times [ns] of compute ops and collectives.
    """

    op: InstructionName
    stage: int | None = None
    mb: int | None = None
    channel: int | None = None
    group: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None


class RankProgram(Frozen, frozen=True, kw_only=True):
    """The host program of one rank: `ops` in order."""

    rank: int
    device: str
    ops: tuple[Instruction, ...]


class Channel(Frozen, frozen=True, kw_only=True):
    """An ordered stream of messages of one kind between two ranks; its own communicator.

    `window` is the largest number of its receives that are posted and not yet consumed at once; a receive is
    consumed when the op that reads it ends. `message_bytes` is the size of the largest message it carries.
    """

    id: int
    source: int
    target: int
    carries: Literal["activation", "gradient"]
    message_bytes: int
    window: int


class Group(Frozen, frozen=True, kw_only=True):
    """A data-parallel group: the replicas of `stages`, all on one rank of the pipeline."""

    id: int
    kind: Literal["data_parallel"]
    stages: tuple[int, ...]


class MadeBy(Frozen, frozen=True, kw_only=True):
    """How the plan was made; enough to make it again from the same profile."""

    cpipe: str
    method: str
    seed: int
    limits: dict[str, Any]


class ProblemSummary(Frozen, frozen=True, kw_only=True):
    """Which problem the plan solves."""

    digest: str
    name: str
    devices: int
    stages: int
    microbatches: int
    placement: tuple[int, ...]


class Claims(Frozen, frozen=True, kw_only=True):
    """What the plan promises: times [ns], peak memory of each device [bytes].

    `lower_bound_ns` is proved by `proved_by` (``bound``: closed forms; ``highs``: the MILP solver). The plan is
    optimal when it equals `makespan_ns`.
    """

    makespan_ns: int
    lower_bound_ns: int
    proved_by: str
    peak_bytes: tuple[int, ...]


class Plan(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """A whole plan. `digest` covers everything but itself; `extensions` are the user's and never read."""

    format: Literal["cpipe.plan"]
    version: Literal[1]
    digest: str
    made_by: MadeBy
    problem: ProblemSummary
    claims: Claims
    channels: tuple[Channel, ...]
    groups: tuple[Group, ...]
    ranks: tuple[RankProgram, ...]
    extensions: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
