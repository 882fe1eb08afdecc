"""Warnings: valid profiles whose numbers look like a mistake; each message gives the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cpipe.errors import Diagnostic
from cpipe.jsontext import shown
from cpipe.profile.links import FREE, LinkTable
from cpipe.profile.schema import Profile, StageSpec

__all__ = ["profile_warnings"]

_SHORT_MS, _LONG_MS = 0.001, 600_000.0
_SMALL_MEMORY = 10**6
_FAST_GBIT_S = 100_000.0
_BALANCE = 0.6
_ASYMMETRY = 4.0


def profile_warnings(profile: Profile, file: str | None = None) -> tuple[Diagnostic, ...]:
    """Return what a user should look at again in a valid profile.

    Parameters
    ----------
    profile
        As `load_profile` returns it.
    file
        Name to show in the diagnostics; none by default.

    Returns
    -------
    tuple of Diagnostic
        Of severity ``warning``, one for each kind of suspicion and place, in a fixed order.
    """
    found = (warning for lint in _LINTS for warning in lint(profile))
    return tuple(msgspec.structs.replace(warning, severity="warning", file=file) for warning in found)


def _unit_of_durations(profile: Profile) -> Iterator[Diagnostic]:
    """Suspect durations that are all far too short or too long for milliseconds."""
    times = [stage.forward_ms for stage in profile.stages if stage.forward_ms > 0]
    if not times:
        return
    if max(times) < _SHORT_MS:
        message = f"every forward takes under {_SHORT_MS:g} ms, the longest {max(times):g} ms: written in seconds?"
    elif min(times) > _LONG_MS:
        message = f"every forward takes over {_LONG_MS:g} ms, the shortest {min(times):g} ms: written in ns or us?"
    else:
        return
    yield Diagnostic(code="duration-unit", message=message, path="$.stages", hint="durations are milliseconds")


def _unit_of_memory(profile: Profile) -> Iterator[Diagnostic]:
    """Suspect a memory of under a megabyte that cannot even hold one size given for a stage on it."""
    for index, device in enumerate(profile.devices):
        sizes = [
            (size, name, number)
            for number, stage in enumerate(profile.stages)
            if stage.device == device.id
            for name, size in (("activation_bytes", stage.activation_bytes), ("static_bytes", stage.static_bytes))
        ]
        size, name, number = max(sizes, default=(0, "", 0))
        if device.memory_bytes is not None and device.memory_bytes < min(_SMALL_MEMORY, size):
            message = (
                f"memory of {device.memory_bytes} bytes, but {name} of stage {shown(profile.stages[number].id)} is "
                f"{size}: written in MB or GB?"
            )
            path = f"$.devices[{index}].memory_bytes"
            yield Diagnostic(code="memory-unit", message=message, path=path, hint="sizes are bytes")


def _unit_of_bandwidth(profile: Profile) -> Iterator[Diagnostic]:
    """Suspect bandwidths that no network has."""
    specs = [(f"$.links[{index}]", link.bandwidth_gbit_s) for index, link in enumerate(profile.links)]
    if profile.data_parallel is not None:
        specs.append(("$.data_parallel", profile.data_parallel.bandwidth_gbit_s))
    for path, bandwidth in specs:
        if bandwidth is not None and bandwidth > _FAST_GBIT_S:
            yield Diagnostic(
                code="bandwidth-unit",
                message=f"{bandwidth:g} Gbit/s is over {_FAST_GBIT_S:g} Gbit/s: written in Mbit/s or bytes/s?",
                path=f"{path}.bandwidth_gbit_s",
            )


def _idle_in_latency(profile: Profile) -> Iterator[Diagnostic]:
    """Suspect latencies that contain waiting: longer than a stage at their ends works, or far from symmetric."""
    table = LinkTable(profile)
    index_of = {device.id: index for index, device in enumerate(profile.devices)}
    seen: set[int] = set()
    for boundary, pair in enumerate(zip(profile.stages, profile.stages[1:], strict=False)):
        source, target = (index_of[stage.device] for stage in pair)
        links = (table.link(source, target), table.link(target, source))
        for index in links:
            if source != target and index is not None and index not in (FREE, *seen):
                seen.add(index)
                yield from _long_latency(profile, index, boundary, pair)
        forward, backward = links
        if source != target and None not in links and FREE not in links and forward != backward:
            yield from _uneven_latency(profile, forward or 0, backward or 0)


def _long_latency(profile: Profile, index: int, boundary: int, pair: Sequence[StageSpec]) -> Iterator[Diagnostic]:
    latency = profile.links[index].latency_ms
    busy = max(stage.forward_ms + _return_ms(stage) for stage in pair)
    if latency > busy:
        message = (
            f"latency of {latency:g} ms, but stages {shown(pair[0].id)} and {shown(pair[1].id)} at its ends work at "
            f"most {busy:g} ms on a microbatch (F and D): was waiting measured too?"
        )
        yield Diagnostic(code="latency-looks-like-idle", message=message, path=f"$.links[{index}].latency_ms")


def _uneven_latency(profile: Profile, forward: int, backward: int) -> Iterator[Diagnostic]:
    there, back = profile.links[forward].latency_ms, profile.links[backward].latency_ms
    if there > _ASYMMETRY * back:
        message = f"latency of {there:g} ms forward, but {back:g} ms backward: was waiting measured too?"
        yield Diagnostic(code="latency-uneven", message=message, path=f"$.links[{forward}].latency_ms")


def _held_unset(profile: Profile) -> Iterator[Diagnostic]:
    """Suspect stages that say what F keeps, not what D leaves for W: memory would look better than it is."""
    unset = [
        (index, stage)
        for index, stage in enumerate(profile.stages)
        if stage.activation_bytes and stage.input_grad_ms is not None and stage.held_for_weight_grad_bytes is None
    ]
    if unset:
        index, stage = unset[0]
        message = (
            f"{len(unset)} of {len(profile.stages)} stages, first {shown(stage.id)}, give activation_bytes but not "
            "held_for_weight_grad_bytes: 0 bytes are taken as held between D and W"
        )
        yield Diagnostic(code="held-unset", message=message, path=f"$.stages[{index}]")


def _balance(profile: Profile) -> Iterator[Diagnostic]:
    """Point out a device that works much longer than the mean: no order of operations can mend that."""
    work = {device.id: 0.0 for device in profile.devices}
    for stage in profile.stages:
        work[stage.device] += stage.forward_ms + _backward_ms(stage)
    device = max(work, key=lambda name: work[name])
    mean, longest = sum(work.values()) / len(work), work[device]
    if longest and mean / longest < _BALANCE:
        message = (
            f"device {shown(device)} works {longest:g} ms on a microbatch, the mean of {len(work)} devices is "
            f"{mean:g} ms: balance {mean / longest:.2f}, below {_BALANCE}"
        )
        yield Diagnostic(code="uneven-work", message=message, path="$.stages")


def _unused_times(profile: Profile) -> Iterator[Diagnostic]:
    """Point out measured collectives that the data parallelism of the job never runs."""
    job = profile.data_parallel
    used = {"ddp": {"all_reduce_ms"}, "zero1": {"all_gather_ms", "reduce_scatter_ms"}}
    running = used[job.mode] if job is not None and job.replicas > 1 else set()
    for name in ("all_gather_ms", "reduce_scatter_ms", "all_reduce_ms"):
        given = [index for index, stage in enumerate(profile.stages) if getattr(stage, name) is not None]
        # A profile made by measuring all three serves both modes, so only a job that runs none is suspect.
        if given and not running:
            reason = "there is no data_parallel" if job is None else "there is one replica"
            message = f"{len(given)} of {len(profile.stages)} stages give {name}, but {reason}: not used"
            yield Diagnostic(code="unused-times", message=message, path=f"$.stages[{given[0]}].{name}")


def _return_ms(stage: StageSpec) -> float:
    return stage.full_backward_ms or 0.0 if stage.input_grad_ms is None else stage.input_grad_ms


def _backward_ms(stage: StageSpec) -> float:
    if stage.full_backward_ms is not None:
        return stage.full_backward_ms
    return (stage.input_grad_ms or 0.0) + (stage.weight_grad_ms or 0.0)


_LINTS = (
    _unit_of_durations,
    _unit_of_memory,
    _unit_of_bandwidth,
    _idle_in_latency,
    _held_unset,
    _balance,
    _unused_times,
)
