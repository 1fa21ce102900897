"""CIDEr-D of a caption against its references, with the document frequencies of a corpus.

The operations, and their order, are those of ``pycocoevalcap``, with which a score agrees to the last digit; that
calculates the vectors of the references anew at each call, which here are kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from idc.metrics.java import tokenize
from idc.metrics.ngrams import ORDERS, SIGMA


class _Vector(NamedTuple):
    """Of each order the weights of n-grams and their norm; the number of word pairs."""

    weights: tuple[dict[tuple[str, ...], float], ...]
    norms: tuple[float, ...]
    length: int


class CiderD:
    """CIDEr-D.

    Args:
        corpus: captions of each pair of the corpus, at least two pairs.
    """

    def __init__(self, corpus: Sequence[Sequence[str]]) -> None:
        self._words_of: dict[str, str] = {}
        documents: Counter[tuple[str, ...]] = Counter()
        self.tokens([caption for captions in corpus for caption in captions])  # one call of Java for all
        for captions in corpus:
            documents.update({gram for text in self.tokens(captions) for gram in _count(text)})
        self._most = float(np.log(float(len(corpus))))
        self._frequency = {gram: float(np.log(max(1.0, float(count)))) for gram, count in documents.items()}
        self._references: dict[tuple[str, ...], list[_Vector]] = {}

    def __call__(self, captions: Sequence[str], references: Sequence[str]) -> list[float]:
        """The score of each caption, as ``pycocoevalcap`` scales it: 10 for a caption that all references equal."""
        key = tuple(references)
        if key not in self._references:
            self._references[key] = [self._vector(text) for text in self.tokens(references)]
        return [self._score(self._vector(text), self._references[key]) for text in self.tokens(captions)]

    def tokens(self, captions: Sequence[str]) -> list[str]:
        """PTB tokens, as :func:`idc.metrics.java.tokenize` returns them. A sentence of plain words is put together from
        its words, which are tokenised alone, and once: Java need not start for each batch of new sentences."""
        words = {caption: caption.split() for caption in captions}
        plain = {caption for caption in words if all(map(_is_plain, words[caption]))}
        new = {word for caption in words for word in (words[caption] if caption in plain else [caption])}
        asked = sorted(new - self._words_of.keys())
        self._words_of |= zip(asked, tokenize(asked), strict=True)
        parts = [words[caption] if caption in plain else [caption] for caption in captions]
        return [" ".join(filter(None, map(self._words_of.__getitem__, part))) for part in parts]

    def _vector(self, text: str) -> _Vector:
        weights: tuple[dict[tuple[str, ...], float], ...] = tuple({} for _ in range(ORDERS))
        norms, length = [0.0] * ORDERS, 0
        for gram, count in _count(text).items():
            order = len(gram) - 1
            weight = float(count) * (self._most - self._frequency.get(gram, 0.0))
            weights[order][gram] = weight
            norms[order] += pow(weight, 2)
            length += count if order == 1 else 0
        return _Vector(weights, tuple(map(math.sqrt, norms)), length)

    @staticmethod
    def _score(caption: _Vector, references: Sequence[_Vector]) -> float:
        total = np.zeros(ORDERS)
        for reference in references:
            penalty = np.e ** (-(float(caption.length - reference.length) ** 2) / (2 * SIGMA**2))
            for order in range(ORDERS):
                value, theirs = 0.0, reference.weights[order]
                for gram, weight in caption.weights[order].items():
                    if gram in theirs:
                        value += min(weight, theirs[gram]) * theirs[gram]
                if caption.norms[order] != 0 and reference.norms[order] != 0:
                    value /= caption.norms[order] * reference.norms[order]
                total[order] += value * penalty
        return float(np.mean(total) / len(references) * 10.0)


def _is_plain(word: str) -> bool:
    """Whether the tokenizer reads a word alone as it reads it in a sentence."""
    return word.isascii() and word.removesuffix(".").removesuffix(",").isalpha()


def _count(text: str) -> Counter[tuple[str, ...]]:
    words = text.split()
    orders = range(1, ORDERS + 1)
    return Counter(tuple(words[start : start + n]) for n in orders for start in range(len(words) - n + 1))
