"""The steps of mining: features, neighbours, targets, pairs; each a folder of its own.

This process holds the names of the image files, one number and one thumbnail per image, and the near-duplicates.
Pixels, vectors and lists of neighbours stay with the workers and in the folders. A killed job continues in the step it
was in; with other thresholds all steps up to the neighbours are reused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from idc.data import files
from idc.data.pipeline import FolderSource, Runner, Source, StageSpec
from idc.data.schema import PAIR_SCHEMA_VERSION, pair_arrow_schema
from idc.data.store import MANIFEST, DatasetFolder, Manifest, fingerprint, iter_tables, read_manifest
from idc.mining.config import MinePairsJob
from idc.mining.features_folder import FEATURES, RowRanges, feature_schema
from idc.mining.image_collection import ImageCollection
from idc.mining.neighbours import FindNeighbours, near_duplicates, neighbours_schema
from idc.mining.targets import PAIRED, ChooseTargets, WritePairs, targets_schema

VERSION = 3
"""Part of all fingerprints; to be raised when the same settings would give other rows."""

STEPS = ("features", "neighbours", "targets")
"""Steps before the pairs."""


def _fingerprints(job: MinePairsJob, collection: ImageCollection, encoder: str) -> dict[str, str]:
    """Fingerprints of the steps: each names all that its rows depend on, by content."""
    features = fingerprint("image features", VERSION, collection.fingerprint, encoder, job.max_pixels, job.chunk_size)
    copies = fingerprint("copies", features, job.near_duplicate)
    neighbours = fingerprint("neighbours", copies, job.neighbours, job.query_chunk)
    thresholds = [limits.model_dump() for limits in job.thresholds()]
    clusters = (job.clusters, job.gamma, job.alpha, job.beta, job.scale)
    targets = fingerprint("targets", neighbours, thresholds, clusters)
    pairs = fingerprint("mined pairs", PAIR_SCHEMA_VERSION, targets)
    return {"features": features, "neighbours": neighbours, "targets": targets, "pairs": pairs}


def already_mined(job: MinePairsJob, encoder: str, overwrite: bool = False) -> Manifest | None:
    """The manifest of the complete result of the same job; None if something is left to do.

    Args:
        encoder: fingerprint of the encoders and their settings.

    Raises:
        ValueError: there are no images; or ``out`` or a step's folder holds something else and ``overwrite`` is off.
    """
    for name, expected in _fingerprints(job, ImageCollection(job.images, job.chunk_size), encoder).items():
        path = _step(job, name)
        if overwrite or not (files.locate(path) / MANIFEST).exists():
            continue
        manifest = read_manifest(path)
        if manifest.fingerprint != expected:
            raise ValueError(
                f"{path} holds {manifest.num_rows} {manifest.kind} of other settings or images; choose another "
                "out, or pass --overwrite to replace what differs"
            )
        if name == "pairs" and manifest.complete:
            return manifest
    return None


def mine(job: MinePairsJob, run: Runner, extract: StageSpec, encoder: str, *, overwrite: bool = False) -> Manifest:
    """Mine the pairs, or continue.

    Args:
        run: runs the chunks of a step.
        extract: stage from the columns of an image collection to those of :func:`feature_schema`.
        encoder: fingerprint of the encoders and their settings.
        overwrite: replace the folders whose settings or images differ, and the pairs.

    Raises:
        ValueError: see :func:`already_mined`.
        TooManyRejects: more images than ``max_reject_share`` cannot be read.
    """
    collection = ImageCollection(job.images, job.chunk_size)
    expected = _fingerprints(job, collection, encoder)
    features, neighbours, targets = (_step(job, name) for name in STEPS)

    def step(
        name: str, kind: str, schema: pa.Schema, source: Source, stage: StageSpec, extra: dict[str, Any] | None = None
    ) -> Manifest:
        path, replace = _step(job, name), overwrite
        config = job.model_dump(mode="json") if name == "pairs" else {"images": job.images, "encoder": job.encoder}
        if replace and name != "pairs" and (files.locate(path) / MANIFEST).exists():
            replace = read_manifest(path).fingerprint != expected[name]
        folder = DatasetFolder.open_for_build(
            path, kind=kind, schema=schema, fingerprint=expected[name], config=config,
            num_chunks=source.num_chunks, overwrite=replace, extra=extra,
        )  # fmt: skip
        spec = StageSpec(
            stage.cls, stage.kwargs, num_cpus=job.cpus_per_worker, num_gpus=stage.num_gpus, concurrency=job.workers,
            batch_size=stage.batch_size,
        )  # fmt: skip
        share = 1.0 if name == "neighbours" else job.max_reject_share  # near-duplicates are no faults
        return run(folder, source, [spec], max_reject_share=share, name=name)

    read = step("features", "image_features", feature_schema(), collection, extract)
    if not read.num_rows:
        raise ValueError(
            f"{job.images}: none of its {len(collection.names)} images can be read; see {features}/rejects-*"
        )
    removed = near_duplicates(features, job.near_duplicate)
    search = StageSpec(FindNeighbours, {
        "features": features, "removed": np.array(sorted(removed), np.int64), "k": job.neighbours,
        "threads": job.cpus_per_worker,
    })  # fmt: skip
    queries = RowRanges(features, read, job.query_chunk, removed)
    step("neighbours", "neighbours", neighbours_schema(), queries, search)
    choose = StageSpec(ChooseTargets, {"features": features, "config": job.mining()})
    step("targets", "mining_targets", targets_schema(), FolderSource(neighbours, chunk_size=job.query_chunk), choose)
    write = StageSpec(WritePairs, {
        "reader": collection.reader, "features": features, "names": job.feature_names(),
        "max_pixels": job.max_pixels,
    })  # fmt: skip
    counts = {
        "images": len(collection.names),
        "unreadable": read.num_rejected,
        "near_duplicates": len(removed),
        **_outcomes(targets),
        "encoder": job.encoder,
        "features": list(job.feature_names()),
        "work": job.work_folder(),
    }
    chosen = FolderSource(targets, chunk_size=job.query_chunk)
    return step("pairs", "pairs", pair_arrow_schema(), chosen, write, {"mining": counts, "notes": collection.notes})


def _step(job: MinePairsJob, name: str) -> str:
    folders = {"pairs": job.out, "targets": job.targets_folder()}
    return folders.get(name, f"{job.work_folder()}/{name}")


def _outcomes(path: str) -> dict[str, Any]:
    """Counts after the filters: images by outcome, and candidates per searched image after each filter, on average."""
    outcomes: Counter[str] = Counter()
    columns = [*(f"{name}_{what}" for name in FEATURES for what in ("listed", "between")), "both"]
    sums = dict.fromkeys(columns, 0)
    chosen = rows = 0
    for table in iter_tables(path, ["outcome", "targets", *columns], batch_size=4096):
        outcomes.update(table["outcome"].to_pylist())
        rows += table.num_rows
        chosen += sum(len(targets) for targets in table["targets"].to_pylist())
        for name in columns:
            sums[name] += sum(table[name].to_pylist())
    return {
        "searched": rows,
        "paired": outcomes.pop(PAIRED, 0),
        "without_pair": dict(sorted(outcomes.items())),
        "chosen": chosen,
        "candidates": {name: round(total / max(rows, 1), 3) for name, total in sums.items()},
    }
