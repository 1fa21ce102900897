"""Caption the pairs of a table, one output row per input row, in one process or on actors, resuming where it stopped.

The output is a folder of Parquet parts with a manifest (:mod:`idc.data.store`, kind :data:`KIND`) and the columns of
:data:`SCHEMA`. It has one row for every row of the input, in the same order: a row that cannot be captioned has its
reason in ``error`` and no caption. A part is a chunk of input rows and is written whole, so a job that was killed
repeats the chunks that are missing, and no others.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from idc.captioning.apply import BatchCaptioner, CaptionSettings, Fault
from idc.captioning.contract import draw_map
from idc.captioning.diffspot import prediction, tiers_of
from idc.captioning.edits import instruction_in, judged_edit
from idc.captioning.loading import LOADING, CaptionerLoader, LoadCaptioner, captioner_identity
from idc.captioning.region_of_interest import read_areas
from idc.captioning.sources import AUTO, artifact_folder, missing_artifact
from idc.config import missing
from idc.data import files
from idc.data.config import AccessConfig, Split
from idc.data.images import MAX_PIXELS, encode_png
from idc.data.object_store import explain_write_errors, first_look
from idc.data.pipeline import Batch, ChunkResult, StageSpec, good_rows, num_rows, run_local
from idc.data.readers.table import IMAGES
from idc.data.rows import InputRows, RowFormat, open_rows
from idc.data.store import MANIFEST, DatasetFolder, Manifest, Overwrite, fingerprint, iter_rows, read_manifest
from idc.util.progress import tracked

KIND = "captioned"
"""The kind of the folder."""
PAGE, SUMMARY = "page.html", "summary.json"
"""Files that :mod:`idc.report.gallery` adds to the folder."""

CHANGE_MAP = "change_map"
"""The column of change maps, which JSON lines leave out."""
_MAP_SIDE = 128
"""Maximum length of a stored change map's longer side, in pixels."""

_CANDIDATE = [("caption", pa.string()), ("confidence", pa.float64()), ("log_probability", pa.float64())]
_REGION = [("box", pa.list_(pa.int32())), ("share", pa.float64()), ("position", pa.string()), ("before", pa.string()),
           ("after", pa.string())]  # fmt: skip
_EDIT = [("found", pa.string()), ("collateral", pa.float64()), ("sentence", pa.string())]
_BOX = pa.list_(pa.int32())
_CLAIM = [("kind", pa.string()), ("object", pa.string()), ("count", pa.int32()), ("where", pa.string()),
          ("box_before", _BOX), ("box_after", _BOX), ("confidence", pa.float64()), ("before", pa.string()),
          ("after", pa.string()), ("aspect", pa.string()), ("amount", pa.float64()), ("unit", pa.string()),
          ("text", pa.string()), ("page", pa.int32())]  # fmt: skip
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), False),  # its number in the input, from 0
        pa.field("pair_id", pa.string(), False),  # as in the input; without one, the row's number
        *(pa.field(name, kind) for name, kind in _CANDIDATE),
        pa.field("changed_probability", pa.float64()),  # with a calibrated artifact
        pa.field("familiarity", pa.float64()),  # with a calibrated artifact; see idc.captioning.contract
        pa.field("familiar", pa.bool_()),
        pa.field("verdict", pa.string()),  # changed, unchanged or unsure
        pa.field("verdict_text", pa.string()),  # reason of "unsure"
        pa.field("warning", pa.string()),  # reason not to trust the caption
        # [height, width] at which the model saw the images, if it reports it
        pa.field("input_size", pa.struct([("before", pa.list_(pa.int32())), ("after", pa.list_(pa.int32()))])),
        # of objects, which also speaks of pairs that another captioner is not familiar with: where and how the images
        # differ, what changed as data, and as a sentence
        pa.field("regions", pa.list_(pa.struct(_REGION))),
        pa.field("claims", pa.list_(pa.struct(_CLAIM))),
        pa.field("objects_text", pa.string()),
        # of a row with an instruction: whether its edit is among the claims (found, not found, not seen), the share of
        # the changed area outside of these, and both as a sentence
        pa.field("edit", pa.struct(_EDIT)),
        pa.field("candidates", pa.list_(pa.struct(_CANDIDATE))),  # best first, the caption among them
        pa.field("captioner", pa.string(), False),  # the one that captioned the row
        pa.field("chosen", pa.string()),  # why auto chose it
        pa.field(CHANGE_MAP, pa.binary()),  # a small grey PNG over the image after, if the captioner has maps
        pa.field("error", pa.string()),  # "before: truncated image: ..."; then everything after pair_id is empty
    ]
)

