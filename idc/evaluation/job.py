"""The evaluation job: pairs (or references) and a captioner (or captions) in, a folder with scores and captions out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from idc.captioning.loading import CaptionerLoader, LoadCaptioner
from idc.data.files import locate
from idc.data.pipeline import Runner, run_local
from idc.data.readers.annotations import EMPTY_SENTENCES
from idc.data.readers.captioned_sets import SUBSETS
from idc.data.remote_copies import local_folder
from idc.data.store import fingerprint, iter_rows, read_manifest
from idc.data.textfiles import decode_text, parse_json
from idc.data.validation.checks import is_changed
from idc.evaluation import baselines
from idc.evaluation import record as ev
from idc.evaluation.config import NON_SCORING_SETTINGS, EvaluateJob
from idc.evaluation.provenance import origin
from idc.evaluation.references import read_captions, read_references
from idc.evaluation.rendered_truth import RenderedTruth, rendered_truth
from idc.evaluation.score import ScoreCache, evaluate_captions
from idc.evaluation.split import SplitCaptions, caption_split
from idc.metrics.change_types import LEVIR_NO_CHANGE
from idc.metrics.coco import BLEU_ORDERS
from idc.metrics.java import java_version, spice_missing
from idc.metrics.protocols import EXTRA_PROTOCOLS, LEVIR, SPOT, LevirVocabulary, Protocol, ProtocolName, get_protocol
from idc.training.artifact import CONFIG, FAMILIARITY, METRICS, captioning_files, captioning_identity
from idc.training.config import KeepBest
from idc.training.hashing import contents, file_hash
from idc.util import logs

_VERSION = 9
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


def _caption_files(job: EvaluateJob) -> dict[str, str]:
    """Name -> SHA-256 of the artifact's files that captions depend on, or of the file of captions."""
    return captioning_files(job.artifact) if job.artifact is not None else _contents(job.predictions)


def finished_evaluation(job: EvaluateJob) -> ev.Evaluation | None:
    """The evaluation in ``job.out``, or ``None``.

    Raises:
        ValueError: it is an evaluation of other inputs or settings.
    """
    if not (Path(job.out) / ev.EVALUATION).exists():
        return None
    evaluation = ev.load_evaluation(job.out)
    if evaluation.fingerprint != fingerprint(scoring_fingerprint(job), _caption_files(job)):
        raise ValueError(
            f"out: {job.out!r} holds an evaluation of other inputs or settings; choose another folder, or replace it "
            "with --overwrite"
        )
    return evaluation


def run_evaluation(
    job: EvaluateJob, load: LoadCaptioner | None = None, runner: Runner = run_local, overwrite: bool = False
) -> ev.Evaluation:
    """Caption the split (or read its captions), score it with its baselines, and write ``job.out``.

    Pairs without references are not scored if others have some; the protocol records their number, and the number of
    pairs with an empty reference in the protocols that count these (:data:`idc.metrics.protocols.SPOT`).

    Args:
        load: loads the captioner; by default that of ``job.artifact``.
        runner: runs the captioning, here or on a cluster. Pairs that are captioned already are not captioned again.
        overwrite: replace captions of other inputs or settings in ``job.out``.

    Raises:
        ValueError: a pair without a caption, a caption without a pair, an empty caption, an empty split.
        JavaError: Java is needed and does not work; found before anything is captioned.
    """
    seconds: dict[str, float] = {}
    files = _caption_files(job)
    cache = ScoreCache(_cache_folder(job), _VERSION)
    with _timed(seconds, "baselines"):
        selected, every = _read(job)
        scored = [row for row in selected if row.references] or selected
        protocol, *extra_protocols = _protocols(job, bool(scored[0].references), every)
        if any(each.needs_java for each in (protocol, *extra_protocols)) or "METEOR" in job.metrics:
            java_version()
        trained = _trained(job, scored, protocol)
        candidates, nearest = list[str](), None
        if scored[0].references:
            train = [row for row in every if row.split == "train"]
            candidates, nearest = _constants(job, train), _nearest(job, train, cache)
        truth = _truth(job)
    with _timed(seconds, "captioning"):
        said = _captions(job, selected, load, runner, overwrite, files)
    with _timed(seconds, "scoring"):
        logs.event("evaluation", f"scoring {len(scored)} captions")
        source = _source(job, selected, scored)
        evaluation, rows = evaluate_captions(
            [row.model_copy(update={"caption": said.captions[row.pair_id], "split": job.split}) for row in scored],
            protocol=protocol,
            extra_protocols=extra_protocols,
            constant_candidates=candidates,
            nearest=nearest,
            truth=truth.wordings if truth is not None and scored[0].references else None,
            metrics=_metrics(job),
            selection=_selection(job),
            allow_empty=job.allow_empty,
            resamples=job.resamples,
            texts=(text for row in every for text in row.references),
            cache=cache,
        )
    seconds |= evaluation.seconds
    update: dict[str, Any] = {"baselines": dict(evaluation.baselines)}
    if truth is not None:
        scores, matched = truth.scores(said.captions, job.resamples)
        update |= scores
        if matched:
            rows = [row.model_copy(update={"differences": ev.CaptionDifferences.of(matched[row.pair_id])})
                    for row in rows]  # fmt: skip
        for name, baseline in evaluation.baselines.items():
            texts = nearest if name == ev.NEAREST else dict.fromkeys(truth.wordings, baseline.caption or "")
            scores, _ = truth.scores(texts or {}, job.resamples)
            update["baselines"][name] = baseline.model_copy(update=scores)
    if trained is not None:
        update["baselines"][ev.TRAINED] = trained
    if job.artifact is not None:
        update |= {"artifact": captioning_identity(job.artifact), "training": baselines.training_of(job.artifact)}
        update |= {"change_maps": said.maps, "reversal": said.reversal}
        update |= {} if said.warned is None else {"warned": len(said.warned & {row.pair_id for row in scored})}
    update |= {"fingerprint": fingerprint(scoring_fingerprint(job), files), "seconds": seconds}
    evaluation = evaluation.model_copy(update={**update, "protocol": {**evaluation.protocol, **source}})
    ev.save(job.out, evaluation, rows)
    return evaluation


