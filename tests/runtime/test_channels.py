"""Tests of channels: order, kinds of tensors, buffers within the window, messages whose size is not known yet."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
import torch.distributed as dist
from runtime_models import make_stage, plan_by, squared_error
from runtime_workers import run_ranks
from sample_plans import make_problem
from torch import Tensor

from cpipe.ir import Channel
from cpipe.plan import decode_plan, encode_plan
from cpipe.runtime import PlanExecutor, RuntimeFault
from cpipe.runtime.bulletin import Bulletin
from cpipe.runtime.channels import InPort, OutPort
from cpipe.runtime.lanes import HostLane
from cpipe.runtime.monitor import Monitor
from cpipe.runtime.specs import MessageSpec, TensorSpec, as_tensors, decode_spec, encode_spec, gradients_of, spec_of
from cpipe.runtime.watchdog import Watchdog

CHANNEL = Channel(id=0, source=0, target=1, carries="activation", message_bytes=64, window=3)
CPU = torch.device("cpu")


class Late:
    """Links on which everything takes 0.2 s from its sending."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, int, str], int, bool]] = []

    def hold(self, channel: tuple[int, int, str], stage: int, sent_s: float, received_s: float) -> float:
        """Return when a message is there."""
        self.calls.append((channel, stage, sent_s <= received_s <= time.monotonic()))
        return sent_s + 0.2


def kinds() -> tuple[Tensor, ...]:
    """Return tensors of many dtypes and shapes; one is not contiguous, one is empty."""
    return (
        torch.arange(12.0, dtype=torch.float64).view(3, 4).t(),
        torch.tensor([True, False, True]),
        torch.empty(0, 5),
        torch.tensor(7),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64),
        torch.arange(5, dtype=torch.int8),
    )


def ports(rank: int, emulation: Late | None = None) -> tuple[OutPort | InPort, Monitor]:
    """Return this rank's end of a channel on a group of its own."""
    bulletin = Bulletin()
    monitor = Monitor(bulletin, Watchdog(), ["rank 0", "rank 1"], [0, 1])
    monitor.start()
    group = dist.new_group([0, 1])
    lane = HostLane("channel 0", f"rank {1 - rank}", monitor)
    if rank == 0:
        return OutPort(CHANNEL, group, 1, lane, stamps=emulation is not None), monitor
    return InPort(CHANNEL, group, 0, lane, CPU, emulation), monitor


def deliver(rank: int, world_size: int) -> dict[str, Any]:
    """Send messages of two stages, more than the window, and take them in another order."""
    port, monitor = ports(rank)
    small, large = (torch.full((4,), 1.0),), kinds()
    if isinstance(port, OutPort):
        for mb in range(4):
            port.send(small if mb % 2 == 0 else large)
            port.send([tensor * (mb + 2) for tensor in small])
        port.lane.drain()
        monitor.close()
        return {}
    found: dict[str, Any] = {"specs unknown": [], "buffers": []}
    specs: dict[int, MessageSpec] = {}
    port.post(1, 0)
    port.post(3, 0)
    found["specs unknown"].append((port.flush(specs), port.waits_for_spec, port.is_posted(1, 0)))
    specs[3] = spec_of(small)
    found["specs unknown"].append((port.flush(specs), port.waits_for_spec, port.is_posted(3, 0)))
    specs[1] = spec_of(small)
    found["specs unknown"].append((port.flush(specs), port.waits_for_spec, port.is_posted(3, 0)))
    first = [port.take(3, 0)[0][0].tolist(), port.take(1, 0)[0][0].tolist()]
    kept = []
    for mb in range(1, 4):
        specs[1] = spec_of(large if mb % 2 else small)
        port.post(1, mb)
        port.post(3, mb)
        port.flush(specs)
        tensors, ticket = port.take(1, mb)
        kept.append((tensors, port.take(3, mb)[0][0]))
        found["buffers"].append(port.num_buffers)
        assert ticket.posted_s <= ticket.done_s
    found["first"] = first
    found["kinds"] = [torch.equal(one, other) for one, other in zip(kept[0][0], large, strict=True)]
    found["last kinds"] = [torch.equal(one, other) for one, other in zip(kept[2][0], large, strict=True)]
    found["values"] = [float(tensor[0]) for _, tensor in kept]
    monitor.close()
    return found


