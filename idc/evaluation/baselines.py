"""Yardsticks of a captioner's scores: two baselines and, where the truth is known, an upper bound.

The baselines are the best constant caption and the nearest training pair's caption. Neither describes the pair. On data
where half of the pairs are unchanged a constant sentence scores surprisingly well; a table without it is hard to
interpret. The upper bound is the truth in one fixed wording: references differ among themselves, and no captioner can
guess which of their wordings a pair has.

A third baseline is another captioner, trained on the same pairs in a known time: what any reasonable network learns
from them. It is read from its evaluation (:func:`read_trained_baseline`).
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from idc.captioning.sources import supervision_of
from idc.data.files import Location, locate
from idc.data.images import decode_image, resize_image
from idc.evaluation.record import (
    CONSTANT,
    NEAREST,
    TRUTH,
    Baseline,
    Evaluation,
    Training,
    load_evaluation,
    load_predictions,
)
from idc.metrics.coco import CocoScorer
from idc.metrics.java import tokenize
from idc.metrics.ngrams import ORDERS, SIGMA, count_ngrams

WHAT = {
    CONSTANT: "the one training caption that scores the best CIDEr when it is said of every evaluated pair; chosen on "
    "the evaluated split itself, so it is an upper bound of what a constant can do",
    NEAREST: "the first caption of the training pair whose small before, after and difference pictures are nearest",
    TRUTH: "the true change of every pair, its object named by all attributes, in one wording a change type; the "
    "wording with the best CIDEr on the evaluated split",
}
"""Descriptions of the baselines and the upper bound, saved with their scores."""

THUMBNAIL = 16
"""Edge of the small pictures in pixels."""

_BATCH = 256


def constant_candidates(train: Iterable[tuple[str | None, Sequence[str]]], count: int = 200) -> list[str]:
    """The ``count`` most frequent distinct training captions, and the most frequent one of every change type.

    Args:
        train: (change type, captions) of each training pair.
    """
    frequency: Counter[str] = Counter()
    by_type: dict[str | None, Counter[str]] = defaultdict(Counter)
    for change_type, captions in train:
        texts = [caption for caption in captions if caption.split()]
        frequency.update(texts)
        by_type[change_type].update(texts)
    most = [*frequency.most_common(count), *(pair for counter in by_type.values() for pair in counter.most_common(1))]
    return list(dict.fromkeys(caption for caption, _ in most))


def best_constant(
    references: Mapping[str, Sequence[str]],
    candidates: Sequence[str],
    tokens: Callable[[Sequence[str]], list[str]] = tokenize,
) -> str:
    """The candidate with the best CIDEr-D as the caption of every id.

    Args:
        references: id -> reference captions.
        tokens: tokeniser of the protocol.
    """
    if not candidates:
        raise ValueError("no training captions to choose a constant caption from; set constant_candidates=0")
    rest = iter(tokens([caption for captions in references.values() for caption in captions]))
    split = {name: [next(rest) for _ in captions] for name, captions in references.items()}
    return candidates[int(np.argmax(constant_cider(split, tokens(candidates))))]


def best_wording(
    references: Mapping[str, Sequence[str]],
    truth: Mapping[str, Sequence[str]],
    kinds: Mapping[str, str | None],
    tokens: Callable[[Sequence[str]], list[str]] = tokenize,
) -> dict[str, str]:
    """For every pair the wording of the truth that has the best mean CIDEr-D over the pairs of its type.

    Args:
        references: id -> reference captions; ``kinds``: id -> change type.
        truth: id -> true captions; the n-th has the same wording for all ids of one type.
        tokens: tokeniser of the protocol.
    """
    by_kind: dict[str | None, list[str]] = defaultdict(list)
    for name in truth:
        by_kind[kinds[name]].append(name)
    scorer = CocoScorer(references, ("CIDEr",), tokens)
    tried = [
        scorer.score({name: texts[number % len(texts)] for name, texts in truth.items()}).per_id
        for number in range(max(map(len, truth.values())))
    ]
    best = {}
    for ids in by_kind.values():
        means = [np.mean([scores[name]["CIDEr"] for name in ids]) for scores in tried[: len(truth[ids[0]])]]
        best.update({name: truth[name][int(np.argmax(means))] for name in ids})
    return best


def constant_cider(references: Mapping[str, Sequence[str]], candidates: Sequence[str]) -> np.ndarray:
    """CIDEr-D of each candidate as the caption of every id ``(len(candidates),)``.

    The definition of ``pycocoevalcap``'s ``Cider`` (clipped n-grams of 1 to 4 words, Gaussian length penalty with sigma
    6, times 10), arranged so that a candidate is compared with each distinct reference once.

    Args:
        references: id -> tokenised references, words separated by spaces.
        candidates: tokenised captions.
    """
    from scipy import sparse  # slow to import, and settings import this module

    weight: dict[str, float] = defaultdict(float)
    for captions in references.values():
        for caption in captions:
            weight[caption] += 1.0 / (len(captions) * len(references))
    distinct = {caption: row for row, caption in enumerate(weight)}
    counts, orders, lengths = count_ngrams([*distinct, *candidates])
    owners = [(row, distinct[caption]) for row, captions in enumerate(references.values()) for caption in captions]
    rows, columns = np.array(owners).T
    of_id = sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(references), len(distinct)))
    documents = np.asarray((of_id @ counts[: len(distinct)] > 0).sum(axis=0), dtype=float).ravel()
    tfidf = counts @ sparse.diags(math.log(len(references)) - np.log(np.maximum(1.0, documents)))
    norms = np.sqrt(np.asarray(tfidf.multiply(tfidf) @ np.eye(ORDERS)[orders])).T  # (4, all sentences)
    pairs = np.maximum(0, lengths - 1)  # CIDEr-D's length is in pairs of words
    by_ngram = tfidf[: len(distinct)].tocsc()
    weights = np.array(list(weight.values()))
    scores = np.zeros(len(candidates))
    for number in range(len(candidates)):
        vector = tfidf[len(distinct) + number]
        shared = by_ngram[:, vector.indices]
        times = np.diff(shared.indptr)
        products = np.minimum(np.repeat(vector.data, times), shared.data) * shared.data
        bins = np.repeat(orders[vector.indices], times) * len(distinct) + shared.indices
        summed = np.bincount(bins, products, minlength=ORDERS * len(distinct)).reshape(ORDERS, -1)
        scale = norms[:, : len(distinct)] * norms[:, [len(distinct) + number]]
        similarity = np.divide(summed, scale, out=np.zeros_like(scale), where=scale != 0).mean(axis=0)
        apart = pairs[len(distinct) + number] - pairs[: len(distinct)]
        scores[number] = 10.0 * float(weights @ (similarity * np.exp(-(apart**2) / (2 * SIGMA**2))))
    return scores


def nearest_captions(train: Iterable[Mapping[str, Any]], evaluated: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """For each evaluated pair the first caption of the nearest training pair.

    A pair is described by three pictures of 16x16 pixels: the mean of before and after, their difference with its sign,
    and its absolute value (averaged after it was taken, so that small changes stay visible). Each of the three is
    scaled to the same mean square over the evaluated pairs; the distance is Euclidean. Training pairs are streamed.

    Args:
        train: rows with ``before``, ``after`` (encoded images) and ``captions``; without captions skipped.
        evaluated: rows with ``pair_id``, ``before``, ``after``.

    Raises:
        ValueError: no training pair has a caption, or an image cannot be read.
    """
    ids: list[str] = []
    pictures: list[np.ndarray] = []
    for row in evaluated:
        ids.append(row["pair_id"])
        pictures.append(pair_pictures(row["before"], row["after"]))
    if not ids:
        return {}
    wanted = np.stack(pictures)  # (N, 3, 16*16*3)
    wanted -= (centre := wanted.mean(axis=0))
    # A picture that is the same for all pairs, as the difference where nothing changes, is 0 and not 0 / 0.
    scale = 1.0 / np.maximum(np.sqrt((wanted**2).mean(axis=(0, 2))), 1e-6)[:, None]
    wanted = (wanted * scale).reshape(len(ids), -1)
    best = np.full(len(ids), np.inf, np.float32)
    caption_of: dict[str, str] = {}
    for captions, block in _blocks(train):
        features = ((block - centre) * scale).reshape(len(block), -1)
        distance = (features**2).sum(1)[None, :] - 2.0 * wanted @ features.T  # up to |wanted|^2, the same for a row
        nearest = distance.argmin(axis=1)
        value = distance[np.arange(len(ids)), nearest]
        for row_index in np.flatnonzero(value < best):
            best[row_index] = value[row_index]
            caption_of[ids[row_index]] = captions[nearest[row_index]]
    if not caption_of:
        raise ValueError("no training pair has a caption, so there is no nearest one; set nearest_train_pairs=0")
    return {name: caption_of[name] for name in ids}


def pair_pictures(before: bytes, after: bytes) -> np.ndarray:
    """The three small pictures of a pair, float32 ``(3, 16*16*3)``."""
    first, second = _decoded(before), _decoded(after)
    if first.shape != second.shape:
        second = resize_image(second, first.shape[:2])
    small_first = _thumbnail(first)
    small_second = _thumbnail(second)
    change = _thumbnail(np.where(first > second, first - second, second - first))
    return np.stack([(small_first + small_second) / 2, small_second - small_first, change]).reshape(3, -1)


@functools.lru_cache(maxsize=2)
def _decoded(data: bytes) -> np.ndarray:
    """The pixels, not to be written to. Two pairs of a scene follow each other and share an image."""
    return decode_image(data)


def _thumbnail(pixels: np.ndarray) -> np.ndarray:
    return resize_image(pixels, THUMBNAIL).astype(np.float32) / 255.0


def _blocks(train: Iterable[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    # A block holds small pictures, not the images.
    pairs = ((row["captions"][0], pair_pictures(row["before"], row["after"])) for row in train if row["captions"])
    while block := list(islice(pairs, _BATCH)):
        captions, pictures = zip(*block, strict=True)
        yield captions, np.stack(pictures)


def training_of(artifact: str) -> Training | None:
    """How an artifact was trained, from the files in and next to it; None if it has no ``config.json``."""
    config, result = _json(locate(artifact) / "config.json"), _json(locate(artifact).parent / "result.json")
    if config is None:
        return None
    training = result or {}
    return Training(
        system=config["system"],
        samples=training.get("training_samples"),
        seconds=training.get("seconds"),
        cores=training.get("cores"),
        supervision=supervision_of(config["system"], config.get("config", {})),
    )


def read_trained_baseline(
    folder: str, references: Mapping[str, Sequence[str]], split: str, protocol: str, metrics: Sequence[str]
) -> Baseline:
    """The evaluation in ``folder`` as a baseline; arguments and errors as of :func:`load_comparable`."""
    evaluation = load_comparable(folder, references, split, protocol, metrics, "trained_baseline")
    shared = Baseline.model_fields.keys() & Evaluation.model_fields.keys()
    captioner = evaluation.protocol.get("captioner", "captions made elsewhere")
    trained = f" ({evaluation.training})" if evaluation.training else ""
    what = f"the captions of another captioner, {captioner}{trained}"
    return Baseline(what=what, **{name: getattr(evaluation, name) for name in shared})


def load_comparable(
    folder: str, references: Mapping[str, Sequence[str]], split: str, protocol: str, metrics: Sequence[str], field: str
) -> Evaluation:
    """The evaluation in ``folder``, after checking that it may be compared with another one.

    Args:
        references, split, protocol: of the other evaluation's pairs, by id.
        metrics: names of the scores that it must have.
        field: the setting that names the folder, for the error.

    Raises:
        ValueError: it is no evaluation, or one of other pairs, references, split, protocol or metrics.
    """
    evaluation = load_evaluation(folder)
    again = "evaluate that captioner on the same pairs with the same settings, or name another evaluation"

    def refuse(what: str, here: object, there: object) -> ValueError:
        return ValueError(f"{field}: not the same {what}: here {here}, in {folder} {there}; {again}")

    if evaluation.split != split:
        raise refuse("split", split, evaluation.split)
    if (other := evaluation.protocol.get("name")) != protocol:
        raise refuse("protocol", protocol, other)
    if lost := [name for name in metrics if name not in evaluation.scores]:
        raise refuse("metrics", ", ".join(metrics), f"no {', '.join(lost)}")
    there = {row.pair_id: row.references for row in load_predictions(folder)}
    if only := sorted(references.keys() ^ there.keys()):
        raise refuse("pairs", f"{len(references)} pairs", f"{len(there)}; {only[0]!r} is only in one of them")
    if unlike := [name for name in references if list(references[name]) != there[name]]:
        raise refuse("references", repr(list(references[unlike[0]])), f"{there[unlike[0]]!r} for {unlike[0]!r}")
    return evaluation


def _json(file: Location) -> dict[str, Any] | None:
    return json.loads(file.read()) if file.is_file() else None
