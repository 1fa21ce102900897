"""Pairs as users have them: photographs, edited, with captions in free words; no scenes, no change types, no splits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageEnhance

_COLOURS = ("red", "blue", "yellow", "white", "black")
_SIZES = {"small": 0.18, "large": 0.35}
_SAME = ("nothing has changed", "the two photographs are the same", "no change at all")


def own_pairs(photographs: Sequence[Image.Image], folder: Path, count: int, unchanged: int = 0, seed: int = 0) -> Path:
    """Write ``count`` pairs into ``folder``, laid out as in docs/data.md: ``before/``, ``after/`` and ``captions/``.

    Args:
        unchanged: how many of the pairs show another crop of the same photograph, with a caption that says so.
    """
    draw = random.Random(seed)
    for name in ("before", "after", "captions"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        before = _crop(photographs[number % len(photographs)], draw)
        if number < unchanged:
            after, captions = ImageEnhance.Brightness(before).enhance(draw.uniform(0.95, 1.05)), [draw.choice(_SAME)]
        else:
            after, captions = _edited(before, draw)
        before.save(folder / "before" / f"{number:03}.jpg", quality=92)
        after.save(folder / "after" / f"{number:03}.jpg", quality=92)
        (folder / "captions" / f"{number:03}.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")
    return folder


def _crop(photograph: Image.Image, draw: random.Random) -> Image.Image:
    width, height = (round(side * draw.uniform(0.5, 0.8)) for side in photograph.size)
    left, top = draw.randint(0, photograph.width - width), draw.randint(0, photograph.height - height)
    crop = photograph.convert("RGB").crop((left, top, left + width, top + height))
    crop.thumbnail((320, 320))
    return crop


def _edited(before: Image.Image, draw: random.Random) -> tuple[Image.Image, list[str]]:
    after = before.copy()
    colour, (size, share) = draw.choice(_COLOURS), draw.choice(list(_SIZES.items()))
    side = round(share * min(before.size))
    left, top = draw.randint(0, before.width - side), draw.randint(0, before.height - side)
    box = (left, top, left + side, top + side)
    match draw.randrange(3):
        case 0:
            ImageDraw.Draw(after).ellipse(box, fill=colour)
            return after, [f"a {size} {colour} ball has appeared", f"there is a {size} {colour} ball now"]
        case 1:
            ImageDraw.Draw(after).rectangle(box, fill=colour)
            return after, [f"someone put a {size} {colour} box into the picture"]
        case _:
            return ImageEnhance.Color(before).enhance(0.0), ["the picture has become black and white"]
