"""Nothing idles: every task starts when something that it waits for ends, as in a replay.

Elsewhere an idle op can only be late, so this need not be said. On a pipe of several senders an op that idles lets the
other's message pass: without this a solution may be better than what its order replays to.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from cpipe.solve.cpsat.model import Model
from cpipe.solve.cpsat.replay import Replay

__all__ = ["add_tightness"]

_MOST = 40_000
"""Causes above which the model stays a relaxation."""


def add_tightness(model: Model) -> None:
    """State that every task starts at 0, or at the end of one on its resource or of one of its inputs."""
    causes = _causes(model)
    if sum(map(len, causes)) > _MOST:
        return
    for task, ends in enumerate(causes):
        literals: list[Any] = []
        if not any(task == after for _, after, _ in model.network.edges):
            at_zero = model.boolean(partial(_touches, task, None, 0))
            model.cp.add(model.start[task] == 0).only_enforce_if(at_zero)
            literals.append(at_zero)
        for before, delay in ends:
            touches = model.boolean(partial(_touches, task, before, delay))
            model.cp.add(model.start[task] == model.coarse[before].end + delay).only_enforce_if(touches)
            literals.append(touches)
            absent = model.absent(before)
            if absent is not None:
                model.cp.add_implication(touches, ~absent)
        absent = model.absent(task)
        model.cp.add_bool_or(literals if absent is None else [*literals, absent])


def _causes(model: Model) -> list[list[tuple[int, int]]]:
    """Return what each task may start right after: task and delay [units], each once."""
    network = model.network
    causes: list[dict[tuple[int, int], None]] = [{} for _ in network.tasks]
    for before, after, delay in network.edges:
        causes[after][before, delay] = None
        if network.tasks[after].kind == "reduce":
            _, stage, microbatch, _, _ = network.tasks[before]
            causes[after][network.compute["D", stage, microbatch], 0] = None
    for tasks in network.resources:
        for task in tasks:
            for other in tasks:
                if other != task and not model.precedence.after[task] >> other & 1:
                    causes[task][other, 0] = None
    return [list(row) for row in causes]


def _touches(task: int, before: int | None, delay: int, replay: Replay) -> bool:
    if before is None:
        return replay.starts[task] == 0
    return replay.runs(before) and replay.starts[task] == replay.ends[before] + delay
