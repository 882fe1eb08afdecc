"""Who uses a pipe first: messages in the order of their producers, shared pipes in the order of readiness, windows.

* Messages of one device on a pipe leave in its op order, whatever is ready when: the order of two messages is the
  order of their producers, and that of two all-gathers of a device the order of the forwards behind them.
* A pipe of several senders serves what is ready first; ties go to the lower device. So nothing leaves before what was
  ready earlier, and nothing idles to let another pass (see `cpipe.solve.cpsat.tight`). Where readiness has no
  expression (see `cpipe.solve.cpsat.readiness`) the rule is left out, and the model is a relaxation: what it proves
  holds for every order, and what it finds is replayed.
* With a window of K, a message leaves after the readers of all messages K places before it on its channel have ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from cpipe.solve.cpsat.model import Model
from cpipe.solve.cpsat.readiness import Readiness
from cpipe.solve.cpsat.replay import Replay
from cpipe.solve.cpsat.tight import add_tightness

__all__ = ["add_links"]


def add_links(model: Model) -> None:
    """State the order of messages and collectives on their pipes."""
    for (first, second), (one, other) in model.tied:
        literal = model.precedes(one, other)
        model.follow(first, second, literal=literal)
        model.follow(second, first, literal=~literal)
    _gather_first(model)
    shared = _ready_first(model)
    filled = [] if model.network.problem.receive_window is None else _channels(model)
    # who opens a window on a channel of several stages is no input of a message, so that nothing can be said there
    if shared and all(len(channel) == 1 for channel in filled):
        add_tightness(model)
    if model.network.problem.receive_window is not None:
        _windows(model)


def _gather_first(model: Model) -> None:
    """State that a device's all-gathers are posted before anything is reduced on its data-parallel link."""
    gathers = [task for (kind, _), task in model.network.collectives.items() if kind == "gather"]
    reduces = [task for (kind, _), task in model.network.collectives.items() if kind == "reduce"]
    for gather in gathers:
        for reduce in reduces:
            if model.network.device(gather) == model.network.device(reduce):
                model.follow(gather, reduce)


def _ready_first(model: Model) -> bool:
    """Nothing leaves a shared pipe before what was ready earlier; return whether messages share one."""
    readiness, rivals = Readiness(model), _rivals(model)
    for first, second in rivals:
        settled = model.precedence.ordered(first, second)
        served = None
        if settled is None:
            served = model.boolean(partial(_is_served, first, second))
        for before, after, follows in ((first, second, settled is not False), (second, first, not settled)):
            if not follows:
                continue
            literal = None if served is None else served if before == first else ~served
            if literal is not None:
                model.follow(before, after, literal=literal)
            moments = readiness.of(before), readiness.of(after)
            if moments[0] is None or moments[1] is None:
                continue
            constraint = model.cp.add(moments[0] + int(_loses_ties(model, before, after)) <= moments[1])
            if literal is not None:
                constraint.only_enforce_if(literal)
    return any("message" in {model.network.tasks[task].kind for task in pair} for pair in rivals)


def _rivals(model: Model) -> list[tuple[int, int]]:
    """Return the pairs of messages and collectives on one pipe that stand in different queues, each once."""
    network = model.network
    kinds = [task.kind for task in network.tasks]
    pairs: dict[tuple[int, int], None] = {}
    for tasks in network.resources:
        for first, second in combinations(sorted(tasks), 2):
            same_device = network.device(first) == network.device(second)
            same_queue = same_device and kinds[first] == kinds[second] and kinds[first] != "reduce"
            gathers_first = same_device and {kinds[first], kinds[second]} == {"gather", "reduce"}
            if kinds[first] not in ("F", "D", "W") and not same_queue and not gathers_first:
                pairs[first, second] = None
    return list(pairs)


