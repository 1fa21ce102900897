"""A parser of pages for tests."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser

import numpy as np
from PIL import Image

VOID = {"meta", "img", "br", "line", "polyline", "circle", "link", "input", "hr"}


class HtmlPage(HTMLParser):
    """Text, tags and pictures of a page; fails on tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.images: list[np.ndarray] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "img":
            source = dict(attrs)["src"] or ""
            assert source.startswith("data:image/jpeg;base64,")
            self.images.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",", 1)[1])))))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "title"):
            self.text += data + " "

    def with_class(self, name: str) -> list[tuple[str, dict[str, str | None]]]:
        return [(tag, attrs) for tag, attrs in self.tags if name in (attrs.get("class") or "").split()]
