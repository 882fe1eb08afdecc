"""Tests of cpipe.report.drawing, svg and png: the static pictures."""

from __future__ import annotations

import builtins
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from sample_plans import MS, make_problem, one_f_one_b
from view_cases import NASTY, alone, random_views, small_view, with_names

from cpipe.errors import UsageError
from cpipe.report.drawing import draw_plans
from cpipe.report.palette import CARRIES, KINDS
from cpipe.report.png import check_png_library, render_png
from cpipe.report.shapes import Drawing, Rect, Rule, Text
from cpipe.report.svg import render_svg
from cpipe.report.time_axis import TimeWindow, ticks
from cpipe.report.view import PlanView

SVG = "{http://www.w3.org/2000/svg}"


def bars(drawing: Drawing) -> list[Rect]:
    """Return the rectangles that show something."""
    return [item for item in drawing.items if isinstance(item, Rect) and item.hint]


def texts(drawing: Drawing) -> list[str]:
    """Return all texts."""
    return [item.text for item in drawing.items if isinstance(item, Text)]


def ops_drawn(drawing: Drawing) -> set[str]:
    """Return the ops whose bars are drawn."""
    names = {row.name for row in KINDS.values()}
    return {bar.hint.split(":")[0] for bar in bars(drawing) if bar.hint.split(": ")[-1].split(",")[0] in names}


def test_svg(golden: Callable[[str], None]) -> None:
    """The picture of a small plan, byte by byte."""
    golden(render_svg(draw_plans([small_view(2, 2)], ["two devices"])).decode())


def test_svg_is_the_same_twice() -> None:
    """The same plan gives the same bytes."""
    assert render_svg(draw_plans([small_view(3, 5)], ["x"])) == render_svg(draw_plans([small_view(3, 5)], ["x"]))


def test_every_op_and_message_has_a_bar() -> None:
    """Each op, collective and message of a plan is drawn, in the colour of its kind, at the place of its time."""
    for view in random_views(10, seed=5):
        drawing = draw_plans([view], ["random"])
        hints = {bar.hint for bar in bars(drawing)}
        busy = {run.rank for run in view.collectives if run.start < run.end}  # other ranks need no lane for theirs
        collectives = {run.label for run in view.collectives if run.rank in busy}
        assert ops_drawn(drawing) == {op.label for op in view.ops} | collectives
        for channel in view.channels:
            for index in channel.messages:
                made = view.ops[view.messages[index].producer].label
                assert any(hint.startswith(f"{channel.carries} of {made},") for hint in hints)


def test_bars_stand_where_their_times_are() -> None:
    """Widths are times on one scale, and bars of one lane do not overlap."""
    view = small_view(3, 4)
    drawing = draw_plans([view], ["x"])
    scales = set()
    lanes: dict[float, list[Rect]] = {}
    by_label = {op.label: op for op in view.ops}
    for bar in bars(drawing):
        op = by_label.get(bar.hint.split(":")[0])
        if op is not None:
            scales.add(round(bar.width / (op.end - op.start) * MS, 6))
            lanes.setdefault(bar.y, []).append(bar)
    assert len(scales) == 1
    assert len(lanes) == 3
    for found in lanes.values():
        for first, second in pairwise(found):
            assert first.x + first.width <= second.x + 1e-6


@pytest.mark.parametrize(("num_devices", "microbatches"), [(1, 1), (2, 3), (8, 16), (64, 4)])
def test_everything_is_inside(num_devices: int, microbatches: int) -> None:
    """Nothing is drawn outside the picture, and no text of a bar is wider than its bar."""
    drawing = draw_plans([small_view(num_devices, microbatches)], ["x"])
    for item in drawing.items:
        if isinstance(item, Rect):
            assert 0 <= item.x <= item.x + item.width <= drawing.width
            assert 0 <= item.y <= item.y + item.height <= drawing.height
        elif isinstance(item, Rule):
            assert 0 <= min(item.x0, item.x1) <= max(item.x0, item.x1) <= drawing.width
        else:
            assert 0 <= item.x <= drawing.width
            assert 0 <= item.y <= drawing.height


