"""Channels: ordered streams of messages between two ranks, each with a communicator of its own.

A message is a tuple of tensors, one transfer each, matched by order alone. Receives land in a channel's own buffers,
at most its `window` of them, and are copied when compute takes them: autograd may keep an activation for as long as it
likes, and the buffer is free for the next receive. That is what the plan's memory counts: buffers and activations.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from cpipe.ir import Channel
from cpipe.runtime.lanes import Lane, Mark, Ticket
from cpipe.runtime.specs import MessageSpec

__all__ = ["Hold", "InPort", "OutPort"]

_STAMP_BYTES = 64


class Hold(Protocol):
    """Emulated links: hold a message back on the receiver (see `cpipe.runtime.emulate`)."""

    def hold(self, channel: tuple[int, int, str], stage: int, sent_s: float, received_s: float) -> float:
        """Return when the message may be handed to compute, CLOCK_MONOTONIC [s]."""
        ...


class _Buffer:
    """Memory for one message; `free_after` marks the copy that emptied it."""

    def __init__(self, num_bytes: int, device: torch.device, free_after: Mark) -> None:
        self.slab = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self.free_after = free_after

    def views(self, spec: MessageSpec, start: int) -> tuple[Tensor, ...]:
        """Return the tensors of a message as views, the first at byte `start`."""
        tensors = []
        for item in spec:
            end = start + item.num_bytes
            flat = self.slab[start:end].view(item.dtype)
            tensors.append(flat[: torch.Size(item.shape).numel()].view(item.shape))
            start = end
        return tuple(tensors)


class _Receive(NamedTuple):
    """A receive that was posted."""

    ticket: Ticket
    buffer: _Buffer | None
    tensors: tuple[Tensor, ...]


class InPort:
    """The receiving end of a channel.

    Parameters
    ----------
    channel
        From the plan.
    group, source
        Communicator, and the sender's rank in it.
    lane
        Where receives run.
    emulation
        Holds messages back; its senders stamp what they send.
    """

    def __init__(
        self, channel: Channel, group: Any, source: int, lane: Lane, device: torch.device, emulation: Hold | None
    ) -> None:
        self.channel = channel
        self.lane = lane
        self._group = group
        self._source = source
        self._device = device
        self._emulation = emulation
        self._free: list[_Buffer] = []
        self._num_buffers = 0
        self._posted: dict[tuple[int, int], _Receive] = {}
        self._unknown: deque[tuple[int, int]] = deque()

    @property
    def num_buffers(self) -> int:
        """How many buffers exist: at most the channel's window."""
        return self._num_buffers

    def post(self, stage: int, mb: int) -> None:
        """Ask for the next message of the channel: what `stage` reads for microbatch `mb`.

        The first time a stage receives, its sender may not have said yet how large its messages are. Then the receive
        is kept, with all those behind it, until `flush`.
        """
        self._unknown.append((stage, mb))

    def flush(self, specs: dict[int, MessageSpec]) -> bool:
        """Post what was kept, in order, as far as `specs` (by receiving stage) knows it; return whether all is."""
        while self._unknown and self._unknown[0][0] in specs:
            stage, mb = self._unknown.popleft()
            self._posted[stage, mb] = self._receive(stage, specs[stage])
        return not self._unknown

    @property
    def waits_for_spec(self) -> int | None:
        """The stage whose messages are not known yet and hold receives back."""
        return self._unknown[0][0] if self._unknown else None

    def is_posted(self, stage: int, mb: int) -> bool:
        """Return whether this receive has been posted."""
        return (stage, mb) in self._posted

    def take(self, stage: int, mb: int) -> tuple[tuple[Tensor, ...], Ticket]:
        """Make compute wait for a message and return it as tensors of compute's own, and when it was there."""
        ticket, buffer, tensors = self._posted.pop((stage, mb))
        self.lane.join(ticket)
        copies = tuple(tensor.clone() for tensor in tensors)
        if buffer is not None:
            buffer.free_after = self.lane.mark()
            self._free.append(buffer)
        return copies, ticket

    def _receive(self, stage: int, spec: MessageSpec) -> _Receive:
        start = _STAMP_BYTES if self._emulation is not None else 0
        num_bytes = start + sum(item.num_bytes for item in spec)
        if not spec:  # no tensor of this message needs a gradient: nothing is sent
            return _Receive(self.lane.start(list), None, ())
        buffer = self._buffer(num_bytes)
        tensors = buffer.views(spec, start)
        stamp = buffer.slab[:8].view(torch.float64) if start else None
        wanted = tensors if stamp is None else (stamp, *tensors)

        def arrived(ticket: Ticket) -> None:
            if stamp is not None and self._emulation is not None:
                channel, sent = self.channel, float(stamp[0])
                ends = (channel.source, channel.target, channel.carries)
                ticket.usable_s = self._emulation.hold(ends, stage, sent, time.monotonic())

        def issue() -> list[Any]:
            return [dist.irecv(tensor, group=self._group, group_src=self._source) for tensor in wanted]

        return _Receive(self.lane.start(issue, wanted, arrived, buffer.free_after), buffer, tensors)

    def _buffer(self, num_bytes: int) -> _Buffer:
        """Return a free buffer that is large enough: a used one if there is one."""
        self._free.sort(key=lambda buffer: buffer.slab.numel())
        for index, buffer in enumerate(self._free):
            if buffer.slab.numel() >= num_bytes:
                return self._free.pop(index)
        if self._free:
            self._free.pop()  # the largest is too small: a larger one takes its place
        else:
            self._num_buffers += 1
        return _Buffer(num_bytes, self._device, self.lane.mark())


class OutPort:
    """The sending end of a channel; see `InPort`."""

    def __init__(self, channel: Channel, group: Any, target: int, lane: Lane, stamps: bool) -> None:
        self.channel = channel
        self.lane = lane
        self._group = group
        self._target = target
        self._stamps = stamps

    def send(self, tensors: Sequence[Tensor]) -> Ticket:
        """Post a message; the tensors are not copied unless they are not contiguous, and must not change."""
        sent = [tensor.detach().contiguous() for tensor in tensors]
        if self._stamps and sent:
            sent.insert(0, torch.tensor([time.monotonic()], dtype=torch.float64))

        def issue() -> list[Any]:
            return [dist.isend(tensor, group=self._group, group_dst=self._target) for tensor in sent]

        return self.lane.start(issue, sent, after=self.lane.mark())
