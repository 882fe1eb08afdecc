"""The scheduling problem: integer nanoseconds and bytes, dense ids, nothing left to look up.

Stages are numbered in flow order 0..S-1, devices in rank order 0..P-1. All durations are [ns], all
sizes [bytes]. A `Problem` says what must be done and what it costs, never in which order.
"""

from __future__ import annotations

from typing import Literal

from cpipe.ir.base import Frozen, InvariantError
from cpipe.units import Bytes, Ns

__all__ = ["Collectives", "Device", "Hop", "Problem", "Stage"]


class Device(Frozen, frozen=True, kw_only=True):
    """One pipeline rank.

    Attributes
    ----------
    name
        The user's id, for display only.
    site
        Where it stands.
    capacity_bytes
        Memory [bytes], or None for no limit.
    """

    name: str
    site: str = ""
    capacity_bytes: Bytes | None = None


class Stage(Frozen, frozen=True, kw_only=True):
    """Costs of one stage; durations [ns] and sizes [bytes] for one microbatch.

    Attributes
    ----------
    name
        The user's id, for display only.
    device
        Index of the device that holds the stage.
    forward_ns, input_grad_ns, weight_grad_ns, full_backward_ns
        Durations of F, D, W and B.
    can_split
        Whether D and W exist apart; if not, `input_grad_ns` and `weight_grad_ns` are 0 and only B may run.
    activation_bytes
        Allocated by F at its start.
    held_bytes
        The part still held between D and W; may exceed `activation_bytes`.
    static_bytes
        Parameters, gradients and optimizer state, always resident.
    forward_transient_bytes, input_grad_transient_bytes, weight_grad_transient_bytes
        Extra while F, D, W runs; B has the larger of the last two.
    all_gather_ns, reduce_ns
        Durations of the stage's data-parallel collectives: the all-gather before its first F (ZeRO-1) and
        the all-reduce (DDP) or reduce-scatter (ZeRO-1) after its last W or B.
    """

    name: str
    device: int
    forward_ns: Ns
    input_grad_ns: Ns
    weight_grad_ns: Ns
    full_backward_ns: Ns
    can_split: bool = True
    activation_bytes: Bytes = Bytes(0)
    held_bytes: Bytes = Bytes(0)
    static_bytes: Bytes = Bytes(0)
    forward_transient_bytes: Bytes = Bytes(0)
    input_grad_transient_bytes: Bytes = Bytes(0)
    weight_grad_transient_bytes: Bytes = Bytes(0)
    all_gather_ns: Ns = Ns(0)
    reduce_ns: Ns = Ns(0)


class Hop(Frozen, frozen=True, kw_only=True):
    """A message between two devices: one microbatch's activation or gradient over one stage boundary.

    Attributes
    ----------
    source, target
        Device indices; never equal (a hand-over inside a device is no hop).
    message_bytes
        Size of one message [bytes].
    latency_ns
        alpha: from the end of the occupancy window to the arrival [ns].
    occupancy_ns
        beta x bytes: how long one message holds the pipe [ns].
    pipe
        Index into `Problem.pipes` of the directed (or half-duplex) pipe that it occupies.
    """

    source: int
    target: int
    message_bytes: Bytes
    latency_ns: Ns
    occupancy_ns: Ns
    pipe: int


class Collectives(Frozen, frozen=True, kw_only=True):
    """Data parallelism of the job.

    Attributes
    ----------
    mode
        ``ddp``: one all-reduce a stage; ``zero1``: an all-gather and a reduce-scatter a stage.
    replicas
        Number of data-parallel replicas of the pipeline.
    pipes
        Pipes of `Problem.pipes` that every collective occupies together with its device's own link;
        empty when they contend with nothing.
    """

    mode: Literal["ddp", "zero1"]
    replicas: int
    pipes: tuple[int, ...] = ()


