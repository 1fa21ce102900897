"""Lengths, sentences and vocabulary of captions, counted by hand."""

from __future__ import annotations

import pytest

from idc.data.validation.caption_statistics import CaptionCounter, Numbers


def test_by_hand() -> None:
    counter = CaptionCounter()
    counter.add(["The red cube, and the ball, moved.", "It's gone! Is it? yes"])
    counter.add([])
    counter.add([" ".join(["word"] * 21)])
    counter.add([" ".join(["word"] * 20) + " ."])
    found = counter.result()
    assert (found.pairs, found.captions) == (4, 4)
    assert found.captions_per_pair == Numbers(least=0, mean=1.0, most=2)
    assert found.lengths == {5: 1, 7: 1, 20: 1, 21: 1}
    assert found.words_per_caption == Numbers(least=5, mean=13.25, most=21)
    assert found.share_over_20_words == 0.25
    assert found.sentences_per_caption == pytest.approx((1 + 3 + 1 + 1) / 4)
    assert found.vocabulary == len(
        {"the", "red", "cube", "and", "ball", "moved", "it's", "gone", "is", "it", "yes", "word"}
    )
    assert found.words_seen_once == 10
    assert found.captions_with_capitals == 2
    assert found.captions_with_punctuation == 3
    counter.add(["rock & roll - a/b"])
    assert counter.result().captions_with_punctuation == 3


def test_splits_add_up() -> None:
    texts = ["A cube moved.", "the cube is gone", "a ball appeared; nothing else"]
    whole, parts = CaptionCounter(), [CaptionCounter() for _ in texts]
    for part, text in zip(parts, texts, strict=True):
        whole.add([text])
        part.add([text])
    assert CaptionCounter.sum(parts).result() == whole.result()
