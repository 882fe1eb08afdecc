"""Rules that join several fields of a profile; each is one function that yields a fault per breach.

They also run on profiles in which single fields were wrong: an empty name stands for one that could not be
read, and no rule says anything about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import msgspec

from cpipe.errors import Diagnostic
from cpipe.jsontext import shown
from cpipe.profile.links import directions
from cpipe.profile.schema import DataParallelSpec, LinkSpec, Profile

__all__ = ["MAX_SLOTS", "rule_faults"]

MAX_SLOTS = 2**20
"""Most pairs of a stage and a microbatch; a search holds several ops for each in memory."""

_MAX_GUESSES = 10
"""So many unknown names get a guess at the one meant: each takes long, and there may be as many faults as stages."""


def rule_faults(profile: Profile, file: str) -> list[Diagnostic]:
    """Return the breaches of every rule, in no particular order."""
    found = (fault for rule in _RULES for fault in rule(profile))
    return [msgspec.structs.replace(fault, file=file) for fault in found]


def _unique_ids(profile: Profile) -> Iterator[Diagnostic]:
    """Refuse two devices of one id, and two stages of one."""
    ids = {
        "devices": [device.id for device in profile.devices],
        "stages": [stage.id for stage in profile.stages],
    }
    for label, names in ids.items():
        first: dict[str, int] = {}
        for index, name in enumerate(names):
            if name and first.setdefault(name, index) != index:
                message = f"the id {shown(name)} is already taken by $.{label}[{first[name]}]"
                yield Diagnostic(code="duplicate-id", message=message, path=f"$.{label}[{index}].id")


def _known_devices(profile: Profile) -> Iterator[Diagnostic]:
    """Require that every stage stands on a device that exists."""
    known = [device.id for device in profile.devices]
    if not all(known) or not known:
        return
    exists, guess = frozenset(known), _Guesser(known)
    for index, stage in enumerate(profile.stages):
        if stage.device and stage.device not in exists:
            message = f"no device has the id {shown(stage.device)}"
            yield Diagnostic(
                code="unknown-device",
                message=message,
                path=f"$.stages[{index}].device",
                hint=guess(stage.device),
            )


def _backward_times(profile: Profile) -> Iterator[Diagnostic]:
    """Require the times of D and W, or that of B alone; never one half of a split."""
    for index, stage in enumerate(profile.stages):
        halves = {"input_grad_ms": stage.input_grad_ms, "weight_grad_ms": stage.weight_grad_ms}
        given = [name for name, value in halves.items() if value is not None]
        if len(given) == 1:
            (absent,) = halves.keys() - given
            message = f"{given[0]} is given without {absent}"
            yield Diagnostic(code="incomplete-split", message=message, path=f"$.stages[{index}].{given[0]}")
        elif not given and stage.full_backward_ms is None:
            message = "expected input_grad_ms and weight_grad_ms, or full_backward_ms alone, got none of them"
            yield Diagnostic(code="missing-backward", message=message, path=f"$.stages[{index}]")


def _pair_times(profile: Profile) -> Iterator[Diagnostic]:
    """Require that a fused pair takes at least as long as its forward alone."""
    for index, stage in enumerate(profile.stages):
        if stage.forward_backward_ms is not None and stage.forward_backward_ms < stage.forward_ms:
            message = f"a forward with a backward cannot take less than the forward alone, {stage.forward_ms:g} ms"
            path = f"$.stages[{index}].forward_backward_ms"
            yield Diagnostic(code="pair-too-short", message=message, path=path)


def _recompute_sizes(profile: Profile) -> Iterator[Diagnostic]:
    """Require that a stage that recomputes keeps no more than one that does not."""
    for index, stage in enumerate(profile.stages):
        if stage.recompute is not None and stage.recompute.activation_bytes > stage.activation_bytes:
            message = (
                f"recomputing keeps part of the stage's activation_bytes {stage.activation_bytes}, "
                f"got {stage.recompute.activation_bytes}"
            )
            path = f"$.stages[{index}].recompute.activation_bytes"
            yield Diagnostic(code="recompute-keeps-more", message=message, path=path)


def _offload_sizes(profile: Profile) -> Iterator[Diagnostic]:
    """Require that a stage moves no more to host memory than it has there."""
    for index, stage in enumerate(profile.stages):
        if stage.offload is not None and stage.offload.num_bytes > stage.activation_bytes:
            message = (
                f"offloading moves part of the stage's activation_bytes {stage.activation_bytes}, "
                f"got {stage.offload.num_bytes}"
            )
            yield Diagnostic(code="offload-too-large", message=message, path=f"$.stages[{index}].offload.bytes")


def _link_ends(profile: Profile) -> Iterator[Diagnostic]:
    """Require `between`, or `from` and `to`; ends are two devices or two sites, each known and unambiguous."""
    devices = [device.id for device in profile.devices]
    sites = list(dict.fromkeys(device.site for device in profile.devices if device.site is not None))
    guess = _Guesser([*devices, *sites])
    for index, link in enumerate(profile.links):
        path = f"$.links[{index}]"
        if message := _wrong_form(link):
            yield Diagnostic(code="link-ends", message=message, path=path)
            continue
        ends = _named_ends(link)
        if not (devices and all(devices) and all(sites) and all(end for _, end in ends)):
            continue
        faults = [fault for suffix, end in ends for fault in _end_faults(path + suffix, end, devices, sites, guess)]
        yield from faults
        if not faults:
            yield from _pair_faults(path, link, [end for _, end in ends], devices)


def _wrong_form(link: LinkSpec) -> str:
    expected = "expected either `between`, or `from` and `to`"
    one_way = (link.source is not None) + (link.target is not None)
    if link.between is not None:
        return f"{expected}, got both" if one_way else ""
    return ("" if one_way == 2 else f"{expected}, got one of the last two") if one_way else f"{expected}, got neither"


def _named_ends(link: LinkSpec) -> list[tuple[str, str]]:
    if link.between is not None:
        return [(f".between[{index}]", end) for index, end in enumerate(link.between)]
    return [(".from", link.source or ""), (".to", link.target or "")]


def _end_faults(
    path: str, end: str, devices: Sequence[str], sites: Sequence[str], guess: _Guesser
) -> Iterator[Diagnostic]:
    if end in devices and end in sites:
        message = f"{shown(end)} is both a device and a site"
        yield Diagnostic(code="ambiguous-link-end", message=message, path=path, hint="give one of them another name")
    elif end not in devices and end not in sites:
        message = f"{shown(end)} is neither a device nor a site"
        yield Diagnostic(code="unknown-link-end", message=message, path=path, hint=guess(end))


def _pair_faults(path: str, link: LinkSpec, ends: list[str], devices: Sequence[str]) -> Iterator[Diagnostic]:
    first, second = ends
    if (first in devices) != (second in devices):
        message = f"expected two devices or two sites, got {shown(first)} and {shown(second)}, one of each"
        yield Diagnostic(code="mixed-link-ends", message=message, path=path)
    elif first == second and first in devices:
        yield Diagnostic(code="self-link", message=f"joins the device {shown(first)} with itself", path=path)
    elif first == second and link.between is None:
        message = f"leads from the site {shown(first)} to itself"
        hint = "write `between` for a default inside the site"
        yield Diagnostic(code="self-link", message=message, path=path, hint=hint)


def _unique_links(profile: Profile) -> Iterator[Diagnostic]:
    """Refuse two links from one end to the same other end."""
    first: dict[tuple[str, str], int] = {}
    for index, link in enumerate(profile.links):
        if _wrong_form(link):
            continue
        for source, target in directions(link):
            taken = first.setdefault((source, target), index)
            if source and target and taken != index:
                message = f"the link from {shown(source)} to {shown(target)} is already given by $.links[{taken}]"
                yield Diagnostic(code="duplicate-link", message=message, path=f"$.links[{index}]")
                break


def _link_costs(profile: Profile) -> Iterator[Diagnostic]:
    """Refuse two bandwidths at once, and half duplex where there is one direction."""
    links = [(f"$.links[{index}]", link) for index, link in enumerate(profile.links)]
    specs: list[tuple[str, LinkSpec | DataParallelSpec]] = [*links]
    if profile.data_parallel is not None:
        specs.append(("$.data_parallel", profile.data_parallel))
    for path, spec in specs:
        if spec.bandwidth_gbit_s is not None and spec.beta_ns_per_byte is not None:
            message = "expected either bandwidth_gbit_s or beta_ns_per_byte, got both"
            yield Diagnostic(code="two-bandwidths", message=message, path=f"{path}.beta_ns_per_byte")
    for path, link in links:
        if link.duplex == "half" and link.between is None and link.source is not None and link.target is not None:
            message = "half duplex needs two directions, and `from` and `to` give one"
            yield Diagnostic(code="one-way-half-duplex", message=message, path=f"{path}.duplex", hint="write `between`")


def _contention(profile: Profile) -> Iterator[Diagnostic]:
    """Require that `contends_with` names the two different ends of a link of the profile."""
    ends = profile.data_parallel.contends_with if profile.data_parallel else None
    if ends is None or not all(ends):
        return
    path = "$.data_parallel.contends_with"
    served = {pair for link in profile.links for pair in directions(link)}
    if ends[0] == ends[1]:
        yield Diagnostic(code="unknown-link", message="expected two different ends of a link, got one twice", path=path)
    elif ends not in served and ends[::-1] not in served and not any("" in pair for pair in served):
        message = f"no entry of `links` joins {shown(ends[0])} and {shown(ends[1])}"
        yield Diagnostic(code="unknown-link", message=message, path=path)


def _size(profile: Profile) -> Iterator[Diagnostic]:
    """Refuse more pairs of a stage and a microbatch than a search can hold."""
    slots = len(profile.stages) * profile.microbatches
    if slots > MAX_SLOTS:
        message = (
            f"expected at most {MAX_SLOTS} pairs of a stage and a microbatch, got "
            f"{len(profile.stages)} x {profile.microbatches} = {slots}"
        )
        yield Diagnostic(code="too-many-ops", message=message, path="$.microbatches")


class _Guesser:
    """Guesses which of `known` a word was meant to be, the first few times that it is asked."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known
        self._left = _MAX_GUESSES

    def __call__(self, word: str) -> str | None:
        if not self._left:
            return None
        self._left -= 1
        close = difflib.get_close_matches(word, self._known, n=1)
        return f"did you mean {shown(close[0])}?" if close else None


_RULES = (
    _unique_ids,
    _known_devices,
    _backward_times,
    _pair_times,
    _recompute_sizes,
    _offload_sizes,
    _link_ends,
    _unique_links,
    _link_costs,
    _contention,
    _size,
)
