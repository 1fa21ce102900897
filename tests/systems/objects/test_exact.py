"""Screens compared pixel by pixel: drawn ones whose changes are known, and slow second implementations.

Long because both are of the same screens."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_image

from idc.captioning.objects_config import ObjectsConfig
from idc.metrics.change_types import says_no_change
from idc.systems.objects import canvas, exact, reading
from idc.systems.objects.canvas import exact_canvas
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.exact import IDENTICAL, ONLY_RENDERING, exact_changes
from idc.systems.objects.pixel_changes import (
    _MOST_COPIES,
    _PATCH,
    Move,
    _equal_patches,
    _together,
    anti_aliased,
    clusters_of,
    different_pixels,
    is_lossy,
    unmoved_pixels,
)
from tests.systems.objects.test_regions import ground, with_disk

WHITE, GREY, BLACK, RED, BLUE = (255, 255, 255), (200, 204, 210), (20, 20, 20), (200, 30, 30), (40, 60, 200)
ROWS = ("Harbour 1204.50", "Invoice 88.10", "Window 3390.25", "Ladder 17.75", "Copper 642.00", "Meadow 95.30")


def screen(rows: tuple[str, ...] = ROWS, pitch: int = 24) -> Image.Image:
    image = Image.new("RGB", (640, 480), WHITE)
    draw = ImageDraw.Draw(image)
    draw.text((20, 10), "Quarterly overview", fill=BLACK, font=ImageFont.load_default(24))
    draw.line((20, 46, 620, 46), fill=GREY)
    draw.rectangle((420, 70, 600, 160), outline=GREY)
    draw.line([(430 + 10 * x, 300 + 30 * (x * x % 7) / 7) for x in range(17)], fill=BLUE)
    for number, row in enumerate(rows):
        draw.text((20, 90 + pitch * number), row, fill=BLACK, font=ImageFont.load_default(14))
    return image


def is_exact_pair(before: np.ndarray, after: np.ndarray) -> bool:
    return exact_canvas(before, after) is not None


def changed(draw_on: str, *arguments: object, rows: tuple[str, ...] = ROWS, **options: object) -> np.ndarray:
    image = screen(rows)
    getattr(ImageDraw.Draw(image), draw_on)(*arguments, **options)
    return np.array(image)


def compared(
    after: np.ndarray,
    before: np.ndarray | None = None,
    read_text: bool = False,
    region_of_interest: np.ndarray | None = None,
) -> Any:
    first = np.array(screen()) if before is None else before
    changes = exact_changes(first, after, canvas.canvas_of(first, after, region_of_interest), read_text)
    assert says_no_change(changes.objects_text) == (not changes.claims)
    assert (changes.change_map.max() > 0) == bool(changes.claims)
    return changes


def page_with(size: int, text: str) -> np.ndarray:
    image = screen()
    ImageDraw.Draw(image).text((300, 380), text, fill=BLACK, font=ImageFont.load_default(size))
    return np.array(image)


PLOT = [(430 + 10 * x, 300 + 30 * (x * x % 7) / 7) for x in range(17)]
CASES = {
    "line gone": (changed("line", (20, 46, 620, 46), fill=WHITE), (20, 46, 621, 47),
                  "A region of 601 x 1 px at the top lost its light grey line."),
    "border": (changed("rectangle", (420, 70, 600, 160), outline=RED), (420, 70, 601, 161),
               "The border of a region of 181 x 91 px at the top right changed from light grey to red."),
    "area": (changed("rectangle", (40, 400, 239, 439), fill=BLUE), (40, 400, 240, 440),
             "A blue area of 200 x 40 px appeared at the bottom left."),
    "line of a plot": (changed("line", PLOT, fill=RED), (430, 300, 591, 318),
                       "A region of 161 x 18 px on the right changed from blue to red."),
}  # fmt: skip


@pytest.mark.parametrize(("after", "box", "clause"), CASES.values(), ids=list(CASES))
def test_what_differs_is_said_with_its_place_and_colours(after: np.ndarray, box: tuple[int, ...], clause: str) -> None:
    changes = compared(after)
    [claim] = changes.claims
    assert (claim.box_after or claim.box_before) == box
    assert [region.box for region in changes.regions] == [box]
    assert changes.objects_text == clause


def test_colours_of_one_name_are_given_in_hex_and_faint_ones_count() -> None:
    before, after = (changed("rectangle", (40, 400, 239, 439), fill=fill) for fill in ("#f8f9fa", "#f1f3f4"))
    assert compared(after, before).objects_text.endswith(" at the bottom left changed from #f8f9fa to #f1f3f4.")


def plain(colour: Any, width: int = 300, height: int = 200) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def page_of(*bands: Any) -> np.ndarray:
    return np.vstack(bands)


PAGE = np.array(screen())
SEA, LAND, NIGHT = (170, 211, 223), (242, 239, 233), (50, 60, 80)
MAP, RESTYLED = (cv2.circle(plain(sea), (150, 100), 60, land, -1) for sea, land in ((SEA, LAND), (NIGHT, GREY)))
STEPS = [np.repeat(np.arange(10), 60)[None, :, None].repeat(400, 0) + np.array(base) for base in (BLUE, (20, 40, 190))]
RECOLOURED = {
    "shades": (*(each.astype(np.uint8) for each in STEPS), "The whole picture changed from blue to another blue."),
    "red to green": (plain(RED), plain((0, 160, 0)), "The whole picture changed from red to green."),
    "blue to red": (plain(BLUE), plain(RED), "The whole picture changed from blue to red."),
    "equal luma": (plain((255, 0, 0)), plain((0, 130, 0)), "The whole picture changed from red to green."),
    "a little": (plain((200, 30, 30)), plain((205, 30, 30)), "The whole picture changed from #c81e1e to #cd1e1e."),
    "white to black": (plain(255), plain(0), "The whole picture changed from white to black."),
    "opposite": (PAGE, 255 - PAGE, "The whole picture changed from white to black"),
    "restyled map": (MAP, RESTYLED, "What was cyan, 81 % of the picture, became blue; what was white, 19 % of"),
    "wide": (plain(RED), plain(RED, width=340), "A red strip of 40 x 200 px was added on the right."),
    "tall": (plain(RED), plain(RED, height=320), "A red strip of 300 x 120 px was added at the bottom."),
    "recoloured and taller": (
        plain(RED), plain(BLUE, height=320),
        "A blue strip of 300 x 120 px was added at the bottom; the whole picture changed from red to blue.",
    ),
    "rows cut": (PAGE, PAGE[:180], "A strip of 640 x 300 px was removed at the bottom."),
    "rows added": (
        PAGE, page_of(PAGE[:80], plain(RED, 640, 30), PAGE[80:]),
        "A red strip of 640 x 30 px was added at the top, and everything below moved down by 30 px.",
    ),
    "columns added": (
        PAGE, np.hstack([plain(GREY, 100, 480), PAGE]),
        "A light grey strip of 100 x 480 px was added on the left, and everything to the right moved right by 100 px.",
    ),
    "other width and height": (
        PAGE, np.hstack([PAGE, PAGE[:, :90]])[:400],
        "A white strip of 640 x 80 px was removed at the bottom; a strip of 90 x 400 px was added on the right.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "start"), RECOLOURED.values(), ids=list(RECOLOURED))
def test_other_colours_and_sizes_are_said_as_such(before: np.ndarray, after: np.ndarray, start: str) -> None:
    assert is_exact_pair(before, after)
    changes = compared(after, before)
    assert changes.objects_text.startswith(start)
    assert changes.verdict == "changed"
    height, width = after.shape[:2]
    assert changes.change_map.shape == (height, width)
    for claim in changes.claims:
        for box, image in ((claim.box_before, before), (claim.box_after, after)):
            assert box is None or (box[2] <= image.shape[1] and box[3] <= image.shape[0])


@pytest.mark.parametrize("below", [0, 1])
def test_a_strip_next_to_rows_that_changed_is_at_its_side_of_them(below: int) -> None:
    """Rows are paired with those that they resemble, above and below it."""
    page = plain(WHITE)
    page[:, :2, 0] = np.arange(200)[:, None]  # no two rows are equal
    edited = cv2.rectangle(page.copy(), (100, 90), (120, 109), BLUE, -1)
    at = 90 + 20 * below
    after = page_of(edited[:at], plain(RED, height=30), edited[at:])
    [description] = ObjectsCaptioner(ObjectsConfig(mode="exact", text=False)).describe([page], [after])
    boxes = {claim.box_after for claim in description.claims or ()}
    assert boxes == {(0, at, 300, at + 30), (100, 120 - 30 * below, 121, 140 - 30 * below)}


def test_a_colour_that_became_several_ones_is_no_other_look_of_the_picture() -> None:
    """Each part is said, whichever is larger."""
    after = np.hstack([plain(BLUE, 180), plain(RED, 120)])
    description = ObjectsCaptioner(ObjectsConfig(text=False)).describe([plain(GREY)], [after])[0]
    assert "whole picture" not in description.best.caption
    assert {claim.before for claim in description.claims or ()} == {"light grey"}


def test_a_gradient_of_more_colours_than_are_listed_is_not_left_unsaid() -> None:
    across, down = np.meshgrid(np.arange(800) // 20, np.arange(600) // 15)
    gradient = np.stack([60 + 4 * across, 90 + 3 * down, 160 - 2 * across], -1).astype(np.uint8)
    changes = compared(255 - gradient, gradient)
    assert changes.verdict == "changed"
    assert changes.objects_text.startswith("The gradient of a region of 800 x 600 px over most of it changed from ")


def page_with_a_picture(light: bool = True) -> np.ndarray:
    page = PAGE.copy()
    page[180:, 20:400] = load_sample_image("flower.jpg")[:300, :380]
    return page if light else 255 - page


def test_a_theme_is_seen_on_a_page_with_a_picture_and_a_thing_of_another_colour_is_said() -> None:
    before, after = page_with_a_picture(), page_with_a_picture(light=False)
    assert is_exact_pair(before, after)
    assert compared(after, before).objects_text.startswith("What was white, ")
    mugs = [plain(255, 400, 400) for _ in range(2)]
    for mug, colour in zip(mugs, (BLUE, RED), strict=True):
        mug[100:300, 120:280] = np.linspace(0.75, 1.15, 160)[None, :, None] * np.array(colour)
    assert is_exact_pair(*mugs)
    [claim] = compared(mugs[1], mugs[0]).claims
    assert (claim.box_after, claim.before, claim.after) == ((120, 100, 280, 300), "blue", "red")


def test_of_too_many_rows_those_that_differ_most_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canvas, "_MOST_PIXELS", 640 * 170)
    after = changed("rectangle", (40, 100, 239, 139), fill=BLUE)
    after[300:330, 100:110] = RED
    changes = compared(after)
    assert [claim.box_after for claim in changes.claims] == [(40, 100, 240, 140), (100, 300, 110, 310)]
    assert changes.objects_text.endswith(" 20 more rows of pixels differ, and were not compared.")


def test_words_of_a_strip_are_quoted_and_what_else_changed_is_at_its_place_on_either_image() -> None:
    line = page_with(16, "Terms and privacy")[370:400]
    after = page_of(PAGE[:60], line, PAGE[60:])
    cv2.rectangle(after, (40, 440), (239, 469), BLUE, -1)
    row, area = compared(after, PAGE, read_text=True).claims
    assert (row.kind, row.object, row.after) == ("appeared", "row", "Terms and privacy")
    assert row.box_after is not None
    assert row.box_after[3] - row.box_after[1] == 30
    assert abs(row.box_after[1] - 60) <= 10, "rows beside it are equal to its own first or last ones"
    assert area.box_after == (40, 440, 240, 470)
    swapped = compared(PAGE, after, read_text=True)
    assert [(claim.kind, claim.box_before) for claim in swapped.claims] == [
        ("gone", row.box_after), ("gone", area.box_after),
    ]  # fmt: skip


def test_strips_beyond_what_is_read_are_said_without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MOST_PIXELS", 1)
    after = page_of(PAGE[:60], page_with(16, "Terms and privacy")[370:400], PAGE[60:])
    assert compared(after, PAGE, read_text=True).objects_text == (
        "A strip of 640 x 30 px was added at the top, and everything below moved down by 30 px. "
        "Not all words were read (1 part)."
    )


def test_a_word_that_became_shorter_is_no_word_that_is_gone() -> None:
    changes = compared(page_with(16, "Harbour"), page_with(16, "Harbourside"), read_text=True)
    assert changes.objects_text == 'The word "Harbourside" became "Harbour" at the bottom.'


@pytest.mark.parametrize("size", [12, 24, 60])
def test_words_of_any_size_are_read(size: int) -> None:
    [claim] = compared(page_with(size, "Log in"), page_with(size, "Sign up"), read_text=True).claims
    assert (claim.kind, claim.object, claim.before, claim.after) == ("replaced", "words", "Sign up", "Log in")


def test_of_a_number_in_a_cell_the_whole_is_read_and_words_that_deny_a_change_are_a_change() -> None:
    changes = compared(np.array(screen((*ROWS[:2], "Window 3890.25", *ROWS[3:]))), read_text=True)
    assert changes.objects_text == 'The word "3390.25" became "3890.25" at the top left.'
    changes = compared(page_with(24, "No changes"), page_with(24, "Draft saved"), read_text=True)
    assert "No changes" in changes.objects_text


def test_words_are_where_they_are_and_not_where_their_surroundings_changed() -> None:
    """A chart came with a label in its corner: one clause, and a claim on the label at its place."""
    image = screen()
    draw = ImageDraw.Draw(image)
    draw.rectangle((20, 240, 400, 470), fill=(217, 241, 237))
    draw.text((30, 250), "Sales 2026", fill=BLACK, font=ImageFont.load_default(16))
    changes = compared(np.array(image), read_text=True)
    look, words = sorted(changes.claims, key=lambda claim: claim.object)
    assert changes.objects_text == (
        'A #d9f1ed area of 381 x 231 px appeared at the bottom left with the words "Sales 2026".'
    )
    assert (look.object, words.object, words.after) == ("region", "words", "Sales 2026")
    assert words.box_after is not None
    assert np.abs(np.subtract(words.box_after, (30, 253, 108, 265))).max() < 10


def test_words_that_the_border_cuts_are_not_quoted() -> None:
    page = page_with(24, "Harbour Invoice Window")[:, 300:497]
    changes = compared(page, np.array(screen())[:, 300:497], read_text=True)
    assert [claim.after for claim in changes.claims if claim.object == "words"] == ["Harbour Invoice"]


def test_what_has_many_colours_is_said_with_their_mean_or_lightness() -> None:
    shades = np.linspace(0, 40, 120)[None, :, None]
    pages = [np.array(screen()) for _ in range(3)]
    for page, colour in zip(pages, ((40, 60, 180), (60, 80, 210), (190, 40, 40)), strict=True):
        page[400:440, 100:220] = shades + colour
    assert compared(pages[1], pages[0]).objects_text == "A region of 120 x 40 px at the bottom left became lighter."
    assert compared(pages[2], pages[0]).objects_text.endswith(" at the bottom left changed from blue to red.")


@pytest.mark.parametrize("at", [1, 4])
def test_a_row_that_is_added_or_gone_moves_all_below(at: int) -> None:
    more = np.array(screen((*ROWS[:at], "Signal 501.20", *ROWS[at:])))
    added = compared(more, read_text=True)
    assert [(claim.kind, claim.object) for claim in added.claims] == [("appeared", "row"), ("moved", "region")]
    where = "at the top left" if at == 1 else "on the left"
    assert added.objects_text == (
        f'A row with the words "Signal 501.20" was added {where}, and everything below moved down by 24 px.'
    )
    row, below = added.claims
    assert row.box_after is not None
    assert abs(row.box_after[1] - 90 - 24 * at) < 8
    assert below.box_before is not None
    assert below.box_after == tuple(np.add(below.box_before, (0, 24, 0, 24)))
    gone = compared(np.array(screen()), more, read_text=True)
    assert gone.objects_text.startswith('A row with the words "Signal 501.20" was removed ')
    assert gone.objects_text.endswith("moved up by 24 px.")


@pytest.mark.parametrize("by", [(1, 0), (0, 1), (13, -6), (-40, 25)])
def test_what_is_elsewhere_moved_and_nothing_else_did(by: tuple[int, int]) -> None:
    def button(x: int, y: int) -> np.ndarray:
        image = screen()
        draw = ImageDraw.Draw(image)
        draw.rectangle((x, y, x + 90, y + 30), fill=BLUE)
        draw.text((x + 12, y + 6), "Sign up", fill=WHITE, font=ImageFont.load_default(16))
        return np.array(image)

    changes = compared(button(200 + by[0], 380 + by[1]), button(200, 380))
    [claim] = changes.claims
    assert claim.kind == "moved"
    assert claim.box_before is not None
    assert claim.box_after == tuple(np.add(claim.box_before, (*by, *by)))
    assert np.abs(np.subtract(claim.box_before, (200, 380, 291, 411))).max() <= 1


def test_moves_by_a_pixel_more_or_less_are_one() -> None:
    """Rows of a page, whose distances are rounded, and something that moved sideways."""
    rows = [Move((0, 24 + at), (0, 30 * at, 90, 30 * at + 9), (0, 24 + 31 * at, 90, 33 + 31 * at)) for at in range(2)]
    other = Move((24, 0), (100, 0, 104, 4), (124, 0, 128, 4))
    assert _together([other, *rows]) == [Move((0, 24), (0, 0, 90, 39), (0, 24, 90, 64)), other]


def test_at_most_three_clauses_are_said_and_all_claims_are_listed() -> None:
    image = screen()
    for number in range(7):
        ImageDraw.Draw(image).rectangle((20 + 80 * number, 400, 40 + 80 * number, 410 + number), fill=RED)
    changes = compared(np.array(image))
    assert len(changes.claims) == 7
    assert changes.objects_text.count(" appeared ") == 3
    assert changes.objects_text.endswith("; and 4 more.")


def dots(pitch: int) -> tuple[np.ndarray, np.ndarray]:
    before = np.full((640, 640, 3), 255, np.uint8)
    after = before.copy()
    after[::pitch, ::pitch] = 0
    return before, after


def diagonals() -> tuple[np.ndarray, np.ndarray]:
    before = np.full((1200, 1200, 3), 255, np.uint8)
    after = before.copy()
    for start in range(-1200, 1200, 40):
        cv2.line(after, (start, 0), (start + 1200, 1200), BLACK)
    return before, after


@pytest.mark.parametrize(("pair", "parts"), [(dots(16), 1600), (diagonals(), 60)])
def test_of_many_parts_the_largest_are_listed_and_the_others_counted(
    pair: tuple[np.ndarray, np.ndarray], parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_MOST_LISTED", 50)
    changes = compared(pair[1], pair[0])
    assert len(changes.claims) == len(changes.regions) == 50
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (claim.box_after for claim in changes.claims)]
    assert areas == sorted(areas, reverse=True)
    assert changes.objects_text.endswith(
        f"; and {parts - 3 - (parts == 60)} more, of which {parts - 50 - (parts == 60)} are not listed."
    )
    assert (changes.doubt, changes.verdict) == (None, "changed")


def test_a_pair_that_takes_too_long_is_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_SECONDS", -1.0)
    changes = exact_changes(*dots(64), canvas.canvas_of(*dots(64)), read_text=False)
    assert changes.objects_text == "The images differ in 100 parts, which are not listed."
    assert changes.verdict == "unsure"
    assert "was ended after" in str(changes.verdict_text)


@pytest.mark.parametrize("bound", ["_MOST_READ", "_MOST_LINES", "_MOST_PIXELS"])
def test_words_are_read_up_to_a_bound_and_what_was_left_out_is_said(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large and a small part; each side of a part is one line."""
    monkeypatch.setattr(reading, bound, {"_MOST_READ": 1, "_MOST_LINES": 2, "_MOST_PIXELS": 70_000}[bound])
    pages = [page_with(40, text) for text in ("Log in", "Sign up")]
    pages[1][90:104, 20:120] = np.array(screen(("Window 21.50", *ROWS[1:])))[90:104, 20:120]
    changes = compared(pages[1], pages[0], read_text=True)
    words = [(claim.before, claim.after) for claim in changes.claims if claim.object == "words"]
    assert words == [("Log in", "Sign up")]
    assert changes.objects_text.endswith(" Not all words were read (1 part).")