_VERSION = 11
"""Incremented when the same input and settings would give other rows."""


class ManyPairs(CaptionSettings):
    """How very many pairs are captioned."""

    artifact: str = AUTO
    """The captioner: `auto`, for each pair the newest captioner below runs/ with a familiarity, or if there is none
    `shipped`, if it knows both images and `objects` does not contradict it, else `objects`; `objects`, which needs no
    training; `regions`, the same without names of objects; `shipped`, the one that comes with the program; the artifact
    folder of a training run; or `hf:NAME`."""
    batch_size: int = Field(default=32, ge=1)
    """Pairs per batch of the model; the decoded images of two batches are in memory."""
    chunk_size: int = Field(default=256, ge=1, le=100_000)
    """Rows per chunk of work, which is one Parquet part; a worker holds two chunks' encoded images in memory,
    those of the next one among them."""
    max_pixels: int = Field(default=MAX_PIXELS, ge=1)
    """Larger images are refused before they are decoded."""
    actors: int = Field(default=1, ge=1)
    """Copies of the captioner on Ray."""
    cpus_per_actor: float = Field(default=1.0, gt=0)
    """CPUs per copy, and its torch threads."""
    gpus_per_actor: float = Field(default=0.0, ge=0)
    """GPUs per copy; above 0 it captions on cuda."""
    readers: int = Field(default=2, ge=1, le=256)
    """Threads per copy that read and decode the next batch while the model works; use more where images are files in a
    bucket."""
    show: int = Field(default=40, ge=0)
    """Pairs on the page, evenly spaced over those with a caption. 0: no page."""

    def preflight(self) -> Iterator[str]:
        if self.artifact != AUTO:
            yield from missing_artifact(self.artifact, "artifact")
        yield from super().preflight()


