"""Tests of the wide-area network in one machine: it delivers, it delays, it leaks nothing and it goes away."""

from __future__ import annotations

import subprocess
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from runtime_workers import run_ranks
from wan import DEVICE, Link, Wan, enter, open_wan, why_not

torch = pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

LATENCY_S = 0.05
ROUNDS = 3


@pytest.fixture(autouse=True)
def needs_a_network() -> None:
    """Skip where no network can be made, saying why."""
    if why_not():
        pytest.skip(why_not())


def join(rank: int, world_size: int, wan: Wan, store: str) -> None:
    """Enter the namespace of a rank and join the process group over its device."""
    import os

    import torch.distributed as dist

    enter(wan.namespaces[rank])
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    limit = timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=limit)


def ping(rank: int, world_size: int, wan: Wan, store: str) -> list[tuple[float, bool]]:
    """Send rank 1 the time, `ROUNDS` times; return from it the seconds on the way, and whether all bytes are right."""
    import torch.distributed as dist

    join(rank, world_size, wan, store)
    found = []
    for count in range(ROUNDS):
        payload = torch.arange(5000, dtype=torch.float64) + count
        if rank == 0:
            payload[0] = time.monotonic()
            dist.send(payload, 1)
            dist.recv(payload, 1)
        else:
            received = torch.empty_like(payload)
            dist.recv(received, 0)
            found.append((time.monotonic() - float(received[0]), bool(torch.equal(received[1:], payload[1:]))))
            dist.send(received, 0)
    return found


def spaces() -> str:
    """Return the names of all namespaces."""
    return subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True, timeout=30).stdout


def test_messages_arrive_after_the_latency() -> None:
    """Tensors between two namespaces arrive whole, none of them before its link's latency has passed."""
    links = {(0, 1): Link(LATENCY_S, 50e6), (1, 0): Link(0.001)}
    with open_wan(2, links) as wan, tempfile.TemporaryDirectory() as folder:
        assert all(name in spaces() for name in wan.namespaces)
        _, found = run_ranks(ping, 2, wan, str(Path(folder, "store")), backend=None, timeout=50)
    assert len(found) == ROUNDS
    assert all(whole for _, whole in found)
    assert min(seconds for seconds, _ in found) >= LATENCY_S


def reach(rank: int, world_size: int, wan: Wan) -> list[str]:
    """Try to reach every other rank and the outside by UDP; return who was heard."""
    import socket

    enter(wan.namespaces[rank])
    mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    mine.bind((wan.addresses[rank], 9))
    mine.settimeout(3)
    time.sleep(1)  # until all are bound
    for address in (*wan.addresses, "192.0.2.1"):
        if address != wan.addresses[rank]:
            try:
                mine.sendto(str(rank).encode(), (address, 9))
            except OSError:
                if address in wan.addresses:
                    raise
    heard = []
    try:
        while True:
            heard.append(mine.recv(100).decode())
    except TimeoutError:
        return sorted(heard)


def test_packets_stay_on_the_links() -> None:
    """A packet without a link is dropped, and there is no way out of the namespaces."""
    with open_wan(3, {(0, 1): Link(0.01), (1, 2): Link(0.0)}) as wan:
        heard: list[Any] = run_ranks(reach, 3, wan, backend=None, timeout=50)
    assert heard == [[], ["0"], ["1"]]


def test_the_network_goes_away() -> None:
    """Namespaces are gone at the end, and also when something inside failed."""
    with pytest.raises(RuntimeError, match="inside"), open_wan(2, {(0, 1): Link(0.0)}) as wan:
        assert wan.namespaces[0] in spaces()
        raise RuntimeError("inside")
    assert not any(name in spaces() for name in wan.namespaces)
