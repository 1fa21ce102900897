"""Caption a split batch by batch into a folder, in one process or on actors; an interrupted run continues.

A batch is a chunk of :mod:`idc.data.pipeline`, the same whoever captions it, so captions do not depend on the number of
workers; a finished batch is a file. Scoring comes after, on all captions together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from idc.captioning.apply import BatchCaptioner, Fault
from idc.captioning.claims import turn_round
from idc.captioning.contract import Description, SearchOptions
from idc.captioning.loading import LoadCaptioner
from idc.data import files
from idc.data.images import decode_image
from idc.data.pipeline import Batch, Runner, StageSpec, num_rows, read_range, with_errors
from idc.data.store import DatasetFolder, fingerprint, iter_rows, read_manifest
from idc.data.stored_rows import open_parquet
from idc.evaluation.config import EvaluateJob
from idc.metrics.change_maps import ChangeMaps, score_pair, summarise_maps
from idc.metrics.reversal import Reversal, turns_round

FOLDER = "captions"
"""Name of the folder of captions in the folder of an evaluation."""

_VERSION = 3
"""Incremented when the same input and settings would give other rows."""

_MAP = "change_map"
_FAMILIAR, _TURNED = "familiar", "turned_round"
_SWAPPED = "swapped"
"""Column of the batches: whether a pair is also captioned with its images swapped."""
_SCHEMA = pa.schema(
    [
        pa.field("pair_id", pa.string(), False),
        pa.field("caption", pa.string(), False),
        pa.field(_FAMILIAR, pa.bool_()),  # as in idc.captioning.contract.Description
        pa.field(_TURNED, pa.bool_()),  # of the caption of the swapped pair; null where it cannot be read
    ]
)
_SCHEMA_WITH_MAPS = _SCHEMA.append(pa.field(_MAP, pa.list_(pa.float64())))


class SplitCaptions(NamedTuple):
    """What a captioner writes about a split.

    Attributes:
        captions: pair id -> caption, in the order of the pairs.
        warned: the pairs that are unlike the training data; None if the captioner does not estimate it.
        maps: mean scores of the change maps; None if not requested, or if no pair has a mask.
        reversal: of the captions of swapped pairs; None if there are none.
    """

    captions: dict[str, str]
    warned: set[str] | None = None
    maps: ChangeMaps | None = None
    reversal: Reversal | None = None


def caption_split(
    job: EvaluateJob, load: LoadCaptioner, run: Runner, weights: object, overwrite: bool = False
) -> SplitCaptions:
    """Caption a split. Unreadable images, a folder without any, and other captions in ``job.out`` are errors.

    Args:
        weights: identity of the captioner, its familiarity included.
        overwrite: replace captions of other inputs or settings in the folder; matching ones are kept in any case.
    """
    assert job.pairs is not None
    columns = ["pair_id", "before", "after", *(["mask"] if job.change_maps else [])]
    source = SplitBatches(job.pairs, job.split, job.max_pairs, job.batch_size, columns, job.reversal)
    manifest = read_manifest(job.pairs)
    if manifest.extra.get("images") is False:
        raise ValueError(f"{job.pairs} was imported without images: give predictions= made elsewhere")
    maps = ["change maps"] if job.change_maps else []
    settings = (job.split, job.max_pairs, job.batch_size, job.reversal, *maps, *job.loading_identity().values())
    mark = fingerprint("captions", _VERSION, manifest.fingerprint, weights, *settings)
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
    rows = list(iter_rows(path, ["pair_id", "caption", _FAMILIAR, _TURNED, *([_MAP] if job.change_maps else [])]))
    return SplitCaptions(
        {row["pair_id"]: row["caption"] for row in rows},
        {row["pair_id"] for row in rows if row[_FAMILIAR] is False}
        if any(row[_FAMILIAR] is not None for row in rows)
        else None,
        summarise_maps(row[_MAP] for row in rows) if job.change_maps else None,
        Reversal.of((row["caption"], row[_TURNED]) for row in rows[: job.reversal]) if job.reversal else None,
    )


class CaptionPairs:
    """Stage: both images of every pair to ``caption``; a pair whose image cannot be read gets an error. Marked pairs
    are also captioned with their images swapped. On demand also scores of the change maps
    (:func:`idc.metrics.change_maps.score_pair`)."""

    def __init__(self, load: LoadCaptioner, change_maps: bool = False) -> None:
        self._change_maps = change_maps
        self._described = BatchCaptioner(load, SearchOptions(change_map=change_maps))

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        rows = num_rows(batch)
        captions: list[str | None] = [None] * rows
        descriptions: dict[int, Description] = {}
        familiar: list[bool | None] = [None] * rows
        scores: list[list[float] | None] = [None] * rows
        errors = list(batch["error"])
        for i, result in self._described(batch):
            if isinstance(result.pixels, Fault):
                errors[i] = str(result.pixels.error)
                continue
            assert result.description is not None
            captions[i] = result.description.best.caption
            if batch[_SWAPPED][i]:
                descriptions[i] = replace(result.description, change_map=None)
            familiar[i] = result.description.familiar
            if self._change_maps and batch["mask"][i] is not None and result.description.change_map is not None:
                mask = decode_image(batch["mask"][i])
                scores[i] = score_pair(result.description.change_map, *result.pixels.images, mask)
        columns: Batch = {"pair_id": batch["pair_id"], "caption": captions, _FAMILIAR: familiar, "error": errors}
        columns[_TURNED] = self._turned(batch, descriptions)
        return columns | {_MAP: scores} if self._change_maps else columns

    def _turned(self, batch: Batch, descriptions: Mapping[int, Description]) -> list[bool | None]:
        """Of each row, whether the caption of the swapped pair is the reverse of its own; None if that is not known."""
        turned: list[bool | None] = [None] * num_rows(batch)
        indices = list(descriptions)
        swapped = {
            name: [batch[other][i] for i in indices] for name, other in (("before", "after"), ("after", "before"))
        }
        for at, result in self._described(with_errors(swapped)) if indices else ():
            if result.description is not None:
                turned[indices[at]] = _is_turned(descriptions[indices[at]], result.description)
        return turned


def _is_turned(description: Description, swapped: Description) -> bool | None:
    """By the claims of a captioner that has some, else by the sentences."""
    if description.claims is None or swapped.claims is None:
        return turns_round(description.best.caption, swapped.best.caption)
    if "unsure" in (description.verdict, swapped.verdict):
        return None
    return turn_round(description.claims, swapped.claims)


class SplitBatches:
    """Source: the first ``limit`` pairs of a split (or of ``all``) in batches of ``batch_size``, in their order; the
    first ``swapped`` of them are marked."""

    def __init__(
        self,
        path: str,
        split: str,
        limit: int | None,
        batch_size: int,
        columns: Sequence[str] = ("pair_id", "before", "after"),
        swapped: int = 0,
    ) -> None:
        self._folder = files.locate(path)
        self._columns, self._swapped = list(columns), swapped
        wanted: list[tuple[str, int]] = []
        for part in read_manifest(self._folder).parts:
            with (self._folder / part.file).open() as stream:
                splits = open_parquet(stream, part.file).read(["split"])["split"].to_pylist()
            wanted += [(part.file, row) for row, row_split in enumerate(splits) if split in ("all", row_split)]
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
                read = read_range(open_parquet(stream, file), rows[0], rows[-1] + 1, self._columns)
            tables.append(read.take(np.array(rows) - rows[0]))
        batch: Batch = pa.concat_tables(tables).to_pydict()
        first = sum(map(len, self._batches[:chunk_id]))
        return batch | {_SWAPPED: [first + at < self._swapped for at in range(num_rows(batch))]}
