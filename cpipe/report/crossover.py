"""The text of `cpipe crossover`: both sides by bandwidth, and where the faster one changes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Literal

from cpipe.ir.crossing import Crossing, Crossover, LinkPoint, Rival
from cpipe.report.tables import byte_unit, format_bytes, format_ms, format_percent, render_table
from cpipe.report.terminal import printable

__all__ = ["RIVALS", "crossing_text", "crossover_csv", "crossover_lines"]

RIVALS: dict[Rival, str] = {"overlapped": "overlapped all-reduce", "plain": "all-reduce at the end"}
"""What the pipeline is compared with, in words."""


def crossover_lines(found: Crossover) -> str:
    """Return the page."""
    gradient, message = byte_unit(found.gradient_bytes), byte_unit(found.message_bytes)
    name = f"{printable(found.name)}: " if found.name else ""
    lines = [
        f"{name}{found.num_devices} devices in two sites, {found.num_stages} stages, "
        f"{found.microbatches} microbatches; latency {format_ms(found.latency_ns)} ms each way",
        f"across the link go messages of {format_bytes(found.message_bytes, message)} {message[1]}, "
        f"or an all-reduce of {format_bytes(found.gradient_bytes, gradient)} {gradient[1]}",
        f"without delay {format_ms(found.local.makespan_ns)} ms, without bubbles too {format_ms(found.ideal_ns)} ms",
        "",
        _table(found),
        "",
        *(crossing_text(crossing) for crossing in found.crossings),
        *_one_sided(found),
        f"{found.num_solves} searches; every order that was found counts at every bandwidth",
    ]
    return "\n".join(lines)


def crossing_text(crossing: Crossing) -> str:
    """Return one sentence about a change of sides."""
    sides = ("pipeline across the link", RIVALS[crossing.rival])
    below, above = sides if crossing.below == "pipeline" else (sides[1], sides[0])
    return (
        f"{below} is faster below about {crossing.gbit_s:.5g} Gbit/s, {above} above "
        f"(between {crossing.low_gbit_s:.6g} and {crossing.high_gbit_s:.6g})"
    )


def crossover_csv(found: Crossover) -> bytes:
    """Return one line per bandwidth; times are [ms]."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["bandwidth_gbit_s", "pipeline_ms", "pipeline_bound_ms", "pipeline_found_by", "overlapped_ms", "plain_ms"]
    )
    for point in found.points:
        pipeline = point.pipeline
        writer.writerow(
            [
                point.gbit_s,
                *(pipeline.makespan_ns / 1e6, pipeline.bound_ns / 1e6, pipeline.found_by),
                *(point.overlapped.makespan_ns / 1e6, point.plain.makespan_ns / 1e6),
            ]
        )
    return text.getvalue().encode()


def _table(found: Crossover) -> str:
    points, ideal = found.points, found.ideal_ns
    columns: list[tuple[str, Literal["<", ">"], list[str]]] = [
        ("Gbit/s", ">", [f"{point.gbit_s:.6g}" for point in points]),
        ("pipeline ms", ">", [format_ms(point.pipeline.makespan_ns) for point in points]),
        ("x ideal", ">", [f"{point.pipeline.makespan_ns / ideal:.3f}" if ideal else "none" for point in points]),
        ("gap", ">", [format_percent(point.pipeline.gap) for point in points]),
        ("overlapped ms", ">", [format_ms(point.overlapped.makespan_ns) for point in points]),
        ("/ pipeline", ">", [_ratio(point, "overlapped") for point in points]),
        ("at the end ms", ">", [format_ms(point.plain.makespan_ns) for point in points]),
        ("/ pipeline", ">", [_ratio(point, "plain") for point in points]),
    ]
    headers, align, cells = zip(*columns, strict=True)
    return render_table(headers, list(zip(*cells, strict=True)), align)


def _ratio(point: LinkPoint, rival: Rival) -> str:
    ahead, time = point.ahead_ns(rival), max(1, point.pipeline.makespan_ns)
    return f"{(point.pipeline.makespan_ns + ahead) / time:.3f}"


def _one_sided(found: Crossover) -> Iterator[str]:
    """Yield what is to be said of a rival that never changes places with the pipeline."""
    for rival, name in RIVALS.items():
        if any(crossing.rival == rival for crossing in found.crossings):
            continue
        faster = found.points[0].ahead_ns(rival) > 0
        sides = ("pipeline across the link", name)
        first, second = sides if faster else (sides[1], sides[0])
        verb = "is faster than" if faster else "is no slower than"
        yield f"{first} {verb} {second} at all of these bandwidths"