def test_what_does_not_count_is_not_compared() -> None:
    after = changed("rectangle", (40, 400, 239, 439), fill=BLUE)
    region_of_interest = np.ones(after.shape[:2], bool)
    region_of_interest[390:450] = False
    assert compared(after, region_of_interest=region_of_interest).objects_text == IDENTICAL
    after[20:30, 500:520] = RED
    [claim] = compared(after, region_of_interest=region_of_interest).claims
    assert claim.box_after == (500, 20, 520, 30)


def jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    return np.asarray(cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], 1))


@pytest.mark.parametrize("quality", [95, 70])
def test_compression_is_no_change_and_its_copy_no_exact_pair(quality: int) -> None:
    before = np.array(screen())
    after = jpeg(before, quality)
    assert (before == after).all(axis=-1).mean() > 0.5
    assert is_lossy(before, after, before[..., 0].size)
    assert not is_exact_pair(before, after)
    assert compared(after).objects_text == ONLY_RENDERING


def test_a_pair_is_exact_by_what_it_is_whatever_differs_and_whatever_its_sizes() -> None:
    page = np.array(screen())
    assert is_exact_pair(page, changed("rectangle", (0, 0, 639, 300), fill=BLUE))
    assert is_exact_pair(page, 255 - page)
    assert is_exact_pair(page, page[:-100])
    assert is_exact_pair(page, np.hstack([page, page[:, :70]]))
    assert not is_exact_pair(page, cv2.resize(page, None, fx=0.8, fy=0.8, interpolation=cv2.INTER_AREA)), "reduced"
    assert not is_exact_pair(ground(), with_disk(ground(), 60, 50, RED)), "a photograph"


