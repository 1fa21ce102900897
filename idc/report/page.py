"""Self-contained HTML pages: a :class:`Page` of sections of blocks, by one template and one style sheet.

A page makes no request; its content security policy forbids all of them. It follows the reader's light or dark setting
and fits a telephone. The template escapes every value but ``Markup``, which only this module and
:mod:`idc.report.sweep_page` make.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from idc.data import files
from idc.data.images import resize_image
from idc.data.object_store import explain_write_errors

if TYPE_CHECKING:
    from jinja2 import Environment

IMAGE_EDGE, FRAME_EDGE = 480, 160
"""Longest edge in pixels of the pictures of a pair, and of a frame in a filmstrip."""
SCORES_NOTE = "Scores are the field's usual ones times 100."

Text_ = str | Markup
"""Text, or HTML that this module made of text."""


@dataclass(frozen=True, kw_only=True)
class PageBlock:
    """A part of a section: a heading, small print below it, and whether the reader has to open it at its heading.
    One without items is left out with its title."""

    title: str = ""
    note: Text_ = ""
    folded: bool = False

    @property
    def kind(self) -> str:
        return type(self).__name__

    @property
    def empty(self) -> bool:
        return not getattr(self, "items", ())


@dataclass(frozen=True)
class Text(PageBlock):
    """A note alone, which makes no section by itself."""

    note: Text_

    @property
    def empty(self) -> bool:
        return not self.note


@dataclass(frozen=True)
class Tiles(PageBlock):
    """Numbers that the reader looks for first: label, value, and what it is to be compared with."""

    items: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Cell:
    """A cell of a table; ``title`` is what the pointer shows, ``below`` small print, ``wide`` for many words."""

    text: Text_
    title: str = ""
    below: str = ""
    color: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Table(PageBlock):
    """A table of texts and cells, without the columns in which every cell is empty; ``bold``: rows that stand out."""

    head: Sequence[str]
    items: Sequence[Sequence[object]]
    bold: Collection[int] = ()

    @property
    def cells(self) -> list[list[Cell]]:
        rows = [[cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in row] for row in self.items]
        return [[row[column] for column in self._filled] for row in rows]

    @property
    def columns(self) -> list[str]:
        return [self.head[column] for column in self._filled]

    def markdown(self) -> str:
        """All columns as GitHub's Markdown."""
        texts = [getattr(cell, "text", cell) for row in (self.head, *self.items) for cell in row]
        plain = [text.striptags() if isinstance(text, Markup) else str(text) for text in texts]
        cells = iter(text.replace("|", "\\|") for text in plain)
        head, *rows = ["| " + " | ".join(row) + " |" for row in zip(*[cells] * len(self.head), strict=True)]
        return "\n".join([head, "|---" * len(self.head) + "|", *rows])

    @property
    def _filled(self) -> list[int]:
        return [n for n in range(len(self.head)) if any(getattr(row[n], "text", row[n]) != "" for row in self.items)]


@dataclass(frozen=True)
class Facts(PageBlock):
    """Names and values; a list is printed with commas."""

    items: Mapping[str, object]


@dataclass(frozen=True)
class Bullets(PageBlock):
    """A list of lines."""

    items: Sequence[Text_]


@dataclass(frozen=True)
class Figure(PageBlock):
    """Charts."""

    items: Sequence[Markup]


@dataclass(frozen=True)
class Code(PageBlock):
    """A text as it stands."""

    items: str


@dataclass(frozen=True)
class BlockGroup(PageBlock):
    """Blocks below one title."""

    items: Sequence[PageBlock]

    @property
    def empty(self) -> bool:
        return all(block.empty or isinstance(block, Text) for block in self.items)


@dataclass(frozen=True)
class Card:
    """A pair: its id; labels and images (uint8 RGB ``(H, W, 3)``); lines, each with a style of ``page.css``; short
    facts in one line; frames (label, image, whether it is a key frame); a list of lines; blocks below all."""

    name: str
    views: Sequence[tuple[str, np.ndarray]]
    lines: Sequence[tuple[str, Text_]] = ()
    tags: Sequence[Text_] = ()
    frames: Sequence[tuple[str, np.ndarray, bool]] = ()
    bullets: Sequence[str] = ()
    blocks: Sequence[PageBlock] = ()


@dataclass(frozen=True)
class Cards(PageBlock):
    """Pairs, each at least ``width`` letters wide."""

    items: Sequence[Card]
    width: int = 26


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in its navigation; without any block but texts it is left out."""

    title: str
    blocks: Sequence[PageBlock]


@dataclass(frozen=True)
class Page:
    """A page; ``note`` is at its end."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    note: str = ""

    def html(self) -> str:
        """The page as text."""
        sections = [section for section in self.sections if not BlockGroup(section.blocks).empty]
        return _environment().get_template("page.html").render(
            title=self.title, subtitle=self.subtitle, sections=sections, footer=self.note,
            style=_style(),
        )  # fmt: skip


def write_texts(folder: str, texts: Mapping[str, str]) -> None:
    """Write files into a folder, a path or a URI.

    Raises:
        ValueError: it cannot be written.
    """
    out = files.locate(folder)
    with explain_write_errors(out):
        for name, text in texts.items():
            (out / name).write(text.encode())


def styled(style: str, text: str) -> Markup:
    """Text in a style of ``page.css``."""
    return Markup('<span class="{}">{}</span>').format(style, text)


def struck(text: str, title: str = "") -> Markup:
    """Text with dots below it, and what the pointer shows."""
    return Markup('<s title="{}">{}</s>').format(title, text) if title else Markup("<s>{}</s>").format(text)


def link(target: str, text: str) -> Markup:
    """A link to a file beside the page."""
    return Markup('<a href="{}">{}</a>').format(target, text)


def html_join(parts: Sequence[Text_], between: str = "") -> Markup:
    """Pieces one behind the other."""
    return Markup(between).join(parts)


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
    # Without subsampling small coloured things keep their colour.
    Image.fromarray(image).save(stream, format="JPEG", quality=88, subsampling=0)
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


def middle_numbers(count: int, of: int) -> set[int]:
    """The middles of ``count`` equal parts of ``of`` rows, or all of them."""
    count = min(count, of)
    return {(2 * i + 1) * of // (2 * count) for i in range(count)}


@cache
def _style() -> Markup:
    return Markup(resources.files("idc.report").joinpath("templates", "page.css").read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import

    environment = Environment(
        loader=PackageLoader("idc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(picture=picture, FRAME_EDGE=FRAME_EDGE)
    environment.filters.update(
        fact=lambda value: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    )
    return environment
