"""The statistics that BLEU, ROUGE-L, CIDEr-D and METEOR are computed from, as arrays: fast, and resampled cheaply.

The definitions are those of ``pycocoevalcap`` 1.2, with which the tests compare every number. Its Python takes a second
for some hundred captions; an evaluation here scores a set, its baselines and a dozen subsets, and a bootstrap scores a
thousand resampled sets. Every metric is a function of sums over the sentences:

- BLEU of ten whole numbers a sentence (:func:`bleu`),
- METEOR of the 23 numbers that its Java gives a sentence (:func:`meteor`),
- ROUGE-L and CIDEr-D are means of the sentences' scores. CIDEr's document frequencies are of the scored set, so that
  a subset needs :meth:`NGrams.cider` again; a resampled set keeps those of the full set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse

ORDERS = 4
BLEU_COLUMNS = 2 + 2 * ORDERS
"""Words of the hypothesis, words of the closest reference, n-grams of the hypothesis, and those that are right."""

SIGMA = 6.0
_BETA = 1.2
_SMALL, _TINY = 1e-9, 1e-15
"""``pycocoevalcap``'s BLEU adds them so that nothing is divided by 0."""

# METEOR 1.5 for English ("rank" parameters): weights of exact, stem, synonym and paraphrase matches.
_ALPHA, _METEOR_BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_MODULES = np.array([1.0, 0.6, 0.8, 0.6])


class NGrams:
    """Counts of the n-grams of hypotheses and references, as sparse matrices of a row an id.

    Args:
        references: of every id, tokenised, words separated by spaces.
        hypotheses: of every id, tokenised.
    """

    def __init__(self, references: Sequence[Sequence[str]], hypotheses: Sequence[str]) -> None:
        self.size = len(hypotheses)
        self.num_references = np.array([len(captions) for captions in references])
        slots = int(self.num_references.max())
        sentences = list(hypotheses) + [
            captions[slot] if slot < len(captions) else "" for slot in range(slots) for captions in references
        ]
        counts, order, lengths = count_ngrams(sentences)
        blocks = [counts[start : start + self.size] for start in range(0, len(sentences), self.size)]
        self._hypotheses, self._references = blocks[0], blocks[1:]
        self._there = np.stack([self.num_references > slot for slot in range(slots)])  # (slots, N)
        self._lengths = lengths.reshape(1 + slots, self.size)
        self._orders = np.eye(ORDERS)[order]  # (V, 4)
        union = self._references[0]
        for block in self._references[1:]:
            union = union.maximum(block)
        self._most = union.tocsr()  # of every n-gram, how often it is in the reference that has it most often

    def bleu_statistics(self) -> np.ndarray:
        """The numbers of every id that :func:`bleu` sums, ``(N, 10)`` whole numbers."""
        words = self._lengths[0]
        distance = np.abs(self._lengths[1:] - words).astype(float)
        distance[~self._there] = np.inf
        # The closest reference, of two as close the shorter one.
        tied = np.where(distance == distance.min(axis=0), self._lengths[1:].astype(float), np.inf)
        closest = tied.min(axis=0)
        guess = np.maximum(0, words[:, None] - np.arange(ORDERS))
        correct = np.asarray(self._hypotheses.minimum(self._most) @ self._orders)
        return np.rint(np.column_stack([words, closest, guess, correct])).astype(np.int64)

    def cider(self, rows: np.ndarray | None = None) -> np.ndarray:
        """CIDEr-D of every id of ``rows`` (all of them by default), the document frequencies being of ``rows``.

        NaN, not ``pycocoevalcap``'s 0, if every n-gram of the references occurs in those of all rows: all weights are
        log(N/N) = 0, so no caption can score more than 0. This is so of a single row.
        """
        from scipy import sparse  # slow to import, and settings import this module

        rows = np.arange(self.size) if rows is None else rows
        documents = (self._most[rows] > 0).sum(axis=0)
        weight = math.log(len(rows)) - np.log(np.maximum(1.0, np.asarray(documents, dtype=float).ravel()))
        if not weight[np.asarray(documents).ravel() > 0].any():
            return np.full(len(rows), np.nan)
        scale = sparse.diags(weight)
        hypotheses = self._hypotheses[rows] @ scale
        norm = self._norms(hypotheses)
        total = np.zeros((len(rows), ORDERS))
        for slot, counts in enumerate(self._references):
            references = counts[rows] @ scale
            product = hypotheses.minimum(references).multiply(references) @ self._orders
            divisor = norm * self._norms(references)
            similarity = np.divide(product, divisor, out=np.zeros_like(divisor), where=divisor != 0)
            # CIDEr-D's length is in pairs of words.
            pairs = np.maximum(0, self._lengths[[0, 1 + slot]][:, rows] - 1)
            penalty = np.exp(-((pairs[0] - pairs[1]).astype(float) ** 2) / (2 * SIGMA**2))
            total += similarity * (penalty * self._there[slot, rows])[:, None]
        return 10.0 * total.mean(axis=1) / self.num_references[rows]

    def _norms(self, vectors: sparse.csr_matrix) -> np.ndarray:
        return np.sqrt(np.asarray(vectors.multiply(vectors) @ self._orders))


