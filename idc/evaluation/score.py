"""Predictions of a split to an evaluation: scores, baselines, upper bound, subsets, intervals."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.evaluation import baselines
from idc.evaluation.record import (
    CHANGE,
    CONSTANT,
    MEAN,
    NEAREST,
    NO_CHANGE_SUBSET,
    TRUTH,
    Baseline,
    Evaluation,
    Prediction,
    ScoredCaption,
    Subset,
    with_mean,
)
from idc.evaluation.significance import SEED, intervals
from idc.metrics import change_types
from idc.metrics.coco import CIDER_UNDEFINED, METRICS, CocoScorer, PreparedCaptions, names
from idc.metrics.java import Meteor, cut_paraphrases, java_version, remember_tokens, spice_missing, tokenize
from idc.metrics.protocols import LEVIR, SPOT, UNSPACED, Protocol, get_protocol, references_of
from idc.util.atomic import write_text

_FEW_PAIRS = 10
"""With fewer, CIDEr's document frequencies say little about which words are rare."""

log = logging.getLogger(__name__)


def evaluate_captions(
    predictions: Sequence[Prediction],
    *,
    protocol: Protocol | None = None,
    extra_protocols: Sequence[Protocol] = (),
    constant_candidates: Sequence[str] = (),
    nearest: Mapping[str, str] | None = None,
    truth: Mapping[str, Sequence[str]] | None = None,
    metrics: Sequence[str] = METRICS,
    selection: str = "",
    allow_empty: bool = False,
    resamples: int = 0,
    texts: Iterable[str] = (),
    cache: ScoreCache | None = None,
) -> tuple[Evaluation, list[ScoredCaption]]:
    """Score predictions of one split.

    Args:
        predictions: one for each pair, all of the same split. Either all have references, or none has; then only the
            change types that they name are counted.
        protocol: ``coco`` by default.
        extra_protocols: by these only the captions are scored.
        constant_candidates: training captions among which the best constant is searched; empty for no such baseline.
        nearest: pair id -> caption of the nearest training pair; ``None`` for no such baseline.
        truth: pair id -> the truth in several wordings, for the upper bound (:func:`.baselines.best_wording`).
        metrics: as :func:`idc.metrics.coco.score`.
        selection: how the model was selected, for the protocol ("best validation CIDEr, ...").
        allow_empty: an empty caption scores 0 instead of being an error.
        resamples: number of bootstrap resamples for the intervals; 0 for no intervals.
        texts: further captions of the data set, which share their words with the predictions; no score depends on them.
        cache: of what depends on the references alone: their tokens, the baselines, METEOR's table of paraphrases.

    Raises:
        ValueError: names the ids that occur twice, are empty, without references, or of another split.
        JavaError: Java does not work.
    """
    protocol, cache = protocol or get_protocol("coco"), cache or ScoreCache()
    _check(predictions)
    captions = {p.pair_id: p.caption for p in predictions}
    by_type = {p.pair_id: None if p.change_type is None else p.change_type != NO_CHANGE for p in predictions}
    changed = {p.pair_id: by_type[p.pair_id] if p.changed is None else p.changed for p in predictions}
    levir, scored = protocol.name in LEVIR, bool(predictions[0].references)
    values: dict[str, Any] = {"scores": {}, "subsets": {}, "baselines": {}}
    per_id: dict[str, dict[str, float]] = {}
    statistics: dict[str, dict[str, list[float]]] = {}
    if scored:
        references = {p.pair_id: references_of(protocol.name, p.references) for p in predictions}
        kinds = {p.pair_id: p.change_type for p in predictions}
        part_of = {p.pair_id: p.part for p in predictions if p.part is not None}
        parts = _subsets(kinds, changed, part_of)
        further = texts if "METEOR" in metrics else ()
        near = None if nearest is None else {name: nearest[name] for name in captions}
        compared = [*constant_candidates, *(near or {}).values(), *chain.from_iterable((truth or {}).values())]
        meteor = _prepared_java([protocol, *extra_protocols], predictions, compared, further, cache)
        scorer = CocoScorer(references, metrics, protocol.tokens, meteor, empty_references=protocol.name in SPOT)
        programs = [importlib.metadata.version("pycocoevalcap"), java_version() if "METEOR" in metrics else None]
        depends_on = [
            dict(protocol.text), protocol.name, list(scorer.references.items()), list(kinds.items()),
            list(changed.items()), *([list(part_of.items())] if part_of else []),
        ]  # fmt: skip

        def baseline(name: str, inputs: Any, make: Callable[[], Mapping[str, str] | str]) -> Baseline:
            """The scores of a baseline; ``make`` returns its captions, or the one that is said of all."""

            def score() -> Any:
                texts = make()
                said = dict.fromkeys(captions, texts) if isinstance(texts, str) else texts
                prepared = scorer.prepare(said, allow_empty=True)
                return Baseline(
                    what=baselines.WHAT[name],
                    caption=texts if isinstance(texts, str) else None,
                    scores=with_mean(prepared.overall()),
                    subsets=_scored_parts(prepared, parts),
                    types=change_types.agreement((kinds[pair], text) for pair, text in said.items()),
                    change=change_types.change_table(((changed[pair], text) for pair, text in said.items()), levir),
                ).model_dump(mode="json")

            return Baseline.model_validate(cache.get(name, [inputs, depends_on, list(metrics), programs], score))

        def tokenised(texts: Sequence[str]) -> list[tuple[str, str]]:
            return list(zip(texts, protocol.tokens(texts), strict=True))

        prepared = scorer.prepare(captions, allow_empty=allow_empty)
        whole = prepared.score()
        per_id, statistics = whole.per_id, whole.statistics
        values |= {"scores": with_mean(whole.overall), "subsets": _scored_parts(prepared, parts)}
        if constant_candidates:
            values["baselines"][CONSTANT] = baseline(
                CONSTANT,
                tokenised(constant_candidates),
                lambda: baselines.best_constant(references, constant_candidates, protocol.tokens),
            )
        if near is not None:
            inputs = [list(near), tokenised(list(near.values()))]
            values["baselines"][NEAREST] = baseline(NEAREST, inputs, lambda: near)
        if truth is not None:
            values["upper_bound"] = baseline(
                TRUTH,
                [[name, tokenised(wordings)] for name, wordings in truth.items()],
                lambda: baselines.best_wording(references, truth, kinds, protocol.tokens),
            )
        values["extra_protocols"] = {
            other.name: _extra_scores(other, predictions, metrics, meteor) for other in extra_protocols
        }
        values["seconds"] = {f"scoring, {part}": value for part, value in scorer.seconds.items()}
        if resamples:
            values["intervals"] = intervals(list(per_id.values()), list(statistics.values()), resamples)
    limits = _limits(values, predictions, protocol)
    for name, limit in limits.items():
        if name != "undefined" or math.isnan(values["scores"]["CIDEr"]):  # of parts the tables say it
            log.warning("%s", limit)
    evaluation = Evaluation(
        split=predictions[0].split,
        pairs=len(captions),
        references=sum(len(p.references) for p in predictions),
        distinct_captions=len(set(captions.values())),
        empty_captions=sum(not caption.split() for caption in captions.values()),
        types=change_types.agreement((p.change_type, p.caption) for p in predictions),
        change=change_types.change_table(((changed[p.pair_id], p.caption) for p in predictions), levir),
        protocol={**_text(protocol, metrics, selection, scored, resamples), **limits},
        **values,
    )
    rows = [
        ScoredCaption(
            **p.model_dump(include=set(Prediction.model_fields) - {"changed"}),
            changed=changed[p.pair_id],
            named_type=change_types.named_type(p.caption),
            scores=per_id.get(p.pair_id, {}),
            statistics=statistics.get(p.pair_id, {}),
            nearest=nearest.get(p.pair_id) if nearest is not None else None,
        )
        for p in predictions
    ]
    return evaluation, rows


