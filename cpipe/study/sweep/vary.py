"""The profile of a point: links, memory, microbatches and stages of the user's profile, changed."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from msgspec.structs import replace

from cpipe.errors import UsageError
from cpipe.profile import LinkSpec, Profile, StageSpec, encode_profile, parse_profile
from cpipe.profile.links import beta_of
from cpipe.study.sweep.grid import Point, Settings

__all__ = ["chosen_links", "forward_ms", "largest_message", "link_name", "point_profile"]


def forward_ms(profile: Profile) -> Fraction:
    """Return T_F [ms], the unit of relative delays: the longest forward of one microbatch over all stages of a device.

    CrossPipe (arXiv 2507.00217) states latency and bandwidth in it, section 2.3.
    """
    totals: dict[str, Fraction] = {}
    for stage in profile.stages:
        totals[stage.device] = totals.get(stage.device, Fraction(0)) + Fraction(str(stage.forward_ms))
    return max(totals.values())


def largest_message(profile: Profile) -> int:
    """Return the largest message between two stages [bytes]."""
    return max((stage.output_bytes for stage in profile.stages[:-1]), default=0)


def link_name(link: LinkSpec) -> str:
    """Return the ends of a link: ``a<->b``, or ``a->b`` where it leads one way."""
    return "<->".join(link.between) if link.between is not None else f"{link.source}->{link.target}"


def chosen_links(profile: Profile, choice: str) -> tuple[int, ...]:
    """Return the indices of the links that vary.

    Parameters
    ----------
    profile
        As loaded.
    choice
        ``between-sites``, ``all``, or names as `link_name` gives them, separated by commas; the ends of a link of both
        directions may be named in either order.

    Raises
    ------
    UsageError
        When there is none, or no link has that name.
    """
    names = [link_name(link) for link in profile.links]
    if choice == "all":
        found = list(range(len(names)))
    elif choice == "between-sites":
        site_of = {device.id: device.site for device in profile.devices}
        found = [
            index
            for index, link in enumerate(profile.links)
            if len({site_of.get(end, end) for end in link.between or (link.source or "", link.target or "")}) == 2
        ]
    else:
        found = [_named(profile, name.strip()) for name in choice.split(",")]
    if not found:
        kind = "between two sites" if choice == "between-sites" else "at all"
        hint = f"--links all, or one of: {', '.join(dict.fromkeys(names))}" if names else "add `links` to the profile"
        raise UsageError(f"--links {choice}: the profile has no link {kind}", code="sweep-no-links", hint=hint)
    return tuple(sorted(set(found)))


def _named(profile: Profile, name: str) -> int:
    for index, link in enumerate(profile.links):
        turned = "<->".join(reversed(link.between)) if link.between is not None else None
        if name in (link_name(link), turned):
            return index
    known = ", ".join(link_name(link) for link in profile.links) or "none"
    raise UsageError(
        f"--links: the profile has no link {name!r}; it has {known}; or say between-sites or all", code="sweep-links"
    )


def point_profile(profile: Profile, point: Point, settings: Settings) -> Profile:
    """Return the profile of a point, checked like one that was read from a file.

    Raises
    ------
    UsageError
        When the number of chunks does not fit the profile.
    ProfileError
        When values are out of the bounds of the format.
    """
    varied = set(settings.links)
    changed = replace(
        profile,
        microbatches=point.microbatches,
        devices=tuple(
            device
            if device.memory_bytes is None
            else replace(device, memory_bytes=int(device.memory_bytes * Fraction(str(point.memory_factor))))
            for device in profile.devices
        ),
        links=tuple(
            _changed_link(profile, link, point, settings) if index in varied else link
            for index, link in enumerate(profile.links)
        ),
    )
    if point.chunks is not None:
        changed = _cut(changed, point.chunks)
    return parse_profile(encode_profile(changed), "the profile of this point")


def _changed_link(profile: Profile, link: LinkSpec, point: Point, settings: Settings) -> LinkSpec:
    if point.latency is not None:
        value = Fraction(str(point.latency))
        if settings.latency_unit == "factor":
            value *= Fraction(str(link.latency_ms))
        elif settings.latency_unit == "tf":
            value *= forward_ms(profile)
        link = replace(link, latency_ms=float(value))
    if point.bandwidth is None:
        return link
    value = Fraction(str(point.bandwidth))
    if settings.bandwidth_unit == "gbit_s":
        return replace(link, bandwidth_gbit_s=point.bandwidth, beta_ns_per_byte=None)
    if settings.bandwidth_unit == "factor":
        beta = beta_of(link) / value
    else:
        beta = value * forward_ms(profile) * 1_000_000 / largest_message(profile)
    return replace(link, bandwidth_gbit_s=None, beta_ns_per_byte=float(beta))


def _cut(profile: Profile, chunks: int) -> Profile:
    """Return the profile with each stage cut into equal ones, so that every device can hold `chunks` of them."""
    wanted, present = chunks * len(profile.devices), len(profile.stages)
    if wanted % present:
        message = f"{chunks} chunks on {len(profile.devices)} devices are no multiple of the profile's {present} stages"
        raise UsageError(message, code="sweep-chunks")
    parts = wanted // present
    stages: list[StageSpec] = []
    for stage in profile.stages:
        # The last stage sends nothing, but its parts do: as much as it receives.
        inner = stage.output_bytes or (stages[-1].output_bytes if stages else 0)
        stages += _parts(stage, parts, inner)
    return replace(profile, stages=tuple(stages))


_DIVIDED_TIMES = (
    "forward_ms",
    "input_grad_ms",
    "weight_grad_ms",
    "full_backward_ms",
    "forward_backward_ms",
    "all_gather_ms",
    "reduce_scatter_ms",
    "all_reduce_ms",
)
_DIVIDED_BYTES = (
    "activation_bytes",
    "held_for_weight_grad_bytes",
    "static_bytes",
    "parameter_bytes",
    "gradient_bytes",
)


def _parts(stage: StageSpec, count: int, inner_bytes: int) -> Iterator[StageSpec]:
    """Yield equal parts of a stage; transients stay as large as they are, as those of a layer do.

    Parameters
    ----------
    stage
        What is cut. Where it has no input gradient, neither have its parts.
    count
        Number of parts.
    inner_bytes
        What a part sends to the next of the same stage [bytes].
    """
    if count == 1:
        yield stage
        return
    times = {name: getattr(stage, name) for name in _DIVIDED_TIMES}
    sizes = {name: getattr(stage, name) for name in _DIVIDED_BYTES}
    divided = {name: float(Fraction(str(value)) / count) for name, value in times.items() if value is not None}
    for index in range(count):
        shares = {
            name: value * (index + 1) // count - value * index // count
            for name, value in sizes.items()
            if value is not None
        }
        sent = stage.output_bytes if index == count - 1 else inner_bytes
        yield replace(stage, id=f"{stage.id}.{index}", output_bytes=sent, **divided, **shares)
