"""When a message or collective is ready to leave, which decides who is served first on a pipe of several senders.

An all-gather is ready from the start, a reduce when the last backward of its stage has ended, a message when its
producer has. With receive windows a message is ready once its reader of K places earlier has ended, too, and not
before the message in front of it: a pipe serves what is ready first among the heads of its senders' queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from cpipe.solve.cpsat.model import Model
from cpipe.solve.cpsat.replay import Replay

__all__ = ["Readiness"]


class Readiness:
    """The moments [units] as expressions of a model.

    Parameters
    ----------
    model
        The model; variables are added as they are asked for.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: dict[int, Any] = {}
        self._window = model.network.problem.receive_window
        self._streams = _streams(model) if self._window is not None else {}

    def of(self, task: int) -> Any | None:
        """Return when a task is ready, or None where the model has no expression for that.

        That is a message in a queue that several stages fill, with receive windows.
        """
        kind, stage, _, _, owner = self._model.network.tasks[task]
        if kind == "gather":
            return 0
        if kind == "message" and self._window is None:
            assert owner is not None
            return self._model.coarse[owner].end
        if task not in self._known:
            self._known[task] = self._behind_window(task) if kind == "message" else self._last_backward(stage)
        return self._known[task]

    def _behind_window(self, message: int) -> Any | None:
        stream = self._streams.get(message)
        if stream is None:
            return None
        model = self._model
        place = stream.index(message)
        gates = self._gates(stream, place)
        ready = model.integer(0, model.horizon, partial(_latest, [self._gates(stream, at) for at in range(place + 1)]))
        before = [self.of(stream[place - 1])] if place else []
        model.cp.add_max_equality(ready, [*(model.coarse[task].end for task in gates), *before])
        return ready

    def _gates(self, stream: Sequence[int], place: int) -> list[int]:
        """Return the tasks that must have ended: the producer, and the reader that makes room."""
        network = self._model.network
        assert self._window is not None
        owner = network.tasks[stream[place]].owner
        assert owner is not None
        gates = [owner]
        if place >= self._window:
            kind, stage, *_ = network.tasks[owner]
            step = 1 if kind == "F" else -1
            gates.append(network.compute[kind, stage + step, place - self._window])
        return gates

    def _last_backward(self, stage: int) -> Any:
        """Return when the last backward of a stage ends, W included."""
        model, network = self._model, self._model.network
        last = network.problem.microbatches - 1
        if network.compute["D", stage, last] not in network.merges:
            return model.coarse[network.compute.get(("W", stage, last), network.compute["D", stage, last])].end
        ends: list[Any] = []
        rows: list[list[int]] = []
        for microbatch in range(last + 1):
            backward, weight = row = [network.compute[kind, stage, microbatch] for kind in ("D", "W")]
            end = model.integer(0, model.horizon, partial(_latest, [row]))
            model.cp.add(end == model.coarse[weight].end).only_enforce_if(~model.merge[backward])
            model.cp.add(end == model.coarse[backward].end).only_enforce_if(model.merge[backward])
            ends.append(end)
            rows.append(row)
        ready = model.integer(0, model.horizon, partial(_latest, rows))
        model.cp.add_max_equality(ready, ends)
        return ready


def _streams(model: Model) -> dict[int, list[int]]:
    """Return the queue of each message, in order, where one stage alone fills it."""
    network, problem = model.network, model.network.problem
    queues: dict[tuple[int, int], list[list[int]]] = {}
    for kind, hops, shift in (("F", problem.forward_hops, 0), ("D", problem.backward_hops, 1)):
        for boundary, hop in enumerate(hops):
            if hop is not None:
                messages = [
                    network.messages[kind, boundary + shift, microbatch] for microbatch in range(problem.microbatches)
                ]
                queues.setdefault((hop.pipe, hop.source), []).append(messages)
    return {message: streams[0] for streams in queues.values() if len(streams) == 1 for message in streams[0]}


def _latest(rows: Sequence[Sequence[int]], replay: Replay) -> int:
    return max(replay.ends[task] for row in rows for task in row)