class CaptionJob(ManyPairs, AccessConfig):
    """Caption all pairs of an input; every row of it becomes a row of the output."""

    input: str
    """Pairs to caption: a folder of pairs of this project, Parquet (a file or a folder), CSV or JSON lines with the
    columns `before` and `after` (paths, URIs, in Parquet also the bytes), or a folder of images. Path or URI."""
    out: str
    """The folder to write: Parquet parts and a manifest. Path or URI."""
    format: RowFormat = "auto"
    """Format of the input; "auto" detects it by its files."""
    jsonl: str | None = None
    """File to which the rows are also written as JSON lines. Path or URI."""
    diffspot: str | None = None
    """File to which the captions of DiffSpot's pairs are also written as its leaderboard takes them: JSON lines, one
    bullet per claim. Path or URI."""
    split: Split | None = None
    """Caption only rows of this split, where the input names one. Default: all."""
    max_pairs: int | None = Field(default=None, ge=1)
    """Number of rows, from the first on. Default: all."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        try:
            source, target = files.locate(self.input), files.locate(self.out)
        except ValueError as error:
            yield f"input, out: {error}"
            return
        if source.filesystem.equals(target.filesystem) and f"{target.path}/".startswith(f"{source.path}/"):
            yield f"out: {self.out!r} is the input, or in it; choose another folder"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        yield from missing(self.input, "input")


HOW = frozenset({"actors", "cpus_per_actor", "gpus_per_actor", "readers", "show"}) | LOADING
"""Settings on which the rows do not depend, but for :meth:`LoadConfig.loading_identity`."""
_PLACES = frozenset({"artifact", "input", "out", "jsonl", "diffspot"})


@dataclass(frozen=True)
class Captioned:
    """The result of a job: number of rows of the output, those that could not be captioned by reason, and those that
    this run wrote (``done``); its seconds with the start of the workers, and those in the captioner, summed over the
    workers. ``notes``: parts of the input that are not read."""

    rows: int
    errors: dict[str, int]
    done: int
    seconds: float
    model_seconds: float
    workers: int
    notes: tuple[str, ...] = ()

    @property
    def captioned(self) -> int:
        """Number of rows with a caption."""
        return self.rows - sum(self.errors.values())

    def text(self) -> str:
        """The result as text for the terminal."""
        counts = f"{self.rows} rows, {self.captioned} with a caption"
        counts += "".join(f", {n} x {reason}" for reason, n in sorted(self.errors.items()))
        counts += "".join(f"\nnote: {note}" for note in self.notes)
        if not self.done:
            return counts
        each = self.seconds / self.done
        rate = f"{self.done} rows in {self.seconds:.0f} s with the start, "
        rate += f"{each:.1f} s each" if each > 1 else f"{1 / each:.1f} a second"
        if self.model_seconds:
            of = " of each worker" if self.workers > 1 else ""
            rate += f"; the model{of} was busy for {self.model_seconds / self.workers:.0f} s of them"
        return f"{counts}\n{rate}"


def caption_rows(
    job: CaptionJob,
    run: Callable[..., Manifest] = run_local,
    local: bool = True,
    overwrite: Overwrite = False,
    load: LoadCaptioner | None = None,
) -> Captioned:
    """Caption the rows of ``job.input`` that are not captioned yet.

    Args:
        run: runs the chunks: :func:`idc.data.pipeline.run_local`, or the same on a cluster.
        local: ``run`` uses this process alone, with torch's default number of threads.
        overwrite: of captions that ``job.out`` holds.
        load: loads the captioner; by default that of ``job.artifact``.

    Raises:
        ValueError: nothing can be read at ``job.input``, ``job.artifact`` is not an artifact, or ``job.out`` holds
            something else.
    """
    if load is None:
        threads = None if local else max(1, int(job.cpus_per_actor))
        load = CaptionerLoader(job.artifact, job, job.gpus_per_actor, threads)
    artifact = load.artifact if isinstance(load, CaptionerLoader) else artifact_folder(job.artifact, job.objects)
    rows_with = partial(
        open_rows, job.input, job.format, chunk_size=job.chunk_size, limit=job.max_pairs, split=job.split,
        access_config=job,
    )  # fmt: skip
    source = rows_with(columns=(*IMAGES, "meta"))
    tiers = [] if job.diffspot is None else tiers_of(rows_with(columns=("meta",)))
    ignore, only = read_areas(job.ignore), read_areas(job.only)  # which may fail: before the old output is touched
    folder = _open_output(job, source, captioner_identity(job.artifact, artifact, job.objects), overwrite)
    if not folder.complete:
        for name in (PAGE, SUMMARY):  # of the captions that were there before
            (folder.location / name).delete()
    results: list[ChunkResult] = []
    began = time.perf_counter()
    settings = {
        "load": load, "options": job.search_options(), "objects": job.objects, "maps": True,
        "batch_size": job.batch_size, "max_pixels": job.max_pixels, "reader": source.reader, "readers": job.readers,
        "ignore": ignore, "only": only,
    }  # fmt: skip
    stage = StageSpec(
        CaptionRows, settings, num_cpus=job.cpus_per_actor, num_gpus=job.gpus_per_actor, concurrency=job.actors
    )
    run(folder, source, [stage], partial(_to_rows, captioner=job.artifact), name="captions", watch=results.append)
    seconds = time.perf_counter() - began
    errors = Counter(_reason(row["error"]) for row in iter_rows(job.out, ["error"]) if row["error"] is not None)
    columns = [name for name in SCHEMA.names if name != CHANGE_MAP]
    if job.jsonl is not None:
        _write_lines(job.jsonl, iter_rows(job.out, columns))
    if job.diffspot is not None:
        _write_lines(job.diffspot, map(prediction, iter_rows(job.out, columns), tiers, repeat(job.artifact)))
    return Captioned(
        rows=read_manifest(job.out).num_rows,
        errors=dict(errors),
        done=sum(result.num_rows for result in results),
        seconds=seconds,
        model_seconds=sum(result.seconds for result in results),
        workers=1 if local else job.actors,
        notes=tuple(source.notes),
    )


def _write_lines(path: str, rows: Iterable[dict[str, Any]]) -> None:
    file = files.locate(path)
    with explain_write_errors(file.parent), file.replacing() as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _open_output(job: CaptionJob, source: InputRows, captioner: str, overwrite: Overwrite) -> DatasetFolder:
    """The output folder of a job, new or to be continued; ``captioner`` is the captioner's identity. One that holds
    another kind of data, or captions of other inputs or settings without ``overwrite``, is a ValueError."""
    out = files.locate(job.out)
    if first_look((out / MANIFEST).exists, job.out) and (kind := read_manifest(out).kind) != KIND:
        raise ValueError(f"out: {job.out} holds {kind}, which this job does not replace; choose another folder")
    settings = job.model_dump(mode="json", include=set(CaptionJob.model_fields))
    content = {name: value for name, value in settings.items() if name not in HOW | _PLACES | {"format"}}
    content |= job.loading_identity()
    if (counts := job.search_options().counts) is not None:
        content["counts"] = counts.prompt()  # what a file says
    masks = [
        sha256(files.locate(part).read()).hexdigest() for part in (*job.ignore, *job.only) if isinstance(part, str)
    ]
    return DatasetFolder.open_for_build(
        out,
        kind=KIND,
        schema=SCHEMA,
        fingerprint=fingerprint(KIND, _VERSION, source.fingerprint, captioner, content, masks),
        config=settings,
        num_chunks=source.num_chunks,
        overwrite=overwrite,
    )


class CaptionRows:
    """Stage: rows of :class:`idc.data.rows.InputRows` become rows of the output. Takes the arguments of
    :class:`BatchCaptioner`.

    The error of a row goes into the column ``fault`` and not into ``error``, which would remove the row. ``seconds`` is
    a row's share of its batch's time in the captioner.
    """

    def __init__(self, **settings: Any) -> None:
        self._described = BatchCaptioner(**settings)
        self._names = settings["objects"].names

    def __call__(self, batch: Batch) -> Batch:
        rows: list[dict[str, Any]] = [{}] * num_rows(batch)
        faults = list(batch["error"])
        seconds = np.zeros(len(rows))
        pairs = len(good_rows(batch))
        for i, result in tracked(self._described(batch), pairs, "captioning", "pair"):
            if isinstance(result.pixels, Fault):
                faults[i] = result.pixels.named()
                continue
            assert result.description is not None
            seconds[i] = result.seconds / result.batch
            rows[i] = result.description.to_dict()
            if (instruction := instruction_in(batch["meta"][i])) is not None and rows[i]["claims"] is not None:
                rows[i]["edit"] = judged_edit(instruction, rows[i], self._names)._asdict()
            if (values := result.description.change_map) is not None:
                rows[i][CHANGE_MAP] = encode_png(draw_map(values, result.pixels.after.shape[:2], _MAP_SIDE))
        columns: Batch = {name: [row.get(name) for row in rows] for name in SCHEMA.names}
        same = {"row": batch["row"], "pair_id": batch["pair_id"], "error": [None] * len(rows)}
        return columns | same | {"fault": faults, "seconds": seconds}


def _to_rows(batch: Batch, captioner: str) -> pa.Table:
    """The rows of a part from a batch of :class:`CaptionRows`; ``captioner`` is the one of rows that name none."""
    columns = {**batch, "error": batch["fault"], "captioner": [name or captioner for name in batch["captioner"]]}
    return pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA)


def _reason(error: str) -> str:
    """The general part of an error such as ``before: truncated image: x.png: ...``."""
    parts = error.split(": ")
    return ": ".join(parts[: 2 if parts[0] in ("before", "after", "pair") else 1])
