"""The evaluation job: pairs (or references) and a captioner (or captions) in, a folder with scores and captions out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idc.captioning.loading import CaptionerLoader, LoadCaptioner
from idc.data.files import locate
from idc.data.pipeline import Runner, run_local
from idc.data.readers.annotations import EMPTY_SENTENCES
from idc.data.readers.omnidiff import SUBSETS
from idc.data.remote_copies import local_folder
from idc.data.store import fingerprint, iter_rows, read_manifest
from idc.data.textfiles import decode_text, parse_json
from idc.data.validation.checks import is_changed
from idc.evaluation import baselines
from idc.evaluation import record as ev
from idc.evaluation.config import NON_SCORING_SETTINGS, EvaluateJob
from idc.evaluation.provenance import origin
from idc.evaluation.references import KnownReferences, read_captions, read_references
from idc.evaluation.rendered_truth import RenderedTruth, rendered_truth, with_differences
from idc.evaluation.score import evaluate_captions
from idc.evaluation.score_cache import ScoreCache
from idc.evaluation.split import caption_split, score_change_maps, warned_pairs
from idc.evaluation.trained_baseline import read_trained_baseline, training_of
from idc.metrics.changes import LEVIR_NO_CHANGE
from idc.metrics.coco import BLEU_ORDERS
from idc.metrics.java import java_version, spice_missing
from idc.metrics.protocols import EXTRA_PROTOCOLS, LEVIR, SPOT, LevirVocabulary, Protocol, get_protocol
from idc.training.artifact import CONFIG, FAMILIARITY, METRICS, captioning_files, captioning_identity
from idc.training.config import KeepBest
from idc.training.hashing import contents, file_hash
from idc.util import logs

_VERSION = 7
"""Incremented when the same inputs would give other numbers."""

_INPUTS = {"pairs", "references", "artifact", "predictions", "vocabulary", "trained_baseline"}


def scoring_fingerprint(job: EvaluateJob) -> str:
    """Fingerprint of all that the numbers depend on except the captions: pairs or references, protocol, program."""
    left_out = {"out", "cache"} if job.change_maps else {"out", "cache", "change_maps"}
    settings = job.model_dump(
        mode="json", include=set(EvaluateJob.model_fields) - _INPUTS - NON_SCORING_SETTINGS - left_out
    )
    pairs = read_manifest(job.pairs).fingerprint if job.pairs is not None else _contents(job.references)
    settings |= job.loading_identity()
    trained = [] if job.trained_baseline is None else [ev.load_evaluation(job.trained_baseline).fingerprint]
    return fingerprint(_VERSION, pairs, _contents(job.vocabulary), settings, spice_missing() is None, *trained)


def caption_files(job: EvaluateJob) -> dict[str, str]:
    """Name -> SHA-256 of the artifact's files that captions depend on, or of the file of captions."""
    return captioning_files(job.artifact) if job.artifact is not None else _contents(job.predictions)


def evaluation_fingerprint(job: EvaluateJob, files: Mapping[str, str] | None = None) -> str:
    """Fingerprint of all that the numbers depend on: the weights or captions, and :func:`scoring_fingerprint`.

    Args:
        files: result of :func:`caption_files`, which hashes the artifact; computed if not given.
    """
    return fingerprint(scoring_fingerprint(job), caption_files(job) if files is None else dict(files))


def finished_evaluation(job: EvaluateJob, files: Mapping[str, str] | None = None) -> ev.Evaluation | None:
    """The evaluation in ``job.out``, or ``None``.

    Args:
        files: as :func:`evaluation_fingerprint`.

    Raises:
        ValueError: it is an evaluation of other inputs or settings.
    """
    if not (Path(job.out) / ev.EVALUATION).exists():
        return None
    evaluation = ev.load_evaluation(job.out)
    if evaluation.fingerprint != evaluation_fingerprint(job, files):
        raise ValueError(
            f"out: {job.out!r} holds an evaluation of other inputs or settings; choose another folder, or replace it "
            "with --overwrite"
        )
    return evaluation