def _path(job: EvaluateJob) -> str:
    return job.pairs or job.references or ""


def _read(job: EvaluateJob) -> tuple[list[ev.Prediction], list[ev.Prediction]]:
    """The pairs to be scored, without captions yet, and those of all splits."""
    path, counts_empty = _path(job), job.protocol in SPOT
    if job.pairs is not None:
        columns = ["pair_id", "captions", "change_type", "split", "meta"]
        every = [_pair(row, counts_empty) for row in iter_rows(job.pairs, columns)]
        if counts_empty and any(row.references for row in every):
            for row in every:
                row.references = row.references or [""]  # not every folder records where its empty sentences were
    else:
        every = read_references(path, allow_empty=counts_empty)
        for row in every:
            row.split = row.split or ("test" if job.split == "all" else job.split)
    selected = [row for row in every if job.split in ("all", row.split)][: job.max_pairs]
    if not selected:
        raise ValueError(f"{path} has no pairs{'' if job.split == 'all' else f' of the split {job.split!r}'}")
    if job.protocol in LEVIR:
        for row in selected:
            if row.changed is None and row.change_type is None and row.references:
                row.changed = row.references[0] not in LEVIR_NO_CHANGE  # as in the official test.py
    return selected, every


def _pair(row: dict[str, Any], empty_sentences: bool) -> ev.Prediction:
    """A row of a folder of pairs, including the empty sentences that its import left out if they count."""
    meta = json.loads(row["meta"] or "{}")
    references = list(row["captions"])
    for position in meta.get(EMPTY_SENTENCES, ()) if empty_sentences else ():
        references.insert(position, "")
    return ev.Prediction(
        pair_id=row["pair_id"],
        caption="",
        references=references,
        change_type=row["change_type"],
        changed=is_changed(None, meta),
        split=row["split"] or "",
        part=meta.get("subset") if meta.get("subset") in SUBSETS else None,
    )


def _protocols(job: EvaluateJob, scored: bool, every: Sequence[ev.Prediction]) -> list[Protocol]:
    """The protocol of the job, and further ones by which the captions are scored if there are references."""
    names: list[ProtocolName] = [job.protocol, *(EXTRA_PROTOCOLS.get(job.protocol, ()) if scored else ())]
    vocabulary = None
    if "levir_ids" in names and job.vocabulary is not None:
        vocabulary = LevirVocabulary.read(job.vocabulary)
    elif "levir_ids" in names:
        splits = sorted({row.split for row in every})
        if len(splits) == 1:
            logs.event(
                "evaluation",
                f"note: the ids of levir_ids are counted in {_path(job)}, which has only the split {splits[0]}; the "
                "official ones are counted in all three: give vocabulary=vocab.json",
            )
        texts = (text for row in every for text in row.references)
        vocabulary = LevirVocabulary.build(texts, f"{' and '.join(splits)} of {_path(job)}")
    return [get_protocol(name, vocabulary) for name in names]


