"""Words that became others, appeared or are gone, on signs drawn into photographs; read by the extra ``text``."""

from __future__ import annotations

from itertools import product

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_image

from idc.captioning.contract import Claim
from idc.captioning.objects_config import ObjectsConfig
from idc.systems.objects import captioner as captioner_module
from idc.systems.objects import text as text_module
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.reading import Word, lines_on, words_on_line
from idc.systems.objects.text import _compared, _positions, _without_moved, difference_of_letters, word_claims
from idc.systems.objects.wording import words_clause
from tests.systems.objects.test_regions import RED, shifted, with_disk

PLACE = (300, 60)


def sign(text: str, letter: int = 24, width: int = 640, place: tuple[int, int] = PLACE) -> np.ndarray:
    """A photograph, of a width, with text of a height, in its pixels, on a plate; places are those at 640 pixels."""
    photograph = load_sample_image("china.jpg")
    scale = width / photograph.shape[1]
    image = Image.fromarray(cv2.resize(photograph, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC))
    x, y = (round(scale * at) for at in place)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(letter / 0.72)
    lines = text.count("\n") + 1
    draw.rectangle((x - letter, y - letter, x + 9 * letter, y + 2 * lines * letter), fill=(235, 235, 225))
    draw.multiline_text((x, y), text, fill=(30, 30, 40), font=font, anchor="la" if lines == 1 else None)
    return np.array(image)


def noisy(image: np.ndarray, sigma: float = 5) -> np.ndarray:
    rng = np.random.default_rng(image.sum())  # another one for each image
    return (image + rng.normal(0, sigma, image.shape)).clip(0, 255).astype(np.uint8)


def compressed(image: np.ndarray, quality: int = 80) -> np.ndarray:
    encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR))


def clauses(claims: list[Claim]) -> list[str]:
    return [words_clause(claim) for claim in claims]


@pytest.mark.parametrize(
    ("before", "after", "letter", "width", "clause"),
    [
        ("RUNNING", "STOPPED", 60, 4000, 'the word "RUNNING" became "STOPPED" at the top'),
        ("Room 7 free", "Room 7 taken", 24, 640, 'the word "free" became "taken" at the top right'),
        ("Gate 4", "Gate 9", 30, 640, 'the words "Gate 4" became "Gate 9" at the top'),
        ("EXIT", "", 40, 640, 'the word "EXIT" is no longer at the top'),
        ("", "Coffee to go", 20, 640, 'the words "Coffee to go" are now at the top'),
    ],
)
def test_words_that_changed_are_read(before: str, after: str, letter: int, width: int, clause: str) -> None:
    images = [compressed(noisy(sign(text, letter, width))) for text in (before, after)]
    claims = word_claims(images[0], (images[1] * 0.9).astype(np.uint8))
    assert clauses(claims) == [clause]
    [claim] = claims
    assert claim.kind == ("gone" if not after else "replaced" if before else "appeared")
    x, y = (at * width / 640 for at in PLACE)
    for box, text in ((claim.box_before, before), (claim.box_after, after)):
        assert (box is None) == (text == "")
        if box is not None:
            assert x - letter < box[0] < box[2] < x + 10.5 * letter
            assert y - letter < box[1] < box[3] < y + 3 * letter


