"""Data parallelism of one stage: what ALL_REDUCE, ALL_GATHER and REDUCE_SCATTER do to its parameters.

``ddp`` averages gradients over the replicas, and adds them up over the copies of a stage. ``zero1`` gives each replica
one shard of the parameters to step: they lie in one flat tensor per dtype, cut in equal shards (padded); gradients are
averaged into the shards, and the next all-gather hands the stepped shards around. Sums are taken by the back end and
divided by the number of replicas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cpipe.runtime.lanes import Lane, Ticket

__all__ = ["AllReduce", "Replicated", "Sharded"]


class Replicated(ABC):
    """The replicas of one stage, as this one sees them.

    Parameters
    ----------
    parameters
        The stage's trainable parameters.
    group
        The replicas' process group.
    lane
        Where the collectives run; shared by the stages of a rank, which use it in the plan's order.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: Any, lane: Lane) -> None:
        self._group = group
        self._lane = lane
        self._size: int = dist.get_world_size(group)
        by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in parameters:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        self._buckets = list(by_dtype.values())

    @abstractmethod
    def trained(self) -> list[nn.Parameter]:
        """Return what an optimizer of this replica steps."""

    @abstractmethod
    def reduce(self) -> Ticket:
        """Post the averaging of gradients; it reads those that are there now."""

    @abstractmethod
    def reduced(self) -> None:
        """Put the averaged gradients in their places; the reduction is done."""

    def gather(self) -> Ticket:
        """Post the gathering of parameters; nothing to do when every replica has them all."""
        return self._lane.start(list)

    def join(self, ticket: Ticket) -> None:
        """Make compute wait for a collective."""
        self._lane.join(ticket)


class AllReduce(Replicated):
    """Every replica has all gradients; the group may hold several `copies` of the stage on each replica."""

    def __init__(self, parameters: Sequence[nn.Parameter], group: Any, lane: Lane, copies: int = 1) -> None:
        super().__init__(parameters, group, lane)
        self._divisor = self._size // copies
        self._flats: list[Tensor] = []

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters themselves."""
        return [parameter for bucket in self._buckets for parameter in bucket]

    def reduce(self) -> Ticket:
        """Post one all-reduce per dtype.

        Behind the gradients stands one number per parameter: whether this replica used it. One that no replica used
        keeps having no gradient, as it would in a single process (on CUDA it gets zeros: reading the number would
        block the host).
        """
        self._flats = []
        for bucket in self._buckets:
            used = torch.tensor([float(parameter.grad is not None) for parameter in bucket])
            self._flats.append(torch.cat([*map(_flat_grad, bucket), used.to(bucket[0])]))

        def issue() -> list[Any]:
            return [dist.all_reduce(flat, group=self._group, async_op=True) for flat in self._flats]

        return self._lane.start(issue, self._flats, after=self._lane.mark())

    def reduced(self) -> None:
        """Divide the sums by the number of replicas and hand them to the parameters."""
        for bucket, flat in zip(self._buckets, self._flats, strict=True):
            used = [1.0] * len(bucket) if flat.is_cuda else flat[-len(bucket) :].tolist()
            sums = torch.split(flat[: -len(bucket)].div_(self._divisor), [parameter.numel() for parameter in bucket])
            for parameter, grad, count in zip(bucket, sums, used, strict=True):
                if count:
                    parameter.grad = grad.view_as(parameter)
        self._flats = []


class Sharded(Replicated):
    """Each replica steps one shard of the parameters, which become views of a flat tensor."""

    def __init__(self, parameters: Sequence[nn.Parameter], group: Any, lane: Lane) -> None:
        super().__init__(parameters, group, lane)
        place = dist.get_rank(group)
        self._flats = [_flattened(bucket, self._size) for bucket in self._buckets]
        self._shards = [nn.Parameter(flat.chunk(self._size)[place]) for flat in self._flats]
        self._grads: list[Tensor] = []

    def trained(self) -> list[nn.Parameter]:
        """Return this replica's shards, one per dtype."""
        return self._shards

    def gather(self) -> Ticket:
        """Post the all-gathers: each replica's shard, in place, to all."""
        shards = [shard.detach().clone() for shard in self._shards]

        def issue() -> list[Any]:
            pairs = zip(self._flats, shards, strict=True)
            return [dist.all_gather_single(flat, shard, group=self._group, async_op=True) for flat, shard in pairs]

        return self._lane.start(issue, shards, after=self._lane.mark())

    def reduce(self) -> Ticket:
        """Post the reduce-scatters; the full gradients are let go as soon as they are done."""
        flats = []
        for bucket, flat in zip(self._buckets, self._flats, strict=True):
            grads = torch.cat(list(map(_flat_grad, bucket)))
            flats.append(nn.functional.pad(grads, (0, flat.numel() - grads.numel())))
            for parameter in bucket:
                parameter.grad = None
        self._grads = [torch.empty_like(shard) for shard in self._shards]

        def issue() -> list[Any]:
            pairs = zip(self._grads, flats, strict=True)
            return [dist.reduce_scatter_single(grad, flat, group=self._group, async_op=True) for grad, flat in pairs]

        return self._lane.start(issue, (flats, self._grads), after=self._lane.mark())

    def reduced(self) -> None:
        """Add the averaged gradients to those of the shards."""
        for shard, grad in zip(self._shards, self._grads, strict=True):
            average = grad.detach().div_(self._size)
            shard.grad = average if shard.grad is None else shard.grad.add_(average)
        self._grads = []


def _flat_grad(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    return parameter.grad.reshape(-1)


def _flattened(bucket: Sequence[nn.Parameter], num_shards: int) -> Tensor:
    """Move parameters into one flat tensor whose length `num_shards` divides, and make them views of it."""
    length = sum(parameter.numel() for parameter in bucket)
    flat = torch.zeros(-(-length // num_shards) * num_shards, dtype=bucket[0].dtype, device=bucket[0].device)
    start = 0
    with torch.no_grad():
        for parameter in bucket:
            end = start + parameter.numel()
            flat[start:end].copy_(parameter.reshape(-1))
            parameter.data = flat[start:end].view_as(parameter)
            start = end
    return flat
