"""A parser of pages for tests."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser

import numpy as np
from PIL import Image

VOID = {"meta", "img", "br", "line", "polyline", "circle", "link", "input", "hr"}


class HtmlPage(HTMLParser):
    """Text, tags and pictures of a page; fails on tags that do not close in order, and on a table with an empty
    heading, with a column that no row fills, or in a box that the keyboard cannot scroll."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.images: list[np.ndarray] = []
        self.text = ""
        self.rows: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            assert self.tags[-2][1].get("tabindex") == "0", "a table scrolls in a box that can have the focus"
            self.rows = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1] += [[tag, ""]] * int(dict(attrs).get("colspan") or 1)  # one cell, in each column
        if tag == "img":
            source = dict(attrs)["src"] or ""
            assert source.startswith("data:image/jpeg;base64,")
            self.images.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",", 1)[1])))))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "table":
            assert not [row for row in self.rows if ["th", ""] in row], f"an empty heading: {self.rows}"
            body = [row for row in self.rows if not all(kind == "th" for kind, _ in row[1:])]
            empty = [n for n, column in enumerate(zip(*body, strict=True)) if not any(text for _, text in column)]
            assert not empty, f"columns without a value: {empty} of {self.rows[0]}"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "title"):
            self.text += data + " "
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1][1] += data.strip()
