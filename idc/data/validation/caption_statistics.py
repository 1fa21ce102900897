"""Lengths and vocabulary of captions: the columns of OmniDiff's tables 1 and 2."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel

from idc.data.text import words

LONG = 20
"""A caption of more words than this is long (OmniDiff, table 1)."""

_SENTENCE_END = re.compile(r"[.!?]+(?:\s+|$)")
_PUNCTUATION = re.compile(r"[.,;:!?'\"]")


class Numbers(BaseModel):
    """Smallest, mean and largest of some counts."""

    least: int = 0
    mean: float = 0.0
    most: int = 0


class CaptionStatistics(BaseModel):
    """Statistics of the captions of a data set or split.

    Words are those of :func:`idc.data.text.words` without ``;`` and ``,``, in lower case. A sentence ends with ``.``,
    ``!`` or ``?`` before a blank or at the end; a caption without them is one sentence.
    """

    pairs: int
    captions: int
    captions_per_pair: Numbers
    words_per_caption: Numbers
    share_over_20_words: float
    """Share of the captions, from 0 to 1."""
    sentences_per_caption: float
    vocabulary: int
    captions_with_capitals: int
    captions_with_punctuation: int
    """With any of . , ; : ! ? and quotes."""


class CaptionCounter:
    """Counts captions; memory is that of the vocabulary."""

    def __init__(self) -> None:
        self._per_pair: Counter[int] = Counter()
        self._lengths: Counter[int] = Counter()
        self._vocabulary: set[str] = set()
        self._sentences = self._capitals = self._punctuated = 0

    def add(self, captions: Sequence[str]) -> None:
        """Add the captions of one pair."""
        self._per_pair[len(captions)] += 1
        for caption in captions:
            tokens = [word for word in words(caption) if word not in (";", ",")]
            self._lengths[len(tokens)] += 1
            self._vocabulary.update(tokens)
            self._sentences += max(1, sum(bool(part.strip()) for part in _SENTENCE_END.split(caption)))
            self._capitals += caption != caption.lower()
            self._punctuated += _PUNCTUATION.search(caption) is not None

    def result(self) -> CaptionStatistics:
        captions = sum(self._lengths.values())
        long = sum(count for length, count in self._lengths.items() if length > LONG)
        return CaptionStatistics(
            pairs=sum(self._per_pair.values()),
            captions=captions,
            captions_per_pair=_numbers(self._per_pair),
            words_per_caption=_numbers(self._lengths),
            share_over_20_words=long / max(1, captions),
            sentences_per_caption=self._sentences / max(1, captions),
            vocabulary=len(self._vocabulary),
            captions_with_capitals=self._capitals,
            captions_with_punctuation=self._punctuated,
        )


def _numbers(histogram: Counter[int]) -> Numbers:
    """Numbers of a histogram: value -> number of occurrences."""
    if not histogram:
        return Numbers()
    total = sum(value * count for value, count in histogram.items())
    mean = round(total / sum(histogram.values()), 2)
    return Numbers(least=min(histogram), mean=mean, most=max(histogram))
