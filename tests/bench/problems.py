"""The problems that the benchmark solves, by section; each with the best makespan that is known, where one is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

from known_cases import (
    HEAD_ROOM,
    HELD_LINK,
    PEERS,
    UNIT,
    grid_cases,
    grid_problem,
    head_room_problem,
    held_link_problem,
    peer_problem,
    sized_problem,
)
from oracle.cases import case

from cpipe.ir import Problem

__all__ = ["PROBLEMS", "BenchCase"]


class BenchCase(NamedTuple):
    """A problem with its name; `best_known` is None where nobody knows."""

    name: str
    problem: Problem
    best_known: int | None = None


def grid() -> Iterator[BenchCase]:
    """Yield the 42 small cases."""
    for grid_case in grid_cases():
        yield BenchCase(grid_case.name, grid_problem(grid_case), grid_case.best_known)


def peers() -> Iterator[BenchCase]:
    """Yield the profiles on which other schedulers were compared, one stage a device and two in a V."""
    for peer in PEERS:
        for chunks, best in ((1, peer.best), (2, peer.best_v)):
            for memory in (1, 2):
                name = f"{peer.name} {'line' if chunks == 1 else 'V'} {memory}x"
                yield BenchCase(name, peer_problem(peer, memory, chunks), best[memory - 1])
    for (chunks, memory), best_known in HELD_LINK.items():
        name = f"P7 {'line' if chunks == 1 else 'V'} memory {memory}"
        yield BenchCase(name, held_link_problem(chunks, memory), best_known)


def head_room() -> Iterator[BenchCase]:
    """Yield the cells of the table that says what a search can win over a greedy, one cut of latency 1, 2, 4, 8."""
    for (n, memory), optima in HEAD_ROOM.items():
        for latency, optimum in zip((1, 2, 4, 8), optima, strict=True):
            problem = head_room_problem(n, memory, latency)
            yield BenchCase(f"n{n} memory {memory} L{latency}", problem, optimum * UNIT)


def mixed() -> Iterator[BenchCase]:
    """Yield thirty problems of stages that differ by up to a quarter, drawn once and for all."""
    for number in range(30):
        draw = random.Random(number)
        p, shape = draw.choice((4, 8)), ("line", "V", "loop")[number % 3]
        n = draw.choice((p, 2 * p, 3 * p))
        line = list(range(p))
        placement = {"line": line, "V": line + line[::-1], "loop": line + line}[shape]
        chunks = len(placement) // p
        slow = {p // 2 - 1} if draw.random() < 0.5 else {p // 4 - 1, p // 2 - 1, 3 * p // 4 - 1}
        crossings = [a != b and (min(a, b) in slow or abs(a - b) > 1) for a, b in itertools.pairwise(placement)]
        latency, occupancy = draw.choice(((0, 0), (200, 25), (25, 200), (100, 100)))
        problem = case(
            n,
            placement,
            forward=[draw.randint(75, 125) // chunks for _ in placement],
            input_grad=[draw.randint(82, 137) // chunks for _ in placement],
            weight_grad=[draw.randint(67, 112) // chunks for _ in placement],
            latency=[latency * crossing for crossing in crossings],
            occupancy=[occupancy * crossing for crossing in crossings],
            half_duplex=draw.random() < 0.2,
            capacity=draw.choice((2, 3, 4)) * p * 5 * chunks,
            activation=10,
            held=draw.choice((5, 7, 10)),
        )
        yield BenchCase(f"{number:02d} {shape} p{p} n{n} ({latency},{occupancy})", problem)


def cuts() -> Iterator[BenchCase]:
    """Yield eight devices on four sites: every cut slow, held by its messages, one way at a time or both."""
    for half_duplex in (False, True):
        for latency, occupancy in ((200, 0), (0, 100), (100, 100), (25, 200)):
            for memory in (1, 2):
                crossings = [index % 2 for index in range(7)]
                problem = case(
                    16,
                    range(8),
                    forward=100,
                    input_grad=110,
                    weight_grad=90,
                    latency=[latency * crossing for crossing in crossings],
                    occupancy=[occupancy * crossing for crossing in crossings],
                    half_duplex=half_duplex,
                    capacity=memory * 80,
                    activation=10,
                    held=7,
                )
                duplex = "half" if half_duplex else "full"
                yield BenchCase(f"4 sites ({latency},{occupancy}) {duplex} {memory}x", problem)


def large() -> Iterator[BenchCase]:
    """Yield lines of 16 devices and a V of 8 with many microbatches, tight and double memory."""
    for placement, p, n in (("ud", 16, 64), ("ud", 16, 128), ("wave", 8, 32)):
        for memory in (1, 2):
            for latency, occupancy in ((0, 0), (200, 25), (25, 200)):
                problem = sized_problem(placement, p, n, latency, occupancy, memory)
                yield BenchCase(f"{placement} p{p} n{n} ({latency},{occupancy}) {memory}x", problem)


PROBLEMS = {"grid": grid, "peers": peers, "head room": head_room, "mixed": mixed, "cuts": cuts, "large": large}
