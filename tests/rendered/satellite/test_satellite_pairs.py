"""Satellite pairs: the same from the same index; masks and lists agree with the pixels; captions are true of the lists,
by rules that read the words alone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import cv2
import numpy as np

from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.schema import NO_CHANGE, ChangePair
from idc.metrics.change_types import LEVIR_NO_CHANGE
from idc.rendered.config import RenderJob
from idc.rendered.render import open_rendering
from idc.rendered.satellite.aerial import Painting, paint
from idc.rendered.satellite.canvas import GroundNoise
from idc.rendered.satellite.levir_sentences import UNCHANGED, Words, levir_captions
from idc.rendered.satellite.satellite_pairs import RenderSatellitePairs, nameable_words
from tests.rendered.satellite.conftest import NO_DISTRACTORS, satellite_config

CHANGED = range(1, 24, 2)
"""The changed ones of the first 24 pairs."""


def mask_of(pair: ChangePair) -> np.ndarray:
    assert pair.mask is not None
    return decode_image(pair.mask)[..., 0]


def test_a_pair_depends_on_its_seed_and_index_alone(stage: RenderSatellitePairs, pairs: list[ChangePair]) -> None:
    again = RenderSatellitePairs(satellite_config())
    for index in (7, 3, 0):
        assert again.pair(index) == pairs[index]
    other = RenderSatellitePairs(satellite_config().model_copy(update={"seed": 1}))
    assert other.pair(3).before != pairs[3].before


def test_pairs_are_as_the_reader_of_levir_has_them(pairs: list[ChangePair]) -> None:
    for index, pair in enumerate(pairs):
        changed = index in CHANGED
        assert pair.meta["changeflag"] == changed
        assert pair.change_type == (None if changed else NO_CHANGE)
        assert bool(mask_of(pair).any()) == changed
        assert bool(pair.meta["changes"]) == changed
        assert set(np.unique(mask_of(pair))) <= {0, 128, 255}
        assert len(pair.captions) == 5
        images = [decode_image(image).astype(int) for image in (pair.before, pair.after)]
        assert images[0].shape == images[1].shape == (64, 64, 3)
        assert np.abs(images[0] - images[1]).mean() > 2, "distractors change the picture of what has not changed"
    assert pairs[0].captions == (
        "there is no difference", "the two scenes seem identical", "the scene is the same as before",
        "no change has occurred", "almost nothing has changed",
    )  # fmt: skip


def pieces_of(mask: np.ndarray) -> list[list[tuple[int, int]]]:
    """The pixels (x, y) of the pieces of a mask that touch at edges or corners, by flooding."""
    left = {(int(x), int(y)) for y, x in np.argwhere(mask)}
    pieces = []
    while left:
        piece, waiting = [], [left.pop()]
        while waiting:
            x, y = waiting.pop()
            piece.append((x, y))
            near = {(x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)} & left
            left -= near
            waiting += near
        pieces.append(piece)
    return pieces


def cell_by_thirds(piece: list[tuple[int, int]], side: int) -> str:
    x, y = (sum(values) / len(values) + 0.5 for values in zip(*piece, strict=True))
    column = "left" if x < side / 3 else "center" if x < 2 * side / 3 else "right"
    row = "top" if y < side / 3 else "center" if y < 2 * side / 3 else "lower"
    if column == row == "center":
        return "center"
    if "center" in (column, row):
        return column if row == "center" else row
    return f"{row} {column} corner"


def test_counts_and_places_agree_with_a_naive_count_of_the_mask(pairs: list[ChangePair]) -> None:
    for pair in pairs:
        mask = mask_of(pair)
        for name, value in (("road", 128), ("building", 255)):
            pieces = pieces_of(mask == value)
            entries = [change for change in pair.meta["changes"] if change["class"] == name]
            assert len(pieces) == len(entries) == pair.meta["counts"][name]
            assert sorted(map(len, pieces)) == sorted(entry["pixels"] for entry in entries)
            cells = [cell_by_thirds(piece, 64) for piece in pieces]
            assert sorted(cells) == sorted(entry["place"] for entry in entries)
            assert set(cells) == set(pair.meta["places"][name])
        drawn = np.zeros((64, 64), np.uint8)
        for change in pair.meta["changes"]:
            cv2.fillPoly(drawn, [np.array(change["polygon"], np.int32)], 1)
        both, either = (drawn.astype(bool) & (mask > 0)).sum(), (drawn.astype(bool) | (mask > 0)).sum()
        assert both >= 0.85 * either, "polygons are the outlines"


def paintings(stage: RenderSatellitePairs, index: int) -> tuple[tuple[Painting, Painting], np.ndarray]:
    site, _, mask = stage.site(index)
    noise = GroundNoise(stage.canvas, site.texture)
    return (paint(site, 0, stage.canvas, noise), paint(site, 1, stage.canvas, noise)), mask


def outside_changes(stage: RenderSatellitePairs, index: int) -> tuple[int, float]:
    (first, second), mask = paintings(stage, index)
    canvas = stage.canvas

    def wide(flags: np.ndarray, metres: float) -> np.ndarray:
        return cv2.dilate(flags.astype(np.uint8), np.ones((2 * round(metres / 1.25) + 1,) * 2, np.uint8)) > 0

    differs = canvas.reduce((np.abs(first.lit() - second.lit()).max(-1) > 1e-4).astype(np.float32)) > 0
    shadows = canvas.reduce((np.abs(first.shadows() - second.shadows()) > 1e-4).astype(np.float32)) > 0
    allowed = wide(mask > 0, 3.0) | wide(shadows, 1.25)  # near a wall less of the sky is seen
    return int((differs & ~allowed).sum()), float(differs[mask > 0].mean()) if mask.any() else 0.0


def test_without_distractors_nothing_but_the_mask_and_its_shadows_differs() -> None:
    stage = RenderSatellitePairs(satellite_config(distractors=NO_DISTRACTORS))
    for index in range(24):
        outside, inside = outside_changes(stage, index)
        assert outside == 0, index
        assert inside > 0.95 or index not in CHANGED, (index, inside)


def test_without_a_change_and_without_distractors_both_dates_are_the_same() -> None:
    """To the last bit, wherever the arrays of the two lie in memory."""
    stage = RenderSatellitePairs(satellite_config(distractors=NO_DISTRACTORS))
    for index in (0, 2, 4, 6):
        (first, second), _ = paintings(stage, index)
        light = first.lit()
        between = []  # shifts the arrays of each call
        for size in range(1, 40):
            between.append(np.empty(1040 * size, np.uint8))
            assert np.array_equal(light, second.lit())


def test_the_job_of_the_other_rendered_pairs_builds_them(tmp_path: Path) -> None:
    job = RenderJob(out=str(tmp_path), chunk_size=4, render=satellite_config())
    manifest = run_local(*open_rendering(job), progress=False)
    assert (manifest.num_rows, manifest.num_rejected, len(manifest.rows_by_split)) == (24, 0, 3)


def test_a_site_that_has_no_room_is_a_reject(tmp_path: Path) -> None:
    tiny = satellite_config(works=("large_building",), unchanged_share=0.0).model_copy(
        update={"width": 16, "height": 16, "num_scenes": 2}
    )
    batch = RenderSatellitePairs(tiny)({"index": [0, 1]})
    assert all(error.startswith("unplaceable scene: 60 sites of 20 m were drawn") for error in batch["error"])


AMOUNTS = {"a": (1, 1), "an": (1, 1), "two": (2, 2), "three": (3, 3), "four": (4, 4), "five": (5, 5), "some": (3, 99),
           "several": (3, 99), "many": (6, 99), "massive": (9, 99), "lots of": (9, 99)}  # fmt: skip
BUILDINGS = re.compile(
    rf"\b({'|'.join(AMOUNTS)}) (?:large |huge |big |small )?(?:house|villa|building)s?\b(?! attached)"
)
STREETS = re.compile(
    r"\b(?:(?:a|some|two|several) (?:cement |new |straight |winding |t-shaped )?|newly built )roads?\b"
    r"|\b(?<!the )roads\b"
)
SIDES = {
    "top left|upper left": ("top left corner",),
    "top right|upper right": ("top right corner",),
    "bottom left|lower-left": ("lower left corner",),
    "bottom right|lower-right": ("lower right corner",),
    "(?:on the|the) left(?: side)?": ("top left corner", "left", "lower left corner"),
    "(?:on the|the) right(?: side)?": ("top right corner", "right", "lower right corner"),
    "(?:at|in) the top(?! left| right)": ("top left corner", "top", "top right corner"),
    "at the bottom(?! left| right)": ("lower left corner", "lower", "lower right corner"),
    "in the (?:center|middle)": ("center",),
}
GROUND = {"woods|forest|among": "woods", "grass|meadow|grassland": "grass", "desert": "desert"}


def faults(caption: str, changes: list[dict[str, object]], words: Words) -> list[str]:
    """What is not true of a caption, or missing in it."""
    wrong = []
    buildings = [change for change in changes if change["class"] == "building"]
    kinds = Counter(str(change["kind"]) for change in buildings)
    extended = bool(kinds["extended"])
    for amount in BUILDINGS.findall(caption):
        low, high = AMOUNTS[amount]
        if not extended and not low <= len(buildings) <= high:
            wrong.append(f"{amount} of {len(buildings)}")
    if "row" in caption and not (words.rows and min(words.rows) >= 3 and sum(words.rows) == len(buildings)):
        wrong.append("row")
    if "two rows" in caption and len(words.rows) != 2:
        wrong.append("two rows")
    if bool(STREETS.search(caption)) != any(change["class"] == "road" for change in changes):
        wrong.append("road")
    if words.streets == 1 and re.search(r"two roads|some roads|several roads|newly built roads|t-shaped", caption):
        wrong.append("roads")
    if bool(re.search(r"(?:house|villa|building)s? .*(?:removed|disappear)", caption.split(" and ")[-1])) != bool(
        kinds["removed"]
    ):
        wrong.append("removed")
    if "trees" in re.sub("among the trees", "", caption) and words.trees < 4:
        wrong.append("trees")
    if "parking" in caption and not words.parking:
        wrong.append("parking")
    if "both sides" in caption and len(words.rows) != 2:
        wrong.append("both sides")
    cells = {str(change["place"]) for change in changes}
    for phrase, inside in SIDES.items():
        if re.search(rf"\b(?:{phrase})\b", caption) and not cells <= set(inside):
            wrong.append(phrase)
    for phrase, ground in GROUND.items():
        if re.search(rf"\b(?:{phrase})\b", caption) and words.ground != ground:
            wrong.append(phrase)
    return wrong


def test_captions_are_true_of_the_lists_and_five_a_pair() -> None:
    stage = RenderSatellitePairs(satellite_config(unchanged_share=0.0))
    distinct, lengths = set(), []
    for index in range(180):
        site, changes, _ = stage.site(index)
        words = nameable_words(site, changes, stage.visible_roads(site))
        captions = levir_captions(words, np.random.default_rng(index))
        assert len(captions) == 5
        for caption in captions:
            assert faults(caption, changes, words) == [], (caption, words)
            assert re.fullmatch(r"[a-z-]+( [a-z-]+)*", caption)
        distinct |= set(captions)
        lengths += [len(caption.split()) for caption in captions]
    for few in (Words(removed=1), Words(streets=1, ground="none"), Words(extended=1, noun="villa")):
        assert len(levir_captions(few, np.random.default_rng(3))) == 5, "even if little can be named"
    assert levir_captions(Words(roads=2, trees=9), np.random.default_rng(0)) == UNCHANGED
    assert set(UNCHANGED) == set(LEVIR_NO_CHANGE)
    assert len(distinct) > 600
    assert 9.5 < np.mean(lengths) < 12.5  # LEVIR-CC's changed pairs: 11.0
