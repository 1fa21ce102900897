"""Captions of very many pairs: a row in, a row out, in one process or on actors, and on from where it was.

The output is a folder of Parquet parts with a manifest (:mod:`idc.data.store`, kind :data:`KIND`) and the columns of
:data:`SCHEMA`. It has one row for every row of the input, in the same order: a row that cannot be captioned has its
reason in ``error`` and no caption. A part is a chunk of rows of the input and is written whole, so a job that was
killed does the chunks again that are not there, and no others.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from idc.captioning.contract import Describer, beams_of
from idc.config import missing
from idc.data import files
from idc.data.config import AccessConfig, Split
from idc.data.images import MAX_PIXELS, ImageError, cell_bytes, cell_name, decode_image
from idc.data.pipeline import Batch, ChunkResult, StageSpec, good_rows, num_rows, run_local
from idc.data.rows import InputRows, RowFormat, open_rows
from idc.data.store import MANIFEST, DatasetFolder, Manifest, fingerprint, iter_rows, read_manifest

KIND = "captioned"
"""The kind of the folder."""

_CANDIDATE = [("caption", pa.string()), ("confidence", pa.float64()), ("log_probability", pa.float64())]
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), False),  # the place in the input, from 0
        pa.field("pair_id", pa.string(), False),  # as in the input; the row's number if there is none
        *(pa.field(name, kind) for name, kind in _CANDIDATE),
        pa.field("changed_probability", pa.float64()),  # of an artifact that was calibrated
        pa.field("familiarity", pa.float64()),  # of an artifact that was calibrated for it; see idc.captioning.contract
        pa.field("familiar", pa.bool_()),
        pa.field("verdict", pa.string()),  # changed, unchanged or unsure
        pa.field("verdict_text", pa.string()),  # why it is unsure
        pa.field("warning", pa.string()),  # why the caption cannot be trusted
        pa.field("candidates", pa.list_(pa.struct(_CANDIDATE))),  # best first, the caption among them
        pa.field("error", pa.string()),  # "before: truncated image: ..."; then everything after pair_id is empty
    ]
)

_VERSION = 2
"""Goes up when the same input and settings would give other rows."""

LoadDescriber = Callable[[], Describer]
"""Loads a captioner; picklable, as every actor loads its own."""


class CaptionJob(AccessConfig):
    """Caption all pairs of an input; every row of it becomes a row of the output."""

    artifact: str
    """A trained captioner: the artifact folder of its run."""
    input: str
    """What to caption: a folder of pairs of this project, Parquet (a file or a folder), CSV or JSON lines with the
    columns `before` and `after` (paths, URIs, in Parquet also the bytes), or a folder of images. Path or URI."""
    out: str
    """The folder to write: Parquet parts and a manifest. Path or URI."""
    format: RowFormat = "auto"
    """What the input is; "auto" tells it by the files that are there."""
    jsonl: str | None = None
    """Also write the rows as JSON lines into this file. Path or URI."""
    split: Split | None = None
    """Only rows of this split, where the input names one. Empty: all."""
    max_pairs: int | None = Field(default=None, ge=1)
    """Only the first this many rows of the input."""
    beams: int | None = Field(default=None, ge=1)
    """Beams of the search, 1 is greedy. Default: what the artifact was validated with."""
    candidates: int = Field(default=1, ge=1)
    """Captions a pair, best first, in the column `candidates`."""
    batch_size: int = Field(default=32, ge=1)
    """Pairs that go through the model together; the decoded images of two batches are in memory."""
    chunk_size: int = Field(default=256, ge=1, le=100_000)
    """Rows in one chunk of work, which is one Parquet part; a worker holds a chunk's encoded images in memory."""
    max_pixels: int = Field(default=MAX_PIXELS, ge=1)
    """A larger image is refused before it is decoded."""
    actors: int = Field(default=1, ge=1)
    """Copies of the captioner on Ray."""
    cpus_per_actor: float = Field(default=1.0, gt=0)
    """CPUs of one of them, and its torch threads."""
    gpus_per_actor: float = Field(default=0.0, ge=0)
    """GPUs of one of them; above 0 it captions on cuda."""
    readers: int = Field(default=2, ge=1, le=256)
    """Threads of a copy that read and decode the next batch while the model works; more of them where images are files
    in a bucket."""

    def faults(self) -> Iterator[str]:
        try:
            beams_of(self.beams, self.candidates, validated=1)
        except ValueError as error:
            yield f"beams: {error}"
        try:
            if _same_place(self.input, self.out):
                yield f"out: {self.out!r} is the input, or in it; choose another folder"
        except ValueError as error:
            yield f"input, out: {error}"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.artifact, "artifact")
        yield from missing(self.input, "input")


HOW = frozenset({"actors", "cpus_per_actor", "gpus_per_actor", "readers"})
"""Settings of how the work is done, on which the rows do not depend."""
_PLACES = frozenset({"artifact", "input", "out", "jsonl"})