def test_a_screen_with_photographs_is_exact_if_parts_are_equal_and_an_edited_photograph_is_not() -> None:
    photograph = load_sample_image("flower.jpg")[:400, :600]
    other = load_sample_image("china.jpg")[:400, :600]
    page = np.full((600, 640, 3), 255, np.uint8)
    page[:60, :300] = np.array(screen())[:60, :300]
    shown, replaced = page.copy(), page.copy()
    shown[100:500, 20:620], replaced[100:500, 20:620] = photograph, photograph
    replaced[300:500, 20:220] = other[:200, :200]
    assert is_exact_pair(shown, replaced)
    [claim] = compared(replaced, shown).claims
    assert claim.box_after == (20, 300, 220, 500)
    edited = photograph.copy()
    edited[100:200, 100:200] = other[:100, :100]
    assert not is_exact_pair(photograph, edited)


@pytest.mark.parametrize("reach", [(1, 1), (4, 2), (3, 6)])
def test_clusters_are_those_of_a_search_from_pixel_to_pixel(reach: tuple[int, int]) -> None:
    mask = np.random.default_rng(1).random((40, 60)) < 0.02
    left, expected = set(zip(*np.nonzero(mask), strict=True)), []
    while left:
        cluster, queue = [], [left.pop()]
        while queue:
            y, x = queue.pop()
            cluster.append((y, x))
            near = {p for p in left if abs(p[0] - y) <= reach[1] and abs(p[1] - x) <= reach[0]}
            left -= near
            queue += near
        y, x = np.transpose(cluster)
        expected.append((x.min(), y.min(), x.max() + 1, y.max() + 1))
    labels, boxes = clusters_of(mask, reach)
    assert sorted(boxes) == sorted(expected)
    assert len(boxes) > 3
    assert ((labels > 0) == mask).all()