class Problem(Frozen, frozen=True, kw_only=True):
    """What must be scheduled.

    Attributes
    ----------
    name
        Of the profile; for display.
    microbatches
        Number of microbatches n >= 1.
    devices
        Length P.
    stages
        Length S >= 1, in flow order.
    forward_hops
        Length S - 1; entry s is the hop of the activation from stage s to s + 1, None on one device.
    backward_hops
        Length S - 1; entry s is the hop of the gradient from stage s + 1 to s, None on one device.
    pipes
        Display names of the pipes; each serves one message at a time.
    collectives
        Data parallelism, or None.
    receive_window
        Cap on the receives of one channel that are posted and not yet consumed at once, or None. It is a
        choice of the search, not of the profile: `plan.digest` leaves it out.
    extensions_digest
        Digest of the profile's `extensions`, or empty.
    """

    name: str = ""
    microbatches: int
    devices: tuple[Device, ...]
    stages: tuple[Stage, ...]
    forward_hops: tuple[Hop | None, ...] = ()
    backward_hops: tuple[Hop | None, ...] = ()
    pipes: tuple[str, ...] = ()
    collectives: Collectives | None = None
    receive_window: int | None = None
    extensions_digest: str = ""

    @property
    def num_devices(self) -> int:
        """Number of devices P."""
        return len(self.devices)

    @property
    def num_stages(self) -> int:
        """Number of stages S."""
        return len(self.stages)

    @property
    def placement(self) -> tuple[int, ...]:
        """Device index of each stage, length S."""
        return tuple(stage.device for stage in self.stages)

    def stages_of(self, device: int) -> tuple[int, ...]:
        """Return the stages that stand on `device`, in flow order."""
        return tuple(index for index, stage in enumerate(self.stages) if stage.device == device)

    def largest_messages(self) -> dict[tuple[int, int, Literal["activation", "gradient"]], Bytes]:
        """Return the size of the largest message [bytes] of each channel: (source device, target device, kind)."""
        largest: dict[tuple[int, int, Literal["activation", "gradient"]], Bytes] = {}
        for hops, kind in _hop_kinds(self):
            for hop in hops:
                if hop is not None:
                    key = (hop.source, hop.target, kind)
                    largest[key] = max(largest.get(key, Bytes(0)), hop.message_bytes)
        return largest

    def verify(self) -> None:
        """Check the local invariants.

        Raises
        ------
        InvariantError
            Naming the first field that is wrong.
        """
        _check(self.microbatches >= 1, f"microbatches must be >= 1, got {self.microbatches}")
        _check(len(self.stages) >= 1, "a problem has at least one stage")
        _check(self.receive_window is None or self.receive_window >= 1, "receive_window must be >= 1")
        for hops, label in ((self.forward_hops, "forward_hops"), (self.backward_hops, "backward_hops")):
            _check(len(hops) == len(self.stages) - 1, f"{label} has {len(hops)} entries for {len(self.stages)} stages")
        for index, stage in enumerate(self.stages):
            _check(0 <= stage.device < len(self.devices), f"stages[{index}].device is {stage.device}")
            for name in _NONNEGATIVE:
                _check(getattr(stage, name) >= 0, f"stages[{index}].{name} is negative")
        for boundary, (forward, backward) in enumerate(zip(self.forward_hops, self.backward_hops, strict=True)):
            self._verify_hop(f"forward_hops[{boundary}]", forward, boundary, boundary + 1)
            self._verify_hop(f"backward_hops[{boundary}]", backward, boundary + 1, boundary)
        for pipe in self.collectives.pipes if self.collectives else ():
            _check(0 <= pipe < len(self.pipes), f"collectives.pipes names pipe {pipe}")

    def _verify_hop(self, label: str, hop: Hop | None, source_stage: int, target_stage: int) -> None:
        source, target = self.stages[source_stage].device, self.stages[target_stage].device
        if hop is None:
            _check(source == target, f"{label} is missing between devices {source} and {target}")
            return
        _check((hop.source, hop.target) == (source, target), f"{label} joins {hop.source} and {hop.target}")
        _check(source != target, f"{label} stays on device {source}")
        _check(0 <= hop.pipe < len(self.pipes), f"{label}.pipe is {hop.pipe}")
        _check(min(hop.message_bytes, hop.latency_ns, hop.occupancy_ns) >= 0, f"{label} has a negative cost")


def _hop_kinds(problem: Problem) -> tuple[tuple[tuple[Hop | None, ...], Literal["activation", "gradient"]], ...]:
    return (problem.forward_hops, "activation"), (problem.backward_hops, "gradient")


_NONNEGATIVE = tuple(name for name in Stage.__struct_fields__ if name.endswith(("_ns", "_bytes")))


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
