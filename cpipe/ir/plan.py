"""The plan: the rank-by-rank program, as it stands in the file (format `cpipe.plan`, version 1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from cpipe.ir.base import Frozen

__all__ = [
    "MAX_INTEGER",
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
MAX_INTEGER = 2**62
"""Largest number of a plan, either way: every sum of two still fits a signed 64-bit integer."""

Integer = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]

InstructionName = Literal[
    "F",
    "D",
    "W",
    "B",
    "FB",
    "SEND",
    "RECV",
    "WAIT",
    "ALL_GATHER",
    "REDUCE_SCATTER",
    "ALL_REDUCE",
    "STEP",
    "OFFLOAD",
    "RELOAD",
]


class Instruction(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a rank's host program.

    Attributes
    ----------
    op
        F D W B run on the compute stream, and FB, a forward and a full backward as one op; SEND and RECV are posted
        and do not block; WAIT makes the compute stream wait for a receive or a collective; collectives are posted on
        their group; STEP ends the iteration. OFFLOAD and RELOAD are posted: copies of part of a microbatch's
        activation to and from host memory, beside compute, one after the other in each direction.
    stage
        The stage *on this rank* that computes, sends or receives; absent in STEP. Of FB, that of its forward.
    mb
        Microbatch; absent in collectives, their WAIT, and STEP. Of FB, that of its forward.
    copy
        Of the WAIT of an OFFLOAD or RELOAD: which of them. Behind the first of these the copied part is free; it takes
        its memory again from the RELOAD on.
    backward_stage, backward_mb
        Stage on this rank and microbatch of the backward of FB.
    channel
        Of SEND, RECV and the WAIT of a receive.
    group
        Of a collective and its WAIT.
    start_ns, end_ns
        Expected times [ns] of compute ops, collectives and copies, and of a STEP that takes any.
    """

    op: InstructionName
    stage: Integer | None = None
    mb: Integer | None = None
    channel: Integer | None = None
    group: Integer | None = None
    start_ns: Integer | None = None
    end_ns: Integer | None = None
    backward_stage: Integer | None = None
    backward_mb: Integer | None = None
    copy: Literal["OFFLOAD", "RELOAD"] | None = None


class RankProgram(Frozen, frozen=True, kw_only=True):
    """The host program of one rank: `ops` in order."""

    rank: Integer
    device: str
    ops: tuple[Instruction, ...]


class Channel(Frozen, frozen=True, kw_only=True):
    """An ordered stream of messages of one kind between two ranks; its own communicator.

    `window` is the largest number of its receives that are posted and not yet consumed at once; a receive is
    consumed when the op that reads it ends. `message_bytes` is the size of the largest message it carries.
    """

    id: Integer
    source: Integer
    target: Integer
    carries: Literal["activation", "gradient"]
    message_bytes: Integer
    window: Integer


class Group(Frozen, frozen=True, kw_only=True):
    """Who exchanges gradients or parameters.

    ``data_parallel``: the replicas of `stages`, all on one rank of the pipeline. ``weight_copies``: the copies of one
    stage, which are `stages`, on as many ranks, and their replicas.
    """

    id: Integer
    kind: Literal["data_parallel", "weight_copies"]
    stages: tuple[Integer, ...]


class MadeBy(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """How the plan was made; enough to make it again from the same profile.

    `found_by` is the generator, search or solver whose order this is; `evaluations` and `solver_nodes` are the work of
    the search that found it: whole orders timed, and nodes that a solver branched on.
    """

    cpipe: str
    method: str
    seed: Integer
    limits: dict[str, Any]
    found_by: str = ""
    evaluations: Integer = 0
    solver_nodes: Integer = 0


class ProblemSummary(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """Which problem the plan solves.

    With `flows` above 1, `stages` and `placement` list the stages of every flow, one flow after the other, and
    `microbatches` are those of each flow. `recompute` lists the stages that keep part of their activations
    only and make the rest again in the backward, in flow order.
    """

    digest: str
    name: str
    devices: Integer
    stages: Integer
    microbatches: Integer
    placement: tuple[Integer, ...]
    flows: Integer = 1
    recompute: tuple[Integer, ...] = ()

    @property
    def flow_length(self) -> int:
        """Number of stages of each flow of a valid plan."""
        return self.stages // self.flows

    def is_first(self, stage: int) -> bool:
        """Whether `stage` of a valid plan reads the inputs."""
        return stage % self.flow_length == 0

    def is_last(self, stage: int) -> bool:
        """Whether `stage` of a valid plan makes the losses."""
        return (stage + 1) % self.flow_length == 0


class Claims(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """What the plan promises: times [ns], peak memory of each device [bytes].

    `lower_bound_ns` is proved by `proved_by` (``bound``: closed forms; ``highs``, ``cpsat``: a solver). The plan is
    optimal when it equals `makespan_ns`, or `span_ns` where that was the objective. `transports` are those that it
    was checked for: under each of them no message is swapped and nothing hangs, whatever the message size.
    `objective` is what was minimised and what the bound is of; for ``span``, the longest time from a rank's first
    start to its last end, that is `span_ns`.

    The certificate: `status` is ``optimal`` when the objective meets the bound, else ``feasible``; `gap_ppm` is what
    lies between them, in millionths of the objective, rounded up, so that 0 is proven optimal; `reason` says in words
    what the bound rests on. Plans made before there was one state none of the three.
    """

    makespan_ns: Integer
    lower_bound_ns: Integer
    proved_by: str
    peak_bytes: tuple[Integer, ...]
    transports: tuple[str, ...] = ()
    objective: Literal["makespan", "span"] = "makespan"
    span_ns: Integer | None = None
    status: Literal["optimal", "feasible"] | None = None
    gap_ppm: Integer | None = None
    reason: str = ""


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
