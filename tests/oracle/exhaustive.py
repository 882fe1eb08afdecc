"""The shortest makespan of small problems, by trying everything.

It shares no code with the simulator or any search, only the types of `cpipe.ir`. Partial schedules grow by one op at
a time. Two of them that have done the same ops differ only in times: when the next op of each device can start, when
pipes are free, when messages arrive. Everything later is monotone in those, so of two partial schedules the one that
is nowhere later is enough. Nothing else is pruned, except what cannot beat the best finish known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cpipe.ir import Hop, Problem

__all__ = ["OutOfScopeError", "shortest_makespan"]


class OutOfScopeError(ValueError):
    """The oracle does not cover the problem: pipes with several senders, receive windows, contending collectives."""


class _Done(NamedTuple):
    """What one stage has done: numbers of F, of D, of B, of W."""

    forward: int = 0
    input_grad: int = 0
    full: int = 0
    weight_grad: int = 0

    @property
    def backward(self) -> int:
        return self.input_grad + self.full


class _Times(NamedTuple):
    """Times that the rest depends on [ns]."""

    clock: tuple[int, ...]  # per device: its last op's end
    pipe: tuple[int, ...]  # per pipe: free again
    gather: tuple[int, ...]  # per device: end of its last all-gather so far
    reduce: tuple[int, ...]  # per device: its data-parallel link is free for the next reduce
    activations: tuple[tuple[int, ...], ...]  # per stage: arrivals that no F has read yet
    gradients: tuple[tuple[int, ...], ...]  # per stage: arrivals that no D or B has read yet

    def flat(self) -> tuple[int, ...]:
        values = [*self.clock, *self.pipe, *self.gather, *self.reduce]
        for queue in (*self.activations, *self.gradients):
            values += queue
        return tuple(values)


def shortest_makespan(problem: Problem) -> int | None:
    """Return the shortest makespan of any order [ns], or None when no order fits memory.

    Raises
    ------
    OutOfScopeError
        When the problem has a feature that this search leaves out.
    """
    _check_scope(problem)
    done = (_Done(),) * problem.num_stages
    layer: dict[tuple[_Done, ...], list[_Times]] = {done: [_start(problem)]}
    num_ops = 0
    best: int | None = _first_finish(problem, done, _start(problem))
    finished: list[int] = [] if best is None else [best]
    while layer:
        following: dict[tuple[_Done, ...], list[_Times]] = {}
        for state, fronts in layer.items():
            for times in fronts:
                for grown, later in _steps(problem, state, times):
                    if all(stage.backward == problem.microbatches for stage in grown) and all(
                        stage.weight_grad == stage.input_grad for stage in grown
                    ):
                        finished.append(max(*later.clock, *later.reduce))
                        best = min(finished)
                    elif best is None or _least_finish(problem, grown, later) < best:
                        _keep(following.setdefault(grown, []), later)
        layer = following
        num_ops += 1
    return min(finished, default=None)


def _check_scope(problem: Problem) -> None:
    senders: dict[int, set[int]] = {}
    for hop in (*problem.forward_hops, *problem.backward_hops):
        if hop is not None:
            senders.setdefault(hop.pipe, set()).add(hop.source)
    if any(len(devices) > 1 for devices in senders.values()):
        raise OutOfScopeError("several devices send on one pipe")
    if problem.receive_window is not None:
        raise OutOfScopeError("a receive window")
    if problem.collectives is not None and problem.collectives.pipes:
        raise OutOfScopeError("collectives that occupy pipes")


def _start(problem: Problem) -> _Times:
    devices = range(problem.num_devices)
    gathers = [0] * problem.num_devices
    if problem.collectives is not None and problem.collectives.mode == "zero1":
        for stage in problem.stages:
            gathers[stage.device] += stage.all_gather_ns
    return _Times(
        clock=tuple(0 for _ in devices),
        pipe=tuple(0 for _ in problem.pipes),
        gather=tuple(0 for _ in devices),
        reduce=tuple(gathers),  # all gathers are posted first, so reduces come after them
        activations=((0,) * problem.microbatches, *(() for _ in problem.stages[1:])),
        gradients=tuple(() for _ in problem.stages),
    )


def _first_finish(problem: Problem, state: tuple[_Done, ...], times: _Times) -> int | None:
    """Return a makespan to start with: always take the op that ends first."""
    while True:
        options = list(_steps(problem, state, times))
        if not options:
            complete = all(stage.backward == problem.microbatches for stage in state) and all(
                stage.weight_grad == stage.input_grad for stage in state
            )
            return max(*times.clock, *times.reduce) if complete else None
        state, times = min(options, key=lambda option: (sum(option[1].clock), option))


def _least_finish(problem: Problem, state: tuple[_Done, ...], times: _Times) -> int:
    """Return a makespan that cannot be beaten from here: the work left on a device, after its clock."""
    left = list(times.clock)
    n = problem.microbatches
    for stage, costs in zip(state, problem.stages, strict=True):
        backward: int = costs.full_backward_ns
        if costs.can_split:
            backward = min(backward, costs.input_grad_ns + costs.weight_grad_ns)
        left[costs.device] += (n - stage.forward) * costs.forward_ns + (n - stage.backward) * backward
        left[costs.device] += (stage.input_grad - stage.weight_grad) * costs.weight_grad_ns
    return max(left)


def _keep(front: list[_Times], new: _Times) -> None:
    """Add `new` unless one that is nowhere later is there; drop those that `new` makes pointless."""
    flat = new.flat()
    for old in front:
        if all(a <= b for a, b in zip(old.flat(), flat, strict=True)):
            return
    front[:] = [old for old in front if not all(a <= b for a, b in zip(flat, old.flat(), strict=True))]
    front.append(new)


def _steps(problem: Problem, state: tuple[_Done, ...], times: _Times) -> Iterator[tuple[tuple[_Done, ...], _Times]]:
    """Yield every way to run one more op on some device."""
    n = problem.microbatches
    for index, (stage, costs) in enumerate(zip(state, problem.stages, strict=True)):
        if stage.forward < n and times.activations[index]:
            yield from _run(problem, state, times, index, "F")
        if stage.backward < n and times.gradients[index] and stage.backward < stage.forward:
            for kind in "DB" if costs.can_split else "B":
                yield from _run(problem, state, times, index, kind)
        if stage.weight_grad < stage.input_grad:
            yield from _run(problem, state, times, index, "W")


def _run(
    problem: Problem, state: tuple[_Done, ...], times: _Times, index: int, kind: str
) -> Iterator[tuple[tuple[_Done, ...], _Times]]:
    costs, device = problem.stages[index], problem.stages[index].device
    capacity = problem.devices[device].capacity_bytes
    needed = _resident(problem, state, device) + _extra(problem, index, kind) + _buffers(problem, device)
    if capacity is not None and needed > capacity:
        return
    clock, pipe = list(times.clock), list(times.pipe)
    gather, reduce = list(times.gather), list(times.reduce)
    activations, gradients = list(times.activations), list(times.gradients)
    ready = 0
    stage = state[index]
    if kind == "F":
        ready, *rest = activations[index]
        activations[index] = tuple(rest)
        if problem.collectives is not None and problem.collectives.mode == "zero1" and stage.forward == 0:
            gather[device] += costs.all_gather_ns
            ready = max(ready, gather[device])
        length, stage = costs.forward_ns, stage._replace(forward=stage.forward + 1)
    elif kind == "W":
        length, stage = costs.weight_grad_ns, stage._replace(weight_grad=stage.weight_grad + 1)
    else:
        ready, *rest = gradients[index]
        gradients[index] = tuple(rest)
        if kind == "D":
            length, stage = costs.input_grad_ns, stage._replace(input_grad=stage.input_grad + 1)
        else:
            length, stage = costs.full_backward_ns, stage._replace(full=stage.full + 1)
    end = max(clock[device], ready) + length
    clock[device] = end
    if kind == "F":
        if index + 1 == problem.num_stages:
            gradients[index] += (end,)
        else:
            activations[index + 1] += (_arrival(problem.forward_hops[index], end, pipe),)
    elif kind in "DB" and index:
        gradients[index - 1] += (_arrival(problem.backward_hops[index - 1], end, pipe),)
    last = stage.full + stage.weight_grad == problem.microbatches
    if problem.collectives is not None and kind in "WB" and last:
        reduce[device] = max(reduce[device], end) + costs.reduce_ns
    grown = (*state[:index], stage, *state[index + 1 :])
    yield grown, _Times(tuple(clock), tuple(pipe), tuple(gather), tuple(reduce), tuple(activations), tuple(gradients))


def _arrival(hop: Hop | None, end: int, pipe: list[int]) -> int:
    """Return when the message of an op that ends now is there; the pipe serves its one sender in order."""
    if hop is None:
        return end
    pipe[hop.pipe] = max(pipe[hop.pipe], end) + hop.occupancy_ns
    return pipe[hop.pipe] + hop.latency_ns


def _resident(problem: Problem, state: tuple[_Done, ...], device: int) -> int:
    """Return what the device holds between ops [bytes]."""
    total = 0
    for stage, costs in zip(state, problem.stages, strict=True):
        if costs.device == device:
            total += costs.static_bytes + (stage.forward - stage.backward) * costs.activation_bytes
            total += (stage.input_grad - stage.weight_grad) * costs.held_bytes
    return total


def _buffers(problem: Problem, device: int) -> int:
    """Return the receive buffers without which nothing arrives: the largest message from each neighbour and kind."""
    incoming: dict[tuple[int, bool], int] = {}
    for forward, hops in ((True, problem.forward_hops), (False, problem.backward_hops)):
        for hop in hops:
            if hop is not None and hop.target == device:
                size = incoming.get((hop.source, forward), 0)
                incoming[hop.source, forward] = max(size, hop.message_bytes)
    return sum(incoming.values())


def _extra(problem: Problem, index: int, kind: str) -> int:
    """Return what one more op needs above that while it runs [bytes]."""
    costs = problem.stages[index]
    if kind == "F":
        return costs.activation_bytes + costs.forward_transient_bytes
    if kind == "D":
        return max(0, costs.held_bytes - costs.activation_bytes) + costs.input_grad_transient_bytes
    if kind == "W":
        return costs.weight_grad_transient_bytes
    own = costs.full_backward_transient_bytes
    return max(costs.input_grad_transient_bytes, costs.weight_grad_transient_bytes) if own is None else own