def _same_place(input: str, out: str) -> bool:
    one, other = files.locate(input), files.locate(out)
    return one.filesystem.equals(other.filesystem) and f"{other.path}/".startswith(f"{one.path}/")


@dataclass(frozen=True)
class Captioned:
    """What a job did.

    Attributes:
        rows: of the output.
        errors: how many rows could not be captioned, by reason.
        done: rows written this time; fewer than ``rows`` if there were some from before.
        seconds: from the first to the last of them, starting the workers included.
        model_seconds: of them in the captioner, all workers together.
        workers: that were asked for.
        notes: what in the input is not read.
    """

    rows: int
    errors: dict[str, int]
    done: int
    seconds: float
    model_seconds: float
    workers: int
    notes: tuple[str, ...] = ()

    @property
    def captioned(self) -> int:
        """Rows with a caption."""
        return self.rows - sum(self.errors.values())

    def text(self) -> str:
        """For the user."""
        said = f"{self.rows} rows, {self.captioned} with a caption"
        said += "".join(f", {n} x {reason}" for reason, n in sorted(self.errors.items()))
        said += "".join(f"\nnote: {note}" for note in self.notes)
        if not self.done:
            return said
        rate = f"{self.done / self.seconds:.1f} rows a second ({self.done} in {self.seconds:.0f} s, the start included)"
        if self.model_seconds:
            alone = self.workers * self.done / self.model_seconds
            share = self.done / self.seconds / alone
            rate += f"; in the model alone {alone:.1f} a second on {self.workers} workers: {share:.2f} of it"
        return f"{said}\n{rate}"


def caption_rows(
    job: CaptionJob,
    run: Callable[..., Manifest] = run_local,
    local: bool = True,
    overwrite: bool = False,
    load: LoadDescriber | None = None,
) -> Captioned:
    """Caption what ``job.input`` holds and is not captioned yet.

    Args:
        run: runs the chunks: :func:`idc.data.pipeline.run_local`, or the same on a cluster.
        local: that is this process alone; torch then has the threads that it takes by itself.
        overwrite: captions in ``job.out`` that were made of something else give way.
        load: loads the captioner; by default that of ``job.artifact``.

    Raises:
        ValueError: nothing can be read at ``job.input``, ``job.artifact`` is no artifact, or ``job.out`` holds
            something else.
    """
    if load is None:
        load = ArtifactLoader(job, threads=None if local else max(1, int(job.cpus_per_actor)))
    source = open_rows(
        job.input, job.format, chunk_size=job.chunk_size, limit=job.max_pairs, split=job.split, access_config=job
    )
    folder = open_output(job, source, overwrite)
    results: list[ChunkResult] = []
    began = time.perf_counter()
    run(folder, source, [stage(job, source, load)], to_rows, name="captions", watch=results.append)
    seconds = time.perf_counter() - began
    errors = Counter(_reason(row["error"]) for row in iter_rows(job.out, ["error"]) if row["error"] is not None)
    if job.jsonl is not None:
        write_jsonl(job.out, job.jsonl)
    return Captioned(
        rows=read_manifest(job.out).num_rows,
        errors=dict(errors),
        done=sum(result.num_rows for result in results),
        seconds=seconds,
        model_seconds=sum(result.seconds for result in results),
        workers=1 if local else job.actors,
        notes=tuple(source.notes),
    )


def open_output(job: CaptionJob, source: InputRows, overwrite: bool = False) -> DatasetFolder:
    """The folder of a job, begun or to go on with.

    Raises:
        ValueError: it is of other inputs or settings and ``overwrite`` is off, or it holds something else altogether.
    """
    from idc.training.artifact import identity

    out = files.locate(job.out)
    if (out / MANIFEST).exists() and (kind := read_manifest(out).kind) != KIND:
        raise ValueError(f"out: {job.out} holds {kind}, which this job does not replace; choose another folder")
    settings = job.model_dump(mode="json", include=set(CaptionJob.model_fields))
    counts = {name: value for name, value in settings.items() if name not in HOW | _PLACES | {"format"}}
    return DatasetFolder.open_for_build(
        out,
        kind=KIND,
        schema=SCHEMA,
        fingerprint=fingerprint(KIND, _VERSION, source.fingerprint, identity(job.artifact), counts),
        config=settings,
        num_chunks=source.num_chunks,
        overwrite=overwrite,
    )


class ArtifactLoader:
    """Loads the captioner of a job's artifact.

    Args:
        threads: of torch, in the whole process; by default they stay as they are.

    Raises:
        ValueError: it is no artifact.
    """

    def __init__(self, job: CaptionJob, threads: int | None) -> None:
        from idc.training.artifact import read_artifact

        read_artifact(job.artifact)  # a wrong folder is found out before anything is started
        self.artifact = job.artifact
        self.device = "cuda" if job.gpus_per_actor else "cpu"
        self.threads = threads

    def __call__(self) -> Describer:
        from idc.systems import load_captioner

        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        return load_captioner(self.artifact, self.device)


