"""Every schedule and method that a job can have, at the same memory and at its own.

Schedules are often compared at unequal memory: one that takes twice the activations is faster, but so would be any
search that had as much. So each schedule is timed within the profile's limits, which are the same for all, and beside
it stands what a search reaches within exactly the memory that this schedule uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from cpipe.compiler import Compiled, SolveOptions, compile_profile
from cpipe.compiler.claims import with_transports
from cpipe.compiler.placements import placements
from cpipe.errors import InfeasibleError, NoSolutionError, ProfileError, UsageError
from cpipe.ir import Plan, Problem
from cpipe.ir.comparison import Comparison, Reached, Row, Shortfall, on_front
from cpipe.plan import lower
from cpipe.profile import Profile, normalize
from cpipe.profile.offload import bounded
from cpipe.report.figures import plan_figures
from cpipe.schedules import SCHEDULES, static_schedule
from cpipe.sim import memory_peaks
from cpipe.sim.memory import receive_reserve
from cpipe.solve.bounds import lower_bound
from cpipe.solve.methods import METHODS
from cpipe.solve.serial import serial_schedule
from cpipe.units import Bytes

__all__ = ["MEMORY_CHOICES", "SEARCHES", "SHARES", "Compared", "MemoryChoice", "compare_profile"]

MemoryChoice = Literal["both", "equal", "own"]
MEMORY_CHOICES: dict[MemoryChoice, str] = {
    "both": "within the profile's limits, and a search at each schedule's own peak",
    "equal": "within the profile's limits alone",
    "own": "without limits, and a search at each schedule's own peak",
}

SEARCHES = ("greedy-crosspipe", "greedy", "auto")
"""Methods that search at another schedule's memory, quickest first."""
SHARES = (0.75, 0.5, 0.25)
"""Less memory: shares of what lies between the least that any order needs and the fastest row's peak."""

_POOR = 0.5
"""Gap of the quickest search beyond which the price of less memory would mislead: the next one looks again."""

_EXACT = ("milp", "cpsat")
_EXACT_OPS = 72  # beyond, an exact method that was asked for may take minutes
_NODES = 300  # of the MILP, as in `auto`

Progress = Callable[[str], None]


class Compared(NamedTuple):
    """A comparison, and the plan of each of its rows; None of rows that do not fit."""

    comparison: Comparison
    plans: tuple[Plan | None, ...]


class _Place(NamedTuple):
    """A placement to try, its problem without limits of memory, and why it is none for this job, if so."""

    name: str
    problem: Problem
    refusal: str = ""


class _Entry(NamedTuple):
    row: Row
    plan: Plan | None = None


def compare_profile(
    profile: Profile,
    *,
    methods: Sequence[str] = tuple(METHODS),
    memory: MemoryChoice = "both",
    search: str = "greedy-crosspipe",
    seed: int = 0,
    progress: Progress = lambda line: None,
) -> Compared:
    """Return what every method reaches on every placement that it can have.

    Parameters
    ----------
    profile
        As loaded.
    methods
        Keys of `cpipe.solve.methods.METHODS`. The exact ones are tried on small jobs alone.
    memory
        A key of `MEMORY_CHOICES`.
    search
        One of `SEARCHES`: what looks for an order at the memory of another, and at less.
    seed
        Of every random choice.
    progress
        Called with a line before each piece of work.

    Raises
    ------
    ProfileError
        When the profile lacks a link that its own placement needs.
    """
    limited = profile if memory != "own" else _with_memory(profile, [None] * len(profile.devices))
    study = _Study(limited, search, seed, progress, at_own=memory != "equal")
    entries = [entry for method in methods for entry in study.rows_of(method)]
    entries += study.leaner(entries)
    return _sorted(limited, entries)