def _prepared_java(
    protocols: Sequence[Protocol],
    predictions: Sequence[Prediction],
    compared: Sequence[str],
    texts: Iterable[str],
    cache: ScoreCache,
) -> Meteor:
    """Pass all sentences to the PTB tokenizer at once, and cut METEOR's table for all of them.

    Args:
        compared: captions of the baselines, which the first protocol scores alone.
        texts: their words are in the table, so that other captions of the same data find it in the cache.
    """
    captions = [p.caption for p in predictions]
    sentences = {
        protocol.name: [text for p in predictions for text in references_of(protocol.name, p.references)]
        for protocol in protocols
    }
    sentences[protocols[0].name] += compared
    version = importlib.metadata.version("pycocoevalcap")
    if ptb := list(dict.fromkeys(text for p in protocols if p.tokens is tokenize for text in sentences[p.name])):
        tokens = cache.get("tokens", [version, ptb], lambda: tokenize([*ptb, *captions])[: len(ptb)])
        remember_tokens(dict(zip(ptb, tokens, strict=True)))

    def cut(words: frozenset[str]) -> str:
        table: str = cache.get("paraphrases", [version, sorted(words)], lambda: cut_paraphrases(words))
        return table

    every = (text for p in protocols for text in p.tokens([*sentences[p.name], *captions]))
    return Meteor([*every, *texts], cut)