def _loses_ties(model: Model, before: int, after: int) -> bool:
    """Return whether `before` would leave after `after` if both were ready at one moment: for certain, or say no.

    The lower device goes first, and on one device what comes first in its order. That is certain only if all that is
    ready at one moment is known when the pipe decides: if no message costs nothing, and no window may open then.
    """
    network, problem = model.network, model.network.problem
    if problem.receive_window is not None:
        return False
    devices = network.device(before), network.device(after)
    if devices[0] != devices[1]:
        hops = [hop for hop in (*problem.forward_hops, *problem.backward_hops) if hop is not None]
        return devices[0] > devices[1] and all(hop.latency_ns + hop.occupancy_ns > 0 for hop in hops)
    kinds = network.tasks[before].kind, network.tasks[after].kind
    owner = network.tasks[after].owner
    if kinds != ("reduce", "message") or owner is None:
        return False
    # a message whose producer takes time, or of the reduced stage itself, was posted before the reduce
    return network.tasks[before].stage == network.tasks[after].stage or min(model.sizes(owner)) > 0


def _windows(model: Model) -> None:
    """Cap what is on its way or unread on channels that several stages share; the network has the others."""
    window = model.network.problem.receive_window
    assert window is not None
    for channel in _channels(model):
        if len(channel) < 2:
            continue
        place = _places(model, channel)
        messages = [message for stream in channel for message, _ in stream]
        for early, reader, late in _may_be_far(channel):
            far = model.boolean(partial(_is_far, early, late, window, messages))
            model.cp.add(place[late] - place[early] <= window - 1).only_enforce_if(~far)
            model.cp.add(place[late] - place[early] >= window).only_enforce_if(far)
            model.cp.add(model.coarse[late].start >= model.coarse[reader].end).only_enforce_if(far)


def _channels(model: Model) -> list[list[list[tuple[int, int]]]]:
    """Return the streams of each channel, each a list of (message, reader) in microbatch order."""
    network, problem = model.network, model.network.problem
    channels: dict[tuple[int, int, str], list[list[tuple[int, int]]]] = {}
    for kind, hops, step in (("F", problem.forward_hops, 1), ("D", problem.backward_hops, -1)):
        for boundary, hop in enumerate(hops):
            if hop is not None:
                source = boundary + (step < 0)
                stream = [
                    (network.messages[kind, source, microbatch], network.compute[kind, source + step, microbatch])
                    for microbatch in range(problem.microbatches)
                ]
                channels.setdefault((hop.source, hop.target, kind), []).append(stream)
    return list(channels.values())


def _may_be_far(channel: list[list[tuple[int, int]]]) -> Iterator[tuple[int, int, int]]:
    """Yield early message, its reader and a message that may come later on the channel."""
    for mine in channel:
        for theirs in channel:
            for position, (early, reader) in enumerate(mine):
                for late, _ in theirs[position + 1 :] if mine is theirs else theirs:
                    yield early, reader, late


def _places(model: Model, channel: list[list[tuple[int, int]]]) -> dict[int, Any]:
    """Return the place of each message on its channel: how many producers of the channel come before its own."""
    place: dict[int, Any] = {}
    for stream in channel:
        for position, (message, _) in enumerate(stream):
            place[message] = position
    for mine, theirs in combinations(channel, 2):
        for first, _ in mine:
            for second, _ in theirs:
                owners = model.network.tasks[first].owner, model.network.tasks[second].owner
                assert owners[0] is not None and owners[1] is not None
                before = model.precedes(owners[0], owners[1])
                place[second] = place[second] + before
                place[first] = place[first] + 1 - before
    return place


def _is_served(first: int, second: int, replay: Replay) -> bool:
    return replay.served(first, second)


def _is_far(early: int, late: int, window: int, messages: Sequence[int], replay: Replay) -> bool:
    """Return whether at least `window` of the messages of a channel lie between, the early one included."""
    position = replay.position
    return sum(position[early] <= position[message] < position[late] for message in messages) >= window
