"""Self-contained HTML pages from Jinja2 templates: styles, pictures and scripts are inside the file.

A page makes no request; its content security policy forbids all of them. It follows the reader's light or dark setting
and fits a telephone. A template escapes every value that it prints, except ``Markup``, which only :func:`picture`,
:mod:`idc.report.charts` and the templates themselves make. Templates get plain values, not records.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from idc.data.images import resize_image

if TYPE_CHECKING:
    from jinja2 import Environment

IMAGE_EDGE, FRAME_EDGE = 480, 160
"""Longest edge in pixels of the pictures of a pair, and of a frame in a filmstrip."""


def render_template(template: str, **values: Any) -> str:
    """The page of a template in ``templates/``."""
    return _templates().get_template(template).render(values)


def picture(image: np.ndarray, alt: str, edge: int = IMAGE_EDGE) -> Markup:
    """An image, uint8 RGB ``(H, W, 3)``, as an ``<img>`` with its data, reduced to ``edge`` pixels.

    Raises:
        ValueError: the array has another type or shape.
    """
    from PIL import Image

    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"the report takes images as uint8 (H, W, 3), got {image.dtype} {image.shape} for {alt!r}")
    image = reduced(image, edge)
    stream = io.BytesIO()
    Image.fromarray(image).save(
        stream, format="JPEG", quality=88, subsampling=0
    )  # small coloured things keep their colour
    data = base64.b64encode(stream.getvalue()).decode()
    text = '<img src="data:image/jpeg;base64,{}" alt="{}" width="{}" height="{}" loading="lazy">'
    return Markup(text).format(data, alt, image.shape[1], image.shape[0])


def reduced(image: np.ndarray, edge: int = IMAGE_EDGE) -> np.ndarray:
    """An image whose longest edge has at most ``edge`` pixels."""
    height, width = image.shape[:2]
    if (scale := edge / max(height, width)) >= 1:
        return image
    return resize_image(image, (max(1, round(height * scale)), max(1, round(width * scale))))


def number(value: float) -> str:
    """Three digits, also of very large and very small values."""
    return f"{value:.3g}" if value == 0 or 1e-2 <= abs(value) < 1e5 else f"{value:.1e}"


def width(share: float) -> str:
    """A share, limited to 0 to 1, as a CSS width; 0 for one that is not defined (NaN)."""
    return f"{100 * min(max(0.0, share), 1.0):.2f}%"


def _fact(value: object) -> str:
    """A value of a table of facts; those of a list with commas between."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def filled(table: tuple[Sequence[str], Sequence[Sequence[str]]]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table without the columns in which every cell is empty."""
    head, rows = table
    kept = [column for column in range(len(head)) if any(row[column] != "" for row in rows)]
    return [head[column] for column in kept], [[row[column] for column in kept] for row in rows]


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape  # slow to import

    environment = Environment(
        loader=PackageLoader("idc.report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(picture=picture, FRAME_EDGE=FRAME_EDGE)
    environment.filters.update(sha256=_sha256, fact=_fact, width=width, filled=filled)
    return environment


def _sha256(text: str) -> str:
    """The digest of a script as a content security policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
