"""The steps of mining: features, near-duplicates, index, neighbours, targets, pairs; each a folder of its own.

This process holds the names of the image files, one number per image, and the near-duplicates found. Pixels, vectors
and lists of neighbours stay with the workers and in the folders. A killed job continues in the step it was in; with
other thresholds all steps up to the neighbours are reused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from idc.data import files
from idc.data.pipeline import FolderSource, Runner, Source, StageSpec
from idc.data.schema import PAIR_SCHEMA_VERSION, pair_arrow_schema
from idc.data.store import MANIFEST, DatasetFolder, Manifest, fingerprint, iter_tables, read_manifest
from idc.mining.config import MinePairsJob
from idc.mining.features_folder import FEATURES, FeatureRows, RowRanges, feature_schema
from idc.mining.heap import Heap, open_heap
from idc.mining.mined_pairs import WritePairs
from idc.mining.near_duplicates import FindCopies, copies_schema, duplicates
from idc.mining.neighbours import FindNeighbours, neighbours_schema
from idc.mining.targets import PAIRED, ChooseTargets, targets_schema

VERSION = 2
"""Part of all fingerprints; to be raised when the same settings would give other rows."""

STEPS = ("features", "copies", "neighbours", "targets")
"""Steps before the pairs."""


@dataclass(frozen=True)
class _Plan:
    """Fingerprints of the steps: each names all that its rows depend on, by content."""

    features: str
    copies: str
    neighbours: str
    targets: str
    pairs: str

    @classmethod
    def of(cls, job: MinePairsJob, collection: Heap, encoder: str) -> _Plan:
        features = fingerprint(
            "image features", VERSION, collection.fingerprint, encoder, job.max_pixels, job.chunk_size
        )
        copies = fingerprint("copies", features, job.near_duplicate, job.query_chunk)
        index = fingerprint("index", copies, job.index)
        neighbours = fingerprint("neighbours", index, job.neighbours, job.query_chunk)
        thresholds = [limits.model_dump() for limits in job.thresholds()]
        clusters = (job.clusters, job.gamma, job.alpha, job.beta, job.scale)
        targets = fingerprint("targets", neighbours, thresholds, clusters)
        pairs = fingerprint("mined pairs", PAIR_SCHEMA_VERSION, targets)
        return cls(features, copies, neighbours, targets, pairs)


def already_mined(job: MinePairsJob, encoder: str, overwrite: bool = False) -> Manifest | None:
    """The manifest of the complete result of the same job; None if something is left to do.

    Args:
        encoder: fingerprint of the encoders and their settings.

    Raises:
        ValueError: there are no images; or ``out`` or a step's folder holds something else and ``overwrite`` is off.
    """
    plan = _Plan.of(job, open_heap(job.heap, job.chunk_size), encoder)
    for path, mine in [(job.out, plan.pairs), *((_step(job, name), getattr(plan, name)) for name in STEPS)]:
        if (files.locate(path) / MANIFEST).exists():
            manifest = read_manifest(path)
            if manifest.fingerprint != mine and not overwrite:
                raise ValueError(
                    f"{path} holds {manifest.num_rows} {manifest.kind} of other settings or another heap; choose "
                    "another out, or pass --overwrite to replace what differs"
                )
            if path == job.out and manifest.fingerprint == mine and manifest.complete and not overwrite:
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
    collection = open_heap(job.heap, job.chunk_size)
    plan = _Plan.of(job, collection, encoder)
    steps = _Steps(job, run, overwrite)
    features, searched = _step(job, "features"), job.cpus_per_worker
    read = steps.run("features", "image_features", feature_schema(), plan.features, collection, extract)
    images = FeatureRows(features)
    if not images.num_rows:
        raise ValueError(
            f"{job.heap}: none of its {collection.num_images} images can be read; see {features}/rejects-*"
        )

    copies = StageSpec(FindCopies, {"features": features, "threshold": job.near_duplicate, "threads": searched})
    steps.run("copies", "mining_copies", copies_schema(), plan.copies, RowRanges(features, job.query_chunk), copies)
    removed = duplicates(_copies(_step(job, "copies")))
    search = StageSpec(FindNeighbours, {
        "features": features, "removed": np.array(sorted(removed), np.int64), "kind": job.index, "k": job.neighbours,
        "threads": searched,
    })  # fmt: skip
    queries = RowRanges(features, job.query_chunk, removed)
    steps.run("neighbours", "neighbours", neighbours_schema(), plan.neighbours, queries, search)

    choose = StageSpec(ChooseTargets, {"features": features, "config": job.mining()})
    neighbours = FolderSource(_step(job, "neighbours"), chunk_size=job.query_chunk)
    steps.run("targets", "mining_targets", targets_schema(), plan.targets, neighbours, choose)

    write = StageSpec(WritePairs, {
        "heap": collection.images, "features": features, "names": job.feature_names(),
        "max_pixels": job.max_pixels,
    })  # fmt: skip
    counts = {
        "images": collection.num_images,
        "unreadable": read.num_rejected,
        "near_duplicates": len(removed),
        **_outcomes(_step(job, "targets")),
        "encoder": job.encoder,
        "features": list(job.feature_names()),
        "work": job.work_folder(),
    }
    chosen = FolderSource(_step(job, "targets"), chunk_size=job.query_chunk)
    return steps.run("pairs", "pairs", pair_arrow_schema(), plan.pairs, chosen, write,
                     {"mining": counts, "notes": collection.notes})  # fmt: skip


class _Steps:
    """Runs the steps of a job one after another."""

    def __init__(self, job: MinePairsJob, run: Runner, overwrite: bool) -> None:
        self.job, self._run, self.overwrite = job, run, overwrite

    def run(
        self, name: str, kind: str, schema: pa.Schema, print_: str, source: Source, stage: StageSpec,
        extra: dict[str, Any] | None = None,
    ) -> Manifest:  # fmt: skip
        job = self.job
        path = job.out if name == "pairs" else _step(job, name)
        config = job.model_dump(mode="json") if name == "pairs" else {"heap": job.heap, "encoder": job.encoder}
        overwrite = self.overwrite
        if overwrite and name != "pairs" and (files.locate(path) / MANIFEST).exists():
            overwrite = read_manifest(path).fingerprint != print_
        folder = DatasetFolder.open_for_build(
            path, kind=kind, schema=schema, fingerprint=print_, config=config,
            num_chunks=source.num_chunks, overwrite=overwrite, extra=extra,
        )  # fmt: skip
        spec = StageSpec(
            stage.cls, stage.kwargs, num_cpus=job.cpus_per_worker, num_gpus=stage.num_gpus, concurrency=job.workers,
            batch_size=stage.batch_size,
        )  # fmt: skip
        share = 1.0 if name == "neighbours" else job.max_reject_share  # near-duplicates are no faults
        return self._run(folder, source, [spec], max_reject_share=share, name=name)


def _step(job: MinePairsJob, name: str) -> str:
    return job.targets_folder() if name == "targets" else f"{job.work_folder()}/{name}"


def _copies(path: str) -> Iterable[tuple[int, list[int]]]:
    for table in iter_tables(path, ["number", "copies"], batch_size=4096):
        yield from zip(table["number"].to_pylist(), table["copies"].to_pylist(), strict=True)


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
