"""Table 9 of the M3Diff paper against the counts of the data sets: which of them follow from the training splits alone,
which from training and validation together, and which from neither. The counts of
:data:`idc.data.validation.published.PUBLISHED` are those of the official files."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from idc.data.validation.published import PUBLISHED
from idc.systems.m3diff.mixture import TABLE_9

BIRDS: dict[str, dict[str, int]] = {
    "pairs": {"train": 2_685, "val": 325, "test": 337},
    "captions": {"train": 12_890, "val": 1_556, "test": 1_604},
}
"""Counted in the tokenised files; no paper prints them."""
SPOT_CAPTIONS = {"train": 17_623, "val": 3_304, "test": 2_100}
"""Sentences that are not empty. A row of an annotator is what table 9 calls a pair."""
CLEVR_CHANGE_CAPTIONS, CLEVR_CHANGE_PAIRS = 493_735, 79_606
"""Of the whole set (ProCap, appendix G); the caption files are not to be had."""


def thousands(number: float) -> set[int]:
    """How a number may be printed in thousands: the table has 71,636 as 71k, and 20,927 as 21k."""
    return {int(number // 1000), round(number / 1000)}


def counts(name: str) -> dict[str, Mapping[str, int]]:
    """Pairs and captions by split, as far as they are known."""
    if name == "birds_to_words":
        return dict(BIRDS)
    known = PUBLISHED[name].counts  # type: ignore[index]
    if name == "spot_the_diff":
        return {"pairs": known["rows"], "captions": SPOT_CAPTIONS}
    return {what: known[what] for what in ("pairs", "captions") if what in known}


def agree(name: str, splits: tuple[str, ...]) -> dict[str, bool]:
    """``pairs`` and ``captions`` -> whether table 9 follows from these splits."""
    printed = TABLE_9[name]
    return {
        what: getattr(printed, what) in thousands(sum(numbers[split] for split in splits))
        for what, numbers in counts(name).items()
    }


@pytest.mark.parametrize("name", TABLE_9)
def test_the_counts_are_those_of_train_and_val_together(name: str) -> None:
    """All but the captions of OmniDiff, which are twice its pairs."""
    both = agree(name, ("train", "val"))
    assert both == {what: (name, what) != ("omnidiff", "captions") for what in both}
    assert not all(agree(name, ("train",)).values())


def test_what_stays_unexplained_and_what_can_only_be_estimated() -> None:
    omnidiff = PUBLISHED["omnidiff"].counts
    assert omnidiff["captions"] == omnidiff["pairs"], "one caption per pair (table 2)"
    both = omnidiff["pairs"]["train"] + omnidiff["pairs"]["val"]
    assert TABLE_9["omnidiff"].captions in thousands(2 * both), "28k are two of each of 14,028 pairs"
    clevr = PUBLISHED["clevr_change"].counts["pairs"]
    share = (clevr["train"] + clevr["val"]) / CLEVR_CHANGE_PAIRS
    assert TABLE_9["clevr_change"].captions in thousands(CLEVR_CHANGE_CAPTIONS * share), "if they are spread evenly"
    assert "captions" not in PUBLISHED["clevr_dc"].counts
