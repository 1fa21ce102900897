"""Pairs of `counts.yaml`: photographs that come with the page, and drawn pages, each with what was done to it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import serve
from tests.systems.objects.test_screens import DARK, page

PHOTOGRAPHS = Path(serve.__file__).parent / "web" / "examples" / "photographs"


def drawn_or_photographed(name: str = "", **done: Any) -> np.ndarray:
    """The image of a side: the photograph ``name``, else the page of ``tests/systems/objects/test_screens.py`` with
    the settings ``page``; then, in this order, ``light`` (factor), ``shift`` (pixels to the right and down),
    ``quality`` (of JPEG), and ``put``: texts, pictures and boxes at places."""
    if name:
        image = np.array(Image.open(PHOTOGRAPHS / f"{name}.jpg").convert("RGB"))
    else:
        settings = {key: _settings(value) for key, value in done.get("page", {}).items()}
        image = page(**settings | ({"theme": DARK} if settings.get("theme") == "dark" else {}))
    image = np.clip(image * done.get("light", 1.0), 0, 255).astype(np.uint8)
    right, down = done.get("shift", (0, 0))
    image = image[16 - down : image.shape[0] - 16 - down, 16 - right : image.shape[1] - 16 - right] if name else image
    if quality := done.get("quality"):
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "JPEG", quality=quality)
        image = np.array(Image.open(stream))
    canvas = Image.fromarray(image)
    for item in done.get("put", ()):
        _put(canvas, item)
    return np.array(canvas)


def _settings(value: Any) -> Any:
    """Colours are tuples, of which YAML has none."""
    if isinstance(value, dict):
        return {key: _settings(each) for key, each in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _put(canvas: Image.Image, item: dict[str, Any]) -> None:
    left, top = item["at"]
    draw = ImageDraw.Draw(canvas)
    if "text" in item:
        font = ImageFont.load_default(item.get("size", 16))
        if "ground" in item:
            draw.rectangle((left - 6, top - 4, left + font.getlength(item["text"]) + 6, top + 24), item["ground"])
        draw.text((left, top), item["text"], item.get("fill", "#1e2837"), font)
    elif "photograph" in item:
        picture = Image.open(PHOTOGRAPHS / f"{item['photograph']}.jpg").convert("RGB")
        canvas.paste(picture.resize(item.get("size", (160, 90))), (left, top))
    else:
        draw.rounded_rectangle((left, top, *item["to"]), item.get("radius", 0), item.get("fill"), item.get("outline"),
                               item.get("width", 1))  # fmt: skip
