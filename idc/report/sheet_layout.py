"""Cells with images and lines of text, arranged in one picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PIL import Image, ImageDraw, ImageFont

WIDTH, GAP, LINE, LETTER = 200, 10, 14, 6
"""Pixels: of an image, between images, of a line of text, of a letter of it."""

PAPER, INK, SOFT = (255, 255, 255), (20, 20, 20), (110, 110, 110)


def arranged(cells: Sequence[Image.Image], columns: int) -> Image.Image:
    """Cells of equal width in lines, from left to right."""
    lines = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in line) + GAP for line in lines]
    canvas = Image.new("RGB", (columns * (cells[0].width + 2 * GAP), GAP + sum(heights)), PAPER)
    y = GAP
    for line, height in zip(lines, heights, strict=True):
        for column, cell in enumerate(line):
            canvas.paste(cell, (GAP + column * (cell.width + 2 * GAP), y))
        y += height
    return canvas


def write_lines(cell: Image.Image, y: int, lines: Iterable[tuple[str, tuple[int, int, int]]]) -> None:
    """Lines of text, each with its colour, one below the other."""
    draw, font = ImageDraw.Draw(cell), ImageFont.load_default(11)
    for number, (line, ink) in enumerate(lines):
        draw.text((0, y + LINE * number), line, ink, font)
