"""Memory of a device as a property of its order: what each task adds before, during and after it runs.

The levels are those of `cpipe.sim.memory`; here they become coefficients of order variables, and precedences where
no order variable could say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cpipe.solve.milp.network import Network

__all__ = ["Load", "Slot", "loads", "slots_of"]


class Load(NamedTuple):
    """What a compute task does to its device's memory [bytes].

    Attributes
    ----------
    during
        Above the level before it, while it runs.
    after
        Change of the level from its end on.
    merged
        Added to `during` when its backward runs as one op B.
    """

    during: int
    after: int
    merged: int = 0

    @property
    def allocates(self) -> bool:
        """Whether the level may rise above what it was before the task."""
        return self.during > 0 or self.during + self.merged > 0


class Slot(NamedTuple):
    """The tasks of one microbatch on one stage (`weight` None: no W) and its two resident sizes [bytes]."""

    forward: int
    backward: int
    weight: int | None
    activation: int
    held: int

    def least(self, before: int, after: int) -> int:
        """Return the least that the slot holds at a moment [bytes].

        Parameters
        ----------
        before, after
            Bit masks of the tasks that have ended before it, and of those that start after it, for certain.
        """
        if not before >> self.forward & 1:
            return 0
        last = self.backward if self.weight is None else self.weight
        if not after >> last & 1:
            return 0
        if self.weight is None or after >> self.backward & 1:
            return self.activation
        return self.held if before >> self.backward & 1 else min(self.activation, self.held)


def loads(network: Network) -> dict[int, Load]:
    """Return the load of every compute task."""
    result: dict[int, Load] = {}
    for (kind, index, _), task in network.compute.items():
        stage = network.problem.stages[index]
        activation, held = stage.activation_bytes, stage.held_bytes
        both = stage.whole_transient_bytes
        if kind == "F":
            result[task] = Load(activation + stage.forward_transient_bytes, activation)
        elif kind == "W":
            during: int = stage.weight_grad_transient_bytes
            # an empty W behind a B asks for no more than the B itself did
            result[task] = Load(during, -held, -max(during, held + during - activation))
        elif not stage.can_split:
            result[task] = Load(both, -activation)
        else:
            during = max(0, held - activation) + stage.input_grad_transient_bytes
            result[task] = Load(during, held - activation, both - during if task in network.merges else 0)
    return result


def slots_of(network: Network, device: int) -> Sequence[Slot]:
    """Return the slots of the device's stages."""
    problem, compute = network.problem, network.compute
    return [
        Slot(
            compute["F", stage, microbatch],
            compute["D", stage, microbatch],
            compute.get(("W", stage, microbatch)),
            problem.stages[stage].activation_bytes,
            problem.stages[stage].held_bytes,
        )
        for stage in problem.stages_of(device)
        for microbatch in range(problem.microbatches)
    ]
