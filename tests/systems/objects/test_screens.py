"""What changed on a screen, by name: each explanation with a pair that it must not explain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from idc.captioning.contract import Claim
from idc.captioning.counts import counts_of
from idc.systems.objects.canvas import canvas_of
from idc.systems.objects.consequences import _continues
from idc.systems.objects.exact import exact_changes

LIGHT = {"page": (255, 255, 255), "ink": (30, 40, 55), "line": (205, 210, 216), "accent": (37, 99, 235)}
DARK = {"page": (17, 24, 39), "ink": (240, 242, 246), "line": (55, 65, 81), "accent": (16, 185, 129)}
LINES = ("The harbour opens early in summer", "and the market closes late at night", "so bring a coat and good shoes.")
ROWS = tuple(f"{name} order {37 * number + 104}" for number, name in enumerate(
    ("Copper", "Meadow", "Ladder", "Window", "Signal", "Garden", "Bridge", "Winter", "Silver", "Coffee")
))  # fmt: skip


class Page:
    """A page of 640 x 480 points with a heading, a button, a card and a text; each may be drawn otherwise."""

    def __init__(self, theme: dict[str, tuple[int, int, int]] = LIGHT, scale: int = 1):
        self.theme, self.scale = theme, scale
        self.image = Image.new("RGB", (640 * scale, 480 * scale), theme["page"])
        self.draw = ImageDraw.Draw(self.image)

    def text(self, x: int, y: float, text: str, size: int = 16, gap: float = 0.0, bold: int = 0,
             fill: Any = None) -> Page:  # fmt: skip
        font = ImageFont.load_default(size * self.scale)
        left = float(x * self.scale)
        for letter in text:
            ink = fill or self.theme["ink"]
            self.draw.text((left, y * self.scale), letter, ink, font, stroke_width=bold, stroke_fill=ink)
            left += font.getlength(letter) + gap * self.scale
        return self

    def box(self, box: tuple[int, int, int, int], radius: int = 0, width: int = 0, **options: Any) -> Page:
        corners = [value * self.scale for value in box]
        self.draw.rounded_rectangle(corners, radius * self.scale, width=width * self.scale, **options)
        return self

    def array(self) -> np.ndarray:
        return np.array(self.image)


def page(theme: Any = LIGHT, scale: int = 1, heading: Any = None, button: Any = None, text: Any = None,
         pitch: float = 26, shift: int = 0, top: int = 0, card: Any = None) -> np.ndarray:  # fmt: skip
    """The page, of which the heading, the button, the text or the card has other settings."""
    drawn = Page(theme, scale)
    drawn.text(40, 30 + top, **{"text": "Quarterly report", "size": 28, **(heading or {})})
    drawn.box((420, 30 + top, 580, 70 + top), **{"radius": 4, "fill": theme["accent"], **(button or {})})
    drawn.text(450, 40 + top, "Start chat", fill=(255, 255, 255))
    for number, line in enumerate(LINES):
        drawn.text(40 + shift, 110 + top + pitch * (number + 0.5), line, **(text or {}))
    drawn.box((40, 300 + top, 300, 420 + top), **{"radius": 8, "width": 1, "outline": theme["line"], **(card or {})})
    drawn.text(60, 320 + top, "Delivery address", 18)
    return drawn.array()


def table(rows: tuple[str, ...], top: int = 60, left: int = 40, onto: Page | None = None) -> Page:
    drawn = onto or Page()
    for number, row in enumerate(rows):
        drawn.text(left, top + 32 * number, row)
    return drawn


def panes(first: int, second: int) -> np.ndarray:
    """Two columns that are scrolled by so many rows, under a header."""
    drawn = table(ROWS[second:][:7], 110, 360, table(ROWS[::-1][first:][:7], 104, 40))
    return drawn.text(40, 20, "All orders of the year", 24).array()


def compared(before: np.ndarray, after: np.ndarray) -> tuple[str, tuple[Claim, ...]]:
    description = exact_changes(before, after, canvas_of(before, after, None))
    return description.best.caption, description.claims or ()


def banner() -> np.ndarray:
    strip = Page().box((0, 0, 640, 40), fill=(250, 220, 120)).text(20, 10, "We are closed on Friday").array()
    return np.concatenate([strip[:41], page()[:-41]])


def faded(image: np.ndarray, opacity: float = 0.4) -> np.ndarray:
    """The heading and its neighbours blended with the page."""
    result = image.astype(float)
    result[20:80] = 255 + opacity * (result[20:80] - 255)
    return result.round().astype(np.uint8)


RED = (200, 30, 30)
CASES: dict[str, tuple[np.ndarray, np.ndarray, str, str, float | None]] = {
    "scroll": (
        table(ROWS).array(), table(ROWS[2:]).array(),
        'A row with the words "Copper 104 Meadow 141" was removed at the top left, and everything below moved up by '
        "64 px.", "visibility", None,
    ),
    "a banner": (
        page(), banner(),
        'The words "We are closed on Friday" are now at the top left, and what follows moved down by 41 px; '
        'the part with the words "We are closed on Friday Quarterly report Start ..." at the top changed from white to '
        "yellow.", "words", None,
    ),
    "a row": (
        table(ROWS[:6]).array(), table((*ROWS[:2], "Harbour order 999", *ROWS[2:6])).array(),
        'A row with the words "Harbour 999" was added at the top left, and everything below moved down by 32 px.',
        "visibility", None,
    ),
    "panes under a header": (
        panes(0, 0), panes(2, 1),
        'A row with the words "Silver 400 Coffee 437" was removed at the top left, and everything below moved up by '
        '64 px; a row with the words "Copper 104" was removed at the top, and everything below moved up by 32 px.',
        "visibility", None,
    ),
    "a dark theme": (
        page(DARK), page(DARK, heading={"size": 34}),
        'The words "Quarterly report" at the top left became larger (letters by 21 %).', "font size", 21,
    ),
    "twice the scale": (
        page(scale=2), page(scale=2, button={"radius": 16}),
        'The corners of the part with the words "Start chat" at the top right became rounder.', "corners", 27,
    ),
    "corners": (
        page(button={"radius": 16}), page(),
        'The corners of the button "Start chat" at the top right became squarer.', "corners", 13,
    ),
    "font weight": (
        page(), page(heading={"bold": 1}),
        'The words "Quarterly report" at the top left became bolder.', "font weight", 92,
    ),
    "line height": (
        page(), page(pitch=34),
        'The words "The harbour opens early in summer and the ..." on the left got more space between the lines, by '
        "8 px.", "line height", 8,
    ),
    "fill": (
        page(), page(button={"fill": RED}),
        'The background of the button "Start chat" at the top right changed from blue to red.', "background", None,
    ),
    "opacity": (
        page(), faded(page()),
        'The part with the words "Quarterly report Start chat" at the top became fainter (40 % opaque).', "opacity", 40,
    ),
    "border": (
        page(), page(card={"width": 4}),
        'The border of the part with the words "Delivery address" at the bottom left became thicker by 3 px.',
        "border", 3,
    ),
    "border gone": (
        page(), page(card={"width": 0, "outline": None}),
        'The part with the words "Delivery address" at the bottom left lost its light grey border.', "border", 1,
    ),
    "position": (
        page(), page(shift=24),
        'The part with the words "The harbour opens early in summer and the ..." on the left moved right by 24 px.',
        "position", 24,
    ),
    "words": (
        page(), page(heading={"text": "Quarterly summary"}),
        'The word "report" became "summary" at the top.', "words", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_changed_is_named(case: str) -> None:
    before, after, sentence, aspect, amount = CASES[case]
    caption, claims = compared(before, after)
    assert caption == sentence
    assert (claims[0].aspect, claims[0].amount) == (aspect, amount)


def only(box: tuple[int, int, int, int], changed: np.ndarray) -> np.ndarray:
    """The page, of which a part alone is another one's."""
    result = page()
    left, top, right, bottom = box
    result[top:bottom, left:right] = changed[top:bottom, left:right]
    return result


