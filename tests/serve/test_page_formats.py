"""The served page offers exactly the image formats that the decoder reads."""

from __future__ import annotations

from html.parser import HTMLParser

from idc.data.images import ACCEPT, FORMAT_NAMES
from serve.api import WEB


class Page(HTMLParser):
    """What the file inputs of the page accept, and the formats that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.accept: dict[str, str | None] = {}
        self.formats = ""
        self._in_formats = False
        self.feed((WEB / "index.html").read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._in_formats = found.get("id") == "formats"
        if tag == "input" and found.get("type") == "file" and "capture" not in found:
            self.accept[str(found["id"])] = found["accept"]

    def handle_data(self, data: str) -> None:
        self.formats += data if self._in_formats else ""

    def handle_endtag(self, tag: str) -> None:
        self._in_formats = False


def test_the_page_accepts_the_formats_of_the_decoder() -> None:
    page = Page()
    assert page.accept == {"before": ACCEPT, "after": ACCEPT}
    assert page.formats == FORMAT_NAMES
