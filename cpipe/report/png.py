"""A drawing as PNG, painted by Pillow (extra ``cpipe[png]``) with Pillow's own font, whatever fonts the system has."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from cpipe.errors import UsageError
from cpipe.report.shapes import Drawing, Item, Rect, Rule, Text

if TYPE_CHECKING:
    from PIL import ImageDraw, ImageFont

__all__ = ["MAX_PIXELS", "check_png_library", "render_png"]

MAX_PIXELS = 200_000_000
"""Largest picture [pixels]; it takes three bytes of memory for each."""
_DASH = 4


def check_png_library() -> None:
    """Raise a `UsageError` where Pillow is not installed."""
    try:
        import PIL.ImageFont  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "--png needs Pillow, which is not installed", code="png-library", hint="pip install 'cpipe[png]'"
        ) from error


def render_png(drawing: Drawing, scale: int = 2) -> bytes:
    """Return the drawing as a PNG file.

    Parameters
    ----------
    drawing
        The picture.
    scale
        Pixels of the file for one of the drawing, along each side; halved until the picture has at most `MAX_PIXELS`.

    Raises
    ------
    UsageError
        When even one pixel for one is too large a picture.
    """
    from PIL import Image, ImageDraw

    while scale > 1 and drawing.width * drawing.height * scale * scale > MAX_PIXELS:
        scale //= 2
    size = drawing.width * scale, drawing.height * scale
    if size[0] * size[1] > MAX_PIXELS:
        message = f"--png: a picture of {size[0]} x {size[1]} pixels is too large; take fewer ranks with --ranks"
        raise UsageError(message, code="picture-too-large")
    image = Image.new("RGB", size, "#ffffff")
    painter = _Painter(ImageDraw.Draw(image, "RGBA"), scale)
    for item in drawing.items:
        painter.paint(item)
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


class _Painter:
    """Paints items, enlarged by `scale`."""

    def __init__(self, draw: ImageDraw.ImageDraw, scale: int) -> None:
        self._draw = draw
        self._scale = scale
        self._fonts: dict[int, ImageFont.FreeTypeFont | ImageFont.ImageFont] = {}

    def paint(self, item: Item) -> None:
        """Paint one item over what is there."""
        if isinstance(item, Rect):
            self._rect(item)
        elif isinstance(item, Rule):
            self._rule(item)
        else:
            self._text(item)

    def _at(self, value: float) -> int:
        return round(value * self._scale)

    def _rect(self, item: Rect) -> None:
        left, top = self._at(item.x), self._at(item.y)
        right, bottom = self._at(item.x + item.width) - 1, self._at(item.y + item.height) - 1
        if right < left or bottom < top:
            return
        opacity = format(round(255 * item.opacity), "02x")
        self._draw.rectangle((left, top, right, bottom), fill=item.fill + opacity)
        if item.outline:  # a gap to the next bar
            self._draw.rectangle((right, top, right, bottom), fill=item.outline)

    def _rule(self, item: Rule) -> None:
        left, top, right, bottom = map(self._at, (item.x0, item.y0, item.x1, item.y1))
        if left != right and top != bottom:  # a slanted one; the others stay sharp as rectangles
            self._draw.line((left, top, right, bottom), fill=item.colour, width=self._scale)
            return
        if not item.dashed:
            self._draw.rectangle(
                (min(left, right), min(top, bottom), max(left, right), max(top, bottom)), fill=item.colour
            )
            return
        dash = _DASH * self._scale
        for y in range(top, bottom, 2 * dash):  # dashed rules are upright
            self._draw.rectangle((left, y, left, min(bottom, y + dash)), fill=item.colour)

    def _text(self, item: Text) -> None:
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[item.anchor]
        place = (self._at(item.x), self._at(item.y))
        self._draw.text(place, _in_font(item.text), fill=item.colour, font=self._font(item.size), anchor=anchor)

    def _font(self, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        from PIL import ImageFont

        if size not in self._fonts:
            self._fonts[size] = ImageFont.load_default(size * self._scale)
        return self._fonts[size]


def _in_font(text: str) -> str:
    """Return `text` as the font can write it: it has the characters of ASCII, others are written as escapes."""
    return text if text.isascii() else "".join(char if char.isascii() else ascii(char)[1:-1] for char in text)
