"""Time windows under an upper bound on the span: how late anything can be that is worth looking at."""

from __future__ import annotations

from cpipe.solve.milp.network import Network, Task

__all__ = ["first_starts", "horizon_of", "openers"]


def openers(network: Network, device: int) -> list[int]:
    """Return the tasks of which one is the first of a device: the F of its lowest stage, and all-gathers.

    Every other op of the device depends on that F.
    """
    stages = network.problem.stages_of(device)
    if not stages:
        return []
    gathers = [network.collectives["gather", stage] for stage in stages if ("gather", stage) in network.collectives]
    return [network.compute["F", min(stages), 0], *gathers]


def first_starts(network: Network) -> list[int | None]:
    """Return when each device starts [units] where that is the same in every order, else None.

    A replay starts everything as early as it can. Down the pipeline the first microbatch meets nothing in its way as
    long as each stage opens its device and each link on the way carries only the activations of its own boundary.
    """
    problem = network.problem
    starts: list[int | None] = [None] * problem.num_devices
    if problem.collectives is not None:  # these may be in the way
        return starts
    lowest = {device: min(problem.stages_of(device), default=-1) for device in range(problem.num_devices)}
    time = 0
    for index, stage in enumerate(problem.stages):
        if lowest[stage.device] != index:
            break
        starts[stage.device] = time
        hop = problem.forward_hops[index] if index + 1 < problem.num_stages else None
        if hop is not None and _is_shared(network, hop.pipe, index):
            break
        time += network.tasks[network.compute["F", index, 0]].duration
        if hop is not None:
            time += (hop.latency_ns + hop.occupancy_ns) // network.unit_ns
    return starts


def _is_shared(network: Network, pipe: int, boundary: int) -> bool:
    """Return whether messages other than the activations of one boundary hold the pipe."""
    problem = network.problem
    hops = [("F", index, hop) for index, hop in enumerate(problem.forward_hops)]
    hops += [("D", index, hop) for index, hop in enumerate(problem.backward_hops)]
    return any(
        hop is not None and hop.pipe == pipe and hop.occupancy_ns and (kind, index) != ("F", boundary)
        for kind, index, hop in hops
    )


def horizon_of(network: Network, span: int) -> tuple[int, list[int] | None]:
    """Return an upper bound on the makespan of every order whose span is at most `span`, and tails that follow.

    Returns
    -------
    tuple
        The bound [units]; for each task the least time that separates its end from that bound, since its device
        must end within `span` of its own start. None when not every start is known: then the bound is that of running
        one thing at a time, which no order worth choosing exceeds.
    """
    starts = first_starts(network)
    used = [device for device in range(network.problem.num_devices) if network.problem.stages_of(device)]
    ends = {device: start + span for device in used if (start := starts[device]) is not None}
    if len(ends) < len(used):
        return network.serial_length(), None
    upper = max(ends.values(), default=0)
    return upper, [_floor(network, task, index, upper, ends) for index, task in enumerate(network.tasks)]


def _floor(network: Network, task: Task, index: int, upper: int, ends: dict[int, int]) -> int:
    return 0 if task.kind == "message" else upper - ends[network.device(index)]
