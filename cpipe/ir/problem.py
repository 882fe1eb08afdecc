"""The scheduling problem: integer nanoseconds and bytes, dense ids, nothing left to look up.

Stages are numbered in flow order 0..S-1, devices in rank order 0..P-1. All durations are [ns], all
sizes [bytes]. A `Problem` says what must be done and what it costs, never in which order.
"""

from __future__ import annotations

from itertools import pairwise
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
    forward_backward_ns
        Duration of a fused pair whose forward is this stage's; None is F and B one after the other. See
        `Problem.pair_ns`.
    can_split
        Whether D and W exist apart; if not, `input_grad_ns` and `weight_grad_ns` are 0 and only B may run.
    activation_bytes
        Allocated by F at its start.
    held_bytes
        The part still held between D and W; may exceed `activation_bytes`.
    static_bytes
        Parameters, gradients and optimizer state, always resident.
    forward_transient_bytes, input_grad_transient_bytes, weight_grad_transient_bytes
        Extra while F, D, W runs.
    full_backward_transient_bytes
        Extra while B runs; None is the larger of those of D and W.
    recomputes, recompute_ns
        Whether the stage keeps part of its activation only and makes the rest again, and how long that takes. The
        other fields are those of such a stage: the durations of B, and of D or W, have the time already.
    offload_bytes, offload_ns
        What of a microbatch's activation may wait in host memory between F and the backward, and how long one copy of
        it takes, either way, beside compute. It is no obligation: which microbatches do is the schedule's business.
    all_gather_ns, reduce_ns
        Durations of the stage's data-parallel collectives: the all-gather before its first F (ZeRO-1) and
        the all-reduce (DDP) or reduce-scatter (ZeRO-1) after its last W or B; where a stage has copies, of the
        one all-reduce over all of them.
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
    forward_backward_ns: Ns | None = None
    recomputes: bool = False
    recompute_ns: Ns = Ns(0)
    full_backward_transient_bytes: Bytes | None = None
    offload_bytes: Bytes = Bytes(0)
    offload_ns: Ns = Ns(0)

    @property
    def whole_transient_bytes(self) -> Bytes:
        """Extra while B runs [bytes]."""
        if self.full_backward_transient_bytes is not None:
            return self.full_backward_transient_bytes
        return max(self.input_grad_transient_bytes, self.weight_grad_transient_bytes)


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
        Number of microbatches n >= 1 of each flow.
    devices
        Length P.
    stages
        Length S >= 1, in flow order, flow after flow.
    forward_hops
        Length S - 1; entry s is the hop of the activation from stage s to s + 1, None on one device and between flows.
    backward_hops
        Length S - 1; entry s is the hop of the gradient from stage s + 1 to s, None on one device and between flows.
    pipes
        Display names of the pipes; each serves one message at a time.
    collectives
        Data parallelism, or None.
    receive_window
        Cap on the receives of one channel that are posted and not yet consumed at once, or None. It is a
        choice of the search, not of the profile: `plan.digest` leaves it out.
    extensions_digest
        Digest of the profile's `extensions`, or empty.
    flows
        First stage of each flow. One flow is an ordinary pipeline. The stages of several, all equally long, are copies
        of each other (the k-th of one and the k-th of another have the same weights): each flow trains its own
        microbatches, and every stage's gradients are added up over its copies by one all-reduce.
    step_ns
        What all devices do together at the end of the iteration [ns], once the last op and collective of every device
        has ended: gradient clipping over the whole model, the optimizer. It is part of the makespan.
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
    flows: tuple[int, ...] = (0,)
    step_ns: Ns = Ns(0)

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

    @property
    def recompute(self) -> tuple[int, ...]:
        """Stages that recompute, in flow order."""
        return tuple(index for index, stage in enumerate(self.stages) if stage.recomputes)

    @property
    def flow_length(self) -> int:
        """Number of stages of each flow."""
        return len(self.stages) // len(self.flows)

    def previous_stage(self, stage: int) -> int | None:
        """Return the stage whose activation `stage` reads, None for the first of a flow."""
        return stage - 1 if stage % self.flow_length else None

    def next_stage(self, stage: int) -> int | None:
        """Return the stage that reads the activation of `stage`, None for the last of a flow."""
        return stage + 1 if (stage + 1) % self.flow_length else None

    def copies_of(self, stage: int) -> tuple[int, ...]:
        """Return the stages with the weights of `stage`, itself included, in flow order."""
        return tuple(range(stage % self.flow_length, len(self.stages), self.flow_length))

    def pair_ns(self, forward_stage: int, backward_stage: int) -> Ns:
        """Return the duration [ns] of a fused pair: the forward of one stage beside the full backward of another.

        That is what the profile measured for the forward's stage, and what the backward's recomputes, but never less
        than either part takes alone.
        """
        forward, backward = self.stages[forward_stage], self.stages[backward_stage]
        if forward.forward_backward_ns is None:
            return Ns(forward.forward_ns + backward.full_backward_ns)
        measured = Ns(forward.forward_backward_ns + backward.recompute_ns)
        return max(measured, forward.forward_ns, backward.full_backward_ns)

    def pair_saving_ns(self, stage: int) -> Ns:
        """Return the most [ns] that the work of a device shrinks when a forward of `stage` runs in a fused pair.

        Measured against that forward and the shortest backward (B, or D and W) of the pair's other stage.
        """
        forward = self.stages[stage]
        saved = [Ns(0)]
        for other in self.stages_of(forward.device):
            costs = self.stages[other]
            backward = costs.full_backward_ns
            if costs.can_split:
                backward = min(backward, Ns(costs.input_grad_ns + costs.weight_grad_ns))
            saved.append(Ns(forward.forward_ns + backward - self.pair_ns(stage, other)))
        return max(saved)

    @property
    def pairs_save_time(self) -> bool:
        """Whether some fused pair is shorter than its parts: then bounds on a device's work must allow for it."""
        return any(
            stage.forward_backward_ns is not None and self.pair_saving_ns(index)
            for index, stage in enumerate(self.stages)
        )

    @property
    def is_plain(self) -> bool:
        """One flow, and no fused pair shorter than its parts: what the exact models and all bounds cover."""
        return len(self.flows) == 1 and not self.pairs_save_time

    def stages_of(self, device: int) -> tuple[int, ...]:
        """Return the stages that stand on `device`, in flow order."""
        return tuple(index for index, stage in enumerate(self.stages) if stage.device == device)

    def stages_of_flow(self, device: int, first: int) -> tuple[int, ...]:
        """Return the stages on `device` of the flow that begins with the stage `first`, in flow order."""
        return tuple(stage for stage in self.stages_of(device) if first <= stage < first + self.flow_length)

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
        _check(self.step_ns >= 0, "step_ns is negative")
        for hops, label in ((self.forward_hops, "forward_hops"), (self.backward_hops, "backward_hops")):
            _check(len(hops) == len(self.stages) - 1, f"{label} has {len(hops)} entries for {len(self.stages)} stages")
        self._verify_flows()
        for index, stage in enumerate(self.stages):
            _check(0 <= stage.device < len(self.devices), f"stages[{index}].device is {stage.device}")
            for name in _NONNEGATIVE:
                _check(getattr(stage, name) >= 0, f"stages[{index}].{name} is negative")
            for name in _OPTIONAL:
                _check((getattr(stage, name) or 0) >= 0, f"stages[{index}].{name} is negative")
            _check(stage.offload_bytes <= stage.activation_bytes, f"stages[{index}].offload_bytes is too large")
        for boundary, (forward, backward) in enumerate(zip(self.forward_hops, self.backward_hops, strict=True)):
            self._verify_hop(f"forward_hops[{boundary}]", forward, boundary, boundary + 1)
            self._verify_hop(f"backward_hops[{boundary}]", backward, boundary + 1, boundary)
        for pipe in self.collectives.pipes if self.collectives else ():
            _check(0 <= pipe < len(self.pipes), f"collectives.pipes names pipe {pipe}")

    def _verify_flows(self) -> None:
        _check(len(self.flows) >= 1 and len(self.stages) % len(self.flows) == 0, f"flows is {self.flows}")
        expected = tuple(range(0, len(self.stages), self.flow_length))
        _check(self.flows == expected, f"flows is {self.flows}, expected {expected}")
        if len(self.flows) > 1:
            _check(
                self.collectives is not None and self.collectives.mode == "ddp", "copies of stages need an all-reduce"
            )
        for stage in range(self.flow_length):
            copies = self.copies_of(stage)
            devices = {self.stages[copy].device for copy in copies}
            _check(len(devices) == len(copies), f"copies {copies} do not stand on different devices")
            for first, second in pairwise(copies):
                same = self.stages[first].reduce_ns == self.stages[second].reduce_ns
                _check(same, f"copies {first} and {second} reduce at different costs")

    def _verify_hop(self, label: str, hop: Hop | None, source_stage: int, target_stage: int) -> None:
        if self.next_stage(source_stage if source_stage < target_stage else target_stage) is None:
            _check(hop is None, f"{label} joins two flows")
            return
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


_OPTIONAL = ("forward_backward_ns", "full_backward_transient_bytes")
_NONNEGATIVE = tuple(
    name for name in Stage.__struct_fields__ if name.endswith(("_ns", "_bytes")) and name not in _OPTIONAL
)


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
