"""CIDEr-D of a caption against its references, with the document frequencies of a corpus, by ``pycocoevalcap``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pycocoevalcap.cider.cider_scorer import CiderScorer, cook_refs

from idc.metrics.java import tokenize


class CiderD:
    """CIDEr-D.

    Args:
        corpus: captions of each pair of the corpus, at least two pairs.
    """

    def __init__(self, corpus: Sequence[Sequence[str]]) -> None:
        self._words_of: dict[str, str] = {}
        self._tokens([caption for captions in corpus for caption in captions])  # one call of Java for all
        self._scorer = CiderScorer()
        self._scorer.crefs = [cook_refs(self._tokens(captions)) for captions in corpus]
        self._scorer.compute_doc_freq()
        self._others = [()] * (len(corpus) - 1)

    def __call__(self, captions: Sequence[str], row: Mapping[str, Any]) -> list[float]:
        """The score of each caption against those of a pair, as ``pycocoevalcap`` scales it: at most 10."""
        # The scorer takes the number of lists of references for that of the documents.
        self._scorer.crefs, scores = [cook_refs(self._tokens(row["captions"])), *self._others], list[float]()
        for counts in cook_refs(self._tokens(captions)):
            self._scorer.ctest = [counts]
            scores += map(float, self._scorer.compute_cider())
        return scores

    def _tokens(self, captions: Sequence[str]) -> list[str]:
        """PTB tokens, as :func:`idc.metrics.java.tokenize` returns them. A sentence of plain words is put together from
        its words, which are tokenised alone, and once: Java need not start for each batch of new sentences."""
        split = [text.split() for text in captions]
        parts = [words if all(map(_is_plain, words)) else [text] for text, words in zip(captions, split, strict=True)]
        asked = sorted({part for of_caption in parts for part in of_caption} - self._words_of.keys())
        self._words_of |= zip(asked, tokenize(asked), strict=True)
        return [" ".join(filter(None, map(self._words_of.__getitem__, of_caption))) for of_caption in parts]


def _is_plain(word: str) -> bool:
    """Whether the tokenizer reads a word alone as it reads it in a sentence."""
    return word.isascii() and word.removesuffix(".").removesuffix(",").isalpha()
