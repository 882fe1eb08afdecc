"""A sweep from its grid to its results: what is known is kept, the rest is solved, and the order is the grid's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Literal

import msgspec

import cpipe
from cpipe.errors import UsageError
from cpipe.ir.base import Frozen
from cpipe.profile import Profile, encode_profile
from cpipe.profile.links import beta_of
from cpipe.report.sweep import SweepPoint, SweepReport
from cpipe.study.sweep.grid import Axes, Point, Settings, grid_points, point_key, profile_digest
from cpipe.study.sweep.solve_point import Outcome
from cpipe.study.sweep.vary import chosen_links, forward_ms, largest_message, link_name
from cpipe.study.sweep.workers import Task

__all__ = ["Runner", "Sweep", "make_sweep", "run_sweep"]

Runner = Callable[[Sequence[Task], bytes, Settings], Generator[tuple[int, Outcome], None, None]]
"""Solves tasks: of the tasks, the profile and the settings; yields places and outcomes in any order."""


class Sweep(Frozen, frozen=True, kw_only=True):
    """A grid on a profile.

    Attributes
    ----------
    profile
        The user's.
    settings
        What all points share.
    points, keys
        Of the grid, in order.
    blank
        The report without points.
    """

    profile: Profile
    settings: Settings
    points: tuple[Point, ...]
    keys: tuple[str, ...]
    blank: SweepReport

    def report(self, points: Iterable[SweepPoint], status: Literal["done", "incomplete"] | None = None) -> SweepReport:
        """Return the report with these points, in the order of the grid.

        Without a `status` it is ``done`` when every point is there and none failed.
        """
        by_key = {point.key: point for point in points}
        found = tuple(by_key[key] for key in self.keys if key in by_key)
        complete = len(found) == len(self.keys) and all(point.status != "failed" for point in found)
        return msgspec.structs.replace(
            self.blank, points=found, status=status or ("done" if complete else "incomplete")
        )


def make_sweep(profile: Profile, axes: Axes, settings: Settings, links: str = "between-sites") -> Sweep:
    """Return a sweep, its links chosen (see `cpipe.study.sweep.vary.chosen_links`) where an axis varies them.

    Raises
    ------
    UsageError
        When the profile lacks what an axis varies: links, messages, memory limits or forward times.
    """
    varies = bool(axes.latencies or axes.bandwidths)
    chosen = chosen_links(profile, links) if varies else ()
    settings = msgspec.structs.replace(settings, links=chosen)
    _check_profile(profile, axes, settings)
    names = tuple(link_name(profile.links[index]) for index in chosen)
    points, digest = grid_points(axes), profile_digest(profile)
    return Sweep(
        profile=profile,
        settings=settings,
        points=points,
        keys=tuple(point_key(digest, names, settings, point) for point in points),
        blank=SweepReport(
            status="incomplete",
            cpipe=cpipe.__version__,
            name=profile.name,
            profile=digest,
            forward_ms=float(forward_ms(profile)),
            links=names,
            latency_unit=settings.latency_unit if axes.latencies else None,
            bandwidth_unit=settings.bandwidth_unit if axes.bandwidths else None,
            num_points=len(points),
        ),
    )


def _check_profile(profile: Profile, axes: Axes, settings: Settings) -> None:
    if axes.bandwidths and not largest_message(profile):
        raise UsageError("bandwidth has no effect: the profile has no output_bytes", code="sweep-no-messages")
    relative = (axes.latencies and settings.latency_unit == "tf") or (
        axes.bandwidths and settings.bandwidth_unit == "tf"
    )
    if relative and not forward_ms(profile):
        raise UsageError("delays in forward times: every forward_ms of the profile is 0", code="sweep-no-forward")
    links = [profile.links[index] for index in settings.links]
    if axes.latencies and settings.latency_unit == "factor" and not any(link.latency_ms for link in links):
        raise UsageError("--latency-factor has no effect: the latency of these links is 0", code="sweep-no-latency")
    if axes.bandwidths and settings.bandwidth_unit == "factor" and not any(map(beta_of, links)):
        message = "--bandwidth-factor has no effect: the bandwidth of these links is infinite"
        raise UsageError(message, code="sweep-no-bandwidth")
    if axes.memory_factors != (1.0,) and all(device.memory_bytes is None for device in profile.devices):
        raise UsageError("--memory-factor has no effect: no device has memory_bytes", code="sweep-no-memory")


def run_sweep(sweep: Sweep, runner: Runner, known: Iterable[SweepPoint] = ()) -> Generator[SweepPoint, None, None]:
    """Yield every point of the sweep that is not known, as it is finished.

    Parameters
    ----------
    sweep
        As `make_sweep` made it.
    runner
        What solves the points.
    known
        Points to keep.
    """
    kept = {point.key for point in known}
    tasks = [
        Task(place, point)
        for place, (point, key) in enumerate(zip(sweep.points, sweep.keys, strict=True))
        if key not in kept
    ]
    if not tasks:
        return
    with contextlib.closing(runner(tasks, encode_profile(sweep.profile), sweep.settings)) as outcomes:
        for place, outcome in outcomes:
            parameters = msgspec.structs.asdict(sweep.points[place])
            yield SweepPoint(key=sweep.keys[place], **parameters, **msgspec.structs.asdict(outcome))
