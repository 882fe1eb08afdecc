"""Which layers a stage holds, and where it stands, when a profile is made of layers."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.errors import Diagnostic, UsageError
from cpipe.profile.importers import Layer, layer_load_ns, unit_counts
from cpipe.schedules.placements import line_placement, loop_placement, wave_placement

__all__ = ["balanced_counts", "check_stages", "listed_counts", "stage_devices"]


def check_stages(num_stages: int, num_layers: int, num_devices: int) -> None:
    """Check that every stage can get a layer and every device a stage.

    Raises
    ------
    UsageError
        When there are too many stages, or too few.
    """
    if num_stages > num_layers:
        message = f"expected at most {num_layers} stages, as many as there are layers, got {num_stages}"
        hint = "no stage may be empty: take fewer --devices, --chunks or --stages"
        raise UsageError([Diagnostic(code="too-many-stages", message=message, hint=hint)])
    if num_stages < num_devices:
        message = f"expected at least {num_devices} stages, one for each device, got {num_stages}"
        raise UsageError([Diagnostic(code="too-few-stages", message=message)])


def balanced_counts(layers: Sequence[Layer], num_stages: int, lead: int = 0, tail: int = 0) -> tuple[int, ...]:
    """Return how many layers each stage holds so that the longest takes as little time as it can.

    Of the ways to do so, the one with the least sum of squares; of those, the first stages hold the fewest layers.
    Layers at the ends stand with their neighbours, so that no stage holds one of them alone.

    Parameters
    ----------
    layers
        In flow order.
    num_stages
        At most the layers without those at the ends.
    lead, tail
        Layers at the ends that are no stage of their own (an embedding, a head).
    """
    last = len(layers) - tail
    runs = [[layer] for layer in layers[lead:last]]
    runs[0] = [*layers[:lead], *runs[0]]
    runs[-1] = [*runs[-1], *layers[last:]]
    stage_of = line_placement([layer_load_ns(run) for run in runs], num_stages)
    return unit_counts([stage_of.count(stage) for stage in range(num_stages)], lead, tail)


def listed_counts(text: str, num_stages: int, num_layers: int) -> tuple[int, ...]:
    """Return the numbers of ``7,8,8,7``.

    Raises
    ------
    UsageError
        When they are not one for each stage, each at least 1, in sum the layers that there are.
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdigit() and int(part[:9]) >= 1)]
    numbers = [int(part[:9]) for part in parts if part not in wrong]
    faults = [f"expected 'balanced', or a number >= 1 of layers for each stage, got {part!r}" for part in wrong]
    if not wrong and len(numbers) != num_stages:
        faults.append(f"expected {num_stages} numbers, one for each stage, got {len(numbers)}")
    if not wrong and sum(numbers) != num_layers:
        faults.append(f"expected numbers that add up to the {num_layers} layers, got {sum(numbers)}")
    if faults:
        raise UsageError([Diagnostic(code="bad-split", message=f"--split: {fault}") for fault in faults])
    return tuple(numbers)


def stage_devices(
    pattern: str | None, counts: Sequence[int], layers: Sequence[Layer], num_devices: int
) -> tuple[str, tuple[int, ...]]:
    """Return the name of a placement and the device of each stage.

    Parameters
    ----------
    pattern
        ``ud``, ``loop`` or ``wave``; None is ``loop`` for several stages a device where that comes out even, else
        ``ud``, in which neighbours share a device as evenly as they can.
    counts
        Layers of each stage.
    layers
        In flow order.
    num_devices
        At most as many as stages.

    Raises
    ------
    UsageError
        When a pattern needs another number of stages.
    """
    num_stages = len(counts)
    divides = num_stages % num_devices == 0
    name = pattern or ("loop" if divides and num_stages > num_devices else "ud")
    if name != "ud" and not divides:
        message = (
            f"placement {name} needs a number of stages that the devices divide, "
            f"got {num_stages} stages on {num_devices} devices"
        )
        raise UsageError(message, code="placement-does-not-apply")
    if name == "ud":
        starts = [sum(counts[:stage]) for stage in range(num_stages)]
        loads = [layer_load_ns(layers[start : start + count]) for start, count in zip(starts, counts, strict=True)]
        return name, line_placement(loads, num_devices)
    return name, (loop_placement if name == "loop" else wave_placement)(num_stages, num_devices)
