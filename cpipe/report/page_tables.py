"""The tables of the page, written from the report; each number stands behind its cell as the report has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from cpipe.report.shown import ChannelReport, LinkReport, ShownPlan
from cpipe.report.summary import stage_ranges
from cpipe.report.tables import byte_unit, format_bytes, format_percent
from cpipe.report.terminal import printable
from cpipe.report.view import PlanView

__all__ = ["channel_rows", "device_rows", "escaped", "link_rows"]

Cell = tuple[str, float | int | str | None]
"""What a cell shows, and the number of the report that it shows."""


def _table(name: str, headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    rows = list(rows)
    words = [' class="words"' * isinstance(value, str) for _, value in rows[0]] if rows else [""] * len(headers)
    head = "".join(f"<th{kind}>{escape(header)}</th>" for header, kind in zip(headers, words, strict=True))
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody>"
    return f'<div class="scroll"><table data-table="{name}">{table}</table></div>'


def _cell(cell: Cell) -> str:
    text, value = cell
    kind = ' class="words"' if isinstance(value, str) else "" if value is None else f' data-value="{value!r}"'
    return f"<td{kind}>{escaped(text)}</td>"


def _ms(value: float | None) -> Cell:
    return ("unknown" if value is None else f"{value:.3f}", value)


def _percent(value: float | None) -> Cell:
    return ("unknown" if value is None else format_percent(value), value)


def device_rows(view: PlanView, plan: ShownPlan) -> str:
    """Return the table of devices; columns that need a profile are there with one."""
    devices = plan.devices
    sizes = [device.peak_bytes for device in devices]
    sizes += [size for device in devices for size in (device.static_bytes, device.capacity_bytes) if size is not None]
    unit = byte_unit(max(sizes, default=0))
    with_profile = any(device.static_bytes is not None for device in devices)
    headers = ["device", "stages", "busy ms", "bubble", "in flight", f"peak {unit[1]}"]
    headers += [f"static {unit[1]}", f"capacity {unit[1]}"] if with_profile else []

    def in_bytes(size: int | None) -> Cell:
        return ("none" if size is None else format_bytes(size, unit), size)

    rows: list[list[Cell]] = []
    for figures, device in zip(view.shown_figures, devices, strict=True):
        row: list[Cell] = [(device.id, device.id), (stage_ranges(figures.stages), "")]
        row += [_ms(device.busy_ms), _percent(device.bubble), (str(figures.in_flight), figures.in_flight)]
        row.append(in_bytes(device.peak_bytes))
        rows.append([*row, in_bytes(device.static_bytes), in_bytes(device.capacity_bytes)] if with_profile else row)
    return _table("devices", headers, rows)


def link_rows(links: Sequence[LinkReport]) -> str:
    """Return the table of links."""
    rows: list[list[Cell]] = [
        [
            (link.name, link.name),
            (str(link.num_messages), link.num_messages),
            _ms(link.busy_ms),
            _percent(link.utilisation),
        ]
        for link in links
    ]
    return _table("links", ("link", "messages", "busy ms", "utilisation"), rows)


def channel_rows(channels: Sequence[ChannelReport]) -> str:
    """Return the table of channels."""
    rows = []
    for channel in channels:
        row: list[Cell] = [
            (f"{channel.source} to {channel.target}", ""),
            (channel.carries, ""),
            (channel.link or "unknown", ""),
        ]
        row += [(str(channel.num_messages), channel.num_messages), _ms(channel.busy_ms), _percent(channel.utilisation)]
        rows.append([*row, _ms(channel.idle_ms)])
    headers = ("channel", "carries", "link", "messages", "busy ms", "utilisation", "receiver idle ms")
    return _table("channels", headers, rows)


def escaped(text: str) -> str:
    """Return a user's text for the page."""
    return escape(printable(text))