@pytest.mark.parametrize(
    ("aspect", "after"),
    [
        ("corners", only((410, 20, 440, 80), page(button={"radius": 16}))),  # two corners of four
        ("font size", page(heading={"text": "Brief note", "size": 36})),
        ("font weight", page(heading={"text": "Yearly accounts", "bold": 1})),
        ("letter spacing", page(heading={"text": "Quarterly statement"})),
        ("line height", only((0, 155, 640, 190), page(pitch=34))),  # one line alone
        ("opacity", page(heading={"fill": RED})),
        ("border", page(card={"fill": RED})),
        ("position", page(heading={"text": "Yearly report"})),
    ],
)
def test_another_change_is_not_explained_by_it(aspect: str, after: np.ndarray) -> None:
    _, claims = compared(page(), after)
    assert claims
    assert aspect not in {claim.aspect for claim in claims[:1]}


def test_letters_further_apart_are_no_other_words() -> None:
    caption, (claim,) = compared(page(), page(heading={"gap": 3}))
    assert "got more space between the letters" in caption
    assert (claim.aspect, claim.unit) == ("letter spacing", "px")
    assert claim.amount == pytest.approx(3, abs=0.5)


def sentence(before: np.ndarray, after: np.ndarray) -> str:
    return exact_changes(before, after, canvas_of(before, after), read_text=False).best.caption


