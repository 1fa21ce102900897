"""Boxes with names on both images of a pair, as notebooks and pages draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_COLOUR, _INK = (230, 30, 120), (255, 255, 255)
_LONGEST = 24
"""Most characters of a name; the words on a sign may be many."""


class NamedBox(NamedTuple):
    """A box in pixels of its image (right and bottom are the first ones outside), and its name; empty for none."""

    box: Sequence[float]
    name: str


def boxes_of(fields: Mapping[str, Any]) -> tuple[list[NamedBox], list[NamedBox]]:
    """The boxes of a pair, on the image before and on the image after: of its claims, or, if there are none, of the
    regions that differ; of documents those of the first page with claims. ``fields``: of
    :meth:`idc.captioning.contract.Description.to_dict`, or a row of a table."""
    if not fields["claims"]:
        return [], [NamedBox(region["box"], "") for region in fields["regions"] or ()]
    claims = [claim for claim in fields["claims"] if claim["page"] == fields["claims"][0]["page"]]
    before, after = (
        [NamedBox(claim[f"box_{side}"], _name(claim, side)) for claim in claims if claim[f"box_{side}"]]
        for side in ("before", "after")
    )
    return before, after


def _name(claim: Mapping[str, Any], side: str) -> str:
    """What a claim is about on one of the images: "bottle", "3 bottles", the words that were read."""
    if claim["object"] == "region":
        return ""
    if claim["object"] == "words" or claim["kind"] == "replaced":
        name = claim[side] or claim["object"]
        return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    return claim["object"] if claim["count"] == 1 else f"{claim['count']} x {claim['object']}"


def draw_boxes(image: np.ndarray, boxes: Sequence[NamedBox], size: Sequence[int], font_size: int = 12) -> np.ndarray:
    """An image with boxes, whose pixels are those of a picture of the height and width ``size``."""
    picture = Image.fromarray(image)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(font_size)
    scale = np.tile([image.shape[1] / size[1], image.shape[0] / size[0]], 2)
    for box, name in boxes:
        left, top, right, bottom = np.round(np.array(box) * scale).astype(int).tolist()
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=_COLOUR, width=font_size // 6)
        if name:
            _, _, width, height = draw.textbbox((0, 0), name, font)
            x = max(0, min(left, image.shape[1] - width - 4))
            y = top - height - 4 if top >= height + 4 else max(0, min(top, image.shape[0] - height - 4))
            draw.rectangle((x, y, x + width + 3, y + height + 3), fill=_COLOUR)
            draw.text((x + 2, y + 2), name, _INK, font)
    return np.asarray(picture)
