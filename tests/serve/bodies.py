"""Parts of request bodies for tests of the server: images, pairs, conversations and forms."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

BOUNDARY = "idc-boundary"
FORM = (("Content-Type", f"multipart/form-data; boundary={BOUNDARY}"),)


def picture(width: int = 32, height: int = 24, shade: int = 90) -> bytes:
    """A valid PNG."""
    pixels = np.full((height, width, 3), shade, np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = (200, 30, 30)
    return saved(pixels, "PNG")


def saved(pixels: np.ndarray, kind: str) -> bytes:
    """An image file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def url(data: bytes, kind: str = "image/png") -> str:
    """A data URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def pair(**fields: Any) -> dict[str, Any]:
    """The JSON of a valid pair, overridden by ``fields``."""
    return {"before": url(picture()), "after": url(picture(shade=140)), **fields}


def dumped(value: Any) -> Callable[[], bytes]:
    """A JSON body."""
    return lambda: json.dumps(value() if callable(value) else value).encode()


def text(make: Callable[[], str | bytes]) -> Callable[[], bytes]:
    """A handwritten body; ``PAIR`` is replaced by the members of a valid pair's JSON."""

    def body() -> bytes:
        made = make()
        data = made if isinstance(made, bytes) else made.encode()
        return data.replace(b"PAIR", json.dumps(pair())[1:-1].encode())

    return body


def conversation(*urls: str, **fields: Any) -> dict[str, Any]:
    """The JSON of a conversation with images."""
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in urls]
    content = [{"type": "text", "text": "What changed?"}, *parts]
    return {"messages": [{"role": "user", "content": content}], **fields}


def form(*parts: tuple[str, bytes]) -> bytes:
    """A multipart body of (headers, content)."""
    out = b"".join(
        b"--" + BOUNDARY.encode() + b"\r\n" + head.encode() + b"\r\n\r\n" + data + b"\r\n" for head, data in parts
    )
    return out + b"--" + BOUNDARY.encode() + b"--\r\n"


def file(name: str, data: bytes, kind: str = "image/png") -> tuple[str, bytes]:
    """A file of a form."""
    return f'Content-Disposition: form-data; name="{name}"; filename="{name}.png"\r\nContent-Type: {kind}', data


def field(name: str, value: str) -> tuple[str, bytes]:
    """A text field of a form."""
    return f'Content-Disposition: form-data; name="{name}"', value.encode()