def test_a_smooth_edge_on_a_gradient_is_no_border() -> None:
    rows, columns = np.mgrid[0:300, 0:400]
    before = np.stack([90 + columns // 8, 190 + rows // 10, 236 + 0 * rows], axis=-1).astype(np.uint8)
    after = before.copy()
    after[40:180, 60:260] = before[40:180, 60:260] // 2 + np.array((255, 38, 0), np.uint8) // 2
    after[41:179, 61:259] = 255, 38, 0
    assert sentence(before, after).startswith("A red area of 200 x 140 px appeared")


def test_another_rendering_of_a_circle_has_no_rounder_corners() -> None:
    rows, columns = np.mgrid[0:220, 0:220]
    distance = np.hypot(rows - 110, columns - 110)[..., None]
    hard, smooth = (np.clip((100 - distance) / width + 0.5, 0, 1) for width in (0.01, 3))
    before, after = (
        (255 - shape * (255 - np.array((200, 30, 30)))).round().astype(np.uint8) for shape in (hard, smooth)
    )
    assert "corners" not in sentence(before, after)


def test_what_is_left_when_much_does_not_count_has_its_name() -> None:
    before, after = Page(), Page()
    for number in range(8):
        x, y = 20 + 150 * (number % 4), 40 + 200 * (number // 4)
        before.box((x, y, x + 90, y + 90), radius=4, fill=LIGHT["accent"])
        after.box((x, y, x + 90, y + 90), radius=4, fill=DARK["accent"] if number < 6 else LIGHT["accent"])
    before.text(30, 180, "Delivery address").text(330, 180, "Start chat")
    after.text(30, 180, "Delivery address", bold=1).text(338, 180, "Start chat")
    images = before.array(), after.array()
    for names in ((), ("layout",), ("style",), ("colour",)):
        caption = exact_changes(*images, canvas_of(*images), counts=counts_of(names)).best.caption
        assert "{}" not in caption
        assert "not count" in caption or not names


def test_what_changed_in_very_many_rows_is_one_region() -> None:
    before = np.full((660, 1000, 3), 255, np.uint8)
    after, rng = before.copy(), np.random.default_rng(1)
    across, down = np.arange(900)[None] // 6, np.arange(40)[:, None] * 2
    for top in range(10, 10 + 14 * 46, 46):
        shades = (60 + across + 0 * down, 90 + 0 * across + down, 160 - across // 2 + 0 * down)
        before[top : top + 40, 50:950] = np.stack(shades, axis=-1)
        after[top : top + 40, 50:950] = np.stack(shades[::-1], axis=-1) + rng.integers(0, 2, (40, 900, 3))
    assert "of a region of 900 x 638 px" in sentence(before, after)


def test_what_continues_around_a_box_is_told_by_the_colours_next_to_it() -> None:
    image = np.full((60, 60, 3), (10, 120, 200), np.uint8)
    image[20:40, 20:40] = 250, 90, 20
    box, mask = (20, 20, 40, 40), np.ones((20, 20), bool)
    assert _continues(image, box, mask) is False
    image[18:22, 18:42] = 250, 90, 20  # a fifth of what is around it, at its top
    assert _continues(image, box, mask) is True
    image[20:40, 20:40] = np.arange(400).reshape(20, 20, 1) % 251
    assert _continues(image, box, mask) is None
