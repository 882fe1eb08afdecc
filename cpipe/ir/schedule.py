"""A schedule: the decision, and nothing but the decision: an order of ops for each device."""

from __future__ import annotations

from itertools import pairwise

from cpipe.ir.base import Frozen, InvariantError
from cpipe.ir.ops import Op, OpKind, decode_op, encode_op
from cpipe.ir.problem import Problem

__all__ = ["Offload", "Schedule"]


class Offload(Frozen, frozen=True, kw_only=True):
    """A microbatch's activation that waits in host memory between its forward and its backward.

    Its copy to the host starts behind the forward (`Stage.offload_bytes` of it); the device waits for the end of that
    copy right before the op at `freed_before`, and has the bytes free from there on. The copy back is posted right
    before the op at `reloaded_before`, behind such waits, and takes the bytes from there on; the backward waits for it.

    Attributes
    ----------
    stage, microbatch
        Whose activation.
    freed_before, reloaded_before
        Positions in the order of the stage's device, of an op behind the forward and up to the backward (D or B).
    """

    stage: int
    microbatch: int
    freed_before: int
    reloaded_before: int


class Schedule(Frozen, frozen=True, kw_only=True):
    """Order of compute ops per device.

    Attributes
    ----------
    orders
        Length P; entry d is the sequence of op ids (see `cpipe.ir.ops`) that device d runs.
    pairs
        Fused pairs as (F, B) op ids: a forward and the full backward right behind it in the same order, which run as
        one op. It starts when both inputs are there and both outputs are ready at its end.
    offloads
        What waits in host memory, sorted by (stage, microbatch).
    """

    orders: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...] = ()
    offloads: tuple[Offload, ...] = ()

    def units(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the orders as what runs at once: one op each, or the two of a fused pair."""
        backward = dict(self.pairs)
        fused = {second for _, second in self.pairs}
        return tuple(
            tuple((op, backward[op]) if op in backward else (op,) for op in order if op not in fused)
            for order in self.orders
        )

    def decoded(self, microbatches: int) -> tuple[tuple[Op, ...], ...]:
        """Return the orders as `Op` tuples."""
        return tuple(tuple(decode_op(op, microbatches) for op in order) for order in self.orders)

    def to_text(self, microbatches: int) -> str:
        """Return one line per device, ops as ``2F0`` (stage, kind, microbatch), fused pairs as ``2F3+1B0``."""
        return "\n".join(
            " ".join("+".join(str(decode_op(op, microbatches)) for op in unit) for unit in units)
            for units in self.units()
        )

    @classmethod
    def from_text(cls, text: str, microbatches: int) -> Schedule:
        """Read the form that `to_text` writes; the inverse of it, but for offloads, which have no text form.

        Raises
        ------
        InvariantError
            When a word is neither an op nor a pair.
        """
        orders: list[tuple[int, ...]] = []
        pairs: list[tuple[int, int]] = []
        for line in text.splitlines():
            order: list[int] = []
            for word in line.split():
                ops = [_parse(part, microbatches) for part in word.split("+")]
                if len(ops) > 2:
                    raise InvariantError(f"not a pair: {word!r}")
                if len(ops) == 2:
                    pairs.append((ops[0], ops[1]))
                order += ops
            orders.append(tuple(order))
        return cls(orders=tuple(orders), pairs=tuple(pairs))

    def verify(self, problem: Problem) -> None:
        """Check that every stage runs each microbatch once, in order, on its own device.

        Each (stage, microbatch) has exactly one F and either one D and one W, or one B; the F of a stage come
        in microbatch order, so do its backwards (D or B) and its W. Dependencies are the simulator's business.

        Raises
        ------
        InvariantError
            Naming device and op of the first fault.
        """
        n = problem.microbatches
        if len(self.orders) != problem.num_devices:
            raise InvariantError(f"{len(self.orders)} orders for {problem.num_devices} devices")
        forward = [0] * problem.num_stages
        backward = [0] * problem.num_stages
        weight: list[list[int]] = [[] for _ in problem.stages]
        split: list[list[int]] = [[] for _ in problem.stages]
        for device, order in enumerate(self.orders):
            for op in order:
                kind, stage, microbatch = decode_op(op, n)
                label = f"device {device}: {stage}{kind.name}{microbatch}"
                if not (0 <= stage < problem.num_stages and problem.stages[stage].device == device):
                    raise InvariantError(f"{label} does not belong on this device")
                if kind is OpKind.F:
                    _in_order(label, microbatch, forward[stage])
                    forward[stage] += 1
                elif kind is OpKind.W:
                    weight[stage].append(microbatch)
                else:
                    _in_order(label, microbatch, backward[stage])
                    backward[stage] += 1
                    if kind is OpKind.D:
                        split[stage].append(microbatch)
                if kind in (OpKind.D, OpKind.W) and not problem.stages[stage].can_split:
                    raise InvariantError(f"{label}: stage {stage} cannot split its backward")
        for stage in range(problem.num_stages):
            if (forward[stage], backward[stage]) != (n, n):
                raise InvariantError(f"stage {stage}: {forward[stage]} F and {backward[stage]} D or B, expected {n}")
            if weight[stage] != split[stage]:
                raise InvariantError(f"stage {stage}: W of {weight[stage]} do not follow D of {split[stage]}")
        self._verify_pairs(n)
        self._verify_offloads(problem)

    def _verify_offloads(self, problem: Problem) -> None:
        if not self.offloads:
            return
        n = problem.microbatches
        keys = [(offload.stage, offload.microbatch) for offload in self.offloads]
        if keys != sorted(set(keys)):
            raise InvariantError("offloads are not sorted, or one is there twice")
        fused = {second for _, second in self.pairs}
        places = [{op: place for place, op in enumerate(order)} for order in self.orders]
        for offload in self.offloads:
            label = f"offload of stage {offload.stage} microbatch {offload.microbatch}"
            if not (0 <= offload.stage < problem.num_stages and problem.stages[offload.stage].offload_bytes):
                raise InvariantError(f"{label}: the stage offers none")
            device = problem.stages[offload.stage].device
            forward, split, _, full = (encode_op(kind, offload.stage, offload.microbatch, n) for kind in OpKind)
            first = places[device][forward]
            last = places[device][split if split in places[device] else full]
            if not first < offload.freed_before <= offload.reloaded_before <= last:
                raise InvariantError(
                    f"{label}: freed before {offload.freed_before} and reloaded before {offload.reloaded_before}, "
                    f"expected positions behind {first} and up to {last}, in this order"
                )
            if fused & {self.orders[device][place] for place in (offload.freed_before, offload.reloaded_before)}:
                raise InvariantError(f"{label}: a fused pair is no place to wait")

    def _verify_pairs(self, microbatches: int) -> None:
        follows = {first: second for order in self.orders for first, second in pairwise(order)}
        if len({op for pair in self.pairs for op in pair}) != 2 * len(self.pairs):
            raise InvariantError("an op is in two pairs")
        for first, second in self.pairs:
            forward, backward = decode_op(first, microbatches), decode_op(second, microbatches)
            label = f"pair {forward}+{backward}"
            if (forward.kind, backward.kind) != (OpKind.F, OpKind.B):
                raise InvariantError(f"{label} is no F with a B")
            if forward[1:] == backward[1:]:
                raise InvariantError(f"{label}: the B needs that F")
            if follows.get(first) != second:
                raise InvariantError(f"{label}: the B does not stand right behind the F")


def _in_order(label: str, microbatch: int, expected: int) -> None:
    if microbatch != expected:
        raise InvariantError(f"{label} out of microbatch order, expected microbatch {expected}")


def _parse(word: str, microbatches: int) -> int:
    for kind in OpKind:
        stage, mark, microbatch = word.partition(kind.name)
        if mark and stage.isdigit() and microbatch.isdigit() and int(microbatch) < microbatches:
            return encode_op(kind, int(stage), int(microbatch), microbatches)
    raise InvariantError(f"not an op: {word!r}")
