"""Pairs as users have them: photographs, edited, with captions in free words; no scenes, no change types, no splits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageEnhance


def own_pairs(photographs: Sequence[Image.Image], folder: Path, count: int, unchanged: int = 0, seed: int = 0) -> Path:
    """Write ``count`` pairs into ``folder``, laid out as in docs/data.md: ``before/``, ``after/`` and ``captions/``.

    Args:
        unchanged: how many of the pairs show the same with other light, with a caption that says so.
    """
    draw = random.Random(seed)
    for name in ("before", "after", "captions"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        before = photographs[number % len(photographs)].convert("RGB")
        left, top = draw.randint(0, before.width // 3), draw.randint(0, before.height // 3)
        before = before.crop((left, top, left + before.width // 2, top + before.height // 2))
        before.thumbnail((320, 320))
        if number < unchanged:
            after, captions = ImageEnhance.Brightness(before).enhance(draw.uniform(0.95, 1.05)), ["nothing has changed"]
        else:
            after, captions = _edited(before, draw)
        before.save(folder / "before" / f"{number:03}.jpg", quality=92)
        after.save(folder / "after" / f"{number:03}.jpg", quality=92)
        (folder / "captions" / f"{number:03}.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")
    return folder


def _edited(before: Image.Image, draw: random.Random) -> tuple[Image.Image, list[str]]:
    if draw.random() < 0.3:
        return ImageEnhance.Color(before).enhance(0.0), ["the picture has become black and white"]
    after, colour, side = before.copy(), draw.choice(("red", "blue", "yellow")), min(before.size) // 3
    left, top = draw.randint(0, before.width - side), draw.randint(0, before.height - side)
    ImageDraw.Draw(after).ellipse((left, top, left + side, top + side), fill=colour)
    return after, [f"a {colour} ball has appeared", f"there is a {colour} ball now"]