def test_patches_are_those_of_a_search_by_their_bytes() -> None:
    before, after = np.array(screen())[80:200, :200], np.array(screen(ROWS[1:]))[80:200, :200]
    different = different_pixels(before, after, before[..., 0].size)
    width, height = _PATCH
    sides = []
    for image in (after, before):
        places = defaultdict(list)
        for y in range(image.shape[0] - height + 1):
            for x in range(image.shape[1] - width + 1):
                patch = image[y : y + height, x : x + width]
                if different[y : y + height, x : x + width].any() and (patch != patch[0, 0]).any():
                    places[patch.tobytes()].append((y, x))
        sides.append(places)
    shared = [(sides[0][patch], sides[1][patch]) for patch in sides[0].keys() & sides[1].keys()]
    equal = [sorted(where) for pair in shared for where in pair if len(pair[0]) == len(pair[1]) <= _MOST_COPIES]
    expected = {pair for at in range(0, len(equal), 2) for pair in zip(equal[at], equal[at + 1], strict=True)}
    points = zip(*_equal_patches(before, after, different), strict=True)
    actual = {(tuple(map(int, here[::-1])), tuple(map(int, there[::-1]))) for here, there in points}
    assert expected <= actual  # a patch at the edge of a plain one has detail beside it
    assert len(expected) > 1000
    assert len(actual) < 1.1 * len(expected)
    assert {move.by for move in unmoved_pixels(before, after, different)[1]} == {(0, -24)}