def run_evaluation(
    job: EvaluateJob,
    load: LoadCaptioner | None = None,
    runner: Runner = run_local,
    overwrite: bool = False,
    files: Mapping[str, str] | None = None,
) -> ev.Evaluation:
    """Caption the split (or read its captions), score it with its baselines, and write ``job.out``.

    Pairs without references are not scored if others have some; the protocol records their number, and the number of
    pairs with an empty reference in the protocols that count these (:data:`idc.metrics.protocols.SPOT`).

    Args:
        load: loads the captioner; by default that of ``job.artifact``.
        runner: runs the captioning, here or on a cluster. Pairs that are captioned already are not captioned again.
        overwrite: replace captions of other inputs or settings in ``job.out``.
        files: as :func:`evaluation_fingerprint`.

    Raises:
        ValueError: a pair without a caption, a caption without a pair, an empty caption, an empty split.
        JavaError: Java is needed and does not work; found before anything is captioned.
    """
    seconds: dict[str, float] = {}
    files = dict(caption_files(job) if files is None else files)
    cache = ScoreCache(_cache_folder(job), _VERSION)
    with _timed(seconds, "baselines"):
        data = _read(job)
        protocol, extra_protocols = _protocols(job, data)
        if any(each.needs_java for each in (protocol, *extra_protocols)) or "METEOR" in job.metrics:
            java_version()
        scored = [row for row in data.selected if row.captions] or data.selected
        trained = _trained(job, scored, protocol)
        candidates, nearest = _untrained_baselines(job, data, cache)
        truth = _truth(job)
    with _timed(seconds, "captioning"):
        captions = _captions(job, data, load, runner, overwrite, files)
        unfamiliar = warned_pairs(job.out) if job.artifact is not None else None
        maps = score_change_maps(job.out) if job.change_maps else None
        if job.change_maps and maps is None:
            logs.event("evaluation", f"no change maps: no pair of {job.split} has a mask")
    with _timed(seconds, "scoring"):
        source = _source(job, data, scored)
        logs.event("evaluation", f"scoring {len(scored)} captions")
        evaluation, rows = evaluate_captions(
            [_prediction(row, captions[row.pair_id], job.split) for row in scored],
            protocol=protocol,
            extra_protocols=extra_protocols,
            constant_candidates=candidates,
            nearest=nearest,
            truth=truth.wordings if truth is not None and scored[0].captions else None,
            metrics=_metrics(job),
            selection=_selection(job),
            allow_empty=job.allow_empty,
            resamples=job.resamples,
            texts=(text for row in data.every for text in row.captions),
            cache=cache,
        )
    compared = dict(evaluation.baselines)
    claims = differences = None
    if truth is not None:
        claims = truth.hallucination(captions)
        differences, matched = truth.differences(captions, job.resamples)
        rows = with_differences(rows, matched)
        for name, baseline in compared.items():
            compared[name] = truth.of_baseline(name, baseline, nearest, job.resamples)
    if trained is not None:
        compared[baselines.TRAINED] = trained
    evaluation = evaluation.model_copy(
        update={
            "fingerprint": evaluation_fingerprint(job, files),
            "artifact": captioning_identity(job.artifact) if job.artifact is not None else None,
            "seconds": {**seconds, **evaluation.seconds},
            "protocol": {**evaluation.protocol, **source},
            "baselines": compared,
            "hallucination": claims,
            "differences": differences,
            "training": training_of(job.artifact) if job.artifact is not None else None,
            "change_maps": maps,
            "warned": None if unfamiliar is None else sum(row.pair_id in unfamiliar for row in scored),
        }
    )
    ev.save(job.out, evaluation, rows)
    return evaluation


# ------------------------------------------------------------------------------------------------------------ the data


@dataclass(frozen=True)
class _Data:
    """Attributes: ``selected``: the pairs to be scored; ``every``: those of all splits; ``path``: their source."""

    selected: list[KnownReferences]
    every: list[KnownReferences]
    path: str

    def of(self, split: str) -> list[KnownReferences]:
        return [row for row in self.every if row.split == split]


def _read(job: EvaluateJob) -> _Data:
    if job.pairs is not None:
        columns = ["pair_id", "captions", "change_type", "split", "meta"]
        every, path = [_pair(row, job.protocol in SPOT) for row in iter_rows(job.pairs, columns)], job.pairs
        if job.protocol in SPOT and any(row.captions for row in every):
            for row in every:
                row.captions = row.captions or [""]  # not every folder records where its empty sentences were
    else:
        assert job.references is not None
        every, path = read_references(job.references, allow_empty=job.protocol in SPOT), job.references
        for row in every:
            row.split = row.split or ("test" if job.split == "all" else job.split)
    selected = [row for row in every if job.split in ("all", row.split)][: job.max_pairs]
    if not selected:
        raise ValueError(f"{path} has no pairs{'' if job.split == 'all' else f' of the split {job.split!r}'}")
    if job.protocol in LEVIR:
        for row in selected:
            if row.changed is None and row.change_type is None and row.captions:
                row.changed = row.captions[0] not in LEVIR_NO_CHANGE  # as in the official test.py
    return _Data(selected, every, path)


