"""Devices and links in one line each, as options have them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from cpipe.errors import Diagnostic, UsageError
from cpipe.jsontext import shown
from cpipe.profile.schema import MAX_MS, DeviceSpec, LinkSpec

__all__ = ["parse_cost", "parse_devices", "parse_links"]

MAX_DEVICES = 65_536
_COUNT = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_LINK = "expected FIRST,SECOND:LATENCY_MS:GBIT_S"


def parse_devices(text: str, memory_bytes: int | None = None) -> tuple[DeviceSpec, ...]:
    """Return the devices g0, g1, ... of ``8``, or of ``dc-a:4,dc-b:4``.

    Parameters
    ----------
    text
        A number of devices, or numbers of devices of sites, in rank order.
    memory_bytes
        Of each [bytes]; None is no limit.

    Raises
    ------
    UsageError
        With one fault for each part that is neither.
    """
    faults: list[Diagnostic] = []
    sites: list[str | None] = []
    for part in text.split(","):
        site, colon, count = part.strip().rpartition(":")
        number = int(count) if _COUNT.fullmatch(count) else 0
        if (colon and not site) or (not colon and "," in text) or number < 1:
            message = f"expected a number >= 1 of devices, or SITE:NUMBER,SITE:NUMBER..., got {shown(part.strip())}"
            faults.append(Diagnostic(code="bad-devices", message=f"--devices: {message}"))
        elif len(sites) + number > MAX_DEVICES:
            message = f"--devices: expected at most {MAX_DEVICES} devices, got {len(sites) + number}"
            faults.append(Diagnostic(code="too-large", message=message))
        else:
            sites += [site or None] * number
    if faults:
        raise UsageError(faults)
    return tuple(DeviceSpec(id=f"g{index}", site=site, memory_bytes=memory_bytes) for index, site in enumerate(sites))


def parse_cost(text: str, option: str) -> tuple[float, float]:
    """Return latency [ms] and bandwidth [Gbit/s] of ``LATENCY_MS:GBIT_S``.

    Raises
    ------
    UsageError
        When it is not two numbers, the first from 0 and the second above 0.
    """
    latency, _, bandwidth = text.partition(":")
    values = [float(part) if _NUMBER.fullmatch(part.strip()) else math.nan for part in (latency, bandwidth)]
    if not (0 <= values[0] <= MAX_MS and 0 < values[1] <= 10**12):
        message = f"{option}: expected LATENCY_MS:GBIT_S, a number >= 0 and a number > 0, got {shown(text)}"
        raise UsageError([Diagnostic(code="bad-link", message=message)])
    return values[0], values[1]


def parse_links(
    texts: Sequence[str], inside: str | None, devices: Sequence[DeviceSpec], share: int = 1
) -> tuple[LinkSpec, ...]:
    """Return the links of ``FIRST,SECOND:LATENCY_MS:GBIT_S`` options, and the ones inside each site.

    Parameters
    ----------
    texts
        One a link; its ends are sites or devices, and any of them may hold a colon.
    inside
        ``LATENCY_MS:GBIT_S`` between two devices of one site; None is free.
    devices
        The devices.
    share
        Pipelines that share each link of `texts`: this one gets so many times less bandwidth.

    Raises
    ------
    UsageError
        With one fault for each text that is no link, or names what there is not.
    """
    faults: list[Diagnostic] = []
    links: list[LinkSpec] = []
    known = {device.id for device in devices} | {device.site for device in devices if device.site is not None}
    for text in texts:
        ends = text.rsplit(":", 2)
        first, comma, second = ends[0].partition(",")
        if len(ends) != 3 or not comma:
            faults.append(Diagnostic(code="bad-link", message=f"--link: {_LINK}, got {shown(text)}"))
            continue
        unknown = [name for name in (first.strip(), second.strip()) if name not in known]
        if unknown:
            message = f"--link: {shown(unknown[0])} is neither a site nor a device of --devices, in {shown(text)}"
            faults.append(Diagnostic(code="unknown-link-end", message=message))
            continue
        try:
            latency, bandwidth = parse_cost(":".join(ends[1:]), "--link")
        except UsageError as error:
            faults += error.diagnostics
            continue
        links.append(
            LinkSpec(
                between=(first.strip(), second.strip()),
                latency_ms=latency,
                bandwidth_gbit_s=round(bandwidth / share, 9),
            )
        )
    if faults:
        raise UsageError(faults)
    if inside is not None:
        latency, bandwidth = parse_cost(inside, "--intra-link")
        sites = dict.fromkeys(device.site for device in devices if device.site is not None)
        links += [LinkSpec(between=(site, site), latency_ms=latency, bandwidth_gbit_s=bandwidth) for site in sites]
    return tuple(links)