def test_anti_aliasing_is_that_of_pixelmatch() -> None:
    image = cv2.circle(np.full((40, 40, 3), 255, np.uint8), (20, 19), 11, BLUE, -1, cv2.LINE_AA)
    other = cv2.circle(image.copy(), (24, 19), 5, RED, 2, cv2.LINE_AA)
    levels = np.random.default_rng(0).choice(4, (40, 40, 1), p=(0.4, 0.3, 0.2, 0.1))
    mixed = np.repeat(60 * levels, 3, axis=2).astype(np.uint8)
    for first, second in ((image, other), (other, image), (mixed, mixed)):
        inner = np.zeros((40, 40), bool)
        for y in range(1, 39):
            for x in range(1, 39):
                inner[y, x] = _anti_aliased_pixel(first, second, y, x)
        assert inner.sum() > 10
        assert (anti_aliased(first, second)[1:-1, 1:-1] == inner[1:-1, 1:-1]).all()


def _anti_aliased_pixel(image: np.ndarray, other: np.ndarray, y: int, x: int) -> bool:
    """Mapbox's pixelmatch, index.js, function `antialiased`, away from the image's edge."""

    def around(y: int, x: int) -> list[tuple[int, int]]:
        return [
            (min(max(y + j, 0), 39), min(max(x + i, 0), 39)) for j in (-1, 0, 1) for i in (-1, 0, 1) if (j, i) != (0, 0)
        ]

    def light(place: tuple[int, int]) -> float:
        return float(image[place].astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32))

    def many_siblings(picture: np.ndarray, place: tuple[int, int]) -> bool:
        return sum((picture[near] == picture[place]).all() for near in around(*place)) > 2

    deltas = [light(place) - light((y, x)) for place in around(y, x)]
    if sum(delta == 0 for delta in deltas) > 2 or min(deltas) >= 0 or max(deltas) <= 0:
        return False
    ends = [around(y, x)[int(np.argmin(deltas))], around(y, x)[int(np.argmax(deltas))]]
    return any(many_siblings(image, end) and many_siblings(other, end) for end in ends)


