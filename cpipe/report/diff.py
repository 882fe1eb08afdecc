"""Two plans against each other: where they differ, rank by rank, and the JSON report of `cpipe diff`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from cpipe.errors import Diagnostic
from cpipe.ir import Instruction, Plan, RankProgram
from cpipe.ir.base import Frozen
from cpipe.report.document import DeviceReport, DiagnosticReport, device_report, diagnostic_reports
from cpipe.report.figures import COMPUTE, DeviceFigures
from cpipe.units import ns_to_ms

__all__ = [
    "SECTIONS",
    "DevicePair",
    "DiffReport",
    "FieldDifference",
    "MessageDifference",
    "OrderDifference",
    "PlanDifference",
    "Section",
    "TimeDifference",
    "compare_plans",
    "diff_report",
]

Section = Literal[
    "orders",
    "messages",
    "times",
    "claims",
    "channels",
    "groups",
    "devices",
    "problem",
    "made_by",
    "extensions",
    "digest",
]
"""A part of a plan in which two can differ; ``digest`` when that is all."""

SECTIONS: tuple[Section, ...] = Section.__args__  # type: ignore[attr-defined]


class OrderDifference(Frozen, frozen=True, kw_only=True):
    """A rank that computes in another order.

    Attributes
    ----------
    rank
        Its number.
    position
        Index of the first compute op that differs.
    a, b
        The ops there, as in ``2F0`` (stage, kind, microbatch); null behind the end of a program.
    num_different
        Number of positions whose ops differ.
    num_ops
        Number of compute ops of the longer program.
    """

    rank: int
    position: int
    a: str | None
    b: str | None
    num_different: int
    num_ops: int


class MessageDifference(Frozen, frozen=True, kw_only=True):
    """A rank that computes in the same order and posts or awaits messages or collectives elsewhere.

    `position` is the index in the rank's ``ops``, `a` and `b` are the steps there, null behind the end of a program.
    """

    rank: int
    position: int
    a: str | None
    b: str | None
    num_different: int
    num_ops: int


class TimeDifference(Frozen, frozen=True, kw_only=True):
    """A rank that computes in the same order at other times; its first op that does [ms].

    `position` is the index among compute ops, `largest_ms` the largest shift of any start or end on the rank; times
    that a plan does not state are null.
    """

    rank: int
    position: int
    op: str
    a_start_ms: float | None
    a_end_ms: float | None
    b_start_ms: float | None
    b_end_ms: float | None
    num_different: int
    num_ops: int
    largest_ms: float


class FieldDifference(Frozen, frozen=True, kw_only=True):
    """A value outside the programs: `section` and `name` say which; null is for what a plan does not have."""

    section: Section
    name: str
    a: Any
    b: Any


class PlanDifference(Frozen, frozen=True, kw_only=True):
    """All in which two plans differ; of a rank's order, messages and times the first place each."""

    orders: tuple[OrderDifference, ...] = ()
    messages: tuple[MessageDifference, ...] = ()
    times: tuple[TimeDifference, ...] = ()
    fields: tuple[FieldDifference, ...] = ()

    @property
    def sections(self) -> tuple[Section, ...]:
        """The parts that differ."""
        named = {field.section for field in self.fields}
        parts = {"orders": self.orders, "messages": self.messages, "times": self.times}
        return tuple(section for section in SECTIONS if parts.get(section) or section in named)


class DevicePair(Frozen, frozen=True, kw_only=True):
    """One rank in both plans; null where one has no such rank."""

    rank: int
    a: DeviceReport | None
    b: DeviceReport | None