class _Study:
    """One comparison: the placements, and searches that several rows share."""

    def __init__(self, profile: Profile, search: str, seed: int, progress: Progress, *, at_own: bool) -> None:
        self.profile, self.search, self.seed, self.progress = profile, search, seed, progress
        self.at_own = at_own
        self.free = _with_memory(profile, [None] * len(profile.devices))
        self.places = tuple(_places(self.free))
        self._searched: dict[tuple[str, str, tuple[int, ...]], Compiled | None] = {}

    def rows_of(self, method: str) -> list[_Entry]:
        """Return the rows of a method; one without a placement where it applies on none."""
        found: list[_Entry] = []
        refusals: list[str] = []
        for place in self.places:
            flows = SCHEDULES[method].flows if method in SCHEDULES else 1
            if flows != (2 if place.name == "bidirectional" else 1):
                continue
            if refusal := place.refusal or _refusal(method, place.problem):
                refusals.append(refusal)
                continue
            self.progress(f"{method} on placement {place.name}")
            found.append(self._row(method, place))
        if not found:
            reason = "; ".join(dict.fromkeys(refusals)) or "the devices and stages have no placement for it"
            found.append(_Entry(Row(method=method, placement="", outcome="does-not-apply", reason=reason)))
        return found

    def leaner(self, entries: Sequence[_Entry]) -> list[_Entry]:
        """Return rows with less memory than the fastest, where it has more than the least."""
        rows = (entry.row for entry in entries if entry.row.placement != "bidirectional")
        timed = [(row.reached, row.placement) for row in rows if row.reached is not None]
        if not timed:
            return []
        fastest, name = min(timed, key=lambda entry: (entry[0].makespan_ns, entry[0].peak_bytes))
        place = next(place for place in self.places if place.name == name)
        least = _least(place.problem)
        rooms = [peak - floor for peak, floor in zip(fastest.peaks, least, strict=True)]
        found: list[_Entry] = []
        for share in SHARES:
            caps = [floor + round(share * max(0, room)) for floor, room in zip(least, rooms, strict=True)]
            if max(caps) >= fastest.peak_bytes:
                continue
            made = self._search_leaner(place, caps, f"{share:.0%} of the room up to the fastest row's memory")
            if made is None:
                continue
            method, compiled = made
            reached = _reached(compiled)
            if any(entry.row.reached == reached for entry in found):
                continue  # less room gave the same order
            row = Row(
                method=method,
                placement=place.name,
                outcome="fits",
                reached=reached,
                own=reached,
                memory_share=share,
            )
            found.append(_Entry(row, self._unlimited(compiled, share)))
        return found

    def _search_leaner(self, place: _Place, caps: Sequence[int], what: str) -> tuple[str, Compiled] | None:
        """Return what is found within `caps` and by which method: the next one too where the quickest does poorly."""
        methods = SEARCHES[:2] if self.search == SEARCHES[0] else (self.search,)
        best: tuple[str, Compiled] | None = None
        for method in methods:
            if best is not None and best[1].result.gap <= _POOR:
                break
            self.progress(f"{method} with {what}")
            compiled = self._search_within(place, caps, method)
            if compiled is not None and (best is None or compiled.result.makespan_ns < best[1].result.makespan_ns):
                best = method, compiled
        return best

    def _unlimited(self, compiled: Compiled, share: float) -> Plan:
        """Return a plan that was made with less memory as one for the profile itself: it is right there too."""
        full = (spec.memory_bytes for spec in self.profile.devices)
        devices = tuple(
            replace(device, capacity_bytes=None if cap is None else Bytes(cap))
            for device, cap in zip(compiled.problem.devices, full, strict=True)
        )
        problem, result = replace(compiled.problem, devices=devices), compiled.result
        schedule = result.schedule
        made_by = compiled.plan.made_by
        plan = lower(
            problem,
            schedule,
            result.timeline,
            bound=lower_bound(bounded(replace(problem, receive_window=None), bool(schedule.offloads))),
            resident_peaks=memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads),
            made_by=replace(made_by, limits={**made_by.limits, "memory_share": share}),
        )
        return with_transports(plan)

    def _row(self, method: str, place: _Place) -> _Entry:
        compiled: Compiled | None = None
        reason = ""
        shortfalls: tuple[Shortfall, ...] = ()
        try:
            compiled = self._compile(self.profile, method, place)
        except (InfeasibleError, NoSolutionError) as error:
            shortfalls = self._shortfalls(method, place)
            reason = _memory_reason(shortfalls) or error.diagnostics[0].message
        except UsageError as error:
            reason = error.diagnostics[0].message
            return _Entry(Row(method=method, placement=place.name, outcome="does-not-apply", reason=reason))
        reached = None if compiled is None else _reached(compiled)
        own = reached
        if own is None and method in SCHEDULES:
            own = _reached(self._compile(self.free, method, place))
        row = Row(
            method=method,
            placement=place.name,
            outcome="fits" if reached else "does-not-fit",
            reached=reached,
            own=own,
            searched=self._at_peak_of(own, place) if method in SCHEDULES else None,
            reason=reason,
            shortfalls=shortfalls,
        )
        return _Entry(row, compiled.plan if compiled is not None else None)

    def _at_peak_of(self, own: Reached | None, place: _Place) -> Reached | None:
        """Return the best order known within exactly the memory that a schedule uses, the schedule included."""
        if own is None or not self.at_own:
            return None
        self.progress(f"{self.search} with the memory of {own.found_by} on placement {place.name}")
        compiled = self._search_within(place, own.peaks)
        if compiled is None or compiled.result.makespan_ns >= own.makespan_ns:
            return own
        return _reached(compiled)

    def _search_within(self, place: _Place, caps: Sequence[int], method: str | None = None) -> Compiled | None:
        method = method or self.search
        key = (method, place.name, tuple(caps))
        if key not in self._searched:
            try:
                self._searched[key] = self._compile(_with_memory(self.profile, caps), method, place)
            except (InfeasibleError, NoSolutionError):
                self._searched[key] = None
        return self._searched[key]

    def _compile(self, profile: Profile, method: str, place: _Place) -> Compiled:
        small = _num_ops(place.problem) <= _EXACT_OPS
        options = SolveOptions(
            method=method,
            placement=place.name,
            seed=self.seed,
            node_limit=_NODES if small and method != "auto" else None if small else 0,
        )
        return compile_profile(profile, options)

    def _shortfalls(self, method: str, place: _Place) -> tuple[Shortfall, ...]:
        """Return the devices on which a schedule, or the leanest order of all, does not fit."""
        problem = place.problem
        lean = method not in SCHEDULES
        schedule = serial_schedule(problem) if lean else static_schedule(method, problem)
        peaks = memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads)
        needed = [peak + extra for peak, extra in zip(peaks, receive_reserve(problem), strict=True)]
        return tuple(
            Shortfall(device=spec.id, needed_bytes=bytes_, capacity_bytes=spec.memory_bytes)
            for spec, bytes_ in zip(self.profile.devices, needed, strict=True)
            if spec.memory_bytes is not None and bytes_ > spec.memory_bytes
        )


