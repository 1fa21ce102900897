"""The arrays give what ``pycocoevalcap`` gives, for a set, for a part of it, and for every sentence."""

from __future__ import annotations

import numpy as np
import pytest

from idc.metrics.coco import BLEU_ORDERS, CocoScorer
from idc.metrics.ngrams import NGrams, count_ngrams, rouge

WORDS = ["the", "red", "blue", "cube", "ball", "moved", "turned", "was", "added", *"abcdef"]
QUICK = ("BLEU", "ROUGE-L", "CIDEr")


def captions(count: int, seed: int) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Random references, of other numbers and lengths for every id, and predictions: some empty, some unseen words."""
    rng = np.random.default_rng(seed)

    def text(words: list[str], least: int) -> str:
        return " ".join(rng.choice(words, rng.integers(least, 12)))

    references = {f"p{i}": [text(WORDS, 1) for _ in range(rng.integers(1, 6))] for i in range(count)}
    return references, {name: text([*WORDS, "zebra"], 0) for name in references}


def test_every_number_is_pycocoevalcaps() -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    references, predictions = captions(150, 0)
    for part in (list(references), list(references)[::3]):
        gts = {name: references[name] for name in part}
        res = {name: [predictions[name]] for name in part}
        scorer = CocoScorer(gts, QUICK, tokens=list)
        scores = scorer.prepare({name: predictions[name] for name in part}, allow_empty=True).score()
        value, sentences = Bleu(4).compute_score(gts, res, verbose=0)
        # Two programs: their last bits depend on the processor (numpy's AVX-512 powers round differently).
        assert [scores.overall[name] for name in BLEU_ORDERS] == pytest.approx(value, rel=1e-12, abs=0)
        for name, column in zip(BLEU_ORDERS, sentences, strict=True):
            assert [row[name] for row in scores.per_id.values()] == pytest.approx(column, rel=1e-12, abs=1e-15)
        for name, official in (("ROUGE-L", Rouge()), ("CIDEr", Cider())):
            mean, sentences = official.compute_score(gts, res)
            assert scores.overall[name] == pytest.approx(mean, rel=1e-12)
            assert [row[name] for row in scores.per_id.values()] == pytest.approx(sentences, rel=1e-12, abs=1e-13)
        assert scores.overall["CIDEr"] > 0.01, "the captions must share words for this test to mean anything"


@pytest.mark.parametrize("seed", range(15))
def test_cider_is_undefined_exactly_where_no_caption_can_score(seed: int) -> None:
    """Of sets of few words, some of which have a defined one; elsewhere it is the official value."""
    from pycocoevalcap.cider.cider import Cider

    rng = np.random.default_rng(seed)
    references = {
        str(i): [" ".join(rng.choice(["a", "b"], rng.integers(1, 3)))] * rng.integers(1, 3)
        for i in range(rng.integers(1, 4))
    }

    def official(captions: dict[str, str]) -> float:
        return float(Cider().compute_score(references, {name: [text] for name, text in captions.items()})[0])

    grams = NGrams([*references.values()], ["a b", "b", "zebra"][: len(references)])
    best = official({name: texts[0] for name, texts in references.items()})
    score = float(grams.cider().mean())
    assert np.isnan(score) == (best == 0), references
    if best:
        said = dict(zip(references, ["a b", "b", "zebra"], strict=False))
        assert score == pytest.approx(official(said), rel=1e-12)


def test_ngrams_are_counted_by_order() -> None:
    counts, orders, lengths = count_ngrams(["a b a b", "", "b"])
    assert lengths.tolist() == [4, 0, 1]
    dense = counts.toarray()
    assert [int(dense[0, orders == n].sum()) for n in range(4)] == [4, 3, 2, 1]
    assert sorted(dense[0, orders == 1]) == [1, 2], "a b twice, b a once"
    assert dense[1].sum() == 0
    assert count_ngrams(["", ""])[0].shape == (2, 0)


def test_two_references_as_close_as_each_other_give_bleu_the_shorter_one() -> None:
    grams = NGrams([["a b c d", "a b"]], ["a b c"])
    assert grams.bleu_statistics()[0, :2].tolist() == [3, 2]


def test_a_sentence_of_nothing_equals_nothing() -> None:
    """A reference of punctuation alone is one empty word for the official code, and so is an empty caption."""
    from pycocoevalcap.rouge.rouge import Rouge

    for reference, caption in (("", ""), ("a", ""), ("", "a"), ("a a b", "a b a")):
        official = Rouge().calc_score([caption], [reference])
        assert rouge([reference], caption) == pytest.approx(official, rel=1e-12, abs=0)