def _pair(row: dict[str, Any], empty_sentences: bool) -> KnownReferences:
    """A row of a folder of pairs, including the empty sentences that its import left out if they count."""
    meta = json.loads(row["meta"] or "{}")
    captions = list(row["captions"])
    for position in meta.get(EMPTY_SENTENCES, ()) if empty_sentences else ():
        captions.insert(position, "")
    return KnownReferences(
        pair_id=row["pair_id"],
        captions=captions,
        change_type=row["change_type"],
        changed=is_changed(None, meta),
        split=row["split"],
        part=meta.get("subset") if meta.get("subset") in SUBSETS else None,
    )


def _protocols(job: EvaluateJob, data: _Data) -> tuple[Protocol, list[Protocol]]:
    """The protocol of the job, and the further ones by which the captions are scored."""
    scored = any(row.captions for row in data.selected)
    further = EXTRA_PROTOCOLS.get(job.protocol, ()) if scored else ()
    vocabulary = None
    if "levir_ids" in (job.protocol, *further):
        if job.vocabulary is not None:
            vocabulary = LevirVocabulary.read(job.vocabulary)
        else:
            splits = sorted({row.split or "" for row in data.every})
            if len(splits) == 1:
                logs.event(
                    "evaluation",
                    f"note: the ids of levir_ids are counted in {data.path}, which has only the split {splits[0]}; the "
                    "official ones are counted in all three: give vocabulary=vocab.json",
                )
            texts = (text for row in data.every for text in row.captions)
            vocabulary = LevirVocabulary.build(texts, f"{' and '.join(splits)} of {data.path}")
    return get_protocol(job.protocol, vocabulary), [get_protocol(name, vocabulary) for name in further]


# -------------------------------------------------------------------------------------------- captions and references


def _captions(
    job: EvaluateJob,
    data: _Data,
    load: LoadCaptioner | None,
    runner: Runner,
    overwrite: bool,
    files: Mapping[str, str],
) -> dict[str, str]:
    """Pair id -> caption, read or made; of exactly the pairs to be scored."""
    if job.predictions is not None:
        captions = read_captions(job.predictions)
        if job.max_pairs is not None:
            captions = {row.pair_id: captions[row.pair_id] for row in data.selected if row.pair_id in captions}
    else:
        assert job.artifact is not None
        load = load or CaptionerLoader(job.artifact, job, job.gpus_per_actor)
        familiarity = local_folder(job.artifact) / FAMILIARITY
        fitted = {FAMILIARITY: file_hash(familiarity)} if familiarity.exists() else {}
        captions = caption_split(job, load, runner, {**files, **fitted}, overwrite)
    ids = {row.pair_id for row in data.selected}
    _refuse_difference(ids - captions.keys(), f"pairs of {job.split} have no caption in {job.predictions}")
    _refuse_difference(captions.keys() - ids, f"captions are of pairs that are not in {job.split} of {data.path}")
    return captions


def _selection(job: EvaluateJob) -> str:
    """See `EvaluateJob.selection`."""
    if job.selection is not None or job.artifact is None:
        return job.selection or ""
    stored = parse_json(decode_text((local_folder(job.artifact) / CONFIG).read_bytes()))
    trained = stored.get("config", {}).get("job", {}).get("train")
    if trained is None:
        return ""
    best = trained.get("keep_best")
    if not best:
        return "last step"
    measured = parse_json(decode_text((local_folder(job.artifact) / METRICS).read_bytes()))
    return f"best {KeepBest.model_validate(best).chosen(measured)} on val"


def _cache_folder(job: EvaluateJob) -> Path | None:
    if job.cache is not None:
        return Path(job.cache)
    local = locate(job.pairs or job.references or "").local
    return None if local is None else Path(local).with_name(f"{Path(local).name}.scoring")


