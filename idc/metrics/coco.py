"""BLEU, METEOR, ROUGE-L, CIDEr-D and SPICE exactly as the COCO caption evaluation computes them.

The two Java programs (PTB tokenizer, METEOR 1.5) are those of ``pycocoevalcap`` (:mod:`idc.metrics.java`), the rest is
its definitions on arrays (:mod:`idc.metrics.ngrams`). Every sentence is tokenised once, and METEOR's Java works while
Python does the rest.

Facts of the definition that surprise:

- ``CIDEr`` is CIDEr-D. Its document frequencies come from the references of the scored ids, so the score of a subset is
  not a mean over the whole set, and a set whose ids share all their references, such as one id alone, has none: it is
  NaN (:data:`CIDER_UNDEFINED`). A set has to be scored in one piece: captions made by many machines are gathered
  first.
- ``BLEU`` is a corpus score with the closest reference length; the per-id values do not average to it.
- ``METEOR`` of a set aggregates the statistics of its sentences; again not the mean of the per-id values.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from idc.metrics.java import Meteor, spice, spice_missing, tokenize
from idc.metrics.ngrams import NGrams, bleu, meteor, rouge, zero_chunks_of_exact_matches

METRICS = ("BLEU", "METEOR", "ROUGE-L", "CIDEr")
"""Scored by default; ``SPICE`` is known too, see :func:`idc.metrics.java.spice_missing`."""

BLEU_ORDERS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4")

CIDER_UNDEFINED = (
    "every n-gram of the references occurs in those of all pairs, so that all have the weight log(N/N) = 0 and any "
    "caption scores 0"
)
"""Why CIDEr is NaN where it is."""

_NAMED = 5

log = logging.getLogger(__name__)


class Scores(NamedTuple):
    """Scores of one set of predictions, as fractions (the papers print them times 100): metric -> value over the whole
    set; id -> metric -> value of that sentence; id -> ``BLEU`` and ``METEOR`` -> what these sum over the sentences."""

    overall: dict[str, float]
    per_id: dict[str, dict[str, float]]
    statistics: dict[str, dict[str, list[float]]]


def score(
    references: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    metrics: Sequence[str] = METRICS,
    allow_empty: bool = False,
) -> Scores:
    """Score one prediction for each id against all its references.

    Args:
        references: id -> its reference captions, at least one.
        predictions: id -> its predicted caption; the same ids.
        metrics: of :data:`METRICS`, or ``"SPICE"``.
        allow_empty: an empty prediction scores 0 instead of being an error.

    Raises:
        ValueError: names the ids that have no references, are not predicted, or are empty.
    """
    return CocoScorer(references, metrics).score(predictions, allow_empty=allow_empty)


def cider(references: Mapping[str, Sequence[str]], predictions: Mapping[str, str], allow_empty: bool = True) -> float:
    """CIDEr-D alone, for the validation inside a training run: captions seen before in this process are not tokenised
    again. A model's first captions may be empty and score 0, with a warning; so does a set for which CIDEr is not
    defined, as logs and the choice of the best weights need a number. Errors as :func:`score`."""
    scorer = CocoScorer(references, ("CIDEr",))
    value = scorer.score(predictions, allow_empty=allow_empty).overall["CIDEr"]
    if math.isnan(value):
        log.warning(
            "CIDEr is not defined for these %d validation pairs and counts as 0: %s", len(references), CIDER_UNDEFINED
        )
        return 0.0
    return value


class CocoScorer:
    """Scores any number of predictions against the same references.

    Args:
        tokens: captions to strings of tokens; by default PTB tokens, see :mod:`idc.metrics.protocols`.
        meteor: METEOR, with its table of paraphrases cut for more than these sentences.
        empty_references: an empty reference counts as one without words, as in ``pycocoevalcap``.

    Attributes:
        seconds: duration of each part so far; of METEOR's Java, which runs in parallel, the wait for it at the end.

    Raises:
        ValueError: an id without references or with an empty one, an unknown metric, SPICE without its jars.
    """

    def __init__(
        self,
        references: Mapping[str, Sequence[str]],
        metrics: Sequence[str] = METRICS,
        tokens: Callable[[Sequence[str]], list[str]] = tokenize,
        meteor: Meteor | None = None,
        empty_references: bool = False,
    ) -> None:
        if unknown := [name for name in metrics if name not in (*METRICS, "SPICE")]:
            raise ValueError(f"no metric is called {', '.join(unknown)}; there are {', '.join(METRICS)} and SPICE")
        if "SPICE" in metrics and (reason := spice_missing()):
            raise ValueError(reason)
        _check_references(references, empty_references)
        self.metrics = tuple(metrics)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._tokens = tokens
        self.meteor = meteor or Meteor()
        with self.timed("tokenising"):
            sentences = iter(tokens([sentence for captions in references.values() for sentence in captions]))
        self.references = {name: [next(sentences) for _ in captions] for name, captions in references.items()}

    def score(self, predictions: Mapping[str, str], allow_empty: bool = False) -> Scores:
        """Score predictions; those not predicted, of unknown ids or empty are a ValueError that names them."""
        return self.prepare(predictions, allow_empty).score()

    def prepare(self, predictions: Mapping[str, str], allow_empty: bool = False) -> PreparedCaptions:
        """Predictions ready to be scored, as a whole and in parts; errors as :meth:`score`."""
        self._check(predictions, allow_empty)
        with self.timed("tokenising"):
            # The dropped punctuation alone can leave nothing: METEOR and ROUGE then give 0 as well.
            tokens = self._tokens([predictions[name] for name in self.references])
        return PreparedCaptions(self, dict(zip(self.references, tokens, strict=True)))

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds how long what is inside took to :attr:`seconds`."""
        started = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - started

    def _check(self, predictions: Mapping[str, str], allow_empty: bool) -> None:
        wanted = list(self.references)
        if unknown := [name for name in predictions if name not in self.references]:
            raise ValueError(f"predicted, but there are no references for them: {names(unknown)}")
        if lost := [name for name in wanted if name not in predictions]:
            raise ValueError(f"not predicted: {names(lost)}; every id with references needs a caption")
        if wrong := [name for name in wanted if not isinstance(predictions[name], str)]:
            raise ValueError(f"the prediction is not one caption (a str): {names(wrong)}")
        if empty := [name for name in wanted if not predictions[name].split()]:
            if not allow_empty:
                raise ValueError(f"the predicted caption is empty: {names(empty)}; allow_empty scores them 0")
            log.warning("%d of %d predicted captions are empty and score 0: %s", len(empty), len(wanted), names(empty))


