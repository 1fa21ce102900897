"""Rendered pairs in one picture: images, list of differences or changes, a reference; and how frequent each kind is."""

from __future__ import annotations

import io
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from pydantic import Field

from idc.config import ConfigModel
from idc.data.images import decode_image, resize_image
from idc.data.rendered.captions import ATTRIBUTES
from idc.data.rendered.differences import KINDS, Difference, differences_of
from idc.data.store import iter_rows
from idc.report.satellite_cells import satellite_cell, satellite_table
from idc.report.sheet_layout import GAP, INK, LETTER, LINE, PAPER, SOFT, WIDTH, arranged, write_lines


class ShowPairsJob(ConfigModel):
    """Show rendered pairs in one picture, and count their kinds of change."""

    pairs: str = Field(min_length=1)
    """Folder of pairs with lists of differences or changes (`jobs/render.py` with `render.several` or
    `render.satellite`)."""
    beside: str | None = None
    """Folder of other satellite pairs, real ones for example (with or without lists, masks and captions): each is shown
    after one of the pairs, up to the same number."""
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
    metas = [(row["pair_id"], json.loads(row["meta"] or "{}")) for row in iter_rows(job.pairs, ["pair_id", "meta"])]
    if not metas:
        raise ValueError(f"pairs: {job.pairs} has no pairs")
    if satellite := all("changes" in meta for _, meta in metas):
        table = satellite_table([meta for _, meta in metas])
    else:
        table = list_table([_listed(name, meta) for name, meta in metas])
    if job.beside is not None and not satellite:
        raise ValueError("beside: the pairs are no satellite pairs; leave it out")
    make_cell = satellite_cell if satellite else _cell
    cells = [make_cell(row) for row in _spread(job.pairs, job.show)]
    if job.beside is not None:
        others = [satellite_cell(row) for row in _spread(job.beside, job.show)]
        cells = [cell for number, each in enumerate(cells) for cell in (each, *others[number : number + 1])]
    return _png(np.asarray(arranged(cells, job.columns))), table


def _spread(pairs: str, show: int) -> Iterator[Mapping[str, Any]]:
    """Rows evenly spaced over a folder."""
    number_of_rows = sum(1 for _ in iter_rows(pairs, ["pair_id"]))
    wanted = {number * number_of_rows // show for number in range(show)}
    columns = ["pair_id", "before", "after", "captions", "mask", "meta"]
    return (row for number, row in enumerate(iter_rows(pairs, columns, batch_size=32)) if number in wanted)


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


def _listed(pair_id: str, meta: Mapping[str, Any]) -> tuple[Difference, ...]:
    differences = differences_of(meta)
    if differences is None:
        raise ValueError(f"pair {pair_id!r} has no list of differences; render with render.several")
    return differences


def _cell(row: Mapping[str, Any]) -> Image.Image:
    """Both images, the list and the first reference."""
    images = [decode_image(row[side]) for side in ("before", "after")]
    height = max(round(image.shape[0] * WIDTH / image.shape[1]) for image in images)
    lines = list(_lines(row))
    cell = Image.new("RGB", (2 * WIDTH + GAP, height + LINE * len(lines) + GAP), PAPER)
    for number, image in enumerate(images):
        cell.paste(Image.fromarray(resize_image(image, (height, WIDTH))), (number * (WIDTH + GAP), 0))
    write_lines(cell, height + 3, lines)
    return cell


def _lines(row: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int, int]]]:
    letters = (2 * WIDTH + GAP) // LETTER
    listed = _listed(row["pair_id"], json.loads(row["meta"] or "{}"))
    yield f"{row['pair_id']}, {len(listed)} difference{'' if len(listed) == 1 else 's'}", SOFT
    for difference in listed:
        yield from ((line, INK) for line in textwrap.wrap(in_words(difference), letters, initial_indent="- "))
    for text in row["captions"][:1]:
        yield from ((line, SOFT) for line in textwrap.wrap(f'"{text}"', letters))


def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    small = Image.fromarray(pixels).quantize(256, Image.Quantize.FASTOCTREE)  # a fifth of the size, true colours
    small.save(stream, "PNG", optimize=True)
    return stream.getvalue()