@pytest.mark.parametrize(
    ("text", "size"),
    [("No. 1", 12), ("No. 1", 30), ("Tel. 555 0117", 36), ("88.10", 24), ("17:15:11", 30), ("until it will", 16)],
)
def test_blanks_that_the_reader_leaves_out_are_seen_in_the_gaps_between_letters(text: str, size: int) -> None:
    page = Image.new("RGB", (400, 3 * size), (255, 255, 255))
    ImageDraw.Draw(page).text((30, size), text, fill=(20, 20, 20), font=ImageFont.load_default(size))
    scale = 3 if size < 16 else 2
    image = cv2.resize(np.array(page), None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    assert [word.text for line in lines_on(image) for word in words_on_line(image, line)] == text.split()


def test_of_two_lines_whose_boxes_touch_both_changes_are_said() -> None:
    claims = word_claims(sign("Tue,\nMay 2", 40), sign("Mon,\nMay 1", 40))
    assert [(claim.before, claim.after) for claim in claims] == [("Tue,", "Mon,"), ("May 2", "May 1")]


SAME_WORDS = {
    "JPEG": lambda image: compressed(image, 40),
    "noise": lambda image: noisy(image, sigma=12),
    "blur": lambda image: cv2.GaussianBlur(image, (0, 0), 1.2),
    "less light": lambda image: (image * 0.6).astype(np.uint8),
    "shift": lambda image: shifted(image, 3, -2),
    "a change beside them": lambda image: with_disk(image, 300, 160, RED, 30),
}


@pytest.mark.parametrize("name", SAME_WORDS)
def test_words_that_stay_are_not_named(name: str) -> None:
    before = sign("UNIT 0412", 16)
    assert word_claims(before, SAME_WORDS[name](before)) == []


def test_the_difference_of_letters_is_that_of_its_definition() -> None:
    """At the height at which letters are compared nothing is resampled: sums over windows, in loops."""
    size, shift = text_module._LETTER, text_module._SHIFT
    rng = np.random.default_rng(0)
    first, second = (cv2.GaussianBlur(rng.uniform(0, 255, (60, 90)).astype(np.float32), (0, 0), 3) for _ in range(2))
    left, top, width = 20, 15, 40
    quad = np.array([[left, top], [left + width, top], [left + width, top + size], [left, top + size]], float)
    around = second[top - shift : top + size + shift, left - shift : left + width + shift]
    patch = first[top : top + size, left : left + width]
    contrast = max(patch.std(), around.std(), 1.0)
    candidates = []
    for y, x in product(range(2 * shift + 1), repeat=2):
        sides = [
            (part - part.mean()) / max(part.std(), contrast / 3)
            for part in (patch, around[y : y + size, x : x + width])
        ]
        square = (sides[0] - sides[1]) ** 2 / 2
        # A window is half a letter wide, and as high; its middle row is reflected beyond the border by one of them.
        rows = np.pad(square, ((size // 2, size // 2), (0, 0)), mode="reflect")[size // 2 : size // 2 + size]
        candidates.append(max(rows[:, at : at + size // 2].mean() for at in range(width - size // 2 + 1)))
    assert difference_of_letters(first, second, quad) == pytest.approx(min(candidates), rel=0.02)


def test_a_word_at_another_position_is_neither_gone_nor_new() -> None:
    assert word_claims(sign("PLATFORM"), sign("PLATFORM", place=(60, 300))) == []
    rows = ["Alpha", "Beta", "Gamma"]
    boxes = [(0.0, 10.0 * at, 9.0, 10.0 * at + 9) for at in range(4)]
    changes = [text_module.WordChange(*texts, 1.0) for texts in zip([*rows, ""], ["Omega", *rows], boxes, strict=True)]
    assert [change[:2] for change in _without_moved(changes)] == [("", "Omega")]


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        (("Peach Pro", "The Blender Foundatio"), ("The Blender Foundation", ""), [("Peach Pro", "")]),
        (("Peach Project presen", ""), ("", "Peach Project presents"), []),
        (("Room 12", "Room 125"), ("Gate", ""), [("Room 12", "Room 125"), ("Gate", "")]),
        (("Room 12", ""), ("", "Room 125"), [("Room 12", ""), ("", "Room 125")]),
        (("Room", ""), ("", "Bedroom"), [("Room", ""), ("", "Bedroom")]),
        ((None, None), ("", "Gate"), [(None, None), ("", "Gate")]),
    ],
)  # fmt: skip
def test_a_line_that_is_cut_on_one_image_is_the_same_line(first: tuple, second: tuple, left: list[tuple]) -> None:
    """As the title of a film before a view that moves; a change of its own is not two of these."""
    changes = [text_module.WordChange(*texts, (0.0, 0.0, 9.0, 9.0), 1.0) for texts in (first, second)]
    assert [change[:2] for change in _without_moved(changes)] == left


def test_words_are_told_in_the_frames_of_both_images_and_where_they_count() -> None:
    before, after = sign("OPEN"), sign("SHUT")
    wide = cv2.copyMakeBorder(before, 30, 0, 50, 0, cv2.BORDER_REPLICATE)
    [claim] = word_claims(wide, after, np.array([[1, 0, 50], [0, 1, 30], [0, 0, 1.0]]))
    assert (claim.object, claim.before, claim.after) == ("words", "OPEN", "SHUT")
    assert np.abs(np.subtract(claim.box_before or (), claim.box_after or ()) - (50, 30, 50, 30)).max() <= 1
    region_of_interest = np.ones(after.shape[:2], bool)
    assert len(word_claims(before, after, region_of_interest=region_of_interest)) == 1
    region_of_interest[:150, 250:] = False
    assert word_claims(before, after, region_of_interest=region_of_interest) == []


@pytest.mark.parametrize(("before", "after"), [("BOX", "B0X"), ("СТОП", "ПУСК"), ("Закрыто", "Работает")])
def test_what_cannot_be_read_is_not_quoted(before: str, after: str) -> None:
    assert all(claim.before is None and claim.after is None for claim in word_claims(sign(before, 30), sign(after, 30)))


def word(text: str, at: float, confidence: float = 1.0) -> Word:
    """Its letters are squares of one unit, from a position on."""
    right = at + len(text)
    return Word(text, np.array([[at, 0], [right, 0], [right, 1], [at, 1]], float), confidence)


def line(text: str, confidence: float = 1.0) -> list[Word]:
    return [word(part, 10.0 * number, confidence) for number, part in enumerate(text.split())]


@pytest.mark.parametrize(
    ("before", "after", "options", "expected"),
    [
        ("Sign up", "Log in", {}, ("Sign up", "Log in")),
        ("a b c d e f 7", "a b c d e f 8", {}, ("7", "8")),
        ("Open", "OPEN", {}, None),
        ("EXIT", "", {}, ("EXIT", "")),
        ("EXIT", "", {"detected": True}, None),
        ("EXIT", "", {"confidence": 0.8}, None),
        ("OPEN", "SHUT", {"confidence": 0.8}, None),
        ("OPEN", "SHUT", {"other": 0.8, "detected": True}, (None, None)),
        ("OPEN", "SHUT", {"difference": 0.2}, ("OPEN", "SHUT")),
        ("EXIT", "", {"difference": 0.2}, None),
        ("OPEN", "SHUT", {"difference": 0.06}, None),  # the same letters, misread
        ("05-7-02", "05-7-2", {"difference": 0.2}, None),
        ("ZURB", "ZUAB", {"confidence": 0.98}, None),  # one letter, which may be misread
        ("ZURB", "ZUAB", {"confidence": 0.995}, ("ZURB", "ZUAB")),
        ("00000103 jpg", "00000104 jpg", {"confidence": 0.95}, ("00000103", "00000104")),  # a digit is another number
        ("12:30", "12:45", {"ends": (-1, 4)}, None),
        ("12:30", "12:45", {"ends": (1, np.inf)}, None),
    ],
)
def test_readings_of_a_position(before: str, after: str, options: dict, expected: tuple | None) -> None:
    confidence = options.get("confidence", 1.0)
    change = _compared(
        line(before, confidence),
        line(after, options.get("other", confidence)),
        options.get("detected", False),
        lambda *quads, blur=0.0: options.get("difference", 1.0),
        options.get("ends", (-np.inf, np.inf)),
    )
    assert (change and change[:2]) == expected


def test_words_between_the_first_and_the_last_that_differ_are_those_of_a_naive_search() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        first, second = (list(rng.choice(["abcd", "hijk", "opqr"], rng.integers(1, 6))) for _ in range(2))
        change = _compared(line(" ".join(first)), line(" ".join(second)), True, lambda *quads, blur=0.0: 1.0)
        trims = [
            (start + end, first[start : len(first) - end], second[start : len(second) - end])
            for start, end in product(range(6), repeat=2)
            if start + end <= min(len(first), len(second))
            and first[:start] == second[:start]
            and first[len(first) - end :] == second[len(second) - end :]
        ]
        longest = max(trimmed for trimmed, *_ in trims)
        expected = [(" ".join(a), " ".join(b)) for trimmed, a, b in trims if trimmed == longest]
        if change is None:
            assert first == second
        elif min(len(change.before or ""), len(change.after or "")) < 3 or any(not a or not b for a, b in expected):
            assert change[:2] == (" ".join(first), " ".join(second)), "with the words beside an inserted one"
        else:
            assert change[:2] in expected


def test_lines_are_joined_by_position_as_in_a_naive_closure() -> None:
    rng = np.random.default_rng(0)

    def quad() -> np.ndarray:
        x, y, w, h = rng.uniform(0, 60), rng.uniform(0, 60), rng.uniform(5, 30), rng.uniform(4, 12)
        return np.array([[x, y], [x + w, y], [x + w, y + h], [x, y + h]])

    def near(a: np.ndarray, b: np.ndarray) -> bool:
        shared = min(a[2, 1], b[2, 1]) - max(a[0, 1], b[0, 1])
        heights = sorted((a[2, 1] - a[0, 1], b[2, 1] - b[0, 1]))
        across = min(a[1, 0], b[1, 0]) > max(a[0, 0], b[0, 0])
        return bool(across and shared > heights[0] / 2 and heights[1] < 1.6 * heights[0])

    for _ in range(30):
        first, second = ([quad() for _ in range(6)] for _ in range(2))
        lines = first + second
        labels = list(range(12))
        for _, a, b in product(range(12), range(12), range(12)):
            if near(lines[a], lines[b]):
                labels[a] = labels[b] = min(labels[a], labels[b])
        expected = {frozenset(at for at in range(12) if labels[at] == label) for label in labels}
        positions = _positions(first, second)
        at = {id(value): number for number, value in enumerate(lines)}
        assert {frozenset(at[id(value)] for side in pair for value in side) for pair in positions} == expected
        for side in (side for pair in positions for side in pair):
            assert [value[0, 0] for value in side] == sorted(value[0, 0] for value in side)


@pytest.mark.parametrize("size", [(2, 5), (3, 900), (900, 3), (40, 40)])
def test_a_small_or_narrow_image_has_no_words(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    before, after = (rng.integers(0, 256, (*size, 3), np.uint8) for _ in range(2))
    assert word_claims(before, after) == []


def test_no_more_is_read_of_a_large_photograph_that_differs_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, read = text_module.lines_on, list[int]()
    monkeypatch.setattr(text_module, "lines_on", lambda image: (read.append(image[..., 0].size), lines(image))[1])
    flower = cv2.resize(load_sample_image("flower.jpg"), (4000, 2669))
    word_claims(flower, flower)
    assert read == [], "nothing differs"
    word_claims(sign("OPEN", 80, 4000)[:2669], flower)
    assert 0 < sum(read) <= 2.1 * text_module._BUDGET


def test_of_too_many_parts_those_that_differ_most_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "_MOST_PARTS", 20)
    parts, joined = list[int](), text_module._joined
    monkeypatch.setattr(text_module, "_joined", lambda boxes: (parts.append(len(boxes)), joined(boxes))[1])
    spots = np.full((600, 600, 3), 90, np.uint8)
    spots[20::60, 20::60] = spots[21::60, 20::60] = 255
    word_claims(np.full_like(spots, 90), spots)
    assert parts == [20]


def test_without_the_extra_no_words_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    captions = []
    for installed in (True, False):
        monkeypatch.setattr(captioner_module, "reads_text", lambda installed=installed: installed)
        [description] = ObjectsCaptioner(ObjectsConfig(detector="none")).describe([sign("OPEN")], [sign("SHUT")])
        captions.append("OPEN" in description.best.caption.upper())
    assert captions == [True, False]