def test_a_part_of_time() -> None:
    """With a window, what lies outside is not drawn, what crosses its edge is cut there."""
    view = small_view(2, 6)
    drawing = draw_plans([view], ["x"], TimeWindow(4 * MS, 9 * MS))
    inside = {op.label for op in view.ops if op.end >= 4 * MS and op.start <= 9 * MS}
    assert ops_drawn(drawing) == inside
    assert min(bar.x for bar in bars(drawing)) >= 100 - 40
    assert "0" not in texts(drawing)


def test_some_ranks_alone() -> None:
    """Ranks that are not asked for have no lane."""
    drawing = draw_plans([small_view(4, 3).only_ranks([1, 2])], ["x"])
    assert [text for text in texts(drawing) if text in {"g0", "g1", "g2", "g3"}] == ["g1", "g2"]


def test_legend_names_what_is_there() -> None:
    """The legend has the kinds that are drawn, and no others."""
    shown = texts(draw_plans([small_view(split=False)], ["x"]))
    assert {"forward", "full backward"} <= set(shown)
    assert not {"weight gradient", "all-gather", "forward and backward"} & set(shown)


def test_title_and_claims() -> None:
    """A picture says what it shows: title, makespan, bound and gap; two plans share one scale."""
    view = small_view(2, 3)
    shown = texts(draw_plans([view, small_view(2, 6)], ["first", "second"]))
    assert {"first", "second"} <= set(shown)
    (line,) = [text for text in shown if "2 stages, 3 microbatches" in text]
    assert f"makespan {view.plan.claims.makespan_ns / MS:.3f} ms; lower bound 0.000 ms; gap 100.00 %" in line


def test_without_a_profile_the_legend_says_so() -> None:
    """Where nobody knows when messages arrive, the picture says what their pale bars mean."""
    problem = make_problem(2, 2, latency_ms=1)
    shown = " ".join(texts(draw_plans([alone(problem, one_f_one_b(problem))], ["x"])))
    assert "from ready to read, as without a profile nobody knows more" in shown
    assert "pale: on its way" in " ".join(texts(draw_plans([small_view()], ["x"])))


def test_critical_bars_are_marked() -> None:
    """Each bar on the critical path has a black edge below it."""
    view = small_view(2, 2)
    assert view.path is not None
    edges = [item for item in draw_plans([view], ["x"]).items if isinstance(item, Rect) and item.fill == "#1a1a1a"]
    on_path = {piece.label for piece in view.path if piece.kind == "compute"}
    marked = {bar.hint.split(":")[0] for bar in bars(draw_plans([view], ["x"])) for edge in edges if bar.x == edge.x}
    assert on_path <= marked
    assert len(edges) >= len(view.path)


@pytest.mark.parametrize("name", NASTY)
def test_names_are_escaped_in_svg(name: str) -> None:
    """Whatever a device, link or job is called, the SVG is well formed and has no elements but its own."""
    data = render_svg(draw_plans([with_names((name, "b"), name)], [name]))
    tree = ElementTree.fromstring(data)
    kinds = {element.tag.removeprefix(SVG) for element in tree.iter()}
    assert kinds == {"svg", "title", "rect", "line", "text"}
    assert name.isprintable() is (name in "".join(tree.itertext()))
    assert not {key for element in tree.iter() for key in element.attrib if key.startswith("on")}


def test_svg_of_a_plan_without_times() -> None:
    """A plan in which nothing takes time is an empty picture, not an error."""
    view = small_view(1, 1)
    empty = view._replace(ops=(), inputs=(), ranks=(view.ranks[0]._replace(ops=()),), horizon=0, path=())
    ElementTree.fromstring(render_svg(draw_plans([empty], ["empty"])))


