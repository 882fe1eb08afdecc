"""Latency and inverse bandwidth of links between ranks: ping-pong at several sizes, and a line through the times.

A message of k bytes takes ``alpha + beta * k``. One way is half of a round trip, so a link
whose directions differ shows their mean. The minimum over the repeats counts: what is above it is other load.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

__all__ = ["SIZES", "LinkFit", "fit_line", "measure_links"]

SIZES = (8, 4_096, 65_536, 262_144, 1_048_576, 4_194_304)
"""Message sizes of the ping-pong [bytes]."""


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """A measured link.

    Attributes
    ----------
    first, second
        Ranks at its ends.
    latency_s
        alpha [s], >= 0.
    seconds_per_byte
        beta [s/byte], >= 0.
    residual
        Largest distance of a measured time from the line, as a share of that time.
    spread
        Largest (median - minimum) / minimum over the sizes.
    sizes, seconds
        What was measured: one-way time of each size [bytes], [s].
    """

    first: int
    second: int
    latency_s: float
    seconds_per_byte: float
    residual: float
    spread: float
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Fit ``seconds = alpha + beta * size`` by least squares of the relative differences.

    Relative, so that alpha is not lost in the noise of large messages. Neither may be negative: where the best line
    has a negative one, it is 0 and the other is fitted alone.

    Parameters
    ----------
    sizes
        At least one, [bytes].
    seconds
        As many, > 0 [s].

    Returns
    -------
    tuple of float
        alpha [s], beta [s/byte], and the largest relative difference.

    Raises
    ------
    ValueError
        When there is nothing to fit, or lengths differ.
    """
    if not sizes or len(sizes) != len(seconds):
        raise ValueError(f"expected as many times as sizes, and one at least, got {len(seconds)} and {len(sizes)}")
    # minimise sum((alpha * u + beta * v - 1)^2) with u = 1 / t and v = size / t
    u = [1 / t for t in seconds]
    v = [size / t for size, t in zip(sizes, seconds, strict=True)]
    uu, vv = sum(x * x for x in u), sum(x * x for x in v)
    uv = sum(x * y for x, y in zip(u, v, strict=True))
    alpha, beta = sum(u) / uu, 0.0
    if len(set(sizes)) > 1:
        determinant = uu * vv - uv * uv
        alpha = (vv * sum(u) - uv * sum(v)) / determinant
        beta = (uu * sum(v) - uv * sum(u)) / determinant
        if alpha < 0:
            alpha, beta = 0.0, sum(v) / vv
        elif beta < 0:
            alpha, beta = sum(u) / uu, 0.0
    residual = max(abs(alpha * x + beta * y - 1) for x, y in zip(u, v, strict=True))
    return alpha, beta, residual


def measure_links(
    pairs: Sequence[tuple[int, int]],
    *,
    repeats: int,
    sizes: Sequence[int] = SIZES,
    device: torch.device | None = None,
) -> list[LinkFit]:
    """Measure one link after the other; every rank of the default group calls this with the same arguments.

    Parameters
    ----------
    pairs
        Ranks at the ends of each link.
    repeats
        Round trips of each size; one more goes before, to open the connection.
    sizes
        [bytes].
    device
        Where the messages lie; the CPU by default.

    Returns
    -------
    list of LinkFit
        On the first rank of a pair, its link; on other ranks nothing for it.
    """
    fits: list[LinkFit] = []
    rank = dist.get_rank()
    for first, second in pairs:
        dist.barrier()  # a link is measured while the others are silent
        if rank not in (first, second):
            continue
        peer = second if rank == first else first
        trips = [_round_trips(peer, rank == first, size, repeats, device) for size in sizes]
        if rank == first:
            fits.append(_link(first, second, sizes, trips))
    dist.barrier()
    return fits


def _round_trips(peer: int, leads: bool, size: int, repeats: int, device: torch.device | None) -> list[float]:
    """Return the seconds of each round trip; the first one is left out."""
    message = torch.zeros(max(1, size), dtype=torch.uint8, device=device)
    times: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        if leads:
            dist.send(message, peer)
            dist.recv(message, peer)
        else:
            dist.recv(message, peer)
            dist.send(message, peer)
        if message.is_cuda:
            torch.cuda.synchronize(message.device)
        times.append(time.perf_counter() - start)
    return times[1:]


def _link(first: int, second: int, sizes: Sequence[int], trips: Sequence[Sequence[float]]) -> LinkFit:
    seconds = tuple(min(times) / 2 for times in trips)
    alpha, beta, residual = fit_line(sizes, seconds)
    return LinkFit(
        first=first,
        second=second,
        latency_s=alpha,
        seconds_per_byte=beta,
        residual=residual,
        spread=max(median(times) / min(times) - 1 for times in trips),
        sizes=tuple(sizes),
        seconds=seconds,
    )
