"""What a step returns: losses, and when every op of this rank ran."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

__all__ = ["OpRecord", "StepResult"]


class OpRecord(NamedTuple):
    """One instruction of this rank as it ran.

    Attributes
    ----------
    op
        Name of the instruction (see `cpipe.ir.Instruction`).
    stage, mb, channel
        As in the plan; None where the instruction has none.
    start_s, end_s
        On CLOCK_MONOTONIC [s], one origin for all processes of a machine. F D W B FB: compute alone, without waits.
        WAIT: from asking to having. RECV: from posting to when the message was there. SEND: from posting to when
        the transport was done with it. Collectives: from posting to the end. OFFLOAD and RELOAD: the posting alone,
        which on the CPU is the copy.
    wait_s
        F D B FB: how long the WAITs of its inputs took [s]. WAIT: its own length. Otherwise 0.
    """

    op: str
    stage: int | None
    mb: int | None
    channel: int | None
    start_s: float
    end_s: float
    wait_s: float = 0.0


@dataclass(frozen=True)
class StepResult:
    """Outcome of one step on this rank.

    Attributes
    ----------
    losses
        Microbatch -> its loss as `loss_fn` gave it (a detached scalar, not divided by the number of microbatches); on
        the rank of the last stage, empty elsewhere.
    records
        One for each instruction but STEP, in program order, a RECV at its WAIT; empty unless the executor records.
    start_s, end_s
        Of the whole step on CLOCK_MONOTONIC [s].
    """

    losses: dict[int, torch.Tensor] = field(default_factory=dict)
    records: tuple[OpRecord, ...] = ()
    start_s: float = 0.0
    end_s: float = 0.0
