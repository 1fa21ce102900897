"""Counts: statistics of captions, pairs that share images, and what agrees with the published numbers."""

from __future__ import annotations

import typing

import pytest

from idc.data.schema import SPLITS
from idc.data.validation.caption_statistics import CaptionCounter, Numbers
from idc.data.validation.duplicates import Leak, SharedImages, digest
from idc.data.validation.published import ALL, PUBLISHED, SetName, compare_counts

SPOT = {
    "rows": {"train": 9_524, "val": 1_634, "test": 1_404}, "pairs": {"train": 8_566, "val": 1_493, "test": 1_270},
    "sentences": {"train": 17_676, "val": 3_310, "test": 2_107}, "empty_sentences": {"train": 53, "val": 6, "test": 7},
    "captions": {"train": 17_623, "val": 3_304, "test": 2_100}, "something_else": {"train": 1},
}  # fmt: skip


def test_the_numbers_hang_together() -> None:
    """Sums that the papers print: pairs, images an official part, five captions a pair."""
    assert set(PUBLISHED) == set(typing.get_args(SetName))
    count = {name: known.counts for name, known in PUBLISHED.items()}
    assert all(set(counts) <= {*SPLITS, ALL} for of_set in count.values() for counts in of_set.values())
    totals = {"clevr_change": 79_606, "image_editing_request": 3_939, "levir": 10_077, "omnidiff": 15_598,
              "clevr_dc": 48_000}  # fmt: skip
    assert {name: sum(count[name]["pairs"].values()) for name in totals} == totals  # type: ignore[index]
    for split in SPLITS:
        assert count["levir"]["captions"][split] == 5 * count["levir"]["pairs"][split]
        assert count["clevr_change"]["pairs"][split] == 2 * count["clevr_change"]["triples"][split]
        parts = [count["omnidiff"][f"{part}_pairs"][split] for part in ("real", "render")]
        assert count["omnidiff"]["pairs"][split] == sum(parts)


def test_as_published() -> None:
    found = compare_counts("spot_the_diff", SPOT)
    assert found.agrees
    text = found.sentence()
    assert "as published (train/val/test): 9,524/1,634/1,404 rows, 8,566/1,493/1,270 pairs" in text
    assert "9,524/1,634/1,404 rows are 8,566/1,493/1,270 pairs: several annotators" in text
    assert "17,676/3,310/2,107 sentences are 17,623/3,304/2,100 captions: empty sentences are dropped" in text


def test_a_difference_is_said_with_its_reason() -> None:
    fewer = {**SPOT, "pairs": {**SPOT["pairs"], "test": 1_269}}
    found = compare_counts("spot_the_diff", fewer, ["1 rows are unusable"])
    assert not found.agrees
    assert "DIFFERENT: 8,566/1,493/1,269 pairs (published 8,566/1,493/1,270)" in found.sentence()
    assert "1 rows are unusable" in found.explained
    assert not any("several annotators" in text for text in found.explained)
    assert "the difference is unexplained" in compare_counts("spot_the_diff", fewer).sentence()


def test_splits_that_are_not_here_are_not_compared() -> None:
    only_test = {name: {"test": counts["test"]} for name, counts in SPOT.items() if "test" in counts}
    found = compare_counts("spot_the_diff", only_test, ["no file of train"])
    assert (found.agrees, found.absent_splits) == (True, ["train", "val"])
    for text in ("missing: train, val", "1,270 pairs (test)", "no file of train"):
        assert text in found.sentence()
    assert not compare_counts("cdvqa", {"pairs": {"val": 3}}).agrees, "nothing to compare"


@pytest.mark.parametrize(("pairs", "agrees"), [(313_010, True), (313_009, False)])
def test_a_number_for_the_whole_set(pairs: int, agrees: bool) -> None:
    found = compare_counts("instruct_pix2pix", {"pairs": {"train": pairs - 20, "val": 10, "test": 10}})
    assert found.agrees is agrees
    assert f"{pairs:,} pairs (in all)" in found.sentence()


def test_statistics_of_captions_by_hand() -> None:
    texts = [
        ["The red cube, and the ball, moved.", "It's gone! Is it? yes"], [], [" ".join(["word"] * 21)],
        [" ".join(["word"] * 20) + " ."],
    ]  # fmt: skip
    whole = CaptionCounter()
    for captions in texts:
        whole.add(captions)
    statistics = whole.result()
    assert (statistics.pairs, statistics.captions) == (4, 4)
    assert statistics.captions_per_pair == Numbers(least=0, mean=1.0, most=2)
    assert statistics.words_per_caption == Numbers(least=5, mean=13.25, most=21)
    assert statistics.share_over_20_words == 0.25
    assert statistics.sentences_per_caption == pytest.approx((1 + 3 + 1 + 1) / 4)
    assert statistics.vocabulary == 12
    assert (statistics.captions_with_capitals, statistics.captions_with_punctuation) == (2, 3)
    whole.add(["rock & roll - a/b"])
    assert whole.result().captions_with_punctuation == 3


def shared(*pairs: str) -> SharedImages:
    """Pairs, each ``"id split before after"``."""
    out = SharedImages()
    for pair in pairs:
        pair_id, split, before, after = pair.split()
        out.add(pair_id, split, digest(before), digest(after))
    return out


def test_a_chain_over_three_splits() -> None:
    leaks = shared("t1 train a b", "t2 train a c", "v1 val d a", "e1 test d e", "t3 train x y")
    assert list(leaks.leaks()) == [
        Leak(pairs=["t1", "v1"], splits=["train", "val"]), Leak(pairs=["v1", "e1"], splits=["val", "test"])
    ]  # fmt: skip
    assert leaks.leaked_pairs() == {"train": {"val": 2}, "val": {"test": 1, "train": 1}, "test": {"val": 1}}


def test_doubles_and_distinct_pairs() -> None:
    leaks = shared("p1 train a b", "p2 train a b", "p3 train b a", "p4 test a b")
    assert list(leaks.duplicate_pairs()) == [(["p1", "p2", "p4"], ["train", "train", "test"])]
    assert leaks.distinct_pairs() == {"train": 2, "test": 1}
    assert digest("a.png") != digest(b"a.png"), "a name is not taken for bytes"
