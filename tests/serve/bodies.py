"""Requests for captions: images, pairs, forms and conversations."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
from PIL import Image

import serve

CAPTIONS, CHAT = "/v1/captions", "/v1/chat/completions"


def saved(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """An image file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def picture(width: int = 32, height: int = 24, shade: int = 90) -> bytes:
    """A valid PNG."""
    pixels = np.full((height, width, 3), shade, np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = (200, 30, 30)
    return saved(pixels)


class Pair(NamedTuple):
    """Two image files."""

    before: bytes
    after: bytes


EXAMPLES = Path(serve.__file__).parent / "web" / "examples"
PAIR = Pair(picture(), picture(40, 30, shade=140))
BOTTLES = Pair(*((EXAMPLES / "photographs" / f"bottle_{number}.jpg").read_bytes() for number in ("00100", "00260")))
RENDERED = Pair(*((EXAMPLES / f"color-{name}.png").read_bytes() for name in Pair._fields))


def url(data: bytes, kind: str = "image/png") -> str:
    """A data URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def upload(*pairs: Pair, **fields: Any) -> dict[str, Any]:
    """The arguments of ``httpx2.post`` for a form with pairs (``before`` and ``after`` of each; by default a valid one)
    and fields; a field of bytes is a file, a list several fields."""
    files = [(name, (f"{name}.png", getattr(pair, name))) for pair in pairs or (PAIR,) for name in Pair._fields]
    files += [(name, ("mask.png", fields.pop(name))) for name, value in [*fields.items()] if isinstance(value, bytes)]
    return {"files": files, "data": fields}


def conversation(*urls: str, text: str = "What changed?", **fields: Any) -> dict[str, Any]:
    """The JSON of a conversation of one turn, with images (by default a valid pair)."""
    parts = [{"type": "image_url", "image_url": {"url": each, "detail": "high"}} for each in urls or map(url, PAIR)]
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": text}, *parts]}], **fields}


def result(client: httpx2.Client, *pairs: Pair, **fields: Any) -> dict[str, Any]:
    """The result of a form with one pair."""
    [answer] = client.post(CAPTIONS, **upload(*pairs, **fields)).raise_for_status().json()["results"]
    return dict(answer)
