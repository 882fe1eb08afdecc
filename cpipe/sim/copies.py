"""Copies between a device and host memory: one at a time in each direction, beside compute, in the order posted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cpipe.ir import CopyRun, Offload, OpKind, encode_op
from cpipe.ir.ops import KINDS
from cpipe.sim.tables import Tables

__all__ = ["Copies"]


class Copies:
    """The copies of one device during one replay.

    Attributes
    ----------
    runs
        Those that are posted, in the order of posting.
    """

    def __init__(self, tables: Tables, order: Sequence[int], device: int, offloads: Sequence[Offload]) -> None:
        self.runs: list[CopyRun] = []
        self._tables = tables
        self._device = device
        self._free = {"OFFLOAD": 0, "RELOAD": 0}
        self._away: set[tuple[int, int]] = set()
        self._waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._posts: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._done: dict[tuple[str, int, int], int] = {}
        mine = [entry for entry in offloads if tables.stage_device[entry.stage] == device]
        place = {op: index for index, op in enumerate(order)} if mine else {}
        for entry in sorted(mine, key=lambda entry: self._backward(entry, place)):
            key = entry.stage, entry.microbatch
            self._away.add(key)
            self._waits[entry.freed_before].append(key)
            self._posts[entry.reloaded_before].append(key)

    def reach(self, index: int, now: int) -> int:
        """Do what stands right before the op at `index`: waits, then posts; return until when it waits [ns].

        What has been done once is not done again.
        """
        for stage, microbatch in self._waits.pop(index, ()):
            now = max(now, self._done["OFFLOAD", stage, microbatch])
        for stage, microbatch in self._posts.pop(index, ()):
            self._post("RELOAD", stage, microbatch, now)
        return now

    def needed(self, op: int) -> int:
        """Return when what `op` needs from host memory is back [ns]; 0 if it needs nothing."""
        if op % KINDS not in (OpKind.D, OpKind.B):
            return 0
        return self._done.get(("RELOAD", *divmod(op // KINDS, self._tables.microbatches)), 0)

    def ended(self, op: int, now: int) -> None:
        """Post what is copied to the host once `op` has ended [ns]."""
        key = divmod(op // KINDS, self._tables.microbatches)
        if op % KINDS == OpKind.F and key in self._away:
            self._post("OFFLOAD", *key, now)

    def _post(self, kind: str, stage: int, microbatch: int, now: int) -> None:
        start = max(now, self._free[kind])
        end = start + self._tables.problem.stages[stage].offload_ns
        self._free[kind] = self._done[kind, stage, microbatch] = end
        run = CopyRun(
            kind=kind,  # type: ignore[arg-type]
            stage=stage,
            microbatch=microbatch,
            device=self._device,
            start_ns=start,
            end_ns=end,
        )
        self.runs.append(run)

    def _backward(self, entry: Offload, place: dict[int, int]) -> int:
        """Return where the backward of an offload stands in the order: copies back are posted in that order."""
        full = encode_op(OpKind.B, entry.stage, entry.microbatch, self._tables.microbatches)
        split = encode_op(OpKind.D, entry.stage, entry.microbatch, self._tables.microbatches)
        return place.get(full, place.get(split, 0))
