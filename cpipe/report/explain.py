"""The page of `cpipe explain`: why a plan takes as long as it does, in plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from cpipe.ir import Plan
from cpipe.ir.explanation import Explanation, IdleCause, Segment, WhatIf
from cpipe.report.explained import Share, path_shares
from cpipe.report.figures import DeviceFigures
from cpipe.report.summary import device_table, load_line, outline
from cpipe.report.tables import byte_unit, format_bytes, format_ms, format_percent, render_table
from cpipe.report.terminal import printable

__all__ = ["explain_lines"]

_CAUSES: tuple[tuple[IdleCause, str], ...] = (
    ("warm-up", "warm-up"),
    ("upstream", "upstream"),
    ("link", "on links"),
    ("memory", "memory"),
    ("data-parallel", "data par."),
    ("copy", "copies"),
    ("other", "other"),
    ("tail", "tail"),
    ("step", "step"),
)
_KIND_NAMES = {
    "compute": "compute on {device}",
    "bandwidth": "bandwidth of {link}",
    "latency": "latency of {link}",
    "transfer": "messages {link}",
    "collective": "data-parallel collectives of {device}",
    "copy": "copies between {device} and host memory",
    "step": "the step of all devices at the end",
    "unknown": "not explained by the plan's times",
}
_CHANGES = {
    "none": "nothing: the same job",
    "latency": "10 % less latency, {subject}",
    "bandwidth": "10 % more bandwidth, {subject}",
    "collectives": "10 % faster collectives",
    "memory": "10 % more memory, {subject}",
    "less-memory": "10 % less memory than used, {subject}",
}


def explain_lines(
    plan: Plan, explanation: Explanation, figures: Sequence[DeviceFigures], *, top: int, has_profile: bool
) -> str:
    """Return the page.

    Parameters
    ----------
    plan
        The plan.
    explanation
        Of it.
    figures
        Of the same replay, in rank order.
    top
        Rows of each list that may be long.
    has_profile
        Whether a profile gave costs; if not, the page says what cannot be told.
    """
    names = [printable(device.name) for device in figures]
    parts = [
        _head(plan, explanation),
        _made_of(explanation, names, top),
        _path(explanation, names, top),
        _devices(figures),
        _idle(explanation, figures),
        _waits(explanation, top),
        _what_ifs(explanation, top),
    ]
    if not has_profile:
        parts.append(
            "A plan does not say what links and memory cost. With --profile messages are split into\n"
            "latency, bandwidth and queueing, and waits for memory and what-ifs are told."
        )
    return "\n\n".join(part for part in parts if part)


def _head(plan: Plan, explanation: Explanation) -> str:
    """Return what the plan is, how good it is, who says so and where it comes from."""
    problem, made_by, bound = plan.problem, plan.made_by, explanation.bound
    name = f"{printable(problem.name)}: " if problem.name else ""
    lines = [
        f"{name}{outline(problem)}",
        f"makespan {format_ms(explanation.makespan_ns)} ms",
    ]
    what = "makespan"
    if explanation.objective == "span":
        lines[-1] += f", span {format_ms(explanation.reached_ns)} ms, which was minimised"
        what = "span"
    if explanation.status == "optimal":
        lines.append(f"optimal: no order has a shorter {what}")
    elif bound.value_ns:
        saved = format_ms(explanation.reached_ns - bound.value_ns)
        lines.append(f"feasible: a better order saves at most {saved} ms ({format_percent(explanation.gap)})")
    else:
        lines.append("feasible: nobody knows how much a better order would save")
    reason = f", {printable(bound.reason)}" if bound.reason else ""
    if bound.value_ns or explanation.status == "optimal":
        prover = "a closed form" if bound.proved_by == "bound" else printable(bound.proved_by)
        lines.append(f"bound: {format_ms(bound.value_ns)} ms{reason}, proved by {prover}")
    else:
        lines.append(f"bound: none{reason}")
    how = [f"found by {printable(made_by.found_by)}"] if made_by.found_by else []
    how += [f"method {printable(made_by.method)}", f"seed {made_by.seed}"]
    how += [f"{made_by.evaluations} orders timed"] if made_by.evaluations else []
    how += [f"{made_by.solver_nodes} solver nodes"] if made_by.solver_nodes else []
    lines.append(f"order: {', '.join(how)}")
    return "\n".join(lines)


def _made_of(explanation: Explanation, names: Sequence[str], top: int) -> str:
    """Return what the critical path is made of: by kind in a sentence, by device and link in a table."""
    if not explanation.path:
        return "Nothing in this job takes time."
    shares, whole = path_shares(explanation.path), explanation.makespan_ns
    if len(shares) == top + 1:
        top += 1  # a line for one more is no shorter than that one
    rows = [
        (format_ms(share.length), format_percent(share.length / whole), _share(share, explanation, names))
        for share in shares[:top]
    ]
    rest = sum(share.length for share in shares[top:])
    if rest:
        rows.append((format_ms(rest), format_percent(rest / whole), f"{len(shares) - top} more"))
    kinds: dict[str, int] = {}
    for share in shares:
        kinds[share.kind] = kinds.get(share.kind, 0) + share.length
    total = ", ".join(
        f"{kind} {format_percent(length / whole)}" for kind, length in sorted(kinds.items(), key=lambda item: -item[1])
    )
    table = render_table(("ms", "share", ""), rows, (">", ">", "<"))
    return f"What the makespan is made of, along one critical path:\n{total}\n\n{table}"


def _share(share: Share, explanation: Explanation, names: Sequence[str]) -> str:
    link = "" if share.pipe is None else explanation.pipes[share.pipe]
    device = names[share.device] if share.device >= 0 else ""
    return _KIND_NAMES[share.kind].format(device=device, link=link)


class _Run(NamedTuple):
    """Pieces of the path on one device, or of one kind of message on one pipe, one after the other."""

    pieces: tuple[Segment, ...]

    @property
    def length(self) -> int:
        return self.pieces[-1].end_ns - self.pieces[0].start_ns


def _path(explanation: Explanation, names: Sequence[str], top: int) -> str:
    """Return the critical path: the longest runs in order of time, the others counted where they are left out."""
    runs = [_Run(tuple(pieces)) for _, pieces in groupby(explanation.path, key=_place)]
    if not runs:
        return ""
    order = sorted(range(len(runs)), key=lambda index: (-runs[index].length, index))
    kept = set(order[:top])
    rows: list[tuple[str, str, str, str]] = []
    what = ""
    for shown, group in groupby(range(len(runs)), key=lambda index: index in kept):
        indices = list(group)
        if shown or len(indices) == 1:  # a line for one that is left out is no shorter than that one
            rows += [_run_row(runs[index], explanation, names) for index in indices]
        else:
            start, length = runs[indices[0]].pieces[0].start_ns, sum(runs[index].length for index in indices)
            rows.append((format_ms(start), format_ms(length), "...", f"{len(indices)} shorter"))
            what = f", its longest runs of {len(runs)}"
    table = render_table(("from ms", "ms", "where", "what"), rows, (">", ">", "<", "<"))
    return f"The critical path{what}:\n{table}"


def _place(piece: Segment) -> tuple[object, ...]:
    if piece.pipe is not None:
        return "message", piece.pipe, piece.carries
    return piece.kind, piece.device


def _run_row(run: _Run, explanation: Explanation, names: Sequence[str]) -> tuple[str, str, str, str]:
    first = run.pieces[0]
    if first.pipe is not None:
        where = explanation.pipes[first.pipe]
    else:
        where = names[first.device] if first.device >= 0 else "all" if first.kind == "step" else "?"
    return format_ms(first.start_ns), format_ms(run.length), where, ", ".join(_run_words(run))


def _run_words(run: _Run) -> Iterator[str]:
    first = run.pieces[0]
    labels = list(dict.fromkeys(piece.label for piece in run.pieces))
    if first.kind == "unknown":
        yield "the plan's times do not say"
    elif first.pipe is not None:
        yield f"{first.carries} of {_labels(labels)}"
        if sum(piece.follows == "queue" for piece in run.pieces):
            yield "queued for the link"
        if any(piece.follows == "window" for piece in run.pieces):
            yield "waited for a posted receive"
        if any(piece.follows == "send" for piece in run.pieces):
            yield "sent late"
    else:
        yield _labels(labels)
        held = [piece.label for piece in run.pieces if piece.follows == "memory"]
        if held:
            yield f"{_labels(held)} held back by memory"


def _labels(labels: Sequence[str]) -> str:
    """Return a few labels as they are, more as first, last and number."""
    return " ".join(labels) if len(labels) <= 3 else f"{labels[0]} .. {labels[-1]} ({len(labels)})"


def _devices(figures: Sequence[DeviceFigures]) -> str:
    """Return the table of devices, the bottleneck, and who is fullest and why."""
    lines = [device_table(figures), "", load_line(figures)]
    if any(device.peak_bytes for device in figures):
        fullest = max(figures, key=lambda device: device.peak_bytes)
        unit = byte_unit(fullest.peak_bytes)
        held = f"{fullest.in_flight} microbatch{'es' if fullest.in_flight != 1 else ''}"
        size = f"{format_bytes(fullest.peak_bytes, unit)} {unit[1]}"
        lines.append(f"fullest: device {printable(fullest.name)}, {size}: up to {held} await their gradients there")
    return "\n".join(lines)


def _idle(explanation: Explanation, figures: Sequence[DeviceFigures]) -> str:
    """Return idle times by device and cause, then the waits by link."""
    if not explanation.idle:
        return ""
    sums: dict[tuple[int, IdleCause], int] = {}
    for part in explanation.idle:
        sums[part.device, part.cause] = sums.get((part.device, part.cause), 0) + part.length_ns
    causes = [(cause, title) for cause, title in _CAUSES if any(key[1] == cause for key in sums)]
    rows = [
        (device.name, *(format_ms(sums.get((index, cause), 0)) for cause, _ in causes))
        for index, device in enumerate(figures)
    ]
    align: list[Literal["<", ">"]] = ["<"]
    align += [">"] * len(causes)
    table = render_table(("device", *(title for _, title in causes)), rows, align)
    return f"Where devices are idle [ms]:\n{table}"


def _waits(explanation: Explanation, top: int) -> str:
    """Return one line for each link and kind of message that devices waited for, longest first."""
    waits: dict[tuple[int, str], list[int]] = {}
    for part in explanation.idle:
        if part.pipe is not None and part.carries is not None:
            both = waits.setdefault((part.pipe, part.carries), [0, 0])
            both[part.cause == "link"] += part.length_ns
    if not waits:
        return ""
    ordered = sorted(waits.items(), key=lambda entry: -sum(entry[1]))
    rows = [
        (f"{carries}s {explanation.pipes[pipe]}", format_ms(upstream + link), format_ms(upstream), format_ms(link))
        for (pipe, carries), (upstream, link) in ordered[:top]
    ]
    titles = ("", "ms", "not made yet", "on the link")
    more = f"\n{len(ordered) - top} more" if len(ordered) > top else ""
    return f"What they wait for:\n{render_table(titles, rows, ('<', '>', '>', '>'))}{more}"


def _what_ifs(explanation: Explanation, top: int) -> str:
    """Return the what-ifs: the plan's own order, the best one known, the change and what a proof leaves open."""
    cases = [case for case in explanation.what_ifs if case.change != "microbatch"]
    if not explanation.what_ifs:
        return ""
    shown = cases if len(cases) <= top + 1 else _most_telling(cases, top)
    rows = [_what_if(case, explanation) for case in shown]
    titles = ("what if", "same order", "best order", "change", "at best")
    lines = ["What a change would give: makespan [ms]", render_table(titles, rows, ("<", ">", ">", ">", ">"))]
    if len(shown) < len(cases):
        lines.append(f"{len(cases) - len(shown)} more that change less (--top shows more)")
    if (
        all(case.found_ns == case.replay_ns and not case.evaluations for case in cases)
        and explanation.status != "optimal"
    ):
        lines.append("no other order was looked for: the job is too large for that, or has several flows")
    lines += [_more_microbatches(case, explanation) for case in explanation.what_ifs if case.change == "microbatch"]
    return "\n".join(lines)


