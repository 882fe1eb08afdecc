"""Which stage -> device lists to try: the profile's own, in line, loop, wave, or two flows in opposite directions."""

from __future__ import annotations

from collections.abc import Iterator

from cpipe.compiler.options import SolveOptions
from cpipe.errors import UsageError
from cpipe.profile import Profile
from cpipe.profile.schema import StageSpec
from cpipe.schedules import SCHEDULES
from cpipe.schedules.placements import line_placement, loop_placement, wave_placement
from cpipe.units import ms_to_ns

__all__ = ["implied_placement", "placements"]


def placements(profile: Profile, name: str) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Yield (name, device of each stage) of the placements to try, each once; None is the profile's own."""
    num_stages, num_devices = len(profile.stages), len(profile.devices)
    if name == "bidirectional":
        if num_stages != num_devices or num_devices % 2:
            message = (
                f"placement bidirectional needs an even number of devices and one stage for each, "
                f"got {num_stages} stages on {num_devices} devices"
            )
            raise UsageError(message, code="placement-does-not-apply")
        yield name, (*range(num_devices), *reversed(range(num_devices)))
        return
    rank = {device.id: index for index, device in enumerate(profile.devices)}
    tried = {tuple(rank[stage.device] for stage in profile.stages)}
    if name in ("profile", "auto"):
        yield "profile", None
    patterns = {"ud": num_stages >= num_devices, "loop": num_stages % num_devices == 0}
    patterns["wave"] = patterns["loop"]
    for pattern, applies in patterns.items():
        if name not in (pattern, "auto"):
            continue
        if name == pattern and not applies:
            rule = "a stage for each device" if pattern == "ud" else "a number of stages that the devices divide"
            raise UsageError(
                f"placement {pattern} needs {rule}, got {num_stages} stages on {num_devices} devices",
                code="placement-does-not-apply",
            )
        placement = _pattern(profile, pattern) if applies else ()
        if applies and (name == pattern or placement not in tried):
            tried.add(placement)
            yield pattern, placement


def implied_placement(options: SolveOptions) -> str:
    """Return the placement that was asked for; a schedule of two flows has but one."""
    schedule = SCHEDULES.get(options.method)
    if schedule is not None and schedule.flows > 1 and options.placement in ("profile", "auto"):
        return "bidirectional"
    return options.placement


def _pattern(profile: Profile, name: str) -> tuple[int, ...]:
    """Return the device of each stage; in line, adjacent stages share a device where there are more of them."""
    num_stages, num_devices = len(profile.stages), len(profile.devices)
    if name == "ud":
        return line_placement([_work_ns(stage) for stage in profile.stages], num_devices)
    return (loop_placement if name == "loop" else wave_placement)(num_stages, num_devices)


def _work_ns(stage: StageSpec) -> int:
    """Return how long one microbatch keeps a stage busy [ns], its backward whole where that has a time of its own."""
    backward = (stage.input_grad_ms or 0, stage.weight_grad_ms or 0)
    if stage.full_backward_ms is not None:
        backward = (stage.full_backward_ms, 0)
    return ms_to_ns(stage.forward_ms) + sum(map(ms_to_ns, backward))
