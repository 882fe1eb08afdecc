"""Streams: what a transport matches by order alone, and whether both ends have the same order.

No torch back end looks at anything but the order of the messages between two ranks: a receive that stands in the
wrong place takes the wrong tensor, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from cpipe.ir import Channel
from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.report import Report

__all__ = ["TRANSPORTS", "End", "check_streams", "collect_ends", "queue_of", "stream_of"]

TRANSPORTS = ("channels", "gloo", "nccl-pair", "nccl-rank", "nccl-dir2")
"""How messages travel: each names the ops that share one in-order queue (see `queue_of`)."""


class End(NamedTuple):
    """One end of a message: a SEND or RECV on a rank.

    Two ends belong together when `message` is equal: what it carries, the stage that reads it, the microbatch.
    """

    rank: int
    place: int
    step: Step
    channel: Channel
    message: tuple[str, int, int]

    def __str__(self) -> str:
        """Return the end for messages: ``rank 1 ops[3] RECV activation of stage 2 mb 0 from rank 0``."""
        channel = self.channel
        peer = f"to rank {channel.target}" if self.step.op == "SEND" else f"from rank {channel.source}"
        what = f"{self.step.op} {channel.carries} of stage {self.step.stage} mb {self.step.mb}"
        return f"rank {self.rank} ops[{self.step.at}] {what} {peer}"


def stream_of(transport: str, channel: Channel) -> Hashable:
    """Return what is matched by order alone under `transport`: a channel, or all that goes from one rank to another."""
    if transport in ("channels", "nccl-dir2"):
        return channel.source, channel.target, channel.carries
    return channel.source, channel.target


def queue_of(transport: str, rank: int, channel: Channel) -> Hashable:
    """Return the in-order rendezvous queue that an end on `rank` joins.

    ``channels``: one queue per (source, target, kind). ``gloo``: per (source, target). ``nccl-pair``: per unordered
    pair of ranks (communicators made lazily). ``nccl-rank``: per rank (one eager communicator). ``nccl-dir2``: per
    rank and kind (one communicator per direction).
    """
    match transport:
        case "channels":
            return channel.source, channel.target, channel.carries
        case "gloo":
            return channel.source, channel.target
        case "nccl-pair":
            return min(channel.source, channel.target), max(channel.source, channel.target)
        case "nccl-rank":
            return rank
        case _:
            return rank, channel.carries


def collect_ends(layout: Layout, programs: dict[int, list[Step]]) -> list[End]:
    """Return every SEND and RECV, rank by rank, in program order."""
    ends = []
    for rank, steps in programs.items():
        place = layout.programs[rank][0]
        for step in steps:
            if step.channel >= 0 and step.op != "WAIT":
                channel = layout.channels[step.channel]
                shift = 0 if step.op == "RECV" else 1 if channel.carries == "activation" else -1
                ends.append(End(rank, place, step, channel, (channel.carries, step.stage + shift, step.mb)))
    return ends


def check_streams(ends: list[End], transport: str, report: Report) -> None:
    """Check that receives stand in the order of the sends."""
    sent: dict[Hashable, dict[tuple[str, int, int], End]] = {}
    received: dict[Hashable, dict[tuple[str, int, int], End]] = {}
    for end in ends:
        side = sent if end.step.op == "SEND" else received
        side.setdefault(stream_of(transport, end.channel), {}).setdefault(end.message, end)
    for stream in dict.fromkeys((*sent, *received)):
        sends, receives = sent.get(stream, {}), received.get(stream, {})
        in_order = (end for message, end in sends.items() if message in receives)
        for receive in (end for message, end in receives.items() if message in sends):
            send = next(in_order)
            if send.message != receive.message:
                message = f"{receive} would take {send}: swapped, silent data corruption"
                report.step("swapped", receive.place, receive.step.at, message)
                break