class DiffReport(Frozen, frozen=True, kw_only=True):
    """In what two plans differ.

    Attributes
    ----------
    status
        ``identical``: the files are equal byte for byte; ``same``: the same plan, written differently; ``differ``;
        ``error``.
    plans
        Names of the files, `a` first.
    sections
        The parts that differ.
    same_problem
        Whether both were made for one problem; else their times are of different costs.
    profile_checked
        Whether makespans and devices are those of a replay on one profile, not the plans' own claims.
    a_makespan_ms, b_makespan_ms, difference_ms
        Null for a plan that was not replayed; difference_ms = b - a [ms].
    orders, messages, times, fields
        The first difference of each rank, and every other field that differs.
    devices
        By rank.
    diagnostics
        Errors and warnings.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["diff"] = "diff"
    status: Literal["identical", "same", "differ", "error"]
    plans: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    same_problem: bool | None = None
    profile_checked: bool | None = None
    a_makespan_ms: float | None = None
    b_makespan_ms: float | None = None
    difference_ms: float | None = None
    orders: tuple[OrderDifference, ...] = ()
    messages: tuple[MessageDifference, ...] = ()
    times: tuple[TimeDifference, ...] = ()
    fields: tuple[FieldDifference, ...] = ()
    devices: tuple[DevicePair, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


def compare_plans(a: Plan, b: Plan) -> PlanDifference:
    """Compare two plans, valid or not, of one job or of two; ranks are matched by their numbers."""
    mine, theirs = ({program.rank: program for program in reversed(plan.ranks)} for plan in (a, b))
    orders: list[OrderDifference] = []
    messages: list[MessageDifference] = []
    times: list[TimeDifference] = []
    for rank in sorted(mine.keys() & theirs.keys()):
        pair = mine[rank].ops, theirs[rank].ops
        computed = [[step for step in ops if step.op in COMPUTE] for ops in pair]
        labels = [[_label(step) for step in steps] for steps in computed]
        if labels[0] != labels[1]:
            orders.append(OrderDifference(rank=rank, **_first(*labels)))
            continue
        programs = [[_label(step) for step in ops] for ops in pair]
        if programs[0] != programs[1]:
            messages.append(MessageDifference(rank=rank, **_first(*programs)))
        timed = [[step for step in ops if step.op in COMPUTE or step.start_ns is not None] for ops in pair]
        if [step.op for step in timed[0]] != [step.op for step in timed[1]]:
            timed = computed
        times += _times(rank, *timed)
    found = PlanDifference(
        orders=tuple(orders),
        messages=tuple(messages),
        times=tuple(times),
        fields=tuple(_fields(a, b, mine, theirs)),
    )
    if not found.sections and a.digest != b.digest:
        return replace(found, fields=(FieldDifference(section="digest", name="digest", a=a.digest, b=b.digest),))
    return found


def _label(step: Instruction) -> str:
    """Return an instruction without its times: ``2F0``, ``2F3+1B0``, ``SEND 2.0 channel 1``, ``STEP``."""
    stage, mb = ("?" if value is None else value for value in (step.stage, step.mb))
    if step.op == "FB":
        return f"{stage}F{mb}+{step.backward_stage}B{step.backward_mb}"
    if step.op in COMPUTE:
        return f"{stage}{step.op}{mb}"
    place = "" if step.stage is None else f" {stage}" if step.mb is None else f" {stage}.{mb}"
    channel = "" if step.channel is None else f" channel {step.channel}"
    group = "" if step.group is None else f" group {step.group}"
    return f"{step.op}{place}{channel}{group}"


def _first(a: Sequence[str], b: Sequence[str]) -> dict[str, Any]:
    """Return where two unequal programs first differ, and in how many places."""
    places = [index for index, (mine, theirs) in enumerate(zip_longest(a, b)) if mine != theirs]
    first = places[0]
    return {
        "position": first,
        "a": a[first] if first < len(a) else None,
        "b": b[first] if first < len(b) else None,
        "num_different": len(places),
        "num_ops": max(len(a), len(b)),
    }


def _times(rank: int, a: Sequence[Instruction], b: Sequence[Instruction]) -> Iterator[TimeDifference]:
    """Yield the difference of two equal orders in their times, if there is one."""
    pairs = [(mine.start_ns, mine.end_ns, theirs.start_ns, theirs.end_ns) for mine, theirs in zip(a, b, strict=True)]
    places = [index for index, times in enumerate(pairs) if times[:2] != times[2:]]
    if not places:
        return
    shifts = [
        abs((late or 0) - (early or 0))
        for index in places
        for early, late in zip(pairs[index], pairs[index][2:])  # noqa: B905
    ]
    first = [None if time is None else ns_to_ms(time) for time in pairs[places[0]]]
    yield TimeDifference(
        rank=rank,
        position=places[0],
        op=_label(a[places[0]]),
        a_start_ms=first[0],
        a_end_ms=first[1],
        b_start_ms=first[2],
        b_end_ms=first[3],
        num_different=len(places),
        num_ops=len(pairs),
        largest_ms=ns_to_ms(max(shifts)),
    )


def _fields(
    a: Plan, b: Plan, mine: dict[int, RankProgram], theirs: dict[int, RankProgram]
) -> Iterator[FieldDifference]:
    """Yield every difference outside the programs, section by section."""
    yield from _struct("claims", a.claims, b.claims)
    yield from _named("channels", *({_ends(row): row for row in msgspec.to_builtins(plan.channels)} for plan in (a, b)))
    yield from _named(
        "groups", *({f"group {row['id']}": row for row in msgspec.to_builtins(plan.groups)} for plan in (a, b))
    )
    yield from _named("devices", *({f"rank {rank}": of[rank].device for rank in sorted(of)} for of in (mine, theirs)))
    yield from _struct("problem", a.problem, b.problem)
    yield from _struct("made_by", a.made_by, b.made_by)
    extensions = [{} if plan.extensions is msgspec.UNSET else plan.extensions for plan in (a, b)]
    yield from _named("extensions", *extensions)


def _ends(channel: dict[str, Any]) -> str:
    return f"{channel['source']} -> {channel['target']} {channel['carries']}"


def _struct(section: Section, a: msgspec.Struct, b: msgspec.Struct) -> Iterator[FieldDifference]:
    """Yield the fields that differ, in the order of the type."""
    return _named(section, *({name: getattr(value, name) for name in value.__struct_fields__} for value in (a, b)))


def _named(section: Section, a: dict[str, Any], b: dict[str, Any]) -> Iterator[FieldDifference]:
    for name in dict.fromkeys((*a, *b)):
        mine, theirs = a.get(name), b.get(name)
        if isinstance(mine, dict) and isinstance(theirs, dict) and section != "extensions":
            for inner in _named(section, mine, theirs):
                yield replace(inner, name=f"{name}.{inner.name}")
        elif mine != theirs or (name in a) != (name in b):
            yield FieldDifference(section=section, name=name, a=mine, b=theirs)


def diff_report(
    difference: PlanDifference,
    plans: tuple[Plan, Plan],
    files: tuple[str, str],
    makespans: tuple[int | None, int | None],
    figures: tuple[Sequence[DeviceFigures], Sequence[DeviceFigures]],
    diagnostics: Sequence[Diagnostic] = (),
    *,
    identical: bool,
    profile_checked: bool,
) -> DiffReport:
    """Return the report of two plans that could be read.

    Parameters
    ----------
    difference
        Of `plans`.
    plans, files
        The plans and their names.
    makespans
        Of the replays, or claimed [ns]; None where there is none.
    figures
        Of the same, by rank; empty where there is none.
    diagnostics
        Errors and warnings.
    identical
        Whether the files are equal byte for byte.
    profile_checked
        Whether both were replayed on one profile.
    """
    sections = difference.sections
    mine, theirs = makespans
    reports = [[device_report(device) for device in devices] for devices in figures]
    return DiffReport(
        status="differ" if sections else "identical" if identical else "same",
        plans=files,
        sections=sections,
        same_problem=plans[0].problem.digest == plans[1].problem.digest,
        profile_checked=profile_checked,
        a_makespan_ms=None if mine is None else ns_to_ms(mine),
        b_makespan_ms=None if theirs is None else ns_to_ms(theirs),
        difference_ms=None if mine is None or theirs is None else ns_to_ms(theirs - mine),
        orders=difference.orders,
        messages=difference.messages,
        times=difference.times,
        fields=difference.fields,
        devices=tuple(
            DevicePair(rank=rank, a=first, b=second) for rank, (first, second) in enumerate(zip_longest(*reports))
        ),
        diagnostics=diagnostic_reports(diagnostics),
    )
