"""Moves of a local search on the order of one device: which are legal, and what memory says.

On its own stage an op passes neither its own kind (microbatch order; D and B are one kind) nor the other ops of its
microbatch (F before D before W); on stages of the same device that follow each other an F never passes the F that
feeds it, nor a D the D.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.ir import OpKind, Problem
from cpipe.ir.ops import KINDS
from cpipe.sim.memory import memory_rooms, memory_steps

__all__ = ["Moves"]


class Moves:
    """Legal changes of device orders of one problem.

    Parameters
    ----------
    problem
        The problem.
    """

    def __init__(self, problem: Problem) -> None:
        self._n = problem.microbatches
        self._rooms = memory_rooms(problem)
        steps = memory_steps(problem)
        per_stage = problem.microbatches * KINDS
        size = problem.num_stages * per_stage
        self._during = [steps[op // per_stage * KINDS + op % KINDS].during for op in range(size)]
        self._after = [steps[op // per_stage * KINDS + op % KINDS].after for op in range(size)]

    def levels(self, device: int, order: Sequence[int]) -> list[int] | None:
        """Return the memory level before each op of an order [bytes]; None when it does not fit."""
        room, level = self._rooms[device], 0
        during, after = self._during, self._after
        levels = []
        for op in order:
            levels.append(level)
            if room is not None and level + during[op] > room:
                return None
            level += after[op]
        return levels

    def reach(self, order: Sequence[int], index: int, shift: int) -> int | None:
        """Return where the op at `index` stands after `shift` places; None beyond the ends or past a relative."""
        target = index + shift
        if not 0 <= target < len(order):
            return None
        op = order[index]
        per_stage = self._n * KINDS
        first = op // per_stage * per_stage
        last = first + per_stage
        slot, kind = op // KINDS, op & 3
        backward = kind & 1
        for other in order[target:index] if shift < 0 else order[index + 1 : target + 1]:
            same_kind = other & 1 if backward else other & 3 == kind
            if first <= other < last and (same_kind or other // KINDS == slot):
                return None
        return target

    def fits_shifted(self, device: int, order: Sequence[int], levels: Sequence[int], index: int, target: int) -> bool:
        """Return whether memory allows the op at `index` at `target`; `levels` are those of `order`."""
        room = self._rooms[device]
        if room is None:
            return True
        during, after = self._during, self._after
        op = order[index]
        step = after[op]
        if target > index:
            if step < 0:  # what it frees is free later
                for place in range(index + 1, target + 1):
                    if levels[place] - step + during[order[place]] > room:
                        return False
            return levels[target] + after[order[target]] - step + during[op] <= room
        if levels[target] + during[op] > room:
            return False
        if step > 0:
            for place in range(target, index):
                if levels[place] + step + during[order[place]] > room:
                    return False
        return True

    def shift_levels(self, order: Sequence[int], levels: list[int], first: int, last: int) -> None:
        """Bring `levels` up to date after a change of the places `first` .. `last` of `order`."""
        level = levels[first]
        after = self._after
        for place in range(first, last + 1):
            levels[place] = level
            level += after[order[place]]

    def shifted_run(self, order: Sequence[int], ops: Sequence[int], shift: int) -> list[int] | None:
        """Return `order` with each of `ops` shifted by `shift` places, in the order that lets them; None if barred."""
        changed = list(order)
        for op in ops if shift < 0 else reversed(ops):
            try:
                index = changed.index(op)
            except ValueError:
                return None
            target = self.reach(changed, index, shift)
            if target is None:
                return None
            changed.insert(target, changed.pop(index))
        return changed

    def exchanged(self, order: Sequence[int], index: int) -> list[int] | None:
        """Return `order` with the D of the op at `index` and its W replaced by B, or its B by D and W; None for F.

        Apart, W stands right after D, unless a W of an earlier microbatch is still to come, be it behind the end of an
        order that is only the first part of one.
        """
        slot, kind = divmod(order[index], KINDS)
        base = slot * KINDS
        if kind == OpKind.F:
            return None
        if kind == OpKind.B:
            first = slot // self._n * self._n * KINDS
            before = set(order[:index])
            gradients = (op for op in before if first <= op < base and op % KINDS == OpKind.D)
            if any(op - OpKind.D + OpKind.W not in before for op in gradients):
                return None
            return [*order[:index], base + OpKind.D, base + OpKind.W, *order[index + 1 :]]
        changed = [op for op in order if op != base + OpKind.W]
        changed[changed.index(base + OpKind.D)] = base + OpKind.B
        return changed
