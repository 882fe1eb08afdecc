"""Problems whose best makespans are known: a grid of small ones, peers' profiles, CrossPipe in unit times."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import NamedTuple

from oracle.cases import case

from cpipe.ir import Problem

__all__ = [
    "HEAD_ROOM",
    "HELD_LINK",
    "PEERS",
    "UNIT_TIMES",
    "GridCase",
    "PeerProfile",
    "UnitTime",
    "grid_cases",
    "grid_problem",
    "head_room_problem",
    "held_link_problem",
    "line_problem",
    "peer_problem",
    "sized_problem",
    "unit_problem",
]

_DATA = Path(__file__).parent / "data"


class GridCase(NamedTuple):
    """A case of ``data/grid.json``: one stage a device (``ud``), or two in a V (``wave``).

    `p` devices, `n` microbatches, `latency` and `occupancy` of the middle link, `memory` in units of p activations;
    the best makespan and lower bound that are known, equal where the optimum is.
    """

    placement: str
    p: int
    n: int
    latency: int
    occupancy: int
    memory: int
    best_known: int
    lower_bound: int

    @property
    def name(self) -> str:
        """Short name, ``ud p4 n8 (25,200) 1x``."""
        return f"{self.placement} p{self.p} n{self.n} ({self.latency},{self.occupancy}) {self.memory}x"


@cache
def grid_cases() -> tuple[GridCase, ...]:
    """Return the 42 cases of the grid in the order of the file."""
    return tuple(GridCase(**fields) for fields in json.loads((_DATA / "grid.json").read_text("utf-8"))["cases"])


def grid_problem(grid: GridCase) -> Problem:
    """Return the problem of a grid case."""
    return sized_problem(grid.placement, grid.p, grid.n, grid.latency, grid.occupancy, grid.memory)


def sized_problem(placement: str, p: int, n: int, latency: int, occupancy: int, memory: int) -> Problem:
    """Return the grid's kind of problem at any size; F, D and W take 100, 110 and 90 on each device.

    An activation is 10 bytes (on each of two stages in a V, whose memory is counted twice as fine); D frees 3 of them.
    """
    chunks = 2 if placement == "wave" else 1
    line = list(range(p))
    devices = line + line[::-1] * (chunks - 1)
    middle = {devices.index(p // 2 - 1), len(devices) - 1 - p // 2}
    crossings = [index in middle for index in range(len(devices) - 1)]
    return case(
        n,
        devices,
        forward=100 // chunks,
        input_grad=110 // chunks,
        weight_grad=90 // chunks,
        latency=[latency * crossing for crossing in crossings],
        occupancy=[occupancy * crossing for crossing in crossings],
        capacity=memory * p * 10 * chunks,
        activation=10,
        held=7,
        message=0,
    )


class PeerProfile(NamedTuple):
    """A profile on which other schedulers were compared, one stage on each of `p` devices.

    Times are in thousandths of the profile's unit. An activation stays whole until W. `best` has the proven optima
    with memory for p and for 2 p activations, `best_v` the best that is known with two stages a device in a V.
    """

    name: str
    p: int
    n: int
    forward: int | tuple[int, ...]
    input_grad: int | tuple[int, ...]
    weight_grad: int | tuple[int, ...]
    latency: tuple[int, ...]
    best: tuple[int, int]
    best_v: tuple[int, int]


PEERS = (
    PeerProfile("P1", 4, 8, 1000, 1000, 1000, (0, 0, 0), (27_000, 27_000), (25_500, 25_500)),
    PeerProfile("P2", 4, 8, 10_000, 10_000, 10_000, (1000,) * 3, (282_000, 273_000), (264_000, 258_000)),
    PeerProfile("P3", 8, 24, 18_500, 18_100, 9300, (600,) * 7, (1_309_500, 1_235_300), (1_185_200, 1_183_800)),
    PeerProfile("P4", 4, 8, 1000, 1000, 1000, (0, 2000, 0), (35_000, 29_000), (35_500, 27_500)),
    PeerProfile("P5", 16, 64, 1000, 1000, 1000, (100,) * 15, (213_000, 208_500), (206_800, 201_500)),
    PeerProfile(
        "P6",
        4,
        16,
        (1000, 1200, 1200, 2000),
        (1000, 1200, 1200, 2000),
        (800, 960, 960, 1600),
        (100,) * 3,
        (93_300,) * 2,
        (91_600,) * 2,
    ),
)


def peer_problem(peer: PeerProfile, memory: int, chunks: int = 1) -> Problem:
    """Return the problem of a peer's profile with memory for ``memory * p`` activations.

    With two chunks each device has two stages, of half its times and half its activation, in a V.
    """
    line = list(range(peer.p))
    placement = line + line[::-1] * (chunks - 1)

    def halved(times: int | tuple[int, ...]) -> list[int]:
        of = (times,) * peer.p if isinstance(times, int) else times
        return [of[device] // chunks for device in placement]

    return case(
        peer.n,
        placement,
        forward=halved(peer.forward),
        input_grad=halved(peer.input_grad),
        weight_grad=halved(peer.weight_grad),
        latency=peer.latency if chunks == 1 else (*peer.latency, 0, *peer.latency[::-1]),
        capacity=memory * peer.p * chunks,
        activation=1,
        held=1,
        message=0,
    )


HELD_LINK = {(1, 4): 42_000, (1, 6): 35_000, (1, 8): 31_000, (2, 4): 52_500, (2, 8): 44_000}
"""P4 with each message holding the middle link for 1.5 (P7): the best that another scheduler reaches, by number of
chunks and memory in activations of a device. With memory for six on a line, 35 is proven to be the least."""


def held_link_problem(chunks: int, memory: int) -> Problem:
    """Return P7: four devices, eight microbatches, unit times, a middle link of latency 2 held for 1.5 by a message."""
    line = [0, 1, 2, 3]
    crossing = [0, 1, 0] if chunks == 1 else [0, 1, 0, 0, 0, 1, 0]
    return case(
        8,
        line + line[::-1] * (chunks - 1),
        forward=1000 // chunks,
        input_grad=1000 // chunks,
        weight_grad=1000 // chunks,
        latency=[2000 * here for here in crossing],
        occupancy=[1500 * here for here in crossing],
        capacity=memory * chunks,
        activation=1,
        held=1,
        message=0,
    )


HEAD_ROOM = {
    (8, 4): (31, 35, 43, 59),
    (8, 6): (28, 29, 37, 53),
    (8, 8): (28, 29, 31, 39),
    (16, 4): (55, 63, 79, 111),
    (16, 5): (52, 56, 68, 100),
    (16, 6): (52, 53, 61, 85),
    (16, 7): (52, 53, 58, 79),
    (16, 8): (52, 53, 55, 71),
    (32, 5): (100, 104, 126, 180),
    (32, 6): (100, 101, 109, 155),
    (32, 8): (100, 101, 103, 123),
}
"""Proven optima of four devices in line with F = D = W = 1 and one cut of latency 1, 2, 4, 8 in the middle, by number
of microbatches and memory in activations of a device."""


def head_room_problem(n: int, memory: int, latency: int) -> Problem:
    """Return the problem of a cell of `HEAD_ROOM`; a unit is `UNIT` ns."""
    return case(
        n,
        range(4),
        forward=UNIT,
        input_grad=UNIT,
        weight_grad=UNIT,
        latency=[0, latency * UNIT, 0],
        capacity=memory,
        activation=1,
        held=1,
        message=0,
    )


class UnitTime(NamedTuple):
    """Makespans of CrossPipe's setting in unit times, in sixteenths: eight stages, 16 microbatches, F = D = W, B = 2 F.

    `latency` and `bandwidth` in units of F, for every hop between `num_sites` datacenters.
    """

    num_sites: int
    latency: Fraction
    bandwidth: Fraction
    one_f_one_b: Fraction
    zb_h1: Fraction


def _unit_times() -> tuple[UnitTime, ...]:
    delays = [("0", "0"), ("1/4", "1/4"), ("1/4", "2"), ("2", "1/4"), ("2", "2")]
    zb_h1 = {2: ("3.4375", "3.625", "5.15625", "5.15625", "6.6875"), 4: ("3.4375", "3.8125", "6", "6", "8.1875")}
    rows = []
    for num_sites, slope in ((2, 14), (4, 20)):
        for (latency, bandwidth), split in zip(delays, zb_h1[num_sites], strict=True):
            total = Fraction(latency) + Fraction(bandwidth)
            rows.append(
                UnitTime(num_sites, Fraction(latency), Fraction(bandwidth), (69 + slope * total) / 16, Fraction(split))
            )
    return tuple(rows)


UNIT_TIMES = _unit_times()
"""Per microbatch; 1F1B follows ``(69 + 14 L) / 16`` at two datacenters and ``(69 + 20 L) / 16`` at four."""

UNIT = 1000
"""Nanoseconds of one unit of `unit_problem`."""


def unit_problem(row: UnitTime) -> Problem:
    """Return the problem of a `UnitTime`, a unit being `UNIT` ns; without a memory limit."""
    per_site = 8 // row.num_sites
    crossings = [(index + 1) % per_site == 0 for index in range(7)]
    return case(
        16,
        range(8),
        forward=UNIT,
        input_grad=UNIT,
        weight_grad=UNIT,
        latency=[int(row.latency * UNIT) * crossing for crossing in crossings],
        occupancy=[int(row.bandwidth * UNIT) * crossing for crossing in crossings],
    )


def line_problem(p: int, n: int) -> Problem:
    """Return a large problem: p stages in line that differ by up to 12 %, a slow middle link, memory of 1F1B."""
    return case(
        n,
        range(p),
        forward=[100_000 + 4000 * (index % 4) for index in range(p)],
        input_grad=[110_000 + 3000 * (index % 5) for index in range(p)],
        weight_grad=[90_000 + 2000 * (index % 3) for index in range(p)],
        latency=[25_000 * (index + 1 == p // 2) for index in range(p - 1)],
        occupancy=[50_000 * (index + 1 == p // 2) for index in range(p - 1)],
        capacity=p * 10,
        activation=10,
        held=7,
        message=0,
    )