def test_anti_aliasing_of_the_same_edge_is_no_change() -> None:
    """A disk whose edge is blended with the ground in another way, as by another library."""
    before = with_disk(np.array(screen()), 300, 330, RED, 30)
    edge = np.zeros(before.shape[:2], bool)
    red, green = (before[290:370, 260:340, channel] for channel in (0, 1))
    edge[290:370, 260:340] = (green > 40) & (green < 240) & (red != green) & (red > 199)
    after = before.copy()
    after[edge] = (0.7 * before[edge] + 0.3 * np.array(RED)).astype(np.uint8)
    assert int(np.abs(after.astype(int) - before).max()) > 40
    assert compared(after, before).objects_text == ONLY_RENDERING
    assert compared(before, before).objects_text == IDENTICAL


def test_words_that_the_edge_of_a_strip_cuts_are_not_quoted() -> None:
    page = Image.new("RGB", (640, 200), "white")
    for x, word in ((180, "Registration"), (420, "Open")):
        ImageDraw.Draw(page).text((x, 80), word, fill="black", font=ImageFont.load_default(26))
    before, after = np.array(page)[:, :260], np.array(page)
    [description] = ObjectsCaptioner(ObjectsConfig(mode="exact")).describe([before], [after])
    assert description.best.caption == 'A strip of 380 x 200 px with the words "Open" was added on the right.'
