"""Words that came and went, on drawn signs; read by the extra ``text``."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from idc.systems.regions import captioner as captioner_module
from idc.systems.regions import text as text_module
from idc.systems.regions.captioner import RegionsCaptioner
from idc.systems.regions.text import read_words, text_sentence
from tests.systems.regions.test_regions import RED, described, ground, with_disk


def sign(*lines: str, seed: int = 0) -> np.ndarray:
    """A white sign with these lines on a textured plane."""
    image = Image.fromarray(ground(seed, 360, 480))
    draw = ImageDraw.Draw(image)
    draw.rectangle((100, 100, 420, 260), fill="white")
    for number, line in enumerate(lines):
        draw.text((120, 110 + 46 * number), line, fill="black", font=ImageFont.load_default(34))
    return np.array(image)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (("OPEN 24 h",), ("CLOSED",), 'Text: "OPEN 24 h" are gone, "CLOSED" is new.'),
        (("Balance", "120.50 EUR"), ("Balance", "340.75 EUR"), 'Text: "120.50" is gone, "340.75" is new.'),
        (("Room 7",), ("Room 7", "Exit"), 'Text: "Exit" is new.'),
    ],
)
def test_words_that_changed_are_named(before: tuple[str, ...], after: tuple[str, ...], words: str) -> None:
    """Next to regions, or alone where the strokes are too thin for one."""
    description = described(sign(*before), sign(*after))
    assert description.best.caption.endswith(words)
    assert (description.best.caption == words) == (not description.regions)
    assert description.verdict == "changed"


def test_words_that_stay_are_not_named() -> None:
    """A change elsewhere, and a sign that is read the same or a little otherwise."""
    before = sign("OPEN 10")
    assert "Text" not in described(before, with_disk(before, 50, 50, RED, 30)).best.caption
    assert text_sentence(sign("BOX"), sign("B0X"), np.ones((36, 48)), 0.5) == "", "one shape, two readings"


def test_a_reading_without_a_difference_of_the_pixels_is_not_named() -> None:
    assert text_sentence(sign("OPEN"), sign("SHUT"), np.zeros((36, 48)), 0.5) == ""
    assert text_sentence(sign("OPEN"), sign("SHUT"), np.ones((36, 48)), 0.5) == 'Text: "OPEN" is gone, "SHUT" is new.'


@pytest.mark.parametrize("size", [(2, 5), (360, 480)])
def test_an_image_without_text_has_no_words(size: tuple[int, int]) -> None:
    assert read_words(ground(height=max(24, size[0]), width=max(24, size[1]))[: size[0], : size[1]]) == []


def test_what_is_read_into_a_texture_is_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reader answered for a car from above, and for a board with small print; with confidence."""

    class Reader:
        def __call__(self, image: np.ndarray, **options: object) -> object:
            lines = ([("日", 0.99, box(80))], [("REA", 0.92, box(238))], [("Exit", 0.99, box(10)), ("7", 0.98, box(95)),
                     ("B", 0.7, box(120))])  # fmt: skip
            return SimpleNamespace(word_results=tuple(map(tuple, lines)))

    def box(left: int) -> list[list[int]]:
        return [[left, 10], [left + 20, 10], [left + 20, 40], [left, 40]]

    monkeypatch.setattr(text_module, "_reader", Reader)
    assert [word.text for word in read_words(ground())] == ["Exit", "7"]


def test_without_the_extra_the_regions_are_described_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captioner_module, "reads_text", lambda: False)
    [description] = RegionsCaptioner().describe([sign("OPEN")], [sign("SHUT")])
    caption = description.best.caption
    assert "region" in caption
    assert "Text" not in caption
