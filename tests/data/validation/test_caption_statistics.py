"""Lengths, sentences and vocabulary of captions, counted by hand."""

from __future__ import annotations

import pytest

from idc.data.validation.caption_statistics import CaptionCounter, Numbers


def test_by_hand_and_splits_add_up() -> None:
    texts = [
        ["The red cube, and the ball, moved.", "It's gone! Is it? yes"], [], [" ".join(["word"] * 21)],
        [" ".join(["word"] * 20) + " ."],
    ]  # fmt: skip
    parts = [CaptionCounter() for _ in texts]
    for part, captions in zip(parts, texts, strict=True):
        part.add(captions)
    whole = CaptionCounter.sum(parts)
    found = whole.result()
    assert (found.pairs, found.captions) == (4, 4)
    assert found.captions_per_pair == Numbers(least=0, mean=1.0, most=2)
    assert found.words_per_caption == Numbers(least=5, mean=13.25, most=21)
    assert found.share_over_20_words == 0.25
    assert found.sentences_per_caption == pytest.approx((1 + 3 + 1 + 1) / 4)
    assert found.vocabulary == 12
    assert (found.captions_with_capitals, found.captions_with_punctuation) == (2, 3)
    whole.add(["rock & roll - a/b"])
    assert whole.result().captions_with_punctuation == 3
