"""The communicators of a run: one for each channel of the plan, made in the plan's order by every process."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cpipe.ir import Channel, Plan
from cpipe.runtime.channels import Hold, InPort, OutPort
from cpipe.runtime.data_parallel import AllReduce, Replicated, Sharded
from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.lanes import Lane, make_lane
from cpipe.runtime.monitor import Monitor
from cpipe.runtime.startup import Crew

__all__ = ["Wires"]


class Wires:
    """What connects this process to the others.

    Attributes
    ----------
    inputs, outputs
        Ends of channels on this rank, by channel id.
    replicated
        By stage, where the plan has data parallelism.
    replicas
        The other processes of the data-parallel group.
    """

    def __init__(self, plan: Plan, crew: Crew, me: int, monitor: Monitor, device: torch.device, limit_s: float) -> None:
        self._plan = plan
        self._crew = crew
        self._me = me
        self._monitor = monitor
        self._device = device
        self._limit_s = limit_s
        self._groups: list[Any] = []
        self._lanes: list[Lane] = []
        self.inputs: dict[int, InPort] = {}
        self.outputs: dict[int, OutPort] = {}
        self.replicated: dict[int, Replicated] = {}
        self.replicas: tuple[int, ...] = ()

    def connect(self, backend: str, emulation: Hold | None) -> None:
        """Make all channels, and try each with one small message.

        Every process makes those of all replicas: a process group is made by all members of the default group.
        """
        mine = []
        for pipeline in self._crew.pipelines:
            for channel in self._plan.channels:
                ends = [pipeline[channel.source], pipeline[channel.target]]
                group = self._new_group(ends, backend)
                if self._me in ends:
                    self._add_port(channel, ends, group, emulation)
                    mine.append((channel, ends, group))
        for channel, ends, group in mine:
            self._try(channel, ends, group)

    def connect_replicas(self, group: Any, parameters: dict[int, list[nn.Parameter]], backend: str) -> None:
        """Join the stages of this rank (with their trainable parameters) to their replicas."""
        if group is None:
            alone = [self._new_group([process], backend) for process in range(len(self._crew.names))]
            group = alone[self._me]
        members = dist.get_process_group_ranks(group)
        self.replicas = tuple(process for process in members if process != self._me)
        sharded = any(step.op == "ALL_GATHER" for program in self._plan.ranks for step in program.ops)
        make = Sharded if sharded else AllReduce
        lane = self._lane("data parallelism", " or ".join(self._crew.names[other] for other in self.replicas))
        self.replicated = {stage: make(trained, group, lane) for stage, trained in parameters.items()}

    def connect_copies(self, parameters: dict[int, list[nn.Parameter]], backend: str) -> None:
        """Join the stages of this rank (with their trainable parameters) to their copies, on all replicas.

        Every process makes the groups of all stages.
        """
        placement, pipelines = self._plan.problem.placement, self._crew.pipelines
        joined: dict[int, Any] = {}
        others: set[int] = set()
        for copies in (group.stages for group in self._plan.groups):
            members = sorted(pipeline[placement[stage]] for pipeline in pipelines for stage in copies)
            group = self._new_group(members, backend)
            if self._me in members:
                others.update(process for process in members if process != self._me)
                joined |= {stage: group for stage in copies if stage in parameters}
        self.replicas = tuple(sorted(others))
        lane = self._lane("the copies", " or ".join(self._crew.names[other] for other in self.replicas))
        self.replicated = {
            stage: AllReduce(trained, joined[stage], lane, copies=self._plan.problem.flows)
            for stage, trained in parameters.items()
        }

    def drain(self) -> None:
        """Wait until the messages of this rank have left; those for it have been waited for already."""
        for lane in [*(port.lane for port in self.inputs.values()), *(port.lane for port in self.outputs.values())]:
            lane.drain()

    def close(self, failed: bool) -> None:
        """End threads; and the communicators, unless what is left in them could hold that up."""
        for lane in self._lanes:
            lane.close()
        if not failed and dist.is_initialized():
            for group in self._groups:
                with contextlib.suppress(ValueError, RuntimeError):  # somebody has ended all of them already
                    dist.destroy_process_group(group)
        self._groups = []

    def _new_group(self, members: list[int], backend: str) -> Any:
        # NCCL counts from the posting of a receive, which may be long before its message; there the monitor rules.
        limit = timedelta(days=7) if backend == "nccl" else timedelta(seconds=self._limit_s)
        group = dist.new_group(members, timeout=limit, backend=backend)
        if self._me in members:
            self._groups.append(group)
        return group

    def _lane(self, name: str, peer: str, peer_rank: int | None = None) -> Lane:
        lane = make_lane(name, peer, self._monitor, self._device, peer_rank)
        self._lanes.append(lane)
        return lane

    def _add_port(self, channel: Channel, ends: list[int], group: Any, emulation: Hold | None) -> None:
        sends = ends[0] == self._me
        peer, peer_rank = (ends[1], channel.target) if sends else (ends[0], channel.source)
        lane = self._lane(_name(channel), self._crew.names[peer], peer_rank)
        there = dist.get_group_rank(group, peer)
        if sends:
            self.outputs[channel.id] = OutPort(channel, group, there, lane, stamps=emulation is not None)
        else:
            self.inputs[channel.id] = InPort(channel, group, there, lane, self._device, emulation)

    def _try(self, channel: Channel, ends: list[int], group: Any) -> None:
        """Send the channel's number over it: connects lazy back ends in one order everywhere, and proves the wiring."""
        number = torch.tensor([channel.id], device=self._device)
        if ends[0] == self._me:
            lane = self.outputs[channel.id].lane
            peer = dist.get_group_rank(group, ends[1])
            lane.start(lambda: [dist.isend(number, group=group, group_dst=peer)], number, after=lane.mark())
        else:
            lane = self.inputs[channel.id].lane
            peer = dist.get_group_rank(group, ends[0])
            found = torch.full_like(number, -1)
            ticket = lane.start(lambda: [dist.irecv(found, group=group, group_src=peer)], found, after=lane.mark())
            lane.join(ticket)
            if int(found) != channel.id:
                message = f"{_name(channel)}: messages of channel {int(found)} arrive on it"
                self._monitor.raise_fault(RuntimeFault(message, code="crossed-channels", rank=channel.target))
        lane.drain()


def _name(channel: Channel) -> str:
    return f"channel {channel.id} ({channel.carries}s from rank {channel.source} to rank {channel.target})"
