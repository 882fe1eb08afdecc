"""One self-contained page: the lanes of one plan, or of two, to look around in; no network, no other file.

The template, its style and its script are in ``page/``; the data stands in the page as JSON in whole nanoseconds. What
the tables show is written here, from the report that ``--json`` prints. Names are the user's: they reach the page only
escaped, and its content security policy lets no script run but the two that come with it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from cpipe.report.page_data import page_data
from cpipe.report.page_legend import legend, swatches
from cpipe.report.page_tables import channel_rows, device_rows, escaped, link_rows
from cpipe.report.shown import ShownPlan
from cpipe.report.shown_plan import shown
from cpipe.report.summary import verdict
from cpipe.report.time_axis import TimeWindow
from cpipe.report.view import PlanView

__all__ = ["render_html"]

_PAGE = files("cpipe.report") / "page"


def render_html(views: Sequence[PlanView], names: Sequence[str], window: TimeWindow | None = None) -> bytes:
    """Return the page.

    Parameters
    ----------
    views, names
        The plans, and the names of their files.
    window
        The part of time at which the page opens.

    Returns
    -------
    bytes
        HTML in ASCII; everything else is written as a character reference.
    """
    plans = [shown(view, name) for view, name in zip(views, names, strict=True)]
    scripts = {"watch": _read("watch.js"), "script": _read("page.js")}
    style = _read("page.css") + swatches()
    replayed = all(plan.replayed for plan in plans)
    page = Template(_read("page.html")).substitute(
        title=" and ".join(escaped(_name(plan)) for plan in plans),
        style=style,
        style_hash=_hash(style),
        script_hashes=" ".join(map(_hash, scripts.values())),
        columns="two" if len(plans) > 1 else "one",
        legend=legend(views),
        panels="\n".join(
            _panel(number, view, plan, len(plans) > 1)
            for number, (view, plan) in enumerate(zip(views, plans, strict=True))
        ),
        note=_NOTE_REPLAYED if replayed else _NOTE_ALONE,
        data=_json(page_data(views, names, window)),
        **scripts,
    )
    return page.encode("ascii", "xmlcharrefreplace")


_NOTE_REPLAYED = (
    "Times are those of the plan's replay on its profile. A message is solid while it holds its link and pale while "
    "it is on its way. Dashed: makespan, and in red the lower bound, or the capacity of a device."
)


_NOTE_ALONE = (
    "Times are the plan's own. Without a profile nobody knows when messages leave and arrive: a pale bar reaches from "
    "where a message is ready to where it is read, and memory is counted in microbatches."
)


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="ascii")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: dict[str, Any]) -> str:
    """Return the data as JSON that no HTML reader can take for a tag: ASCII, without ``<``."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _name(plan: ShownPlan) -> str:
    return plan.name or plan.file


def _panel(number: int, view: PlanView, plan: ShownPlan, several: bool) -> str:
    channels = f"<details><summary>Channels ({len(plan.channels)})</summary>{channel_rows(plan.channels)}</details>"
    return "\n".join(
        (
            f'<section class="panel" id="plan-{number}">',
            f"<h2>{escaped(_name(plan))}</h2>" if several else "",
            f"<p>{escape(verdict(view))}</p>",
            '<div class="chart" tabindex="0" role="img" aria-label="ranks over time"><canvas></canvas></div>',
            "<h3>Devices</h3>",
            device_rows(view, plan),
            "<h3>Links</h3>" + link_rows(plan.links) if plan.links else "",
            channels if plan.channels else "",
            "</section>",
        )
    )