def _untrained_baselines(job: EvaluateJob, data: _Data, cache: ScoreCache) -> tuple[list[str], dict[str, str] | None]:
    """Candidates for the best constant caption, and the captions of the nearest training pairs, as far as the job asks
    for them and its pairs allow it; the log has the reasons against the others."""
    candidates: list[str] = []
    if not any(row.captions for row in data.selected):
        return candidates, None
    train = data.of("train")
    without = f"{data.path} has no training captions"
    if job.constant_candidates:
        candidates = baselines.constant_candidates(
            ((row.change_type, row.captions) for row in train), job.constant_candidates
        )
        if not candidates:
            logs.event("evaluation", f"no {baselines.CONSTANT} baseline: {without}")
    if not job.nearest_train_pairs:
        return candidates, None
    manifest = None if job.pairs is None else read_manifest(job.pairs)
    if job.pairs is None or manifest is None or not manifest.has_images:
        logs.event("evaluation", f"no {baselines.NEAREST} baseline: there are no images")
        return candidates, None
    if not any(text.split() for row in train[: job.nearest_train_pairs] for text in row.captions):
        logs.event("evaluation", f"no {baselines.NEAREST} baseline: {without}")
        return candidates, None
    pairs, columns = job.pairs, ["pair_id", "captions", "before", "after"]

    def search() -> dict[str, str]:
        logs.event("evaluation", "searching the nearest training pairs")
        matches = baselines.nearest_captions(
            _rows(pairs, "train", job.nearest_train_pairs, columns), _rows(pairs, job.split, job.max_pairs, columns)
        )
        return {name: caption for name, (_, caption) in matches.items()}

    depends_on = [manifest.fingerprint, job.nearest_train_pairs, job.split, job.max_pairs]
    return candidates, cache.get("nearest-captions", depends_on, search)


def _trained(job: EvaluateJob, scored: list[KnownReferences], protocol: Protocol) -> ev.Baseline | None:
    """The trained baseline of the job; found to be of the same pairs before anything is captioned."""
    if job.trained_baseline is None:
        return None
    references = {row.pair_id: row.captions for row in scored}
    names = [score for name in _metrics(job) for score in (BLEU_ORDERS if name == "BLEU" else (name,))]
    return read_trained_baseline(job.trained_baseline, references, job.split, protocol.name, names)


def _truth(job: EvaluateJob) -> RenderedTruth | None:
    """The truth of the pairs, if all of them are rendered."""
    if job.pairs is None:
        return None
    return rendered_truth(_rows(job.pairs, job.split, job.max_pairs, ["pair_id", "change_type", "source", "meta"]))


def _rows(pairs: str, split: str, limit: int | None, columns: list[str]) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(iter_rows(pairs, columns, None if split == "all" else split, batch_size=64)):
        if number == limit:
            return
        yield row


# -------------------------------------------------------------------------------------------------------- the scoring


def _prediction(row: KnownReferences, caption: str, split: str) -> ev.Prediction:
    return ev.Prediction(
        pair_id=row.pair_id,
        caption=caption,
        references=row.captions,
        change_type=row.change_type,
        split=split,
        changed=row.changed,
        part=row.part,
    )


def _source(job: EvaluateJob, data: _Data, scored: list[KnownReferences]) -> dict[str, Any]:
    """The part of the protocol that names the inputs, and the pairs that are not scored."""
    source: dict[str, Any] = {**origin(job.pairs), "pairs": data.path, "captioner": job.artifact or job.predictions}
    if bare := len(data.selected) - len(scored):
        source["left out"] = f"{bare} of {len(data.selected)} pairs, which have no reference"
        logs.event("evaluation", f"note: not scored: {source['left out']}")
    if empty := sum(any(not text.split() for text in row.captions) for row in scored):
        source["empty references"] = f"{empty} of {len(scored)} pairs have one; it counts as a reference without words"
        logs.event("evaluation", f"note: empty references: {source['empty references']}")
    return source


def _metrics(job: EvaluateJob) -> tuple[str, ...]:
    """The metrics of the job, SPICE among them if its jars are installed."""
    if job.spice and (reason := spice_missing()):
        logs.event("evaluation", reason)
        return job.metrics
    return (*job.metrics, "SPICE") if job.spice else job.metrics


def _refuse_difference(ids: Iterable[str], what: str) -> None:
    if pairs := sorted(ids):
        raise ValueError(f"{len(pairs)} {what}: {', '.join(pairs[:5])}{', ...' if len(pairs) > 5 else ''}")


def _contents(path: str | None) -> dict[str, str]:
    return {} if path is None else contents(path)


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - started
