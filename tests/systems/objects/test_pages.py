"""Two windows or pages that share little: what each says is quoted, and no strip, part or move is claimed."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from idc.captioning.contract import Description, SearchOptions
from idc.captioning.counts import counts_of
from idc.captioning.objects_config import ObjectsConfig
from idc.systems.objects.canvas import canvas_of
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.exact import exact_changes
from idc.systems.objects.pages import share_little

LIST = ["Name", "Invoice March", "Report 2024", "Holiday photos", "Budget draft", "Meeting notes"]
SETTINGS = ["Preferences", "Language", "Dark theme", "Restart now", "Sound volume", "Privacy"]


def page(
    lines: list[str],
    size: tuple[int, int] = (640, 420),
    left: int = 40,
    step: int = 58,
    letters: int = 22,
    ground: str = "#f4f4f6",
) -> np.ndarray:
    image = Image.new("RGB", size, ground)
    draw = ImageDraw.Draw(image)
    draw.rectangle([0, 0, size[0], 34], fill="#30405a")
    for at, line in enumerate(lines):
        draw.text((left, 50 + step * at), line, fill="#202020", font=ImageFont.load_default(letters))
    return np.array(image)


def described(before: np.ndarray, after: np.ndarray, text: bool = True) -> Description:
    [description] = ObjectsCaptioner(ObjectsConfig(detector="none", text=text)).describe([before], [after])
    return description


def test_of_another_page_the_words_are_said_and_nothing_of_places() -> None:
    description = described(page(LIST), page(SETTINGS, (600, 470), left=210, step=66))
    assert description.verdict == "changed"
    [claim] = description.claims or ()
    assert claim.aspect == "page"
    assert (claim.kind, claim.object, claim.where) == ("changed", "picture", "as a whole")
    assert (claim.box_before, claim.box_after) == ((0, 0, 640, 420), (0, 0, 600, 470))
    assert description.best.caption == (
        'Most of the picture changed; it said "Name", "Invoice March" and "Report 2024", and now says "Preferences", '
        '"Language" and "Dark theme".'
    )


def test_a_line_of_both_pages_is_not_quoted_and_none_twice() -> None:
    after = page([*SETTINGS[:2], "Language", "Invoice March", *SETTINGS[3:]], (600, 520), left=230, step=64, letters=26)
    caption = described(page(LIST), after).best.caption
    assert '"Name", "Report 2024" and "Holiday photos"' in caption
    assert '"Preferences", "Language" and "Restart now"' in caption


def test_the_largest_letters_come_first() -> None:
    after = np.vstack([page(SETTINGS, left=210), page(["Delete account"], (640, 120), letters=44)])
    assert 'now says "Delete account", "Preferences" and "Language"' in described(page(LIST), after).best.caption


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (page(LIST), page([*LIST[:2], "Something else", *LIST[3:]])),
        (page(LIST), page(LIST, letters=30, step=62)),  # the same words in another layout
        (page(LIST), page(["Title", *LIST[1:]], left=260, letters=34, step=61)),
        (page(LIST), page(LIST, (640, 520))),
        (page(LIST), np.vstack([page(LIST), page(SETTINGS)])),
        (page(LIST), page(LIST, ground="#101418")),
    ],
    ids=["one line", "font size", "layout", "longer", "twice as long", "dark"],
)
def test_a_page_of_which_most_is_the_same_is_no_other_page(before: np.ndarray, after: np.ndarray) -> None:
    for first, second in ((before, after), (after, before)):
        assert "Most of the picture" not in described(first, second).best.caption


def test_a_page_whose_size_is_that_of_the_other_one_enlarged_is_not_taken_for_a_photograph_of_it() -> None:
    caption = described(page(LIST), page(SETTINGS, (800, 525), left=330, step=70, letters=30)).best.caption
    assert 'said "Name"' in caption
    assert 'now says "Preferences"' in caption


@pytest.mark.parametrize("preset", ["content", "design", "document", "everything", "layout", "scene"])
def test_another_page_counts_as_a_change_whatever_of_a_page_counts(preset: str) -> None:
    captioner = ObjectsCaptioner(ObjectsConfig(detector="none"))
    options = SearchOptions(counts=counts_of([preset]))
    [description] = captioner.describe([page(LIST)], [page(SETTINGS, (600, 470), left=210, step=66)], options)
    assert (description.verdict, len(description.claims or ())) == ("changed", 1)


@pytest.mark.parametrize("whole", [True, False])
def test_where_only_a_part_counts_the_words_of_the_whole_page_are_not_said(whole: bool) -> None:
    before, after = page(LIST), page(SETTINGS, (600, 470), left=210, step=66)
    description = exact_changes(before, after, canvas_of(before, after), whole=whole)
    assert ("Most of the picture" in description.best.caption) == whole


def test_where_nothing_is_read_nothing_is_quoted() -> None:
    assert "said" not in described(page(LIST), page(SETTINGS, (600, 470), left=210, step=66), text=False).best.caption


def outline(image: np.ndarray, y: int, x: int) -> bool:
    near = image[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2].reshape(-1, 3).astype(int)
    return bool((near.max(axis=0) - near.min(axis=0)).max() > 48)


@pytest.mark.parametrize(
    ("equal_rows", "empty_columns", "little"), [(8, 0, True), (20, 0, False), (20, 10, False), (8, 10, True)]
)
def test_the_shared_outlines_are_those_of_the_definition(equal_rows: int, empty_columns: int, little: bool) -> None:
    """Of squares at random on a grid, by loops: in other colours, some rows at the same places, and the image before is
    empty on the right. Many outlines of the others are at one place by chance."""
    rng = np.random.default_rng(equal_rows)
    cells = rng.random((2, 24, 24)) < 0.2
    cells[1, :equal_rows] = cells[0, :equal_rows]
    cells[0, :, 24 - empty_columns :] = False
    colours = [[(255, 255, 255), (0, 0, 0)], [(215, 235, 255), (0, 0, 150)]]
    before, after = (
        np.array(pair, np.uint8)[np.kron(side, np.ones((4, 4), int))] for pair, side in zip(colours, cells, strict=True)
    )
    points = [(y, x) for y in range(96) for x in range(96)]
    first, second = ({at for at in points if outline(image, *at)} for image in (before, after))
    coincident = len(first & second) - len(first) * len(second) / len(points)
    shares = [coincident / len(side) for side in (first, second)]
    assert (max(shares) < 0.5) == little
    canvas = canvas_of(before, after)
    assert share_little(before, after, canvas, (canvas.before != canvas.after).any(axis=2)) == little