def _places(free: Profile) -> Iterator[_Place]:
    """Yield the placements that differ, the profile's own first; `free` has no limits of memory."""
    for name, devices in placements(free, "auto"):
        try:
            yield _Place(name, normalize(free, placement=devices))
        except ProfileError as error:
            if name == "profile":
                raise
            yield _Place(name, normalize(free), error.diagnostics[0].message)
    try:
        ((name, devices),) = placements(free, "bidirectional")
    except UsageError as error:
        yield _Place("bidirectional", normalize(free), error.diagnostics[0].message)
        return
    try:
        yield _Place(name, normalize(free, placement=devices, flows=2))
    except (ProfileError, UsageError) as error:
        yield _Place(name, normalize(free), error.diagnostics[0].message)


def _refusal(method: str, problem: Problem) -> str:
    """Return why a method does not exist for a problem, or nothing."""
    if method in _EXACT:
        if _num_ops(problem) > _EXACT_OPS:
            return f"is tried on jobs of up to {_EXACT_OPS} ops, got {_num_ops(problem)}: cpipe solve --method {method}"
        return "" if problem.is_plain else "has no model of fused pairs that are shorter than their parts"
    if method not in SCHEDULES:
        return ""
    try:
        static_schedule(method, problem)
    except ValueError as error:
        return str(error)
    return ""


def _num_ops(problem: Problem) -> int:
    return 3 * problem.num_stages * problem.microbatches


def _least(problem: Problem) -> tuple[int, ...]:
    """Return the memory of each device [bytes] with which one microbatch at a time always fits."""
    peaks = memory_peaks(problem, serial_schedule(problem).orders)
    return tuple(peak + extra for peak, extra in zip(peaks, receive_reserve(problem), strict=True))


def _with_memory(profile: Profile, caps: Sequence[int | None]) -> Profile:
    devices = tuple(replace(spec, memory_bytes=cap) for spec, cap in zip(profile.devices, caps, strict=True))
    return replace(profile, devices=devices)


def _reached(compiled: Compiled) -> Reached:
    result, figures = compiled.result, plan_figures(compiled.plan)
    total = len(figures) * result.makespan_ns
    return Reached(
        makespan_ns=result.makespan_ns,
        bound_ns=result.bound.value_ns,
        proved_by=result.bound.proved_by,
        found_by=result.found_by,
        bubble=1 - sum(device.busy_ns for device in figures) / total if total else 0.0,
        peaks=compiled.plan.claims.peak_bytes,
    )


def _memory_reason(shortfalls: Sequence[Shortfall]) -> str:
    if not shortfalls:
        return ""
    worst = max(shortfalls, key=lambda entry: entry.short_bytes)
    others = f", and {len(shortfalls) - 1} more" if len(shortfalls) > 1 else ""
    return (
        f"needs {worst.needed_bytes} bytes on {worst.device}, which has {worst.capacity_bytes}: "
        f"short by {worst.short_bytes}{others}"
    )


def _key(row: Row) -> tuple[int, int]:
    """Return what rows are sorted by: time, then memory."""
    reached = row.reached or row.own
    return (0, 0) if reached is None else (reached.makespan_ns, reached.peak_bytes)


def _sorted(profile: Profile, entries: Sequence[_Entry]) -> Compared:
    """Return the comparison of all entries; equal ones stay in the order in which they were tried."""
    groups = ("fits", "does-not-fit", "does-not-apply")
    entries = sorted(entries, key=lambda entry: (groups.index(entry.row.outcome), *_key(entry.row)))
    rows = tuple(entry.row for entry in entries)
    comparison = Comparison(
        name=profile.name,
        num_stages=len(profile.stages),
        microbatches=profile.microbatches,
        devices=tuple(spec.id for spec in profile.devices),
        capacities=tuple(spec.memory_bytes for spec in profile.devices),
        rows=rows,
        front=on_front([_key(row) for row in rows if row.reached is not None]),
    )
    return Compared(comparison, tuple(entry.plan for entry in entries))
