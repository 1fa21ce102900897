"""Parts of request bodies for tests of the server: images, pairs, conversations and forms."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from serve.backend import EncodedPair

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


def upload(*pairs: Any, **fields: Any) -> dict[str, Any]:
    """The arguments of ``httpx2.post`` for a form with pairs (``before`` and ``after`` of each; by default a valid one)
    and fields."""
    pairs = pairs or (EncodedPair(picture(), picture(shade=140)),)
    files = [(name, (f"{name}.png", getattr(pair, name))) for pair in pairs for name in ("before", "after")]
    return {"files": files, "data": fields}


def dumped(value: Any) -> Callable[[], bytes]:
    """A JSON body."""
    return lambda: json.dumps(value() if callable(value) else value).encode()


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


def formed(before: bytes | None = None, after: bytes | None = None, **fields: Any) -> Callable[[], bytes]:
    """A form with a valid pair, or these files, and fields; a list is as many fields, a file one of a mask."""

    def body() -> bytes:
        files = [
            file("before", picture() if before is None else before),
            file("after", picture() if after is None else after),
        ]
        texts = [
            (name, each) for name, value in fields.items() for each in (value if isinstance(value, list) else [value])
        ]
        return form(*files, *(file(k, v) if isinstance(v, bytes) else field(k, str(v)) for k, v in texts))

    return body
