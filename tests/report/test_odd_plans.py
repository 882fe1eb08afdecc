"""Tests that whatever plan can be read can be shown, in every form: nothing of a plan is trusted but its types."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from browser import Page, open_page
from view_cases import small_plan, small_view

from cpipe.ir import Plan
from cpipe.report.build_view import plan_view
from cpipe.report.document import encode_report
from cpipe.report.drawing import draw_plans
from cpipe.report.gantt import render_gantt
from cpipe.report.html import render_html
from cpipe.report.shown import show_report
from cpipe.report.shown_plan import shown
from cpipe.report.svg import render_svg
from cpipe.report.trace import encode_trace

NUMBERS = (None, -(2**62), -1, 0, 1, 2, 7, 10**9, 2**62)
OPS = ("F", "D", "W", "B", "FB", "SEND", "RECV", "WAIT", "ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE", "STEP")
FIELDS = ("stage", "mb", "channel", "group", "start_ns", "end_ns", "backward_stage", "backward_mb")


def odd_plan(seed: int) -> Plan:
    """Return a plan with random instructions changed at random, channels, claims and ranks too."""
    draw = Random(seed)
    plan = small_plan(3, 3)
    ranks = []
    for rank in plan.ranks:
        ops = list(rank.ops)
        for _ in range(draw.randint(0, 6)):
            at = draw.randrange(len(ops))
            changes: dict[str, Any] = {draw.choice(FIELDS): draw.choice(NUMBERS) for _ in range(draw.randint(0, 3))}
            if draw.random() < 0.4:
                changes["op"] = draw.choice(OPS)
            ops[at] = msgspec.structs.replace(ops[at], **changes)
        number = draw.choice((rank.rank, rank.rank, rank.rank, 0, -5, 2**40))
        ranks.append(msgspec.structs.replace(rank, ops=tuple(draw.sample(ops, len(ops))), rank=number))
    channels = tuple(
        msgspec.structs.replace(
            channel, **{draw.choice(("id", "source", "target", "window")): draw.choice(NUMBERS[1:])}
        )
        for channel in plan.channels
    )
    summary = msgspec.structs.replace(
        plan.problem, stages=draw.choice((3, 0, -1, 99)), placement=draw.choice(((0, 1, 2), (), (7, 7)))
    )
    claims = msgspec.structs.replace(
        plan.claims, makespan_ns=draw.choice((plan.claims.makespan_ns, 0, -3, 2**62)), peak_bytes=()
    )
    kept = tuple(draw.sample(ranks, draw.randint(0, 3)))
    return msgspec.structs.replace(plan, ranks=kept, channels=channels, problem=summary, claims=claims)


@pytest.mark.parametrize("seed", range(60))
def test_any_plan_can_be_shown(seed: int) -> None:
    """A plan of nonsense gives a chart, a well-formed picture, a page that names its ranks, a trace and a report."""
    plan = odd_plan(seed)
    for view in (plan_view(plan), plan_view(plan, small_view(3, 3).problem)):
        assert render_gantt(view.plan, width=60)
        ElementTree.fromstring(render_svg(draw_plans([view], ["odd"])))
        page = Page(render_html([view], ["odd"]).decode())
        assert [row[0][0] for row in page.rows("devices")] == [rank.device for rank in plan.ranks]
        assert json.loads(encode_trace([view], ["odd"]))["traceEvents"] is not None
        document = json.loads(encode_report(show_report([shown(view, "odd")])))
        assert len(document["plans"][0]["devices"]) == len(plan.ranks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 40])
def test_any_plan_can_be_looked_at(seed: int, tmp_path: Path) -> None:
    """The page of plans of nonsense draws them without a fault of its script."""
    views = [plan_view(odd_plan(seed)), plan_view(odd_plan(seed + 1), small_view(3, 3).problem)]
    path = tmp_path / "page.html"
    path.write_bytes(render_html(views, ["a", "b"]))
    page = open_page(path, "critical&select=0F1")
    assert page.root.get("data-ready") == "1"
    assert "data-errors" not in page.root
    assert sum(int(chart["data-drawn"] or 0) for chart in page.charts) > 0
