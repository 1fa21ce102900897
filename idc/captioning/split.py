"""Captioning a split, batch by batch, into a folder: in one process or on actors, and on from where it was.

A batch is a chunk of :mod:`idc.data.pipeline`, the same whoever captions it, so that captions do not depend on how many
work; a batch that is done is a file. Scoring comes after, on all captions together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from idc.captioning.contract import Describer
from idc.data import files
from idc.data.images import ImageError, decode_image
from idc.data.pipeline import Batch, Runner, StageSpec, good_rows, num_rows, read_range, with_errors
from idc.data.store import DatasetFolder, fingerprint, iter_rows, read_manifest
from idc.evaluation.config import EvaluateJob
from idc.metrics.change_maps import ChangeMaps, score_pair, summarise

Captioner = Callable[[list[np.ndarray], list[np.ndarray]], list[str]]
"""Before and after images, uint8 RGB ``(H, W, 3)`` of any sizes, to one caption a pair."""

LoadCaptioner = Callable[[], Captioner]
"""Loads a captioner; picklable, as every actor loads its own."""

FOLDER = "captions"
"""Where captions are kept in the folder of an evaluation."""

_MAP = "change_map"
_SCHEMA = pa.schema([pa.field("pair_id", pa.string(), False), pa.field("caption", pa.string(), False)])
_SCHEMA_WITH_MAPS = _SCHEMA.append(pa.field(_MAP, pa.list_(pa.float64())))


def caption_split(
    job: EvaluateJob, load: LoadCaptioner, run: Runner, weights: object, overwrite: bool = False
) -> dict[str, str]:
    """The captions of a split, pair id -> caption, in the order of the pairs.

    Args:
        run: runs the batches, here or on a cluster.
        weights: what tells one captioner from another.
        overwrite: captions of something else that are in the folder give way; those that fit are kept in any case.

    Raises:
        ValueError: an image cannot be read, the folder has no images, or ``job.out`` holds other captions.
    """
    assert job.pairs is not None
    columns = ["pair_id", "before", "after", *(["mask"] if job.change_maps else [])]
    source = SplitBatches(job.pairs, job.split, job.max_pairs, job.batch_size, columns)
    manifest = read_manifest(job.pairs)
    if manifest.extra.get("images") is False:
        raise ValueError(f"{job.pairs} was imported without images: give predictions= made elsewhere")
    settings = (job.split, job.max_pairs, job.batch_size, *(["change maps"] if job.change_maps else []))
    mark = fingerprint("captions", manifest.fingerprint, weights, *settings)
    path = Path(job.out) / FOLDER
    other = path.exists() and read_manifest(path).fingerprint != mark
    folder = DatasetFolder.open_for_build(
        path,
        kind="captions",
        schema=_SCHEMA_WITH_MAPS if job.change_maps else _SCHEMA,
        fingerprint=mark,
        config=job.model_dump(mode="json", include=set(EvaluateJob.model_fields)),
        num_chunks=source.num_chunks,
        overwrite=overwrite and other,
    )
    stage = StageSpec(
        CaptionPairs,
        {"load": load, "change_maps": job.change_maps},
        num_cpus=job.cpus_per_actor,
        num_gpus=job.gpus_per_actor,
        concurrency=job.actors,
    )
    run(folder, source, [stage], max_reject_share=0.0, name="captioning")
    return {row["pair_id"]: row["caption"] for row in iter_rows(path, ["pair_id", "caption"])}


def score_change_maps(out: str) -> ChangeMaps | None:
    """What :func:`caption_split` has kept of the change maps in ``out``; None if no pair has a mask."""
    return summarise(row[_MAP] for row in iter_rows(Path(out) / FOLDER, [_MAP]))


class CaptionPairs:
    """Stage: both images of every pair to ``caption``; a pair whose image cannot be read gets an error.

    Args:
        change_maps: hold change maps against the masks, too (:func:`idc.metrics.change_maps.score_pair`).
    """

    def __init__(self, load: LoadCaptioner, change_maps: bool = False) -> None:
        self._captioner = load()
        self._change_maps = change_maps

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        captions: list[str | None] = [None] * num_rows(batch)
        errors = list(batch["error"])
        readable, befores, afters = [], [], []
        for i in good_rows(batch):
            try:
                pair = decode_image(batch["before"][i]), decode_image(batch["after"][i])
            except ImageError as error:
                errors[i] = str(error)
                continue
            readable.append(i)
            befores.append(pair[0])
            afters.append(pair[1])
        found: Batch = {"pair_id": batch["pair_id"], "caption": captions, "error": errors}
        if not self._change_maps:
            if readable:
                for i, caption in zip(readable, self._captioner(befores, afters), strict=True):
                    captions[i] = caption
            return found
        scores: list[list[float] | None] = [None] * num_rows(batch)
        told = cast(Describer, self._captioner).describe(befores, afters, change_map=True)
        for i, one, before, after in zip(readable, told, befores, afters, strict=True):
            captions[i] = one.best.caption
            if batch["mask"][i] is not None and one.change_map is not None:
                scores[i] = score_pair(one.change_map, before, after, decode_image(batch["mask"][i]))
        return found | {_MAP: scores}


class SplitBatches:
    """Source: the pairs of a split in batches of ``batch_size``, in the order of the folder.

    Args:
        split: or ``all``.
        limit: only the first so many pairs of the split.
        columns: what is read of them.
    """

    def __init__(
        self,
        path: str,
        split: str,
        limit: int | None,
        batch_size: int,
        columns: Sequence[str] = ("pair_id", "before", "after"),
    ) -> None:
        self._folder = files.locate(path)
        self._columns = list(columns)
        wanted: list[tuple[str, int]] = []
        for part in read_manifest(self._folder).parts:
            with (self._folder / part.file).open() as stream:
                splits = pq.read_table(stream, columns=["split"])["split"].to_pylist()
            wanted += [(part.file, row) for row, own in enumerate(splits) if split in ("all", own)]
        wanted = wanted[:limit]
        self._batches = [wanted[start : start + batch_size] for start in range(0, len(wanted), batch_size)]

    @property
    def num_chunks(self) -> int:
        return len(self._batches)

    def read(self, chunk_id: int) -> Batch:
        tables = []
        rows_of: dict[str, list[int]] = {}
        for file, row in self._batches[chunk_id]:
            rows_of.setdefault(file, []).append(row)
        for file, rows in rows_of.items():
            with (self._folder / file).open() as stream:
                read = read_range(pq.ParquetFile(stream), rows[0], rows[-1] + 1, self._columns)
            tables.append(read.take(np.array(rows) - rows[0]))
        return pa.concat_tables(tables).to_pydict()
