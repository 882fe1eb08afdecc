"""Tests of cpipe.report.html and its page: what stands in it, and what it does in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from browser import Page, open_page
from sample_plans import MS, make_problem, one_f_one_b
from view_cases import NASTY, alone, random_views, replayed, small_view, with_names

from cpipe.ir import Schedule
from cpipe.report.html import render_html
from cpipe.report.page_data import page_data
from cpipe.report.palette import CARRIES, KINDS
from cpipe.report.shown import ShownPlan
from cpipe.report.shown_plan import shown
from cpipe.report.time_axis import TimeWindow
from cpipe.report.view import PlanView


def data_of(page: bytes) -> dict[str, Any]:
    """Return the data that stands in a page."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.decode(), flags=re.DOTALL)
    data: dict[str, Any] = json.loads(found)
    return data


def opened(tmp_path: Path, views: list[PlanView], fragment: str = "", window: TimeWindow | None = None) -> Page:
    """Return the page of some views after its script has run, which it did without a fault."""
    path = tmp_path / "page.html"
    path.write_bytes(render_html(views, ["plan.json"] * len(views), window))
    page = open_page(path, fragment)
    assert page.root.get("data-ready") == "1"
    assert not {"data-errors", "data-refused"} & page.root.keys(), page.root
    return page


def test_page_stands_alone() -> None:
    """The page names no other file and no host, and is ASCII whatever the names are."""
    page = render_html([with_names()], ["plan.json"])
    assert page.isascii()
    bare = page.decode().replace(json.dumps(NASTY[0]), "")
    assert not re.findall(r"""https?://|\b(?:src|href|srcset)\s*=|url\(|@import|\bfetch\(|XMLHttpRequest""", bare)
    assert "default-src 'none'" in bare


def test_page_is_the_same_twice() -> None:
    """The same plan gives the same bytes."""
    assert render_html([small_view()], ["a"]) == render_html([small_view()], ["a"])


def test_names_cannot_leave_the_data() -> None:
    """No name closes a script or opens a tag: all scripts are those of the page, and the data is read back whole."""
    page = render_html([with_names()], [NASTY[1]])
    assert len(re.findall(rb"<script\b", page)) == len(re.findall(rb"</script>", page)) == 3
    assert b"<b>" not in page.replace(b"<b>Look around:</b>", b"")
    devices = [rank["device"] for rank in data_of(page)["plans"][0]["ranks"]]
    assert devices[:2] == list(NASTY[:2])
    assert devices[2] == "ノード é \\u2028 \\x1b[31m"
    assert "&lt;/script&gt;" in page.decode()


def test_data_is_exact() -> None:
    """From the data of a page every start and end can be computed again, in nanoseconds."""
    letters = list(KINDS)
    for view in random_views(8, seed=11):
        (plan,) = page_data([view], ["x"])["plans"]
        found = []
        for place, rank in enumerate(plan["ranks"]):
            clock = 0
            rows = rank["ops"]
            for kind, stage, mb, gap, length in zip(
                rows["kind"], rows["stage"], rows["mb"], rows["gap"], rows["length"], strict=True
            ):
                found.append((place, letters[kind], stage, mb, clock + gap, clock + gap + length))
                clock += gap + length
        assert found == [(op.rank, op.kind, op.stage, op.mb, op.start, op.end) for op in view.ops]
        times = [time for channel in plan["channels"] for time in channel["times"]]
        assert times == [time for message in view.messages if message.window for time in message.window]


def test_large_page_is_compact() -> None:
    """An op and its messages take less than a hundred bytes of a page."""
    view = small_view(32, 32)
    size = len(render_html([view], ["x"])) - len(render_html([small_view(1, 1)], ["x"]))
    assert size < 100 * len(view.ops)


def test_kinds_have_their_colours() -> None:
    """The page has the colours of the palette, in its style and in its data."""
    page = render_html([small_view()], ["x"]).decode()
    assert data_of(page.encode())["kinds"].keys() == KINDS.keys()
    for name, row in [*KINDS.items(), *CARRIES.items()]:
        assert f".swatch-{name} {{ background: {row.fill}; }}" in page


def assert_tables(page: Page, plan: ShownPlan, panel: int = 0) -> None:
    """Check that the numbers behind the tables of a page are those of the report, bit by bit."""
    for row, device in zip(page.rows("devices", panel), plan.devices, strict=True):
        assert row[0][0] == device.id
        assert [float(row[2][1] or "nan"), float(row[3][1] or "nan")] == [device.busy_ms, device.bubble]
        assert int(row[5][1] or "-1") == device.peak_bytes
        if plan.replayed:
            sizes = [None if value is None else int(value) for _, value in row[6:8]]
            assert sizes == [device.static_bytes, device.capacity_bytes]
    if plan.links:
        found = [(row[0][0], *(float(value or "nan") for _, value in row[1:])) for row in page.rows("links", panel)]
        assert found == [(link.name, link.num_messages, link.busy_ms, link.utilisation) for link in plan.links]
    rows = page.rows("channels", panel) if plan.channels else []
    for row, channel in zip(rows, plan.channels, strict=True):
        values = [None if value is None else float(value) for _, value in row[3:]]
        assert values == [channel.num_messages, channel.busy_ms, channel.utilisation, channel.idle_ms]
        assert row[1][0] == channel.carries


def test_tables_are_the_report() -> None:
    """The tables show the numbers of the JSON report, with a profile and without."""
    problem = make_problem(3, 4, latency_ms=1)
    for view in (small_view(3, 4, capacity=10**6), alone(problem, one_f_one_b(problem)), *random_views(4, seed=13)):
        assert_tables(Page(render_html([view], ["x"]).decode()), shown(view, "x"))


