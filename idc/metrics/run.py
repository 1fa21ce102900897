"""The evaluation job: a folder of pairs and a captioner in, a folder with scores and captions out."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from idc.data.images import decode_image
from idc.data.rendered.captions import true_captions
from idc.data.store import fingerprint, iter_rows, read_manifest
from idc.metrics import evaluate as ev
from idc.metrics import floors
from idc.metrics.coco import spice_missing
from idc.metrics.config import EvaluateJob
from idc.metrics.hallucination import Hallucination, hallucination, truth_of
from idc.metrics.origin import origin

Captioner = Callable[[list[np.ndarray], list[np.ndarray]], list[str]]
"""Before and after images, uint8 RGB ``(H, W, 3)`` of any sizes, to one caption a pair."""

_VERSION = 2
"""Goes up when the same inputs would give other numbers."""


def evaluation_fingerprint(job: EvaluateJob) -> str:
    """Of everything the numbers depend on: the pairs, the weights or captions, the protocol."""
    settings = job.model_dump(mode="json", exclude={"out", "pairs", "artifact", "predictions", "batch_size"})
    given = Path(job.artifact or job.predictions or "")
    files = sorted(path for path in given.rglob("*") if path.is_file()) if given.is_dir() else [given]
    contents = {str(path.relative_to(given)): _hash(path) for path in files}
    return fingerprint(_VERSION, read_manifest(job.pairs).fingerprint, contents, settings, spice_missing() is None)


def finished(job: EvaluateJob) -> ev.Evaluation | None:
    """The evaluation that is in ``job.out``, or ``None``.

    Raises:
        ValueError: it is of other inputs or settings.
    """
    if not (Path(job.out) / ev.EVALUATION).exists():
        return None
    found = ev.load(job.out)
    if found.fingerprint != evaluation_fingerprint(job):
        raise ValueError(f"out: {job.out!r} holds the evaluation of something else; --overwrite replaces it")
    return found


def run(job: EvaluateJob, captioner: Captioner | None = None) -> ev.Evaluation:
    """Caption (or read the captions of) the split, score it with its floors, and write ``job.out``.

    Args:
        captioner: needed unless ``job.predictions`` is given.

    Raises:
        ValueError: a pair without a caption, a caption without a pair, an empty caption, an empty split.
    """
    seconds: dict[str, float] = {}
    started = time.perf_counter()
    known = list(_rows(job, job.split, job.max_pairs, images=False))
    if not known:
        raise ValueError(f"{job.pairs} has no pairs{'' if job.split == 'all' else f' of the split {job.split!r}'}")
    if job.predictions is not None:
        captions = ev.read_captions(job.predictions)
        if job.max_pairs is not None:
            captions = {row["pair_id"]: captions[row["pair_id"]] for row in known if row["pair_id"] in captions}
    else:
        assert captioner is not None
        captions = _captions(job, captioner, len(known))
    seconds["captioning"] = time.perf_counter() - started
    ids = {row["pair_id"] for row in known}
    _refuse_difference(ids - captions.keys(), f"pairs of {job.split} have no caption in {job.predictions}")
    _refuse_difference(captions.keys() - ids, f"captions are of pairs that are not in {job.split} of {job.pairs}")

    started = time.perf_counter()
    candidates: list[str] = []
    nearest = truth = None
    if any(row["captions"] for row in known):
        if job.constant_candidates:
            train = ((row["change_type"], row["captions"]) for row in _rows(job, "train", None, images=False))
            candidates = floors.constant_candidates(train, job.constant_candidates)
        if job.nearest_train_pairs and not read_manifest(job.pairs).has_images:
            _say(f"{job.pairs} has annotations alone: no nearest training pair without images")
        elif job.nearest_train_pairs:
            _say("looking for the nearest training pairs")
            found = floors.nearest_captions(
                _rows(job, "train", job.nearest_train_pairs), _rows(job, job.split, job.max_pairs)
            )
            nearest = {name: caption for name, (_, caption) in found.items()}
        truth = _truth(job)
    seconds["floors"] = time.perf_counter() - started

    started = time.perf_counter()
    _say(f"scoring {len(known)} captions")
    predictions = [
        ev.Prediction(
            pair_id=row["pair_id"],
            caption=captions[row["pair_id"]],
            references=row["captions"],
            change_type=row["change_type"],
            split=job.split,
        )
        for row in known
    ]
    metrics: tuple[str, ...] = job.metrics
    if job.spice and (reason := spice_missing()):
        _say(reason)
    elif job.spice:
        metrics = (*metrics, "SPICE")
    evaluation, rows = ev.evaluate(
        predictions,
        constant_candidates=candidates,
        nearest=nearest,
        truth=truth,
        metrics=metrics,
        selection=job.selection,
        allow_empty=job.allow_empty,
    )
    seconds["scoring"] = time.perf_counter() - started
    protocol = {**evaluation.protocol, **origin(job.pairs)}
    protocol |= {"pairs": job.pairs, "captioner": job.artifact or job.predictions}
    evaluation = evaluation.model_copy(
        update={
            "fingerprint": evaluation_fingerprint(job),
            "seconds": seconds,
            "protocol": protocol,
            "hallucination": _hallucination(job, captions),
        }
    )
    ev.save(job.out, evaluation, rows)
    return evaluation


def _truth(job: EvaluateJob) -> dict[str, list[str]] | None:
    """What is true of each pair, if all were rendered here."""
    truth = {}
    for row in _rows(job, job.split, job.max_pairs, images=False, also=("source", "meta")):
        if not row["source"].startswith("rendered:"):
            return None
        things = json.loads(row["meta"])
        truth[row["pair_id"]] = true_captions(row["change_type"], things["before"], things["after"])
    return truth


def _hallucination(job: EvaluateJob, captions: Mapping[str, str]) -> Hallucination | None:
    """What the captions claim, held against the truth, if all pairs were rendered here."""
    claimed = []
    for row in _rows(job, job.split, job.max_pairs, images=False, also=("source", "meta")):
        if not row["source"].startswith("rendered:"):
            return None
        things = json.loads(row["meta"])
        truth = truth_of(row["change_type"], things["before"], things["after"])
        claimed.append((captions[row["pair_id"]], truth))
    return hallucination(claimed)


def _captions(job: EvaluateJob, captioner: Captioner, total: int) -> dict[str, str]:
    from tqdm import tqdm

    captions: dict[str, str] = {}
    with tqdm(total=total, desc="captioning", unit="pair", mininterval=2.0) as bar:
        rows = _rows(job, job.split, job.max_pairs)
        while batch := list(itertools.islice(rows, job.batch_size)):
            found = captioner(
                [decode_image(row["before"]) for row in batch], [decode_image(row["after"]) for row in batch]
            )
            captions.update(zip((row["pair_id"] for row in batch), found, strict=True))
            bar.update(len(batch))
    return captions


def _rows(
    job: EvaluateJob, split: str, limit: int | None, images: bool = True, also: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
    columns = ["pair_id", "captions", "change_type", *(["before", "after"] if images else []), *also]
    of = None if split == "all" else split
    for number, row in enumerate(iter_rows(job.pairs, columns, of, batch_size=64)):
        if number == limit:
            return
        yield row


def _refuse_difference(ids: set[str], what: str) -> None:
    if ids:
        raise ValueError(f"{len(ids)} {what}: {', '.join(sorted(ids)[:5])}{', ...' if len(ids) > 5 else ''}")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say(text: str) -> None:
    print(text, flush=True)