def test_messages() -> None:
    """Messages come in the order sent, of any dtype and shape; what was taken is not touched by later messages."""
    found = run_ranks(deliver, 2)[1]
    assert found["specs unknown"] == [(False, 1, False), (False, 1, False), (True, None, True)]
    assert found["first"] == [[2.0] * 4, [1.0] * 4]
    assert all(found["kinds"]) and all(found["last kinds"]) and len(found["kinds"]) == 7
    assert found["values"] == [3.0, 4.0, 5.0]
    assert found["buffers"] == [2, 2, 2]


def hold_back(rank: int, world_size: int) -> Any:
    """Send two messages over slow links, the second without tensors."""
    emulation = Late()
    port, monitor = ports(rank, emulation)
    if isinstance(port, OutPort):
        sent = time.monotonic()
        port.send((torch.ones(3),))
        port.send(())
        port.lane.drain()
        monitor.close()
        return sent
    spec = spec_of((torch.ones(3),))
    port.post(1, 0)
    port.post(2, 0)
    port.flush({1: spec, 2: ()})
    (tensor,), _ = port.take(1, 0)
    taken = time.monotonic()
    empty, _ = port.take(2, 0)
    monitor.close()
    return taken, tensor.tolist(), empty, emulation.calls


def test_emulated_links() -> None:
    """A message is handed over no earlier than its link allows; one without tensors is not sent at all."""
    sent, (taken, values, empty, calls) = run_ranks(hold_back, 2)
    assert taken - sent >= 0.2
    assert values == [1.0, 1.0, 1.0]
    assert empty == ()
    assert calls == [((0, 1, "activation"), 1, True)]


def test_specs() -> None:
    """A spec survives its text form, and only tensors that need a gradient get one."""
    spec = spec_of((torch.ones(2, 3, requires_grad=True), torch.arange(4), torch.tensor(1.0, dtype=torch.bfloat16)))
    assert decode_spec(encode_spec(spec)) == spec
    assert gradients_of(spec) == (TensorSpec((2, 3), torch.float32),)
    assert list(map(str, spec)) == ["float32[2, 3] with grad", "int64[4]", "bfloat16[]"]
    assert [item.num_bytes for item in spec] == [64, 64, 64]
    assert TensorSpec((17,), torch.float32).num_bytes == 128


def test_what_counts_as_tensors() -> None:
    """A tensor or a flat sequence of tensors is a message; anything else is not."""
    one = torch.ones(1)
    assert as_tensors(one) == (one,)
    assert as_tensors([one, one]) == (one, one)
    for other in ({"x": one}, (one, None), ((one,), one), (), None, 1.0):
        assert as_tensors(other) is None


class Crossing:
    """A receive that brings the message of another channel."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self.work = work
        self.tensor = tensor

    def wait(self, *limits: Any) -> None:
        """Wait for the message, and make it another."""
        self.work.wait(*limits)
        self.tensor.fill_(9)


def connect(rank: int, world_size: int, data: bytes, cross: bool, device: str, slow: bool) -> str:
    """Start an executor; return what it says."""
    if cross and rank == 1:
        receive = dist.irecv
        crossing: Any = lambda tensor, **ends: Crossing(receive(tensor, **ends), tensor)  # noqa: E731
        dist.irecv = crossing
    stages = {rank: make_stage("block", rank, 2)}
    emulation = Late() if slow else None
    try:
        with PlanExecutor(decode_plan(data, "p"), stages, squared_error, device=device, emulation=emulation):
            return ""
    except RuntimeFault as fault:
        return str(fault)


@pytest.mark.parametrize(
    ("cross", "device", "slow", "told"),
    [
        (True, "cpu", False, "messages of channel 9 arrive on it [crossed-channels]"),
        (False, "cuda", False, "tensors on cuda need NCCL, the pipeline group uses gloo [backend]"),
        (False, "cuda", True, "emulated links work on the CPU only [emulation-device]"),
    ],
)
def test_connecting(cross: bool, device: str, slow: bool, told: str) -> None:
    """Channels that do not arrive where they should, or cannot carry the device's tensors, end all ranks at once."""
    data = encode_plan(plan_by("1f1b", make_problem(2, 2)))
    messages = run_ranks(connect, 2, data, cross, device, slow)
    assert len(set(messages)) == 1
    assert told in messages[0]
