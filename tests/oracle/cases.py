"""Problems from a few numbers: the shape in which cases from the field are told."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.ir import Collectives, Device, Hop, Problem, Stage
from cpipe.units import Bytes, Ns

__all__ = ["case"]

Numbers = int | Sequence[int]


def case(
    microbatches: int,
    placement: Sequence[int],
    *,
    forward: Numbers = 1,
    input_grad: Numbers = 1,
    weight_grad: Numbers = 1,
    full: Numbers | None = None,
    split: bool = True,
    latency: Numbers = 0,
    occupancy: Numbers = 0,
    half_duplex: bool = False,
    capacity: Numbers | None = None,
    activation: Numbers = 1,
    held: Numbers = 0,
    static: Numbers = 0,
    input_grad_transient: int = 0,
    message: int = 0,
    window: int | None = None,
    reduce: Numbers | None = None,
    gather: Numbers | None = None,
    contends: bool = False,
) -> Problem:
    """Return a problem; a number stands for all stages, boundaries or devices, a sequence for each.

    Parameters
    ----------
    microbatches, placement
        Number of microbatches, device of each stage.
    forward, input_grad, weight_grad, full
        Durations per stage [ns]; `full` is D + W unless given. Without `split` only B may run.
    latency, occupancy
        Per boundary [ns]. Every ordered pair of devices has its own pipe, or every pair when `half_duplex`.
    capacity
        Per device [bytes].
    activation, held, static, input_grad_transient, message
        Sizes [bytes].
    window
        Receive window.
    reduce, gather
        Durations of collectives per stage [ns]: reduces alone are ddp, with gathers zero1. They hold pipe 0 too
        when `contends`.
    """
    size = len(placement)
    fulls = [a + b for a, b in zip(_each(input_grad, size), _each(weight_grad, size), strict=True)]
    if full is not None:
        fulls = _each(full, size)
    stages = tuple(
        Stage(
            name=f"s{index}",
            device=device,
            forward_ns=Ns(_each(forward, size)[index]),
            input_grad_ns=Ns(_each(input_grad, size)[index] if split else 0),
            weight_grad_ns=Ns(_each(weight_grad, size)[index] if split else 0),
            full_backward_ns=Ns(fulls[index]),
            can_split=split,
            activation_bytes=Bytes(_each(activation, size)[index]),
            held_bytes=Bytes(_each(held, size)[index]),
            static_bytes=Bytes(_each(static, size)[index]),
            input_grad_transient_bytes=Bytes(input_grad_transient),
            all_gather_ns=Ns(_each(gather or 0, size)[index]),
            reduce_ns=Ns(_each(reduce or 0, size)[index]),
        )
        for index, device in enumerate(placement)
    )
    pipes: list[tuple[int, ...]] = []

    def hop(boundary: int, source: int, target: int) -> Hop | None:
        if source == target:
            return None
        key = tuple(sorted((source, target))) if half_duplex else (source, target)
        if key not in pipes:
            pipes.append(key)
        delays = _each(latency, size - 1)[boundary], _each(occupancy, size - 1)[boundary]
        return Hop(
            source=source,
            target=target,
            message_bytes=Bytes(message),
            latency_ns=Ns(delays[0]),
            occupancy_ns=Ns(delays[1]),
            pipe=pipes.index(key),
        )

    forward_hops = tuple(hop(index, placement[index], placement[index + 1]) for index in range(size - 1))
    backward_hops = tuple(hop(index, placement[index + 1], placement[index]) for index in range(size - 1))
    num_devices = max(placement) + 1
    capacities: list[Bytes] | list[None] = (
        [None] * num_devices if capacity is None else list(map(Bytes, _each(capacity, num_devices)))
    )
    collectives = None
    if reduce is not None or gather is not None:
        collectives = Collectives(mode="ddp" if gather is None else "zero1", replicas=2, pipes=(0,) if contends else ())
    problem = Problem(
        microbatches=microbatches,
        devices=tuple(Device(name=f"g{index}", capacity_bytes=capacities[index]) for index in range(num_devices)),
        stages=stages,
        forward_hops=forward_hops,
        backward_hops=backward_hops,
        pipes=tuple("-".join(map(str, key)) for key in pipes),
        collectives=collectives,
        receive_window=window,
    )
    problem.verify()
    return problem


def _each(numbers: Numbers, size: int) -> list[int]:
    return [numbers] * size if isinstance(numbers, int) else list(numbers)
