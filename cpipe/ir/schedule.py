"""A schedule: the decision, and nothing but the decision: an order of ops for each device."""

from __future__ import annotations

from cpipe.ir.base import Frozen, InvariantError
from cpipe.ir.ops import Op, OpKind, decode_op, encode_op
from cpipe.ir.problem import Problem

__all__ = ["Schedule"]


class Schedule(Frozen, frozen=True, kw_only=True):
    """Order of compute ops per device.

    Attributes
    ----------
    orders
        Length P; entry d is the sequence of op ids (see `cpipe.ir.ops`) that device d runs.
    """

    orders: tuple[tuple[int, ...], ...]

    def decoded(self, microbatches: int) -> tuple[tuple[Op, ...], ...]:
        """Return the orders as `Op` tuples."""
        return tuple(tuple(decode_op(op, microbatches) for op in order) for order in self.orders)

    def to_text(self, microbatches: int) -> str:
        """Return one line per device, ops as ``2F0`` (stage, kind, microbatch)."""
        return "\n".join(" ".join(map(str, order)) for order in self.decoded(microbatches))

    @classmethod
    def from_text(cls, text: str, microbatches: int) -> Schedule:
        """Read the form that `to_text` writes; the inverse of it.

        Raises
        ------
        InvariantError
            When a word is no op.
        """
        return cls(
            orders=tuple(tuple(_parse(word, microbatches) for word in line.split()) for line in text.splitlines())
        )

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


def _in_order(label: str, microbatch: int, expected: int) -> None:
    if microbatch != expected:
        raise InvariantError(f"{label} out of microbatch order, expected microbatch {expected}")


def _parse(word: str, microbatches: int) -> int:
    for kind in OpKind:
        stage, mark, microbatch = word.partition(kind.name)
        if mark and stage.isdigit() and microbatch.isdigit() and int(microbatch) < microbatches:
            return encode_op(kind, int(stage), int(microbatch), microbatches)
    raise InvariantError(f"not an op: {word!r}")
