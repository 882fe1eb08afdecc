"""Durations of data-parallel collectives: measured times first, ring formulas otherwise."""

from __future__ import annotations

from fractions import Fraction

from cpipe.profile.links import beta_of
from cpipe.profile.schema import DataParallelSpec, StageSpec
from cpipe.units import Ns, ms_to_ns

__all__ = ["collective_times", "ring_ns"]


def ring_ns(num_bytes: int, replicas: int, latency_ns: int, beta: Fraction, rounds: int = 1) -> Ns:
    """Return the duration [ns] of a ring collective over `num_bytes` [bytes].

    Each of r - 1 steps pays alpha and moves 1/r of the bytes::

        T = rounds x ((r - 1) x alpha + (r - 1) / r x bytes x beta)

    One round is an all-gather or a reduce-scatter, two are an all-reduce. For r = 2 the latter is
    2 alpha + bytes x beta, as in CrossPipe (arXiv 2507.00217), appendix E.

    Parameters
    ----------
    num_bytes
        Size of the whole tensor [bytes].
    replicas
        r, the ring's length; alone there is nothing to send and the time is 0.
    latency_ns
        alpha of one step [ns].
    beta
        Inverse bandwidth [ns/byte].
    rounds
        Number of passes around the ring.
    """
    steps = rounds * (replicas - 1)
    return Ns(steps * latency_ns + round(Fraction(steps, replicas) * num_bytes * beta))


def collective_times(stage: StageSpec, job: DataParallelSpec) -> tuple[Ns, Ns]:
    """Return the durations [ns] of the all-gather before the first F and the reduction after the last W.

    A replica alone exchanges nothing: 0, even where times were measured.
    """
    if job.replicas == 1:
        return Ns(0), Ns(0)
    alpha, beta = ms_to_ns(job.latency_ms), beta_of(job)

    def time(measured_ms: float | None, num_bytes: int, rounds: int = 1) -> Ns:
        return ring_ns(num_bytes, job.replicas, alpha, beta, rounds) if measured_ms is None else ms_to_ns(measured_ms)

    if job.mode == "ddp":
        return Ns(0), time(stage.all_reduce_ms, stage.gradient_bytes, rounds=2)
    return time(stage.all_gather_ms, stage.parameter_bytes), time(stage.reduce_scatter_ms, stage.gradient_bytes)