def stage(job: CaptionJob, source: InputRows, load: LoadDescriber) -> StageSpec:
    """The stage of a job, as its actors have it."""
    kwargs = {
        "load": load,
        "reader": source.reader,
        "beams": job.beams,
        "candidates": job.candidates,
        "batch_size": job.batch_size,
        "max_pixels": job.max_pixels,
        "readers": job.readers,
    }
    return StageSpec(
        CaptionRows, kwargs, num_cpus=job.cpus_per_actor, num_gpus=job.gpus_per_actor, concurrency=job.actors
    )


class CaptionRows:
    """Stage: rows of :class:`idc.data.rows.InputRows` become rows of the output.

    What is wrong with a row goes into the column ``fault`` and not into ``error``, which would take the row out.
    ``seconds`` is a row's share of its batch's time in the captioner.
    """

    def __init__(
        self,
        load: LoadDescriber,
        reader: files.Reader,
        beams: int | None,
        candidates: int,
        batch_size: int,
        max_pixels: int = MAX_PIXELS,
        readers: int = 2,
    ) -> None:
        self._describer = load()
        self._reader = reader
        self._beams = beams
        self._candidates = candidates
        self._batch_size = batch_size
        self._max_pixels = max_pixels
        self._pool = ThreadPoolExecutor(readers)

    def __call__(self, batch: Batch) -> Batch:
        rows = num_rows(batch)
        told: list[dict[str, Any]] = [{}] * rows
        faults = list(batch["error"])
        seconds = np.zeros(rows)
        for places, pairs in self._decoded(batch):
            readable = []
            for place, pair in zip(places, pairs, strict=True):
                if isinstance(pair, str):
                    faults[place] = pair
                else:
                    readable.append((place, *pair))
            if not readable:
                continue
            began = time.perf_counter()
            good, befores, afters = zip(*readable, strict=True)
            descriptions = self._describer.describe(befores, afters, beams=self._beams, candidates=self._candidates)
            seconds[list(good)] = (time.perf_counter() - began) / len(good)
            for place, description in zip(good, descriptions, strict=True):
                told[place] = {
                    **description.best.told(),
                    **description.assessment.to_dict(),
                    "candidates": [candidate.told() for candidate in description.candidates],
                }
        names = [field.name for field in SCHEMA if field.name not in ("row", "pair_id", "error")]
        out = {name: [row.get(name) for row in told] for name in names}
        kept = {"row": batch["row"], "pair_id": batch["pair_id"]}
        return {**kept, **out, "fault": faults, "seconds": seconds, "error": [None] * rows}

    def _decoded(self, batch: Batch) -> Iterator[tuple[list[int], list[tuple[np.ndarray, np.ndarray] | str]]]:
        """Positions and images of every batch; the images of the next one are read meanwhile."""
        good = good_rows(batch)
        waiting: deque[tuple[list[int], list[Future[Any]]]] = deque()
        for start in range(0, len(good), self._batch_size):
            places = good[start : start + self._batch_size]
            cells = [(batch["before"][i], batch["after"][i]) for i in places]
            waiting.append((places, [self._pool.submit(self._images, *pair) for pair in cells]))
            if len(waiting) > 1:
                yield _results(*waiting.popleft())
        while waiting:
            yield _results(*waiting.popleft())

    def _images(self, before: Any, after: Any) -> tuple[np.ndarray, np.ndarray] | str:
        """Both images, or what is wrong with one of them."""
        images = []
        for role, cell in (("before", before), ("after", after)):
            try:
                images.append(decode_image(cell_bytes(cell, self._reader), self._max_pixels))
            except ImageError as exc:
                return ": ".join(filter(None, (role, exc.code, cell_name(cell), exc.detail)))
        return images[0], images[1]


def _results(places: list[int], futures: list[Future[Any]]) -> tuple[list[int], list[Any]]:
    return places, [future.result() for future in futures]


def to_rows(batch: Batch) -> pa.Table:
    """The rows of a part from what :class:`CaptionRows` gives."""
    return pa.table({n: batch["fault" if n == "error" else n] for n in SCHEMA.names}, schema=SCHEMA)


def _reason(error: str) -> str:
    """``before: truncated image: x.png: ...`` without what is this row's alone."""
    parts = error.split(": ")
    return ": ".join(parts[: 2 if parts[0] in ("before", "after") else 1])


def write_jsonl(folder: str, path: str) -> None:
    """The rows of a complete folder as JSON lines, seen by others when all of them are there."""
    with files.locate(path).replacing() as stream:
        for row in iter_rows(folder):
            stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
