"""The one page: text comes out as text in every block, nothing is loaded, what is empty is left out."""

from __future__ import annotations

import numpy as np
import pytest

from idc.evaluation.record import spread
from idc.report import page as pg
from idc.report.pair_cards import pair_card
from idc.report.sweep_page import chart_of_means
from tests.report.html_page import HtmlPage

EVIL = """'">{{7*7}}</td></style><script>alert("&")</script><img src=x onerror=y>"""
GREY = np.full((8, 8, 3), 90, np.uint8)


def evil_blocks() -> dict[str, tuple[pg.PageBlock, int]]:
    """Every kind of block full of the text, and how often it is to be read there."""
    more = {"title": EVIL, "note": EVIL}
    card = pair_card(
        EVIL, GREY, GREY, EVIL, references=["x", EVIL], named_type=EVIL, note=EVIL, nearest=EVIL, warning=EVIL,
        without_model=EVIL,
    )  # fmt: skip
    styled = [pg.styled("soft", EVIL), pg.struck(EVIL, EVIL), pg.link(EVIL, EVIL), pg.html_join([EVIL])]
    cells = [EVIL, pg.Cell(EVIL, EVIL, EVIL, EVIL)]
    drawn = [chart_of_means(EVIL, EVIL, {EVIL: [(1, spread([1.0]))]})]
    return {
        "text": (pg.Text(note=EVIL), 1),
        "tiles": (pg.Tiles([(EVIL, EVIL, EVIL)], **more), 5),
        "table": (pg.Table([EVIL, EVIL], [cells], **more), 2 + 2 + 1 + 4),
        "facts": (pg.Facts({EVIL: EVIL, "list": [EVIL]}, **more), 5),
        "bullets": (pg.Bullets([EVIL, *styled], **more), 2 + 1 + 6),
        "figure": (pg.Figure(drawn, **more), 2 + 5),
        "code": (pg.Code(EVIL, **more), 3),
        "group": (pg.BlockGroup([pg.Code(EVIL)], folded=True, **more), 3),
        "cards": (pg.Cards([card], **more), 2 + 2 + 8),
    }


@pytest.mark.parametrize("kind", evil_blocks())
def test_text_is_text_in_every_block(kind: str) -> None:
    block, count = evil_blocks()[kind]
    text = pg.Page(EVIL, EVIL, [pg.Section(EVIL, [block, pg.Code("x")])], EVIL).html()
    page = HtmlPage(text)  # fails on an image that is not data, and on tags that do not close
    assert [tag for tag, _ in page.tags].count("script") == 0
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    values = [value or "" for _, attrs in page.tags for value in attrs.values()]
    assert sum(shown.count(EVIL) for shown in (page.text, *values)) == count + 5
    assert "<script>alert" not in text
    assert "alert(&amp;quot;" not in text, "escaped once, not twice"


def test_what_is_empty_is_left_out_with_its_title_and_columns() -> None:
    empty = [
        pg.Tiles([]),
        pg.Table(["a"], []),
        pg.Facts({}),
        pg.Cards([]),
        pg.BlockGroup([pg.Bullets([], title="inner")]),
    ]
    sections = [
        pg.Section("nothing", [pg.Text(note="a note alone"), *empty]),
        pg.Section("something", [pg.Table(["", "full", "gone"], [["x", "1", ""], ["y", "", ""]], bold=[1])]),
    ]
    page = HtmlPage(pg.Page("t", "s", sections).html())
    assert [attrs["href"] for tag, attrs in page.tags if tag == "a"] == ["#section-1"]
    assert "gone" not in page.text
    assert "inner" not in page.text
    assert "a note alone" not in page.text
    assert [attrs for tag, attrs in page.tags if tag == "tr"][1:] == [{}, {"class": "bold"}]
    policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and attrs.get("http-equiv"))
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'", "it loads nothing"


def test_pictures_are_reduced_and_other_arrays_refused() -> None:
    page = pg.Page("t", "", [pg.Section("s", [pg.Cards([pg.Card("p", [("x", np.zeros((900, 1200, 3), np.uint8))])])])])
    assert HtmlPage(page.html()).images[0].shape == (360, 480, 3)
    with pytest.raises(ValueError, match=r"uint8 \(H, W, 3\), got float64"):
        pg.picture(np.zeros((4, 4, 3)), "alt")
