"""Satellite pairs in a picture: images, class mask, changes, a reference."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from idc.data.images import decode_image, resize_image
from idc.report.sheet_layout import GAP, INK, LETTER, LINE, PAPER, SOFT, WIDTH, write_lines

CLASS_COLORS = {128: (255, 255, 0), 255: (255, 0, 0)}
"""Colours of roads and buildings, as MCI's predictions are drawn."""


def satellite_cell(row: Mapping[str, Any]) -> Image.Image:
    """Both images and the mask; below them the changes and the first reference, if there are any."""
    images = [decode_image(row[side]) for side in ("before", "after")]
    shape = images[0].shape[:2]
    images.append(colored_mask(np.zeros(shape, np.uint8) if row["mask"] is None else decode_image(row["mask"])[..., 0]))
    height = max(round(image.shape[0] * WIDTH / image.shape[1]) for image in images)
    lines = list(_lines(row))
    cell = Image.new("RGB", (3 * WIDTH + 2 * GAP, height + LINE * len(lines) + GAP), PAPER)
    for number, image in enumerate(images):
        cell.paste(Image.fromarray(resize_image(image, (height, WIDTH))), (number * (WIDTH + GAP), 0))
    write_lines(cell, height + 3, lines)
    return cell


def colored_mask(mask: np.ndarray) -> np.ndarray:
    """uint8 (H, W, 3) of a class mask (H, W)."""
    colored = np.zeros((*mask.shape, 3), np.uint8)
    for value, color in CLASS_COLORS.items():
        colored[mask == value] = color
    return colored


def satellite_table(metas: Sequence[Mapping[str, Any]]) -> str:
    """How many pairs are changed, how many changes of each class and kind there are, how many buildings a pair has."""
    kinds = Counter(f"{change['class']} {change['kind']}" for meta in metas for change in meta["changes"])
    numbers = Counter(meta["counts"]["building"] for meta in metas if meta["changes"])
    return "\n".join(
        (
            f"{len(metas)} pairs, {sum(bool(meta['changes']) for meta in metas)} changed, {kinds.total()} changes",
            "changes: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
            "changed pairs with so many buildings: " + ", ".join(f"{n}: {numbers[n]}" for n in sorted(numbers)),
        )
    )


def _lines(row: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int, int]]]:
    letters = (3 * WIDTH + 2 * GAP) // LETTER
    meta = json.loads(row["meta"] or "{}")
    yield row["pair_id"], SOFT
    if "changes" in meta:
        counts = Counter((change["class"], change["kind"]) for change in meta["changes"])
        numbers = (f"{count} {name}{'s' * (count > 1)} {kind}" for (name, kind), count in counts.items())
        listed = ", ".join(numbers) or "no change"
        cells = dict.fromkeys(change["place"] for change in meta["changes"])
        yield from ((line, INK) for line in textwrap.wrap("; ".join(filter(None, (listed, ", ".join(cells)))), letters))
    for text in row["captions"][:1]:
        yield from ((line, SOFT) for line in textwrap.wrap(f'"{text}"', letters))