def _captions(
    job: EvaluateJob,
    selected: Sequence[ev.Prediction],
    load: LoadCaptioner | None,
    runner: Runner,
    overwrite: bool,
    files: Mapping[str, str],
) -> SplitCaptions:
    ids = {row.pair_id for row in selected}
    if job.predictions is not None:
        captions = read_captions(job.predictions)
        if job.max_pairs is not None:
            captions = {row.pair_id: captions[row.pair_id] for row in selected if row.pair_id in captions}
        said = SplitCaptions(captions)
    else:
        assert job.artifact is not None
        familiarity = local_folder(job.artifact) / FAMILIARITY
        fitted = {FAMILIARITY: file_hash(familiarity)} if familiarity.exists() else {}
        load = load or CaptionerLoader(job.artifact, job, job.gpus_per_actor)
        said = caption_split(job, load, runner, {**files, **fitted}, overwrite)
        if job.change_maps and said.maps is None:
            logs.event("evaluation", f"no change maps: no pair of {job.split} has a mask")
    for lost, what in (
        (ids - said.captions.keys(), f"pairs of {job.split} have no caption in {job.predictions}"),
        (said.captions.keys() - ids, f"captions are of pairs that are not in {job.split} of {_path(job)}"),
    ):
        if lost:
            raise ValueError(f"{len(lost)} {what}: {', '.join(sorted(lost)[:5])}{', ...' if len(lost) > 5 else ''}")
    return said


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
    local = locate(_path(job)).local
    return None if local is None else Path(local).with_name(f"{Path(local).name}.scoring")


def _constants(job: EvaluateJob, train: Sequence[ev.Prediction]) -> list[str]:
    training = ((row.change_type, row.references) for row in train)
    candidates = baselines.constant_candidates(training, job.constant_candidates) if job.constant_candidates else []
    if job.constant_candidates and not candidates:
        logs.event("evaluation", f"no {ev.CONSTANT} baseline: {_path(job)} has no training captions")
    return candidates


def _nearest(job: EvaluateJob, train: Sequence[ev.Prediction], cache: ScoreCache) -> dict[str, str] | None:
    """The captions of the nearest training pairs, if the job asks for them and its pairs allow it."""
    if not job.nearest_train_pairs:
        return None
    pairs, manifest = job.pairs, None if job.pairs is None else read_manifest(job.pairs)
    if pairs is None or manifest is None or not manifest.has_images:
        logs.event("evaluation", f"no {ev.NEAREST} baseline: there are no images")
        return None
    if not any(text.split() for row in train[: job.nearest_train_pairs] for text in row.references):
        logs.event("evaluation", f"no {ev.NEAREST} baseline: {pairs} has no training captions")
        return None
    columns = ["pair_id", "captions", "before", "after"]

    def search() -> dict[str, str]:
        logs.event("evaluation", "searching the nearest training pairs")
        return baselines.nearest_captions(
            _rows(pairs, "train", job.nearest_train_pairs, columns), _rows(pairs, job.split, job.max_pairs, columns)
        )

    depends_on = [manifest.fingerprint, job.nearest_train_pairs, job.split, job.max_pairs]
    captions: dict[str, str] = cache.get("nearest-captions", depends_on, search)
    return captions


def _trained(job: EvaluateJob, scored: Sequence[ev.Prediction], protocol: Protocol) -> ev.Baseline | None:
    """The trained baseline of the job; found to be of the same pairs before anything is captioned."""
    if job.trained_baseline is None:
        return None
    references = {row.pair_id: row.references for row in scored}
    names = [score for name in _metrics(job) for score in (BLEU_ORDERS if name == "BLEU" else (name,))]
    return baselines.read_trained_baseline(job.trained_baseline, references, job.split, protocol.name, names)


def _truth(job: EvaluateJob) -> RenderedTruth | None:
    if job.pairs is None:
        return None
    return rendered_truth(_rows(job.pairs, job.split, job.max_pairs, ["pair_id", "change_type", "source", "meta"]))


def _rows(pairs: str, split: str, limit: int | None, columns: list[str]) -> Iterator[dict[str, Any]]:
    return islice(iter_rows(pairs, columns, None if split == "all" else split, batch_size=64), limit)


def _source(job: EvaluateJob, selected: Sequence[ev.Prediction], scored: Sequence[ev.Prediction]) -> dict[str, Any]:
    source = {**origin(job.pairs), "pairs": _path(job), "captioner": job.artifact or job.predictions}
    if bare := len(selected) - len(scored):
        source["left out"] = f"{bare} of {len(selected)} pairs, which have no reference"
        logs.event("evaluation", f"note: not scored: {source['left out']}")
    if empty := sum(any(not text.split() for text in row.references) for row in scored):
        source["empty references"] = f"{empty} of {len(scored)} pairs have one; it counts as a reference without words"
        logs.event("evaluation", f"note: empty references: {source['empty references']}")
    return source


def _metrics(job: EvaluateJob) -> tuple[str, ...]:
    if job.spice and (reason := spice_missing()):
        logs.event("evaluation", reason)
        return job.metrics
    return (*job.metrics, "SPICE") if job.spice else job.metrics


def _contents(path: str | None) -> dict[str, str]:
    return {} if path is None else contents(path)


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - started