def _most_telling(cases: Sequence[WhatIf], top: int) -> list[WhatIf]:
    """Return the unchanged job, and of the rest those that change most, in their order."""
    order = sorted(range(1, len(cases)), key=lambda index: (cases[index].found_ns or 0, index))
    kept = {0, *order[:top]}
    return [case for index, case in enumerate(cases) if index in kept]


def _what_if(case: WhatIf, explanation: Explanation) -> tuple[str, str, str, str, str]:
    subject = "all" if case.subject is None else case.subject
    now = explanation.makespan_ns
    return (
        _CHANGES[case.change].format(subject=subject),
        "does not fit" if case.replay_ns is None else format_ms(case.replay_ns),
        "none found" if case.found_ns is None else format_ms(case.found_ns),
        "" if case.found_ns is None else _change(case.found_ns, now),
        _change(case.bound_ns, now),
    )


def _change(value: int, now: int) -> str:
    if value == now or not now:
        return "0 %"
    return f"{100 * (value - now) / now:+.2f} %"


def _more_microbatches(case: WhatIf, explanation: Explanation) -> str:
    now, number = explanation.makespan_ns, case.microbatches - 1
    if case.found_ns is None:
        return f"{case.microbatches} microbatches: no order was found"
    more = case.found_ns - now
    return (
        f"{case.microbatches} microbatches in place of {number}: {format_ms(case.found_ns)} ms, "
        f"{format_ms(abs(more))} ms {'more' if more >= 0 else 'less'}\n"
        f"a microbatch then takes {format_ms(case.found_ns // case.microbatches)} ms "
        f"in place of {format_ms(now // number)} ms"
    )
