"""Stores a guide's notes in the ``meta`` of a folder's pairs, and scores them where the truth is known. A pair whose
images cannot be read becomes a reject with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idc.changeimti.class_masks import CLASSES, class_map
from idc.data import files
from idc.data.images import ImageError, decode_image
from idc.data.pipeline import Batch, FolderSource, StageSpec, good_rows, with_errors
from idc.data.schema import meta_text
from idc.data.store import DatasetFolder, fingerprint, iter_rows, read_schema
from idc.data.validation.checks import is_changed
from idc.data.write_errors import explain_write_errors
from idc.metrics.classification import Measures, ScoredAnswer, score_answers
from idc.metrics.segmentation import confusion, segmentation_scores
from idc.systems.changevg.config import RegionConfig, RunGuideJob
from idc.systems.changevg.guide_captioner import GuideCaptioner, read_guide
from idc.systems.changevg.notes import NOTES, GuideNotes, locations, positions_of_classes
from idc.training.artifact import artifact_identity

SCORES = "guide.json"
"""File of :func:`score_notes` in the folder."""
_VERSION = 2
"""Part of the fingerprints; to be raised when the same inputs and settings would give other rows."""


def open_notes(job: RunGuideJob, overwrite: bool = False) -> tuple[DatasetFolder, FolderSource, list[StageSpec]]:
    """The folder, source and stage of a job, for ``run_local`` or its counterpart on Ray.

    Raises:
        ValueError: the pairs cannot be read or have no images, the artifact is not a guide, or ``job.out`` holds
            something else.
    """
    read_guide(job.guide)
    source = FolderSource(job.pairs, chunk_size=job.chunk_size, limit=job.max_pairs, kind="pairs")
    identity = artifact_identity(job.guide)
    settings = job.regions.model_dump(mode="json")
    folder = DatasetFolder.open_for_build(
        job.out,
        kind="pairs",
        schema=read_schema(job.pairs),
        fingerprint=fingerprint("guide notes", _VERSION, [identity], settings, source.fingerprint),
        config=job.model_dump(mode="json", include=set(RunGuideJob.model_fields)),
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra=source.manifest.extra,
    )
    spec = StageSpec(
        TakeNotes,
        {"job": RunGuideJob(**job.model_dump(include=set(RunGuideJob.model_fields)))},
        num_cpus=job.cpus_per_actor,
        num_gpus=job.gpus_per_actor,
        concurrency=job.actors,
        batch_size=job.batch_size,
    )
    return folder, source, [spec]


class TakeNotes:
    """Stage: adds the guide's notes to ``meta``."""

    def __init__(self, job: RunGuideJob) -> None:
        self.regions, self.guide = job.regions, GuideCaptioner(job.guide, job.device)

    def __call__(self, batch: Batch) -> Batch:
        batch = {name: list(column) for name, column in with_errors(batch).items()}
        indices: list[int] = []
        pairs: list[list[np.ndarray]] = []
        for i in good_rows(batch):
            try:
                pairs.append([decode_image(batch[side][i]) for side in ("before", "after")])
                indices.append(i)
            except ImageError as error:
                batch["error"][i] = str(error)
        if pairs:
            befores, afters = zip(*pairs, strict=True)
            for i, notes in zip(indices, self.guide.notes(befores, afters, self.regions), strict=True):
                meta = json.loads(batch["meta"][i] or "{}")
                batch["meta"][i] = meta_text({**meta, NOTES: notes.to_dict()})
        return batch


def score_notes(out: str, regions: RegionConfig) -> dict[str, Any]:
    """Compare the notes with flags and masks, where pairs have them, split by split, and write :data:`SCORES`.

    Returns:
        Split -> ``pairs``; of pairs with masks ``map`` and its baseline ``map_unchanged`` (no change anywhere), from
        :func:`segmentation_scores`; ``answers``, :class:`Measures` of changed or not, counts and positions.
    """
    matrices: dict[str, np.ndarray] = {}
    answers: dict[str, list[ScoredAnswer]] = {}
    counted: dict[str, int] = {}
    for row in iter_rows(out, ["pair_id", "split", "change_type", "mask", "meta"]):
        split, meta = row["split"], json.loads(row["meta"])
        counted[split] = counted.get(split, 0) + 1
        notes = GuideNotes.of_meta(meta, row["pair_id"])
        rows = answers.setdefault(split, [])
        changed = is_changed(row["change_type"], meta)
        if changed is not None:
            rows.append(_answer("binary", _yes(changed), _yes(any(notes.positions.values()))))
        if row["mask"] is None:
            continue
        truth, predicted = class_map(row["mask"]), class_map(notes.class_map)
        matrices.setdefault(split, np.zeros((len(CLASSES),) * 2, np.int64))
        matrices[split] += confusion(truth, _resized(predicted, truth.shape), len(CLASSES))
        for name, positions in positions_of_classes(truth, regions).items():
            guessed = notes.positions[name]
            rows.append(_answer("count", str(len(positions)), str(len(guessed)), name))
            rows.append(_answer("location", locations(positions), locations(guessed), name))
    scores: dict[str, Any] = {}
    for split, pairs in counted.items():
        scores[split] = {"pairs": pairs}
        if (matrix := matrices.get(split)) is not None:
            unchanged = np.zeros_like(matrix)
            unchanged[:, 0] = matrix.sum(axis=1)
            scores[split]["map"] = segmentation_scores(matrix, CLASSES)
            scores[split]["map_unchanged"] = segmentation_scores(unchanged, CLASSES)
        scores[split]["answers"] = [measures.model_dump() for measures in score_answers(answers[split])]
    path = files.locate(out) / SCORES
    with explain_write_errors(path.parent), path.replacing() as stream:
        stream.write((json.dumps(scores, indent=1) + "\n").encode())
    return scores


def scores_table(scores: Mapping[str, Any]) -> str:
    """The scores as plain text, shares times 100."""
    lines = []
    for split, of_split in scores.items():
        lines.append(f"{split}: {of_split['pairs']} pairs")
        if "map" in of_split:
            shown = "".join(f", {name} {100 * value:.1f}" for name, value in of_split["map"].items())
            lines.append(f"  map{shown}; no change anywhere: mIoU {100 * of_split['map_unchanged']['mIoU']:.1f}")
        for measures in map(Measures.model_validate, of_split["answers"]):
            of = f" of {measures.of}s" if measures.of else ""
            pairs = ", ".join(
                f"{name} {_shown(name, value)} (constant {_shown(name, measures.baseline[name])})"
                for name, value in measures.scores.items()
            )
            lines.append(f"  {measures.type}{of}: {pairs}")
    return "\n".join(lines)


def _shown(name: str, value: float) -> str:
    return f"{value:.3f}" if name == "MAE" else f"{100 * value:.1f}"


def _answer(kind: str, truth: str, predicted: str, of: str = "") -> ScoredAnswer:
    return ScoredAnswer(type=kind, answer=truth, prediction=predicted, of=of)


def _yes(changed: bool) -> str:
    return "Yes" if changed else "No"


def _resized(classes: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """A class map at another height and width, by the nearest pixel."""
    rows, columns = ((np.arange(length) * side // length) for length, side in zip(size, classes.shape, strict=True))
    return classes[rows[:, None], columns]