@pytest.mark.slow
def test_page_in_a_browser(tmp_path: Path) -> None:
    """The page draws every op and message without a fault; an op that is chosen shows what it waited for."""
    view = small_view(2, 3, capacity=9000)
    page = opened(tmp_path, [view], "select=1D1")
    assert_tables(page, shown(view, "plan.json"))
    assert [chart["data-drawn"] for chart in page.charts] == [str(len(view.ops) + len(view.messages))]
    op = next(op for op in view.ops if op.label == "1D1")
    compute = [lane for lane in shown(view, "").lanes if lane.kind == "compute"]
    (bar,) = [bar for bar in compute[1].bars if (bar.op, bar.mb) == ("D", 1)]
    assert page.facts["waited for"] == bar.waits_for
    assert page.facts["start"] == f"{op.start / MS:.3f} ms"
    assert page.facts["duration"] == "2.000 ms"
    assert (page.facts["device"], page.facts["reads"], page.facts["feeds"]) == ("g1", "1F1", "0D1, 1W1")
    assert page.facts["critical path"] == ("yes" if bar.critical else "no")


@pytest.mark.slow
def test_names_in_a_browser(tmp_path: Path) -> None:
    """Names that look like scripts are shown as they are and run nothing."""
    page = opened(tmp_path, [with_names()], "select=0F0&theme=dark&critical")
    assert page.root["data-theme"] == "dark"
    assert page.pressed["do-critical"] == "true"
    assert page.facts["device"] == NASTY[0]
    assert [row[0][0] for row in page.rows("devices")][:2] == list(NASTY[:2])


@pytest.mark.slow
def test_two_plans_in_a_browser(tmp_path: Path) -> None:
    """Two plans stand side by side in one time scale, zoomed to what the call asked for."""
    fused = Schedule.from_text("0F0 0F1 0F2+0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2", 3)
    views = [small_view(2, 3), replayed(make_problem(2, 3, latency_ms=1), fused)]
    page = opened(tmp_path, views, "select=1:0F2+0B0", TimeWindow(0, 4 * MS))
    for panel, view in enumerate(views):
        assert_tables(page, shown(view, ""), panel)
    assert (page.facts["op"], page.facts["kind"]) == ("0F2+0B0", "forward and backward")
    assert (page.facts["reads"], page.facts["feeds"]) == ("1B0", "1F2")
    drawn = [int(chart["data-drawn"] or 0) for chart in page.charts]
    for count, view in zip(drawn, views, strict=True):
        assert 0 < count < len(view.ops)


@pytest.mark.slow
def test_large_plan_in_a_browser(tmp_path: Path) -> None:
    """Of 64 ranks with 64 microbatches only what is in sight is drawn."""
    view = small_view(64, 64)
    page = opened(tmp_path, [view])
    drawn = int(page.charts[0]["data-drawn"] or 0)
    assert len(view.ops) == 64 * 64 * 3
    assert 0 < drawn < len(view.ops)
    assert page.pressed["do-memory"] == page.pressed["do-channels"] == "false"


ACTS = """
addEventListener("load", function () {
  var chart = document.querySelector(".chart"), canvas = chart.querySelector("canvas");
  var box = canvas.getBoundingClientRect();
  var log = document.documentElement.dataset, act = 0;
  function key(name) { document.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true })); }
  function mouse(kind, x, y) {
    var at = { clientX: box.left + x, clientY: box.top + y, button: 0, pointerId: 1, bubbles: true };
    canvas.dispatchEvent(new PointerEvent(kind, at));
  }
  function wheel(x, y, delta) {
    var at = { clientX: box.left + x, clientY: box.top + y, deltaY: delta, cancelable: true };
    canvas.dispatchEvent(new WheelEvent("wheel", at));
  }
  function note() { log["act" + act++] = location.hash; }
  wheel(box.width / 2, 40, -300); note();
  key("ArrowRight"); note();
  key("0"); note();
  mouse("pointermove", 110, 40); log.tip = document.getElementById("tip").textContent;
  mouse("pointerdown", 110, 40); mouse("pointerup", 110, 40); note();
  key("n"); note();
  key("n"); key("p"); note();
  key("c"); note();
  key("Escape"); key("c"); note();
  key("+"); mouse("pointerdown", 300, 40); mouse("pointermove", 200, 40); mouse("pointerup", 200, 40); note();
});
"""


@pytest.mark.slow
def test_wheel_keys_and_pointer(tmp_path: Path) -> None:
    """Wheel, keys, drag and click change the view, and the address with it."""
    text = render_html([small_view(2, 3)], ["plan.json"]).decode()
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)  # it lets no script of a test run
    path = tmp_path / "page.html"
    path.write_text(text.replace("</body>", f"<script>{ACTS}</script></body>"), encoding="ascii")
    page = open_page(path)
    assert "data-errors" not in page.root, page.root
    acts = [str(page.root[f"data-act{number}"]) for number in range(9)]

    def window(fragment: str) -> tuple[float, float]:
        first, last = re.findall(r"(?:from|to)=(-?[\d.]+)", fragment)
        return float(first), float(last)

    zoomed, moved = window(acts[0]), window(acts[1])
    assert 0 < zoomed[0] < zoomed[1] < small_view(2, 3).horizon / MS
    assert moved[0] > zoomed[0]
    assert moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0], abs=1e-3)
    assert acts[2] == ""
    assert str(page.root["data-tip"]).startswith("op: 0F0")
    assert acts[3:8] == ["#select=0F0", "#select=0F1", "#select=0F1", "#critical&select=0F1", ""]
    dragged = window(acts[8])
    assert dragged[0] > 0.15 * small_view(2, 3).horizon / MS
