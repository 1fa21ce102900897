"""Captions of satellite pairs: true of the list of changes, by rules that read the words alone."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from idc.metrics.changes import LEVIR_NO_CHANGE
from idc.rendered.satellite.levir_sentences import UNCHANGED, Words, levir_captions
from idc.rendered.satellite.satellite_pairs import RenderSatellitePairs, nameable_words
from tests.rendered.satellite.conftest import satellite_config

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