def count_ngrams(sentences: Sequence[str]) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray]:
    """N-grams of 1 to 4 words.

    Returns:
        counts ``(S, V)``, the order less one of every column ``(V,)``, and the words of every sentence ``(S,)``.
    """
    from scipy import sparse  # as above

    split = [sentence.split() for sentence in sentences]
    lengths = np.array([len(words) for words in split], dtype=np.int64)
    vocabulary: dict[str, int] = {}
    words = np.array([vocabulary.setdefault(word, len(vocabulary)) for row in split for word in row], dtype=np.int64)
    owner = np.repeat(np.arange(len(split)), lengths)
    end = np.cumsum(lengths)[owner] if len(owner) else owner
    starts = np.arange(len(words))
    gram = np.zeros(len(words), dtype=np.int64)  # the (n-1)-gram that begins at a word
    rows, columns, orders, width = [], [], [], 0
    for n in range(ORDERS):
        starts = starts[starts + n < end[starts]] if len(starts) else starts
        # An (n-1)-gram and the word after it as one number, so that one sort numbers the n-grams.
        distinct, inverse = np.unique(gram[starts] * max(1, len(vocabulary)) + words[starts + n], return_inverse=True)
        gram[starts] = inverse
        rows.append(owner[starts])
        columns.append(inverse + width)
        orders.append(np.full(len(distinct), n))
        width += len(distinct)
    row, column = np.concatenate(rows), np.concatenate(columns)
    counts = sparse.csr_matrix((np.ones(len(row)), (row, column)), shape=(len(split), width))
    return counts, np.concatenate(orders), lengths


def bleu(sums: np.ndarray) -> np.ndarray:
    """BLEU-1 to BLEU-4 of the sums of :meth:`NGrams.bleu_statistics`: ``(..., 10)`` to ``(..., 4)``."""
    words, closest = sums[..., :1], sums[..., 1:2]
    guess, correct = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    precision = np.cumprod((correct + _TINY) / (guess + _SMALL), axis=-1)
    value = precision ** (1.0 / np.arange(1, ORDERS + 1))
    ratio = (words + _TINY) / (closest + _SMALL)
    return value * np.where(ratio < 1, np.exp(1 - 1 / np.minimum(ratio, 1.0)), 1.0)


def rouge(references: Sequence[str], hypothesis: str) -> float:
    """ROUGE-L of a sentence: the best precision and the best recall over its references, beta 1.2."""
    words = hypothesis.split(" ")
    masks: dict[str, int] = {}
    for index, word in enumerate(words):
        masks[word] = masks.get(word, 0) | 1 << index
    full = (1 << len(words)) - 1
    precision = recall = 0.0
    for reference in references:
        others = reference.split(" ")
        # The longest common subsequence by bits (Hyyrö 2004): a zero is a word of the hypothesis that is in it.
        row = full
        for word in others:
            if match := row & masks.get(word, 0):
                row = ((row + match) | (row - match)) & full
        common = len(words) - row.bit_count()
        precision, recall = max(precision, common / len(words)), max(recall, common / len(others))
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def meteor(sums: np.ndarray) -> np.ndarray:
    """METEOR 1.5 of summed statistics, ``(..., 23)`` to ``(...)``: what its Java calculates for a set.

    The numbers of a sentence are the words of test and reference, the function words of both, for each of the four
    modules the matched content words of both and function words of both, the chunks, and the matched words of both. In
    a sum, a sentence that is matched as a whole has no chunk: :func:`zero_chunks_of_exact_matches` comes first.
    """
    words, function = sums[..., 0:2], sums[..., 2:4]
    modules = sums[..., 4:20].reshape(*sums.shape[:-1], 4, 2, 2)  # module, content or function, test or reference
    chunks, matched = sums[..., 20], sums[..., 21:23]
    weighted = _DELTA * modules[..., 0, :] + (1 - _DELTA) * modules[..., 1, :]
    weighted = (weighted * _MODULES[:, None]).sum(axis=-2)
    length = _DELTA * (words - function) + (1 - _DELTA) * function
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = np.moveaxis(weighted / length, -1, 0)
        mean = 1 / ((1 - _ALPHA) / precision + _ALPHA / recall)
        fragments = chunks / (matched.sum(axis=-1) / 2)
        value = mean * (1 - _GAMMA * fragments**_METEOR_BETA)
    return np.nan_to_num(value, nan=0.0)


def zero_chunks_of_exact_matches(numbers: np.ndarray) -> np.ndarray:
    """METEOR's numbers of sentences, ``(N, 23)``, ready to be summed: one chunk that is all of both sentences is not
    fragmentation and counts as none."""
    whole = (numbers[:, 20] == 1) & (numbers[:, 0:2] == numbers[:, 21:23]).all(axis=1)
    ready = numbers.copy()
    ready[whole, 20] = 0
    return ready
