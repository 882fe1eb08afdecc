"""The text of `cpipe diff`: where two plans first differ, rank by rank, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cpipe.ir import Plan
from cpipe.report.diff import (
    DevicePair,
    DiffReport,
    FieldDifference,
    MessageDifference,
    OrderDifference,
    PlanDifference,
)
from cpipe.report.document import DeviceReport
from cpipe.report.summary import plan_line
from cpipe.report.tables import byte_unit, format_bytes, format_ms, format_percent, render_table
from cpipe.report.terminal import printable
from cpipe.units import ms_to_ns

__all__ = ["diff_lines"]

_NAMES = {"made_by": "origin", "problem": "problem", "digest": "digest"}
_DIGEST = len("sha256:") + 12


def diff_lines(report: DiffReport, plans: tuple[Plan, Plan]) -> str:
    """Return the text: the verdict, then both plans, their differences and the costs.

    Parameters
    ----------
    report
        Of the plans.
    plans
        The first and the second, ``a`` and ``b``.
    """
    if report.status == "identical":
        return "identical: the files are equal byte for byte"
    heads = [
        f"{side}: {printable(file)}: {plan_line(plan)}"
        for side, file, plan in zip("ab", report.plans, plans, strict=True)
    ]
    if report.status == "same":
        return "\n".join(["same: one plan, written differently", *heads])
    parts = ["\n".join([_verdict(report), *heads])]
    difference = PlanDifference(
        orders=report.orders, messages=report.messages, times=report.times, fields=report.fields
    )
    parts += [part for part in (_orders(difference), _messages(difference), _times(difference)) if part]
    parts += [_fields(report.fields)] if report.fields else []
    parts.append("\n".join(_costs(report)))
    return "\n\n".join(parts)


def _verdict(report: DiffReport) -> str:
    named = [_NAMES.get(section, section) for section in report.sections]
    same = [name for name in ("orders", "messages", "times") if name not in report.sections]
    if report.orders:
        same = []  # what else a rank does in another order cannot be held against anything
    return f"differ: {_joined(named)}" + (f" (the same {_joined(same)})" if same else "")


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _orders(difference: PlanDifference) -> str:
    return _places("Orders, where they first differ:", "ops", difference.orders)


def _messages(difference: PlanDifference) -> str:
    title = "Messages and collectives of ranks with the same order, where they first differ:"
    return _places(title, "steps", difference.messages)


def _places(title: str, what: str, ranks: Sequence[OrderDifference | MessageDifference]) -> str:
    """Return where each rank first differs, and in how many of its ops or steps; nothing without differences."""
    if not ranks:
        return ""
    rows = [
        (
            str(rank.rank),
            str(rank.position),
            rank.a or "none",
            rank.b or "none",
            f"{rank.num_different} of {rank.num_ops}",
        )
        for rank in ranks
    ]
    table = render_table(("rank", "position", "a", "b", f"{what} that differ"), rows, (">", ">", "<", "<", ">"))
    return f"{title}\n{table}"


def _times(difference: PlanDifference) -> str:
    if not difference.times:
        return ""
    rows = [
        (
            str(rank.rank),
            str(rank.position),
            rank.op,
            f"{_ms(rank.a_start_ms)} to {_ms(rank.a_end_ms)}",
            f"{_ms(rank.b_start_ms)} to {_ms(rank.b_end_ms)}",
            f"{rank.num_different} of {rank.num_ops}",
            _ms(rank.largest_ms),
        )
        for rank in difference.times
    ]
    titles = ("rank", "position", "op", "a ms", "b ms", "ops that differ", "at most ms")
    table = render_table(titles, rows, (">", ">", "<", ">", ">", ">", ">"))
    return f"Times of ranks with the same order, where they first differ:\n{table}"


def _fields(fields: tuple[FieldDifference, ...]) -> str:
    rows = [_field_row(field) for field in fields]
    return render_table(("field", "a", "b"), rows, ("<", "<", "<"))


def _field_row(field: FieldDifference) -> tuple[str, str, str]:
    """Return name and values; of two lists of one length, the first entry that differs."""
    name = field.name if field.section == "digest" else f"{field.section}.{field.name}"
    a, b = field.a, field.b
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        places = [index for index, (mine, theirs) in enumerate(zip(a, b, strict=True)) if mine != theirs]
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        return f"{name}[{places[0]}]{more}", _value(a[places[0]]), _value(b[places[0]])
    return name, _value(a), _value(b)


def _value(value: object) -> str:
    """Return text as it is, a digest by its first digits, nothing as "none", and the rest as JSON."""
    if isinstance(value, str) and value:
        return f"{value[:_DIGEST]}..." if value.startswith("sha256:") and len(value) > _DIGEST else value
    return "none" if value is None or value == "" else msgspec.json.encode(value).decode()


def _costs(report: DiffReport) -> Iterator[str]:
    """Yield the difference of the makespans, and the devices whose bubble or peak differs."""
    where = "on the profile" if report.profile_checked else "as claimed"
    a, b = report.a_makespan_ms, report.b_makespan_ms
    if a is None or b is None or report.difference_ms is None:
        known = "".join(f"; {name} takes {_ms(time)} ms" for name, time in (("a", a), ("b", b)) if time is not None)
        yield f"makespan {where}: not of both{known}"
    elif report.difference_ms == 0:
        yield f"makespan {where}: {_ms(a)} ms, the same"
    else:
        share = f" ({100 * report.difference_ms / a:+.2f} %)" if a else ""
        words = "more" if report.difference_ms > 0 else "less"
        yield f"makespan {where}: a {_ms(a)} ms, b {_ms(b)} ms, {_ms(abs(report.difference_ms))} ms {words}{share}"
    pairs = [pair for pair in report.devices if _figures(pair.a) != _figures(pair.b)]
    if not pairs:
        yield "bubble and peak memory of all devices: the same"
        return
    unit = _unit(pairs)
    rows = [(str(pair.rank), _name(pair), *_cells(pair.a, unit), *_cells(pair.b, unit)) for pair in pairs]
    rows = [(*row[:2], row[2], row[4], row[3], row[5]) for row in rows]
    titles = ("rank", "device", "bubble a", "bubble b", f"peak a {unit[1]}", f"peak b {unit[1]}")
    yield render_table(titles, rows, (">", "<", ">", ">", ">", ">"))
    if len(pairs) < len(report.devices):
        yield f"{len(report.devices) - len(pairs)} more with the same bubble and peak"


def _unit(pairs: Sequence[DevicePair]) -> tuple[int, str]:
    """Return the unit of the peaks: bytes where a larger one would hide a difference."""
    unit = byte_unit(max(device.peak_bytes for pair in pairs for device in (pair.a, pair.b) if device is not None))
    both = [(pair.a.peak_bytes, pair.b.peak_bytes) for pair in pairs if pair.a is not None and pair.b is not None]
    hidden = any(a != b and format_bytes(a, unit) == format_bytes(b, unit) for a, b in both)
    return byte_unit(1) if hidden else unit


def _figures(device: DeviceReport | None) -> tuple[float, int] | None:
    return None if device is None else (device.bubble, device.peak_bytes)


def _name(pair: DevicePair) -> str:
    names = dict.fromkeys(device.id for device in (pair.a, pair.b) if device is not None)
    return " / ".join(names)


def _cells(device: DeviceReport | None, unit: tuple[int, str]) -> tuple[str, str]:
    if device is None:
        return "none", "none"
    return format_percent(device.bubble), format_bytes(device.peak_bytes, unit)


def _ms(time_ms: float | None) -> str:
    return "?" if time_ms is None else format_ms(ms_to_ns(time_ms))