def test_colours_differ_and_texts_can_be_read() -> None:
    """No two kinds share a colour or a mark; text on every bar has a contrast of at least 4.5 (WCAG 2.2, AA)."""
    rows = [*KINDS.values(), *CARRIES.values()]
    assert len({row.fill for row in rows}) == len(rows)
    assert len({row.mark for row in rows}) == len(rows)

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for row in rows:
        light, dark = sorted((luminance(row.fill), luminance(row.ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, row


@pytest.mark.parametrize(("first", "last", "most"), [(0, 10, 5), (3, 10**12, 12), (999, 1000, 1), (0, 0, 4)])
def test_ticks_are_round_and_few(first: int, last: int, most: int) -> None:
    """Ticks are multiples of 1, 2 or 5 x 10^k within the window, not more than asked and one, with their own times."""
    found = ticks(first, last, most)
    assert len(found) <= most + 1
    assert all(first <= time <= last for time, _ in found)
    assert [float(text) for _, text in found] == pytest.approx([time / 1e6 for time, _ in found])


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((None, None), (0, 100)),
        ((20, None), (20, 100)),
        ((20, 30), (20, 30)),
        ((500, 600), (99, 100)),
        ((None, 500), (0, 100)),
    ],
)
def test_window_is_within_the_plan(window: tuple[int | None, int | None], expected: tuple[int, int]) -> None:
    """A window is cut to the plan, and is never empty."""
    assert TimeWindow(*window).within(100) == expected


@pytest.fixture
def png_view() -> PlanView:
    """Return a view, where Pillow is there to paint it."""
    pytest.importorskip("PIL", reason="needs Pillow (extra png)")
    return small_view(2, 3)


def image_of(data: bytes) -> Any:
    """Return the picture, decoded."""
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


def test_png(png_view: PlanView) -> None:
    """The PNG has twice the size of the drawing, and the colours of its bars where they are."""
    drawing = draw_plans([png_view], ["a plan"])
    image = image_of(render_png(drawing))
    assert image.size == (2 * drawing.width, 2 * drawing.height)
    assert image.getpixel((1, 1)) == (255, 255, 255)
    by_label = {op.label: op for op in png_view.ops}
    found = [bar for bar in bars(drawing) if bar.hint.split(":")[0] in by_label and bar.width > 4]
    assert found
    for bar in found:
        place = round(2 * bar.x + 3), round(2 * bar.y + 3)
        assert "#{:02x}{:02x}{:02x}".format(*image.getpixel(place)) == bar.fill


def test_png_has_texts(png_view: PlanView) -> None:
    """Text is painted whatever fonts there are: the title's place has ink, and without the title it has none."""
    drawing = draw_plans([png_view], ["MMMMMM"])
    title = next(item for item in drawing.items if isinstance(item, Text) and item.text == "MMMMMM")
    bare = drawing._replace(items=tuple(item for item in drawing.items if item is not title))
    box = (int(2 * title.x), int(2 * title.y) - 2 * title.size, int(2 * title.x) + 6 * 2 * title.size, int(2 * title.y))
    assert image_of(render_png(drawing)).crop(box).getextrema()[0][0] < 80
    assert image_of(render_png(bare)).crop(box).getextrema()[0][0] == 255


def test_png_is_the_same_twice(png_view: PlanView) -> None:
    """The same drawing gives the same bytes, and names that the font lacks are written as escapes."""
    assert render_png(draw_plans([png_view], ["x"])) == render_png(draw_plans([png_view], ["x"]))
    assert render_png(draw_plans([png_view], ["é"])) == render_png(draw_plans([png_view], ["\\xe9"]))


def test_large_png_gets_smaller_pixels(png_view: PlanView, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture of too many pixels is painted at scale 1; one that is too large even so is refused."""
    drawing = draw_plans([png_view], ["x"])
    monkeypatch.setattr("cpipe.report.png.MAX_PIXELS", drawing.width * drawing.height)
    assert image_of(render_png(drawing)).size == (drawing.width, drawing.height)
    monkeypatch.setattr("cpipe.report.png.MAX_PIXELS", 1000)
    with pytest.raises(UsageError, match=r"pixels is too large; take fewer ranks with --ranks \[picture-too-large\]"):
        render_png(drawing)


def test_png_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Pillow there is one sentence and the command that installs it: `png-library`."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"--png needs Pillow, which is not installed \[png-library\]") as caught:
        check_png_library()
    assert caught.value.hint == "pip install 'cpipe[png]'"
