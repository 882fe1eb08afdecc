"""What connects the ranks of a problem: channels, data-parallel groups, and which pipes are shared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal, NamedTuple

from cpipe.ir import Channel, Group, Hop, MessageRun, Op, OpKind, Problem

__all__ = ["Carries", "ChannelKey", "Message", "Wiring", "consumed"]

Carries = Literal["activation", "gradient"]


class ChannelKey(NamedTuple):
    """Ends and kind of a channel; keys sort in the order of channel ids."""

    source: int
    target: int
    carries: Carries


class Message(NamedTuple):
    """A message by the op that reads it: the F, or the D or B, of `stage` for `microbatch`."""

    carries: Carries
    stage: int
    microbatch: int


class Wiring:
    """The communicators of a problem.

    Attributes
    ----------
    channels
        Every channel with its hops, in the order of channel ids.
    channel_ids
        Dense id of each channel.
    groups
        Of the collectives, in the order of their ids; empty without any.
    group_of
        By stage: its group.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        hops: dict[ChannelKey, list[Hop]] = defaultdict(list)
        senders: dict[int, set[int]] = defaultdict(set)
        for carries, boundary_hops in _both_ways(problem):
            for hop in filter(None, boundary_hops):
                hops[ChannelKey(hop.source, hop.target, carries)].append(hop)
                senders[hop.pipe].add(hop.source)
        self.channels = {key: tuple(hops[key]) for key in sorted(hops)}
        self.channel_ids = {key: index for index, key in enumerate(self.channels)}
        self._shared = {pipe for pipe, devices in senders.items() if len(devices) > 1}
        self.groups = _groups(problem)
        self.group_of = {stage: group for group in self.groups for stage in group.stages}
        if problem.collectives is not None:
            self._shared.update(problem.collectives.pipes)

    def declared(self, windows: Mapping[int, int]) -> tuple[Channel, ...]:
        """Return the channels as a plan lists them, with the receive window of each channel id."""
        return tuple(
            Channel(
                id=index,
                source=key.source,
                target=key.target,
                carries=key.carries,
                message_bytes=max(hop.message_bytes for hop in self.channels[key]),
                window=windows[index],
            )
            for key, index in self.channel_ids.items()
        )

    def feeds(self, op: Op) -> tuple[ChannelKey, Message] | None:
        """Return the message that leaves after `op` and its channel, or None."""
        problem = self._problem
        before, after = problem.previous_stage(op.stage), problem.next_stage(op.stage)
        if op.kind is OpKind.F and after is not None:
            hop, message = problem.forward_hops[op.stage], Message("activation", after, op.microbatch)
        elif op.kind in (OpKind.D, OpKind.B) and before is not None:
            hop, message = problem.backward_hops[before], Message("gradient", before, op.microbatch)
        else:
            return None
        return None if hop is None else (ChannelKey(hop.source, hop.target, message.carries), message)

    def reads(self, op: Op) -> ChannelKey | None:
        """Return the channel from which the input of `op` comes, or None."""
        problem = self._problem
        hop: Hop | None = None
        before, after = problem.previous_stage(op.stage), problem.next_stage(op.stage)
        if op.kind is OpKind.F and before is not None:
            hop = problem.forward_hops[before]
        elif op.kind in (OpKind.D, OpKind.B) and after is not None:
            hop = problem.backward_hops[op.stage]
        return None if hop is None else ChannelKey(hop.source, hop.target, consumed(op).carries)

    def post_by_ns(self, key: ChannelKey, run: MessageRun, lead: bool) -> int:
        """Return when the receive of a message should be posted so that nothing waits for it [ns].

        That is before it leaves; with `lead`, one latency earlier, which the receiver's ready note takes. On a pipe
        that others use too a message queues from the moment it is ready, and a receive posted only as it leaves
        would lose it its place.
        """
        latency = self.channels[key][0].latency_ns if lead else 0
        return (run.ready_ns if run.pipe in self._shared else run.start_ns) - latency


def consumed(op: Op) -> Message:
    """Return the message that `op` (F, D or B) reads, whether or not it comes from another device."""
    return Message("activation" if op.kind is OpKind.F else "gradient", op.stage, op.microbatch)


def _groups(problem: Problem) -> tuple[Group, ...]:
    """Return the groups: one for each device's stages, or where stages have copies, one for each stage."""
    if problem.collectives is None:
        return ()
    if len(problem.flows) > 1:
        copies = map(problem.copies_of, range(problem.flow_length))
        return tuple(Group(id=index, kind="weight_copies", stages=stages) for index, stages in enumerate(copies))
    members = filter(None, map(problem.stages_of, range(problem.num_devices)))
    return tuple(Group(id=index, kind="data_parallel", stages=stages) for index, stages in enumerate(members))


def _both_ways(problem: Problem) -> tuple[tuple[Carries, tuple[Hop | None, ...]], ...]:
    return ("activation", problem.forward_hops), ("gradient", problem.backward_hops)
