"""Which link a message takes, what it costs there and which pipe it occupies.

* A link between two devices beats a link between their sites; inside a site, no link means no cost.
* Two different sites share one pipe per direction for all their devices; a link between two devices is its
  own pipe. A link of a site with itself is the default inside the site: one pipe for each pair of devices
  and direction. Half duplex makes the two directions of a link one pipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from cpipe.errors import Diagnostic
from cpipe.jsontext import shown
from cpipe.profile.schema import DataParallelSpec, DeviceSpec, LinkSpec, Profile
from cpipe.units import Ns, beta_ns_per_byte, ms_to_ns

__all__ = ["FREE", "LinkTable", "Pipe", "Route", "beta_of", "directions", "unlinked_sites"]

FREE = -1
"""Index that stands for the free connection inside a site, which no link describes."""


class Pipe(NamedTuple):
    """What one message at a time occupies: a direction of link `link`, or both when `half`."""

    link: int
    first: str
    second: str
    half: bool = False

    @property
    def name(self) -> str:
        """Display name: ``a->b``, or ``a<->b`` for half duplex."""
        return f"{self.first}{'<->' if self.half else '->'}{self.second}"


class Route(NamedTuple):
    """How a message gets from one device to another: latency [ns], inverse bandwidth [ns/byte], pipe."""

    latency_ns: Ns
    beta: Fraction
    pipe: Pipe


def beta_of(spec: LinkSpec | DataParallelSpec) -> Fraction:
    """Return the exact inverse bandwidth [ns/byte]; 0 when none is given."""
    if spec.bandwidth_gbit_s is not None:
        return beta_ns_per_byte(spec.bandwidth_gbit_s)
    return Fraction(str(spec.beta_ns_per_byte or 0))


def directions(link: LinkSpec) -> tuple[tuple[str, str], ...]:
    """Return the (source end, target end) pairs that `link` serves; none while its ends are not known."""
    if link.between is not None:
        first, second = link.between
        return ((first, second),) if first == second else ((first, second), (second, first))
    return ((link.source, link.target),) if link.source is not None and link.target is not None else ()


class LinkTable:
    """Looks up the links of a profile whose ends are valid."""

    def __init__(self, profile: Profile) -> None:
        self._links = profile.links
        self._devices = profile.devices
        self._served: dict[tuple[str, str], int] = {}
        for index, link in enumerate(profile.links):
            for ends in directions(link):
                self._served[ends] = index

    def link(self, source: int, target: int) -> int | None:
        """Return the index of the link from device `source` to device `target`, `FREE`, or None if unlinked."""
        first, second = self._devices[source], self._devices[target]
        if (index := self._served.get((first.id, second.id))) is not None:
            return index
        index = self._served.get((first.site or "", second.site or ""))
        return FREE if index is None and first.site == second.site else index

    def route(self, source: int, target: int) -> Route | None:
        """Return the route from device `source` to device `target`, None when no link leads there."""
        index = self.link(source, target)
        if index is None:
            return None
        first, second = self._devices[source], self._devices[target]
        ids, sites = (first.id, second.id), (first.site or "", second.site or "")
        if index == FREE:
            return Route(Ns(0), Fraction(0), Pipe(FREE, *ids))
        link = self._links[index]
        shared = ids not in self._served and first.site != second.site
        return Route(ms_to_ns(link.latency_ms), beta_of(link), self._pipe(index, sites if shared else ids))

    def pipes_between(self, first: str, second: str) -> tuple[Pipe, ...]:
        """Return the pipes of the link whose ends are `first` and `second`, one per direction that it has."""
        both = ((first, second), (second, first))
        return tuple(dict.fromkeys(self._pipe(self._served[ends], ends) for ends in both if ends in self._served))

    def _pipe(self, index: int, ends: tuple[str, str]) -> Pipe:
        if self._links[index].duplex == "half":
            return Pipe(index, min(ends), max(ends), half=True)  # both directions must find the same pipe
        return Pipe(index, *ends)


def unlinked_sites(profile: Profile, flows: int = 1) -> Iterator[Diagnostic]:
    """Yield a fault for each pair of sites, or one direction of it, that a stage boundary crosses without a link.

    With several flows, whose stages stand one flow after the other, copies of a stage must be linked too.
    """
    table = LinkTable(profile)
    index_of = {device.id: index for index, device in enumerate(profile.devices)}
    seen: set[tuple[str | None, str | None]] = set()
    length = max(1, len(profile.stages) // flows)
    joined = [(stage - 1, stage) for stage in range(1, len(profile.stages)) if stage % length]
    joined += [(stage - length, stage) for stage in range(length, len(profile.stages)) if flows > 1]
    for before, stage in joined:
        pair = profile.stages[before], profile.stages[stage]
        if not all(spec.device in index_of for spec in pair):
            continue
        source, target = (index_of[spec.device] for spec in pair)
        first, second = profile.devices[source], profile.devices[target]
        missing = [
            ends
            for ends, index in (
                ((first, second), table.link(source, target)),
                ((second, first), table.link(target, source)),
            )
            if index is None and (ends[0].site, ends[1].site) not in seen
        ]
        if not missing:
            continue
        seen.update((start.site, end.site) for start, end in missing)
        start, end = missing[0]
        verb, joint = ("joins", "and") if len(missing) == 2 else ("leads from", "to")
        yield Diagnostic(
            code="unlinked-sites",
            message=f"no link {verb} {_site(start)} {joint} {_site(end)}, between stages "
            f"{shown(pair[0].id)} and {shown(pair[1].id)}",
            path=f"$.stages[{stage % length if flows > 1 else stage}].device",
            hint="add it to `links`: only connections inside a site are free by default",
        )


def _site(device: DeviceSpec) -> str:
    return f"site {shown(device.site)}" if device.site is not None else f"device {shown(device.id)} (no site)"
