"""A drawing as SVG: one file, text as text, the same bytes on any machine."""

from __future__ import annotations

from html import escape

from cpipe.report.shapes import Drawing, Item, Rect, Rule, Text

__all__ = ["render_svg"]

_FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
_REPLACED = dict.fromkeys([*range(0x20), 0x7F, 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)], "\N{REPLACEMENT CHARACTER}")


def render_svg(drawing: Drawing) -> bytes:
    """Return the drawing as an SVG document, UTF-8; bars say on hover what they are."""
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONTS}" role="img">',
        f"<title>{_text(drawing.title)}</title>",
        *map(_element, drawing.items),
        "</svg>",
    ]
    return ("\n".join(lines) + "\n").encode()


def _element(item: Item) -> str:
    if isinstance(item, Rect):
        return _rect(item)
    if isinstance(item, Rule):
        ends = f'x1="{_number(item.x0)}" y1="{_number(item.y0)}" x2="{_number(item.x1)}" y2="{_number(item.y1)}"'
        dashes = ' stroke-dasharray="4 3"' if item.dashed else ""
        return f'<line {ends} stroke="{item.colour}"{dashes}/>'
    return _label(item)


def _rect(item: Rect) -> str:
    place = f'x="{_number(item.x)}" y="{_number(item.y)}" width="{_number(item.width)}" height="{_number(item.height)}"'
    opacity = "" if item.opacity == 1 else f' fill-opacity="{_number(item.opacity)}"'
    outline = f' stroke="{item.outline}"' if item.outline else ""
    start = f'<rect {place} fill="{item.fill}"{opacity}{outline}'
    return f"{start}><title>{_text(item.hint)}</title></rect>" if item.hint else f"{start}/>"


def _label(item: Text) -> str:
    anchor = "" if item.anchor == "start" else f' text-anchor="{item.anchor}"'
    place = f'x="{_number(item.x)}" y="{_number(item.y)}" font-size="{item.size}" fill="{item.colour}"'
    return f"<text {place}{anchor}>{_text(item.text)}</text>"


def _text(text: str) -> str:
    """Escape `text`; characters that XML has no way to hold become a replacement character."""
    return escape(text.translate(_REPLACED))


def _number(value: float) -> str:
    """Return a coordinate with at most two decimals."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