class PreparedCaptions:
    """Tokenised predictions, and what is calculated once for all their subsets; made by :meth:`CocoScorer.prepare`."""

    def __init__(self, scorer: CocoScorer, hypotheses: Mapping[str, str]) -> None:
        self._scorer, self._hypotheses = scorer, hypotheses
        self._references = references = scorer.references
        self.ids = list(references)
        self._row = {name: row for row, name in enumerate(self.ids)}
        metrics, timed = scorer.metrics, scorer.timed
        with ThreadPoolExecutor(1) as pool:
            if "METEOR" in metrics:
                waiting = pool.submit(scorer.meteor.statistics, references, hypotheses)
            if "BLEU" in metrics or "CIDEr" in metrics:
                with timed("n-grams"):
                    self._grams = NGrams(list(references.values()), list(hypotheses.values()))
            self._sums: dict[str, np.ndarray] = {}
            if "BLEU" in metrics:
                with timed("BLEU"):
                    self._sums["BLEU"] = self._grams.bleu_statistics()
            if "ROUGE-L" in metrics:
                with timed("ROUGE-L"):
                    self._rouge = np.array([rouge(references[name], hypotheses[name]) for name in self.ids])
            if "METEOR" in metrics:
                with timed("METEOR, waited for"):
                    self._sums["METEOR"] = zero_chunks_of_exact_matches(waiting.result())

    def overall(self, ids: Iterable[str] | None = None) -> dict[str, float]:
        """Metric -> score of all ids, or of some of them as if there were no others."""
        rows = np.arange(len(self.ids)) if ids is None else np.array([self._row[name] for name in ids])
        return self._scores(rows)[0]

    def score(self) -> Scores:
        """The score of all ids, with the scores and the statistics of every sentence."""
        overall, columns = self._scores(np.arange(len(self.ids)))
        for values in map(metrics_of_sums, self._sums, self._sums.values()):
            columns |= values
        rows = enumerate(self.ids)
        per_id = {name: {metric: float(columns[metric][i]) for metric in overall} for i, name in rows}
        lists = {metric: values.tolist() for metric, values in self._sums.items()}
        sums = {name: {metric: values[i] for metric, values in lists.items()} for i, name in enumerate(self.ids)}
        return Scores(overall, per_id, sums)

    def _scores(self, rows: np.ndarray) -> tuple[dict[str, float], dict[str, Sequence[float] | np.ndarray]]:
        """Metric -> score of these rows, and -> scores of the sentences (not those of BLEU and METEOR)."""
        metrics, timed = self._scorer.metrics, self._scorer.timed
        overall: dict[str, float] = {}
        columns: dict[str, Sequence[float] | np.ndarray] = {}
        for name, sums in self._sums.items():
            overall |= {metric: float(value) for metric, value in metrics_of_sums(name, sums[rows].sum(axis=0)).items()}
        if "ROUGE-L" in metrics:
            columns["ROUGE-L"] = self._rouge[rows]
        if "CIDEr" in metrics:
            with timed("CIDEr"):
                columns["CIDEr"] = self._grams.cider(rows)
        if "SPICE" in metrics:
            with timed("SPICE"):
                ids = [self.ids[row] for row in rows]
                columns["SPICE"] = spice({name: self._references[name] for name in ids}, self._hypotheses)
        return overall | {name: float(np.mean(values)) for name, values in columns.items()}, columns


def metrics_of_sums(name: str, sums: np.ndarray) -> dict[str, Any]:
    """The metrics of sums over sentences, ``(..., columns)``; ``name``: ``BLEU`` or ``METEOR``."""
    if name == "METEOR":
        return {name: meteor(sums)}
    return dict(zip(BLEU_ORDERS, np.moveaxis(bleu(sums), -1, 0), strict=True))


def _check_references(references: Mapping[str, Sequence[str]], allow_empty: bool) -> None:
    if not references:
        raise ValueError("nothing to score: there are no references")
    if wrong := [name for name, captions in references.items() if isinstance(captions, str)]:
        raise ValueError(f"the references are one str and not a list of captions: {names(wrong)}")
    if bare := [name for name, captions in references.items() if not captions]:
        raise ValueError(f"no references: {names(bare)}; leave these ids out or give them captions")
    empty = [name for name, captions in references.items() if any(not caption.split() for caption in captions)]
    if empty and not allow_empty:
        raise ValueError(f"a reference caption is empty: {names(empty)}; remove it from the data set")


def names(ids: Sequence[str]) -> str:
    """Some ids for a message: the first five, and how many more there are."""
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(repr(name) for name in ids[:_NAMED]) + more
