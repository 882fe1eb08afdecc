"""A wide-area network in one machine: namespaces joined by TUN devices and a router with latency and rate per link.

Each rank gets a network namespace with one device, ``wan0``, and an address; the router, a process in user space, reads
every packet, holds it for its link's latency and rate, and hands it to the device of its destination. Nothing leads out
of the namespaces, and nothing into them: traffic flows between those that one `Wan` makes, on links that it was given.

A message of N bytes takes ``latency_s + N / bytes_per_s``, as in the model; TCP adds round trips on the first large
messages, as it does on any long link. Needs root, ``ip`` and ``/dev/net/tun``; `why_not` says what is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import multiprocessing
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

__all__ = ["DEVICE", "Link", "Wan", "enter", "open_wan", "why_not"]

DEVICE = "wan0"
MTU = 9000
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_CLONE_NEWNET = 0x40000000


class Link(NamedTuple):
    """One direction between two ranks: latency [s] and rate [bytes/s]."""

    latency_s: float
    bytes_per_s: float = float("inf")


class Wan(NamedTuple):
    """What `open_wan` made: the namespace and the address of each rank."""

    namespaces: tuple[str, ...]
    addresses: tuple[str, ...]


@contextlib.contextmanager
def open_wan(num_ranks: int, links: Mapping[tuple[int, int], Link]) -> Iterator[Wan]:
    """Make a network and take it down again, whatever happens inside.

    Parameters
    ----------
    num_ranks
        At most 100.
    links
        By source and target rank; packets between two ranks without a link are dropped.
    """
    names = tuple(f"cpipe-{os.getpid()}-{rank}" for rank in range(num_ranks))
    wan = Wan(names, tuple(f"10.77.0.{rank + 1}" for rank in range(num_ranks)))
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_delete, name)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        router = context.Process(target=_route, args=(wan, dict(links), theirs), daemon=True)
        router.start()
        stack.callback(_stop, router)
        theirs.close()
        if not ours.poll(30) or ours.recv() != "devices":
            raise OSError("the router could not open its devices")
        for name, address in zip(names, wan.addresses, strict=True):
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            _ip("-n", name, "link", "set", DEVICE, "mtu", str(MTU), "up")
        yield wan


def enter(namespace: str) -> None:
    """Move the calling thread, and all that it starts from now on, into a namespace."""
    with Path("/var/run/netns", namespace).open("rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")


@cache
def why_not() -> str:
    """Return why no network can be made here, or nothing; found out by making one."""
    if os.name != "posix" or os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "needs the program ip"
    try:
        with open_wan(1, {}):
            return ""
    except (OSError, subprocess.CalledProcessError, EOFError) as error:
        return f"no namespaces or no /dev/net/tun: {getattr(error, 'stderr', '') or error}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


def _delete(namespace: str) -> None:
    with contextlib.suppress(subprocess.SubprocessError):
        _ip("netns", "delete", namespace)


def _stop(router: multiprocessing.process.BaseProcess) -> None:
    router.kill()
    router.join()


def _open_device(namespace: str) -> int:
    """Return a descriptor of a new TUN device inside `namespace`; it can be used from outside."""
    opened: list[int | OSError] = []

    def work() -> None:
        try:
            enter(namespace)
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _TUN_WITHOUT_HEADER))
            opened.append(descriptor)
        except OSError as error:
            opened.append(error)

    thread = threading.Thread(target=work)  # a thread may stand in another namespace than its process
    thread.start()
    thread.join()
    if isinstance(opened[0], OSError):
        raise opened[0]
    return opened[0]


def _route(wan: Wan, links: dict[tuple[int, int], Link], ready: Connection) -> None:
    """Carry packets until the process that made the network ends."""
    parent = os.getppid()
    devices = [_open_device(name) for name in wan.namespaces]
    ready.send("devices")
    _Router(devices, wan.addresses, links).run(lambda: os.getppid() == parent)


class _Router:
    """Packets on their way: each leaves its link after those before it, and arrives one latency later."""

    def __init__(self, devices: Sequence[int], addresses: Sequence[str], links: Mapping[tuple[int, int], Link]) -> None:
        self._devices = list(devices)
        self._rank_at = {bytes(map(int, address.split("."))): rank for rank, address in enumerate(addresses)}
        self._links = links
        self._free = dict.fromkeys(links, 0.0)
        self._travelling: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def run(self, wanted: Callable[[], bool]) -> None:
        """Serve as long as `wanted()`."""
        while wanted():
            timeout = 1.0
            if self._travelling:
                timeout = max(0.0, min(timeout, self._travelling[0][0] - time.monotonic()))
            readable, _, _ = select.select(self._devices, [], [], timeout)
            for device in readable:
                self._take(device)
            self._deliver()

    def _take(self, device: int) -> None:
        """Put what a device sends on its link."""
        source = self._devices.index(device)
        for _ in range(64):
            try:
                packet = os.read(device, MTU + 64)
            except OSError:  # nothing more, or not up yet
                return
            target = self._rank_at.get(packet[16:20], -1)
            if packet[0] >> 4 != 4 or (source, target) not in self._links:
                continue
            link = self._links[source, target]
            leave = max(time.monotonic(), self._free[source, target]) + len(packet) / link.bytes_per_s
            self._free[source, target] = leave
            self._count += 1
            heapq.heappush(self._travelling, (leave + link.latency_s, self._count, target, packet))

    def _deliver(self) -> None:
        """Hand over everything that has arrived."""
        now = time.monotonic()
        while self._travelling and self._travelling[0][0] <= now:
            *_, target, packet = heapq.heappop(self._travelling)
            with contextlib.suppress(OSError):  # a full queue drops packets, as networks do
                os.write(self._devices[target], packet)
