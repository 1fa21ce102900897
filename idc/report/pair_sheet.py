"""Pairs with lists of differences in one picture: images, list, a reference; and how frequent each kind is."""

from __future__ import annotations

import io
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field

from idc.config import ConfigModel
from idc.data.images import decode_image, resize_image
from idc.data.rendered.captions import ATTRIBUTES
from idc.data.rendered.differences import KINDS, Difference, differences_of
from idc.data.store import iter_rows

WIDTH, GAP, LINE, LETTER = 200, 10, 14, 6
"""Pixels: of an image, between images, of a line of text, of a letter of it."""

_PAPER, _INK, _SOFT = (255, 255, 255), (20, 20, 20), (110, 110, 110)


class ShowPairsJob(ConfigModel):
    """Show pairs with several changes in one picture, and count their kinds."""

    pairs: str = Field(min_length=1)
    """Folder of pairs with lists of differences (`jobs/render.py` with `render.several`)."""
    out: str = Field(min_length=1)
    """PNG file to write."""
    show: int = Field(default=12, ge=1, le=60)
    """Pairs in the picture, evenly spaced over the folder."""
    columns: int = Field(default=3, ge=1, le=6)
    """Pairs side by side."""


def pair_sheet(job: ShowPairsJob) -> tuple[bytes, str]:
    """The picture of some pairs, and the table of all.

    Returns:
        The PNG file, and the number of pairs by number of changes and of differences by kind as plain text.

    Raises:
        ValueError: a pair has no list of differences, or there are no pairs.
    """
    listed = [_listed(row) for row in iter_rows(job.pairs, ["pair_id", "meta"])]
    if not listed:
        raise ValueError(f"pairs: {job.pairs} has no pairs")
    wanted = {number * len(listed) // job.show for number in range(job.show)}
    columns = ["pair_id", "before", "after", "captions", "meta"]
    rows = (row for number, row in enumerate(iter_rows(job.pairs, columns, batch_size=32)) if number in wanted)
    return _png(sheet(rows, job.columns)), list_table(listed)


def sheet(rows: Iterable[Mapping[str, Any]], columns: int) -> np.ndarray:
    """Rows of a folder of pairs as cells of one picture, uint8 (H, W, 3)."""
    cells = [_cell(row) for row in rows]
    lines = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in line) + GAP for line in lines]
    canvas = Image.new("RGB", (columns * (cells[0].width + 2 * GAP), GAP + sum(heights)), _PAPER)
    y = GAP
    for line, height in zip(lines, heights, strict=True):
        for column, cell in enumerate(line):
            canvas.paste(cell, (GAP + column * (cell.width + 2 * GAP), y))
        y += height
    return np.asarray(canvas)


def list_table(listed: Sequence[Sequence[Difference]]) -> str:
    """How many pairs have how many differences, and how many differences are of each kind."""
    numbers, kinds = Counter(map(len, listed)), Counter(difference.kind for each in listed for difference in each)
    return "\n".join(
        (
            f"{len(listed)} pairs, {sum(kinds.values())} differences",
            "pairs with so many differences: " + ", ".join(f"{n}: {numbers[n]}" for n in sorted(numbers)),
            "differences of each kind: " + ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS if kinds[kind]),
        )
    )


def in_words(difference: Difference) -> str:
    """A difference as a line of a list: its kind, the object, and what changed of it."""
    old, new = ([_look(thing) for thing in side] for side in (difference.before, difference.after))
    if difference.kind == "count":
        return f"{difference.kind}: {(old or new)[0]}, {len(old)} -> {len(new)}"
    if not old or not new or difference.kind in ("orientation", "move"):
        return f"{difference.kind}: {(old or new)[0]}"
    if difference.kind == "replace":
        return f"{difference.kind}: {old[0]} -> {difference.after[0]['shape']}"
    return f"{difference.kind}: {old[0]} -> {difference.after[0][difference.kind]}"


def _look(thing: Mapping[str, Any]) -> str:
    look = " ".join(str(thing[name]) for name in ATTRIBUTES)
    return f"{look} {thing['text']}" if thing.get("text") else look


def _listed(row: Mapping[str, Any]) -> tuple[Difference, ...]:
    differences = differences_of(json.loads(row["meta"] or "{}"))
    if differences is None:
        raise ValueError(f"pair {row['pair_id']!r} has no list of differences; render with render.several")
    return differences


def _cell(row: Mapping[str, Any]) -> Image.Image:
    """Both images, the list and the first reference."""
    images = [decode_image(row[side]) for side in ("before", "after")]
    height = max(round(image.shape[0] * WIDTH / image.shape[1]) for image in images)
    lines = list(_lines(row))
    cell = Image.new("RGB", (2 * WIDTH + GAP, height + LINE * len(lines) + GAP), _PAPER)
    draw, font = ImageDraw.Draw(cell), ImageFont.load_default(11)
    for number, image in enumerate(images):
        cell.paste(Image.fromarray(resize_image(image, (height, WIDTH))), (number * (WIDTH + GAP), 0))
    for number, (line, ink) in enumerate(lines):
        draw.text((0, height + 3 + LINE * number), line, ink, font)
    return cell


def _lines(row: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int, int]]]:
    letters = (2 * WIDTH + GAP) // LETTER
    listed = _listed(row)
    yield f"{row['pair_id']}, {len(listed)} difference{'' if len(listed) == 1 else 's'}", _SOFT
    for difference in listed:
        yield from ((line, _INK) for line in textwrap.wrap(in_words(difference), letters, initial_indent="- "))
    for text in row["captions"][:1]:
        yield from ((line, _SOFT) for line in textwrap.wrap(f'"{text}"', letters))


def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    small = Image.fromarray(pixels).quantize(256, Image.Quantize.FASTOCTREE)  # a fifth of the size, true colours
    small.save(stream, "PNG", optimize=True)
    return stream.getvalue()
