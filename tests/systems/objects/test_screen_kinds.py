"""Screens by kind, each with what is true of it, written before it was compared: scrolled, with a banner or a row more,
in panes, dark, of twice the scale; borders, shadows and orders; and pages around photographs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from sklearn.datasets import load_sample_image

from idc.captioning.objects_config import ObjectsConfig
from idc.systems.objects import reading
from idc.systems.objects.canvas import canvas_of, exact_canvas
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.exact import ONLY_RENDERING, exact_changes
from idc.systems.objects.pixel_changes import is_lossy
from idc.systems.objects.reading import lines_on, words_on_line
from tests.systems.objects.test_screens import DARK, LIGHT, RED, ROWS, Page, compared, page, panes, sentence, table

Case = tuple[np.ndarray, np.ndarray, tuple[str, ...]]


def scrolled(rows: tuple[str, ...], header: bool) -> np.ndarray:
    onto = Page().text(40, 14, "All orders of the year", 24) if header else Page()
    return table(rows, 70 if header else 60, onto=onto).array()


def with_banner(height: int, theme: Any) -> np.ndarray:
    strip = Page(theme).box((0, 0, 640, height), fill=(250, 220, 120))
    strip.text(20, height // 2 - 10, "We are closed on Friday", fill=(0, 0, 0))
    return np.concatenate([strip.array()[:height], page(theme)[:-height]])


def cases() -> dict[str, Case]:
    """Pairs with patterns that their sentences have."""
    result: dict[str, Case] = {}
    for header in (False, True):
        for count in (1, 2, 3):
            images = scrolled(ROWS, header), scrolled(ROWS[count:], header)
            result[f"scroll down {count} {header}"] = *images, (f"moved up by {32 * count} px", "Copper")
            result[f"scroll up {count} {header}"] = *images[::-1], (f"moved down by {32 * count} px", "Copper")
    for height in (30, 44, 64):
        for name, theme in (("light", LIGHT), ("dark", DARK)):
            images = page(theme), with_banner(height, theme)
            result[f"banner {height} {name}"] = *images, (f"moved down by {height} px", "closed on Friday")
            if height < 64:  # else a word of it is not read
                result[f"no banner {height} {name}"] = *images[::-1], (f"moved up by {height} px", "closed on Friday")
    for at in range(6):
        images = table(ROWS[:6]).array(), table((*ROWS[:at], "Harbour order 999", *ROWS[at:6])).array()
        result[f"row {at}"] = *images, ("row .*Harbour.*999.* added", "moved down by 32 px")
        result[f"no row {at}"] = *images[::-1], ("row .*Harbour.*999.* removed", "moved up by 32 px")
    for first, second in ((0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3), (2, 0), (2, 1), (2, 3), (3, 0)):
        ways = tuple(f"moved up by {32 * count} px" for count in (first, second) if count)
        result[f"panes {first} {second}"] = panes(0, 0), panes(first, second), ways
    for name, theme, scale in (("dark", DARK, 1), ("twice", LIGHT, 2)):
        changes: dict[str, tuple[dict[str, Any], str]] = {
            "larger": ({"heading": {"size": 34}}, '"Quarterly report".* became larger'),
            "smaller": ({"heading": {"size": 22}}, '"Quarterly report".* became smaller'),
            "bold": ({"heading": {"bold": 1}}, '"Quarterly report".* became bolder'),
            "round": ({"button": {"radius": 16}}, 'corners of .*"Start chat".* rounder'),
            "square": ({"button": {"radius": 0}}, 'corners of .*"Start chat".* squarer'),
            "fill": ({"button": {"fill": RED}}, '"Start chat".* to red'),
            "border": ({"card": {"width": 4}}, f'border of .*"Delivery address".* thicker by {3 * scale} px'),
            "no border": ({"card": {"width": 0, "outline": None}}, '"Delivery address".* lost its .*border'),
            "shift": ({"shift": 24}, f'"The harbour.* moved right by {24 * scale} px'),
            "pitch": ({"pitch": 34}, f'"The harbour.* more space between the lines, by {8 * scale} px'),
            "gap": ({"heading": {"gap": 3}}, "more space between the letters"),
        }
        for change, (settings, pattern) in changes.items():
            result[f"{name} {change}"] = page(theme, scale), page(theme, scale, **settings), (pattern,)
    return result


CASES = cases()


@pytest.mark.parametrize("case", CASES)
def test_what_is_true_is_said_and_no_words_became_others(case: str) -> None:
    before, after, patterns = CASES[case]
    caption, _ = compared(before, after)
    assert [pattern for pattern in patterns if not re.search(pattern, caption)] == [], caption
    assert '" became "' not in caption


def bordered(width: int, colour: Any = RED, grows: bool = True) -> np.ndarray:
    """A button that grows by its border, with a text below, which then is lower; rounded, as its border is."""
    drawn, grown = Page(), width * grows
    drawn.box((400 - 2 * grown, 30, 560, 70 + 2 * grown), 8, fill=colour if width else LIGHT["accent"])
    drawn.box((400 - 2 * grown + width, 30 + width, 560 - width, 70 + 2 * grown - width), 8, fill=LIGHT["accent"])
    drawn.text(430 - grown, 40 + grown, "Start chat", fill=(255, 255, 255))
    for number, row in enumerate(ROWS[:8]):
        drawn.text(40, 110 + 2 * grown + 40 * number, row)
    return drawn.array()


@pytest.mark.parametrize("width", [2, 4])
def test_a_border_by_which_a_box_grows_pushes_what_follows(width: int) -> None:
    for images, change in (
        ((bordered(0), bordered(width)), "got a red border"),
        ((bordered(width), bordered(0)), "lost its red"),
    ):
        caption, claims = compared(*images)
        assert caption.startswith(f'The button "Start chat" at the top right {change}'), caption
        assert claims[0].aspect == "border"
        assert "corners" not in caption
        assert f"by {2 * width} px" in caption


def test_a_thicker_border_of_a_rounded_box_is_no_other_corner() -> None:
    caption, (claim, *_) = compared(bordered(1), bordered(4))
    assert 'The border of the button "Start chat" at the top right became thicker by 3 px' in caption
    assert (claim.aspect, claim.amount, claim.unit) == ("border", 3, "px")
    assert "corners" not in caption


def test_a_letter_with_a_hole_has_no_border() -> None:
    caption, _ = compared(Page().text(40, 60, "ODB 0694", 60).array(), Page().text(40, 60, "LTV 2317", 60).array())
    assert "border" not in caption


def test_a_round_thing_that_moved_has_no_other_corners() -> None:
    before, after = (Page().box((left, 60, left + 40, 100), 20, fill=LIGHT["accent"]).array() for left in (40, 45))
    caption = sentence(before, after)
    assert caption.endswith("moved right by 5 px.")
    assert "corners" not in caption


def shaded(depth: float, theme: Any = LIGHT, scale: int = 1) -> np.ndarray:
    """The page, with a shadow of its card."""
    image = page(theme, scale, card={"fill": theme["page"]})
    left, top, right, bottom = (scale * value for value in (40, 300, 300, 420))
    mask = np.zeros(image.shape[:2], np.float32)
    mask[top + 6 * scale : bottom + 6 * scale, left:right] = depth
    mask = cv2.GaussianBlur(mask, (0, 0), 9 * scale)
    mask[top:bottom, left:right] = 0
    return np.asarray((image * (1 - mask[..., None])).round().astype(np.uint8))


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize(
    ("depths", "change"),
    [
        ((0, 0.12), "got a shadow"), ((0.12, 0), "lost its shadow"), ((0, 0.4), "got a shadow"),
        ((0.12, 0.3), "became deeper"), ((0.3, 0.12), "became fainter"),
    ],
)  # fmt: skip
def test_a_shadow_is_no_border_and_no_compression(depths: tuple[float, float], change: str, scale: int) -> None:
    caption, (claim,) = compared(*(shaded(depth, scale=scale) for depth in depths))
    assert change in caption
    assert "shadow" in caption
    assert '"Delivery address"' in caption
    assert claim.aspect == "shadow"
    assert not is_lossy(shaded(0), shaded(depths[1] or depths[0]), 640 * 480)


@pytest.mark.parametrize(("first", "second"), [(2, 3), (2, 5), (0, 1)])
def test_rows_that_changed_places(first: int, second: int) -> None:
    rows = list(ROWS)
    rows[first], rows[second] = rows[second], rows[first]
    caption, (claim, *_) = compared(table(ROWS).array(), table(tuple(rows)).array())
    assert caption.endswith("changed places.")
    assert claim.aspect == "order"


def test_what_is_pushed_out_of_the_picture_is_no_change_of_its_own() -> None:
    drawn = Page().text(40, 20, "All orders of the year", 24)
    before = table(tuple(f"{row} of the year" for row in ROWS * 2)[:13], 70, onto=drawn).array()
    after = before.copy()
    after[90:], after[60:90] = before[60:-30], 255
    caption, _ = compared(before, after)
    assert "gone" not in caption
    assert "moved down by 30 px" in caption


def test_the_size_of_a_region_is_that_on_the_image() -> None:
    before, after = (Page().box((40, 30, 600, 450), radius, fill=LIGHT["accent"]).array() for radius in (0, 16))
    assert "a region of 561 x 421 px" in sentence(before, after)


def photograph_page(text: str = "Delivery address", top: int = 300) -> np.ndarray:
    """A photograph as wide as the page, with a card on it."""
    image = cv2.resize(load_sample_image("china.jpg"), (640, 480), interpolation=cv2.INTER_AREA)
    card = Page().box((0, 0, 260, 120), fill=(255, 255, 255)).text(20, 40, text).array()[:120, :260]
    image[top : top + 120, 40:300] = card
    return image


def test_a_page_with_a_large_photograph_is_compared_exactly_where_drawn_parts_differ() -> None:
    before, after = photograph_page(), photograph_page("Delivery number")
    assert exact_canvas(before, after) is not None
    caption = ObjectsCaptioner(ObjectsConfig(detector="none")).describe([before], [after])[0].best.caption
    assert 'The word "address" became "number"' in caption
    retouched = photograph_page()
    retouched[60:160, 300:420] = cv2.GaussianBlur(retouched[60:160, 300:420], (0, 0), 9)
    assert exact_canvas(before, retouched) is None


def test_words_on_a_photograph_that_differ_alone_are_said() -> None:
    images = [cv2.resize(load_sample_image("flower.jpg"), (640, 480), interpolation=cv2.INTER_AREA) for _ in range(2)]
    for image, thickness in zip(images, (1, 2), strict=True):
        cv2.putText(image, "Harbour", (60, 420), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (255, 255, 255), thickness, cv2.LINE_AA)
    before, after = images
    caption = ObjectsCaptioner(ObjectsConfig(detector="none")).describe([before], [after])[0].best.caption
    assert '"Harbour"' in caption


def test_a_photograph_that_moved_on_a_page_is_no_compression() -> None:
    before = np.full((480, 640, 3), 255, np.uint8)
    after = before.copy()
    photograph = cv2.resize(load_sample_image("china.jpg"), (300, 180), interpolation=cv2.INTER_AREA)
    before[100:280, 100:400], after[106:286, 100:400] = photograph, photograph
    assert not is_lossy(before, after, 640 * 480)
    assert sentence(before, after) != ONLY_RENDERING
    _, encoded = cv2.imencode(".jpg", before, [cv2.IMWRITE_JPEG_QUALITY, 85])
    assert is_lossy(before, cv2.imdecode(encoded, cv2.IMREAD_COLOR), 640 * 480)


@pytest.mark.parametrize("shape", [(30, 3900), (3900, 30)])
def test_a_very_thin_strip_is_read(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8)
    assert all(line.shape == (4, 2) for line in lines_on(image))


def test_a_line_whose_letters_have_no_position_has_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    info = SimpleNamespace(word_cols=[], confs=[], line_txt_len=4)
    result = SimpleNamespace(txts=["ترير"], scores=[0.99], word_results=[info])
    monkeypatch.setattr(reading, "_reader", lambda: lambda *_, **__: result)
    corners = np.array([(0, 0), (80, 0), (80, 20), (0, 20)], np.float32)
    assert words_on_line(np.full((20, 80, 3), 255, np.uint8), corners) == []


def test_a_text_a_part_of_a_pixel_further_has_moved() -> None:
    before, after = (
        Page().text(40, 60, "Quarterly report", gap=gap).text(300, 60, "Delivery").array() for gap in (0.0, 0.0)
    )
    larger = cv2.warpAffine(
        before[50:100, 280:400], np.array([[1, 0, 2.4], [0, 1, 0]]), (120, 50), borderValue=(255,) * 3
    )
    after[50:100, 280:400] = larger
    description = exact_changes(before, after, canvas_of(before, after))
    assert description.best.caption.endswith("moved right by 2 px.")