def _check(predictions: Sequence[Prediction]) -> None:
    if not predictions:
        raise ValueError("nothing to evaluate: there are no predictions")
    counts = Counter(p.pair_id for p in predictions)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"predicted more than once: {names(twice)}")
    if len(splits := sorted({p.split for p in predictions})) > 1:
        raise ValueError(f"predictions of several splits ({', '.join(splits)}); evaluate one split at a time")
    bare = [p.pair_id for p in predictions if not p.references]
    if bare and len(bare) < len(predictions):
        raise ValueError(f"{len(bare)} of {len(predictions)} pairs have no references: {names(bare)}; leave them out")


def _subsets(
    kinds: Mapping[str, str | None], changed: Mapping[str, bool | None], part_of: Mapping[str, str]
) -> dict[str, list[str]]:
    """Name -> ids. Pairs without a known change are in none; a subset equal to the whole set is left out, but for the
    part of a data set, which is looked up by its name."""
    parts = {
        CHANGE: [name for name, value in changed.items() if value],
        NO_CHANGE_SUBSET: [name for name, value in changed.items() if value is False],
    }
    others = sorted({kind for kind in kinds.values() if kind is not None} - set(CHANGE_TYPES))
    for kind in (*CHANGE_TYPES, *others):
        if kind != NO_CHANGE:
            parts[kind] = [name for name, value in kinds.items() if value == kind]
    named = {part: [name for name, value in part_of.items() if value == part] for part in sorted(set(part_of.values()))}
    return {name: part for name, part in parts.items() if 0 < len(part) < len(kinds)} | named


def _scored_parts(prepared: PreparedCaptions, parts: Mapping[str, Sequence[str]]) -> dict[str, Subset]:
    return {name: Subset(pairs=len(ids), scores=with_mean(prepared.overall(ids))) for name, ids in parts.items()}


def _extra_scores(
    protocol: Protocol, predictions: Sequence[Prediction], metrics: Sequence[str], meteor: Meteor
) -> dict[str, float]:
    references = {p.pair_id: references_of(protocol.name, p.references) for p in predictions}
    scorer = CocoScorer(references, [name for name in metrics if name != "SPICE"], protocol.tokens, meteor)
    return with_mean(scorer.prepare({p.pair_id: p.caption for p in predictions}, allow_empty=True).overall())


