"""Words that came and went, on drawn signs; read by the extra ``text``."""

from __future__ import annotations

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from idc.systems.objects import captioner as captioner_module
from idc.systems.objects import text as text_module
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.text import _without, read_words, text_sentence, words_differ
from tests.systems.objects.test_regions import RED, described, ground, shifted, with_disk


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


def frame(text: str) -> np.ndarray:
    """A camera's frame with letters of 36 pixels on what it shows."""
    image = Image.fromarray(ground(3, 720, 1280))
    ImageDraw.Draw(image).text((700, 300), text, fill=(255, 230, 40), font=ImageFont.load_default(40))
    return np.array(image)


@pytest.mark.parametrize(("before", "after"), [("RUNNING", "STOPPED"), ("0412", "0517")])
def test_a_small_sign_with_other_words_is_a_change(before: str, after: str) -> None:
    description = described(frame(before), frame(after))
    assert description.best.caption == f'Text: "{before}" is gone, "{after}" is new.'
    assert description.verdict == "changed"


SAME_WORDS = {
    "JPEG": lambda image: cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 50])[1], 1),
    "noise": lambda image: (image + np.random.default_rng(2).normal(0, 10, image.shape)).clip(0, 255).astype(np.uint8),
    "blur": lambda image: cv2.GaussianBlur(image, (0, 0), 1.0),
    "less light": lambda image: (image * 0.75).astype(np.uint8),
    "shift": lambda image: shifted(image, 3, -2),
}


@pytest.mark.parametrize("name", SAME_WORDS)
def test_words_that_stay_are_not_named(name: str) -> None:
    before = frame("UNIT 0412")
    assert "Text" not in described(before, SAME_WORDS[name](before)).best.caption


def test_a_change_elsewhere_and_another_reading_of_one_shape_are_no_words() -> None:
    before = sign("OPEN 10")
    assert "Text" not in described(before, with_disk(before, 50, 50, RED, 30)).best.caption
    assert text_sentence(sign("BOX"), sign("B0X")) == "", "one shape, two readings"


@pytest.mark.parametrize("name", SAME_WORDS)
def test_the_letters_themselves_must_differ_and_not_the_reading_alone(name: str) -> None:
    box = ImageDraw.Draw(Image.new("L", (1, 1))).textbbox((700, 300), "B12", font=ImageFont.load_default(40))
    before = frame("B12")
    assert not words_differ(before, SAME_WORDS[name](before), box)
    assert words_differ(before, SAME_WORDS[name](frame("B17")), box), "one letter"
    assert words_differ(before, SAME_WORDS[name](frame("")), box)


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
    assert text_sentence(ground(1), ground(2)) == "", "the same on both"
    words = read_words(ground())
    assert [word.text for word in _without(words, [])] == ["Exit", "7"]
    assert _without(words, [word._replace(confidence=0.6) for word in words]) == [], "read with less confidence"


@pytest.mark.parametrize("size", [(3, 900), (900, 3)])
def test_a_strip_is_not_read_at_a_length_that_fills_the_memory(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader enlarges the shorter side to 736 pixels and the other one with it."""
    seen = []

    def read(image: np.ndarray, **options: object) -> SimpleNamespace:
        seen.append(image.shape)
        return SimpleNamespace(word_results=())

    monkeypatch.setattr(text_module, "_reader", lambda: read)
    assert read_words(np.zeros((*size, 3), np.uint8)) == []
    [(height, width, _)] = seen
    assert max(height, width) <= 8 * min(height, width)


def test_without_the_extra_the_regions_are_described_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captioner_module, "reads_text", lambda: False)
    [description] = ObjectsCaptioner().describe([sign("OPEN")], [sign("SHUT")])
    caption = description.best.caption
    assert "region" in caption
    assert "Text" not in caption
