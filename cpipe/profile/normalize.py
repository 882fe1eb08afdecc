"""From a profile in users' units to the scheduling problem in integers and dense ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal

import msgspec

from cpipe.errors import Diagnostic, InfeasibleError, ProfileError, UsageError
from cpipe.ir.problem import Collectives, Device, Hop, Problem, Stage
from cpipe.jsontext import shown
from cpipe.profile.collectives import collective_times
from cpipe.profile.flows import FLOWS, copy_reduce_ns, in_both_directions
from cpipe.profile.links import LinkTable, Pipe, unlinked_sites
from cpipe.profile.memory import everything_bytes, memory_faults
from cpipe.profile.recompute import offers, recomputing
from cpipe.profile.schema import OffloadSpec, Profile, StageSpec
from cpipe.units import Bytes, Ns, beta_ns_per_byte, ms_to_ns, ns_to_ms, occupancy_ns

__all__ = ["check_totals", "normalize", "translate"]

_LARGEST = 2**62


def normalize(
    profile: Profile,
    *,
    placement: Sequence[int] | None = None,
    receive_window: int | None = None,
    prove_memory: bool = True,
    flows: int = 1,
    recompute: Sequence[int] = (),
) -> Problem:
    """Translate a valid profile; a pure function.

    Parameters
    ----------
    profile
        As `load_profile` returns it.
    placement
        Device index (in rank order) of each stage, in place of the profile's own.
    receive_window
        Cap on the receives of one channel that are posted and not yet consumed at once, >= 1.
    prove_memory
        Refuse a profile on which no schedule fits; without it, a given schedule can still be looked at.
    flows
        1, or 2 for a pipeline in both directions: see `cpipe.profile.flows`. `placement` then lists the devices of both
        flows' stages.
    recompute
        Stages (of both flows, where there are two) that recompute: they must offer it.

    Returns
    -------
    Problem
        Durations rounded to [ns]; pipes in the order in which stage boundaries first use them, the
        activation before the gradient.

    Raises
    ------
    UsageError
        When `placement`, `receive_window`, `flows` or `recompute` do not fit the profile.
    ProfileError
        When `placement` needs a link that the profile does not have.
    InfeasibleError
        Naming each device whose memory cannot hold one microbatch.
    """
    if receive_window is not None and receive_window < 1:
        raise UsageError(f"expected a receive window >= 1, got {receive_window}", code="receive-window")
    if flows not in (1, FLOWS):
        raise UsageError(f"expected 1 or {FLOWS} flows, got {flows}", code="flows")
    if placement is not None:
        _check_devices(profile, placement)
    if flows > 1:
        profile = in_both_directions(profile, placement)
    elif placement is not None:
        profile = _placed(profile, placement)
    if faults := tuple(unlinked_sites(profile, flows)):
        raise ProfileError(faults, hint=faults[0].hint)
    if missing := sorted(set(recompute) - set(offers(profile))):
        what = f"stage {missing[0]}"
        if 0 <= missing[0] < len(profile.stages):
            what = f"stage {missing[0]} ({shown(profile.stages[missing[0]].id)})"
        raise UsageError(f"{what} offers no recomputation", code="recompute-not-offered")
    problem = translate(profile, receive_window, flows, frozenset(recompute))
    if faults := tuple(check_totals(problem)):
        raise ProfileError(faults)
    if prove_memory and (faults := tuple(memory_faults(problem))):
        hint = "raise memory_bytes, or place the stages otherwise"
        if set(offers(profile)) - set(recompute):
            hint += ", or let more stages recompute"
        raise InfeasibleError(faults, hint=hint)
    return problem


def translate(
    profile: Profile, receive_window: int | None = None, flows: int = 1, recompute: Collection[int] = ()
) -> Problem:
    """Return the problem of a valid profile, whether or not its memory suffices.

    With two flows it is the profile of both (`cpipe.profile.flows.in_both_directions`).
    """
    index_of = {device.id: index for index, device in enumerate(profile.devices)}
    stages = tuple(
        recomputing(stage, spec.recompute) if spec.recompute is not None and index in recompute else stage
        for index, spec in enumerate(profile.stages)
        for stage in [_stage(spec, index_of[spec.device], profile)]
    )
    pipes: dict[Pipe, int] = {}
    table = LinkTable(profile)
    forward: list[Hop | None] = []
    backward: list[Hop | None] = []
    length = len(stages) // flows
    for boundary, spec in enumerate(profile.stages[:-1]):
        if (boundary + 1) % length == 0:  # between two flows
            forward.append(None)
            backward.append(None)
            continue
        source, target = stages[boundary].device, stages[boundary + 1].device
        forward.append(_hop(table, pipes, source, target, spec.output_bytes))
        backward.append(_hop(table, pipes, target, source, spec.output_bytes))
    collectives = _collectives(profile, table, pipes)
    if flows > 1:
        stages = tuple(_with_copy(table, stages, index, profile) for index in range(len(stages)))
        collectives = collectives or Collectives(mode="ddp", replicas=1)
    return Problem(
        name=profile.name,
        microbatches=profile.microbatches,
        devices=tuple(
            Device(
                name=spec.id,
                site=spec.site or "",
                capacity_bytes=None if spec.memory_bytes is None else Bytes(spec.memory_bytes),
            )
            for spec in profile.devices
        ),
        stages=stages,
        forward_hops=tuple(forward),
        backward_hops=tuple(backward),
        pipes=tuple(pipe.name for pipe in pipes),
        collectives=collectives,
        receive_window=receive_window,
        extensions_digest=_digest(profile),
        step_ns=ms_to_ns(profile.step_ms),
        flows=tuple(range(0, len(stages), length)),
    )


def check_totals(problem: Problem) -> Iterator[Diagnostic]:
    """Yield a fault when the sum of all durations or sizes would not fit a signed 64-bit integer.

    No schedule without needless idling is longer than everything one after the other, and none holds more
    than everything at once.
    """
    times = sum(
        stage.forward_ns
        + 2 * stage.offload_ns
        + max(stage.full_backward_ns, stage.input_grad_ns + stage.weight_grad_ns, stage.forward_backward_ns or 0)
        for stage in problem.stages
    )
    hops = [hop for hop in (*problem.forward_hops, *problem.backward_hops) if hop is not None]
    times += sum(hop.latency_ns + hop.occupancy_ns for hop in hops)
    once = problem.step_ns + sum(stage.all_gather_ns + stage.reduce_ns for stage in problem.stages)
    total = problem.microbatches * times + once
    if total > _LARGEST:
        message = f"one iteration could take {_ms_text(total)} ms, more than the {_ms_text(_LARGEST)} ms allowed"
        yield Diagnostic(code="total-time-too-large", message=message, path="$")
    sizes = problem.microbatches * (sum(map(everything_bytes, problem.stages)) + sum(hop.message_bytes for hop in hops))
    sizes += sum(stage.static_bytes for stage in problem.stages)
    if sizes > _LARGEST:
        message = f"one iteration could hold {sizes} bytes, more than the {_LARGEST} allowed"
        yield Diagnostic(code="total-memory-too-large", message=message, path="$")


def _ms_text(nanoseconds: int) -> str:
    """Return a time [ns] in milliseconds, to six digits, also where no float is large enough."""
    try:
        return f"{ns_to_ms(nanoseconds):.6g}"
    except OverflowError:
        return f"{Decimal(nanoseconds).scaleb(-6):.5e}"


def _check_devices(profile: Profile, placement: Sequence[int]) -> None:
    for stage, device in enumerate(placement):
        if not 0 <= device < len(profile.devices):
            message = f"expected a device index below {len(profile.devices)} for stage {stage}, got {device}"
            raise UsageError(message, code="placement-device")


def _placed(profile: Profile, placement: Sequence[int]) -> Profile:
    if len(placement) != len(profile.stages):
        message = f"expected a device for each of {len(profile.stages)} stages, got {len(placement)}"
        raise UsageError(message, code="placement-length")
    stages = tuple(
        msgspec.structs.replace(stage, device=profile.devices[device].id)
        for stage, device in zip(profile.stages, placement, strict=True)
    )
    return msgspec.structs.replace(profile, stages=stages)


def _stage(spec: StageSpec, device: int, profile: Profile) -> Stage:
    can_split = spec.input_grad_ms is not None and spec.weight_grad_ms is not None
    input_grad = ms_to_ns(spec.input_grad_ms or 0)
    weight_grad = ms_to_ns(spec.weight_grad_ms or 0)
    whole = input_grad + weight_grad if spec.full_backward_ms is None else ms_to_ns(spec.full_backward_ms)
    gather, reduction = collective_times(spec, profile.data_parallel) if profile.data_parallel else (Ns(0), Ns(0))
    return Stage(
        name=spec.id,
        device=device,
        forward_ns=ms_to_ns(spec.forward_ms),
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        full_backward_ns=Ns(whole),
        can_split=can_split,
        activation_bytes=Bytes(spec.activation_bytes),
        held_bytes=Bytes(spec.held_for_weight_grad_bytes or 0),
        static_bytes=Bytes(spec.static_bytes),
        forward_transient_bytes=Bytes(spec.forward_transient_bytes),
        input_grad_transient_bytes=Bytes(spec.input_grad_transient_bytes),
        weight_grad_transient_bytes=Bytes(spec.weight_grad_transient_bytes),
        all_gather_ns=gather,
        reduce_ns=reduction,
        forward_backward_ns=None if spec.forward_backward_ms is None else ms_to_ns(spec.forward_backward_ms),
        offload_bytes=Bytes(spec.offload.num_bytes if spec.offload is not None else 0),
        offload_ns=_copy_ns(spec.offload) if spec.offload is not None else Ns(0),
    )


def _copy_ns(spec: OffloadSpec) -> Ns:
    """Return how long one copy to or from host memory takes [ns]."""
    bandwidth = spec.bandwidth_gbit_s
    moving = Ns(0) if bandwidth is None else occupancy_ns(spec.num_bytes, beta_ns_per_byte(bandwidth))
    return Ns(ms_to_ns(spec.latency_ms) + moving)


def _with_copy(table: LinkTable, stages: Sequence[Stage], index: int, profile: Profile) -> Stage:
    """Return a stage of two flows, the all-reduce between its copies added to that over its replicas."""
    stage, copy = stages[index], stages[(index + len(stages) // FLOWS) % len(stages)]
    added = copy_reduce_ns(table, stage.device, copy.device, profile.stages[index].gradient_bytes)
    return msgspec.structs.replace(stage, reduce_ns=Ns(stage.reduce_ns + added))


def _hop(table: LinkTable, pipes: dict[Pipe, int], source: int, target: int, num_bytes: int) -> Hop | None:
    if source == target:
        return None
    route = table.route(source, target)
    if route is None:
        raise AssertionError(f"devices {source} and {target} are not linked: unlinked_sites was not asked")
    return Hop(
        source=source,
        target=target,
        message_bytes=Bytes(num_bytes),
        latency_ns=route.latency_ns,
        occupancy_ns=occupancy_ns(num_bytes, route.beta),
        pipe=pipes.setdefault(route.pipe, len(pipes)),
    )


def _collectives(profile: Profile, table: LinkTable, pipes: dict[Pipe, int]) -> Collectives | None:
    job = profile.data_parallel
    if job is None or job.replicas == 1:  # a replica alone has nobody to exchange with
        return None
    shared = table.pipes_between(*job.contends_with) if job.contends_with else ()
    return Collectives(
        mode=job.mode,
        replicas=job.replicas,
        pipes=tuple(pipes.setdefault(pipe, len(pipes)) for pipe in shared),
    )


def _digest(profile: Profile) -> str:
    if not profile.extensions:
        return ""
    text = json.dumps(profile.extensions, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