def _limits(values: Mapping[str, Any], predictions: Sequence[Prediction], protocol: Protocol) -> dict[str, str]:
    """Entries of the protocol: which scores are not defined, and which say little."""
    limits, pairs = {}, len(predictions)
    unspaced = sum(any(UNSPACED.search(text) for text in p.references) for p in predictions)
    if unspaced and protocol.name != "characters":
        limits["no spaces"] = (
            f"{unspaced} of {pairs} pairs have references in a script without spaces, of which "
            f"protocol={protocol.name} takes a whole run as one word, so that scores are near 0; protocol=characters "
            "takes each character"
        )
    if "CIDEr" not in values["scores"]:
        return limits
    undefined = [
        f"{name} ({part.pairs} pairs)" for name, part in values["subsets"].items() if math.isnan(part.scores["CIDEr"])
    ]
    if math.isnan(values["scores"]["CIDEr"]):
        undefined = [f"all pairs ({pairs})"]
    if undefined:
        limits["undefined"] = f"CIDEr (and {MEAN}) of {', '.join(undefined)}: {CIDER_UNDEFINED}"
    elif pairs < _FEW_PAIRS:
        limits["few pairs"] = f"CIDEr weighs words by how rare they are in the references, here of {pairs} pairs only"
    return limits


def _text(protocol: Protocol, metrics: Sequence[str], selection: str, scored: bool, resamples: int) -> dict[str, Any]:
    text: dict[str, Any] = {
        "name": protocol.name,
        "selection": selection or "not stated",
        "change type": change_types.RULES["keywords"],
    }
    if not scored:
        return {**text, "name": "change types only: the pairs have no reference captions"}
    interval = {
        "intervals": f"95 %, percentile bootstrap over the pairs, {resamples} resamples, seed {SEED}; METEOR and BLEU "
        "of the resampled set, CIDEr with the document frequencies of the full set"
    }
    return {
        **text,
        **protocol.text,
        "metrics": list(metrics),
        "BLEU": "corpus level, closest reference length",
        "METEOR": "METEOR 1.5, -l en -norm",
        "ROUGE-L": "beta 1.2, mean over the pairs",
        "CIDEr": "CIDEr-D, sigma 6, document frequencies of the scored pairs",
        MEAN: "mean of BLEU-4, METEOR, ROUGE-L and CIDEr",
        "SPICE": "SPICE 1.0"
        if "SPICE" in metrics
        else spice_missing() or "its jars are here, but it was not asked for",
        "subsets": "scored alone, document frequencies of the subset",
        **(interval if resamples else {}),
        "pycocoevalcap": importlib.metadata.version("pycocoevalcap"),
        "java": java_version() if protocol.needs_java or "METEOR" in metrics else "not used",
    }


class ScoreCache:
    """What an evaluation calculates from the references alone, on disk for the next one of the same references.

    A value is stored under a hash of all that it depends on, so it is never out of date, and any number of evaluations
    may share a folder, which may be removed at any time.

    Args:
        folder: None to store nothing.
        version: of the program.
    """

    def __init__(self, folder: Path | str | None = None, version: int = 0) -> None:
        self._folder = None if folder is None else Path(folder)
        self._version = version

    def get(self, name: str, depends_on: Any, make: Callable[[], Any]) -> Any:
        """The stored value, or that of ``make``, which is then stored (JSON). A damaged file is made anew.

        Args:
            depends_on: JSON-able; everything that the value depends on.
        """
        if self._folder is None:
            return make()
        key = _hash([name, self._version, depends_on])
        path = self._folder / f"{name}-{key[:32]}.json"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["key"] == key and stored["sha256"] == _hash(stored["value"]):
                return stored["value"]
            log.warning("%s is damaged and is made anew", path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("%s cannot be read and is made anew: %s", path, error)
        value = make()
        text = json.dumps({"key": key, "sha256": _hash(value), "value": value})
        try:
            write_text(path, text)
        except OSError as error:
            log.warning("not cached for the next evaluation: %s", error)
        return json.loads(text)["value"]  # as a later call returns it


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
