"""The import job: pairs from outside into a data set folder, checked on the way."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from idc.data import files
from idc.data.config import ImportConfig, ImportJob
from idc.data.image_cells import cell_bytes, cell_name
from idc.data.images import CheckedImage, ImageError, Look, check_image
from idc.data.pipeline import Batch, StageSpec, concat, good_rows
from idc.data.readers import open_reader
from idc.data.readers.base import COLUMNS, SPLIT_NAMES, PairReader, printable
from idc.data.readers.default_splits import SaysNoChange, with_default_splits
from idc.data.readers.layouts import with_layout
from idc.data.schema import CAPTION_ORIGINS, PAIR_SCHEMA_VERSION, SPLITS, caption_origins, meta_text, pair_arrow_schema
from idc.data.store import DatasetFolder, fingerprint
from idc.data.textfiles import JsonError, parse_json

_VERSION = 3
"""Version of the imported rows; to be raised if the same settings would produce others."""
_PART_BYTES, _PART_ROWS = 8_000_000, 1024
"""Images, in bytes, and rows of a part in object storage: a file that is sent in one request."""
_SAMPLED_CHUNKS, _SAMPLED_ROWS = 4, 4
"""Chunks, evenly spaced, and rows of each, whose images are read to learn how large the images are."""


def open_import(
    job: ImportJob,
    overwrite: bool = False,
    *,
    progress: bool = False,
    says_no_change: SaysNoChange | None = None,
) -> tuple[DatasetFolder, PairReader, list[StageSpec]]:
    """The folder, source and stages of an import, for ``run_local`` or ``cluster.data.run_chunks_on_ray``.

    If pairs have no split and something is left to do, all images are read once here: see
    :mod:`idc.data.readers.default_splits`.

    Args:
        progress: show the progress of that reading.
        says_no_change: see :func:`~idc.data.readers.default_splits.with_default_splits`.
    """
    job, format = with_layout(job, job.source)
    source = open_reader(format, job.source, job)
    joined = 1
    if files.locate(job.out).local is None and "chunk_size" not in job.model_fields_set:
        joined = _chunks_per_part(source, job.chunk_size)
        job = job.model_copy(update={"chunk_size": joined * job.chunk_size})
    what_counts = job.model_dump(exclude={"source", "out", "max_reject_share", "workers", *_not_ours(job)})
    folder = DatasetFolder.open_for_build(
        job.out,
        kind="pairs",
        schema=pair_arrow_schema(origins=source.extra.get(CAPTION_ORIGINS, False)),
        fingerprint=fingerprint("import", _VERSION, PAIR_SCHEMA_VERSION, what_counts, source.fingerprint),
        config=job.model_dump(mode="json"),
        num_chunks=-(-source.num_chunks // joined),
        overwrite=overwrite,
        extra=source.extra,
    )
    if folder.pending():
        source = with_default_splits(source, format, job, progress=progress, says_no_change=says_no_change)
        folder.manifest.extra.update(source.extra)
    source = _Joined(source, joined)
    return folder, source, [load_stage(job, source.reader, source.extra.get("images", True), job.workers)]


def _chunks_per_part(source: PairReader, chunk_size: int) -> int:
    """Number of chunks whose images have about :data:`_PART_BYTES`, by those of some rows."""
    rows = total = 0
    for chunk in range(0, source.num_chunks, -(-source.num_chunks // _SAMPLED_CHUNKS)):
        batch = source.read(chunk)
        for cell in (batch[role][i] for i in good_rows(batch)[:_SAMPLED_ROWS] for role in ("before", "after")):
            with contextlib.suppress(ImageError):
                total += len(cell_bytes(cell, source.reader)) if source.extra.get("images", True) else 0
        rows += min(_SAMPLED_ROWS, len(good_rows(batch)))
    most = _PART_ROWS // chunk_size
    return max(1, min(most, _PART_BYTES * rows // (total * chunk_size) if total else most))


class _Joined:
    """A source each of whose chunks is ``count`` chunks of another one."""

    def __init__(self, source: PairReader, count: int) -> None:
        self._source, self._count, self.num_chunks = source, count, -(-source.num_chunks // count)
        self.reader, self.extra, self.fingerprint = source.reader, source.extra, source.fingerprint

    def read(self, chunk_id: int) -> Batch:
        first = chunk_id * self._count
        last = min(first + self._count, self._source.num_chunks)
        return concat([self._source.read(chunk) for chunk in range(first, last)])


def _not_ours(job: ImportJob) -> set[str]:
    """Settings that do not change the rows: where an entry point runs, and the section of another format."""
    return (set(type(job).model_fields) - set(ImportJob.model_fields)) | ({"spot_the_diff"} - {job.format})


def load_stage(
    config: ImportConfig, reader: files.Reader, images: bool, workers: int = 1, look: Look = None
) -> StageSpec:
    """The stage that reads and checks the images; ``reader`` reads those that rows name, if there are ``images``."""
    kwargs = {"reader": reader, "max_pixels": config.max_pixels, "images": images, "look": look}
    return StageSpec(LoadPairs, kwargs, concurrency=workers)


class LoadPairs:
    """Stage: replaces file names by checked image bytes and converts the other columns to those of a pair.

    It adds ``before_size`` and ``after_size``, (height, width), and ``before_look`` and ``after_look``, what ``look``
    returns of the pixels; ``None`` if ``images`` is off. Every pair must have a split
    (:mod:`idc.data.readers.default_splits`).
    """

    def __init__(self, reader: files.Reader, max_pixels: int, images: bool = True, look: Look = None) -> None:
        self.reader, self.max_pixels, self.images, self.look = reader, max_pixels, images, look

    def __call__(self, batch: Batch) -> Batch:
        rows = len(batch["pair_id"])
        batch = {CAPTION_ORIGINS: [None] * rows, **batch}
        out = {name: list(batch[name]) for name in COLUMNS}
        out |= {f"{role}_{what}": [None] * rows for role in ("before", "after") for what in ("size", "look")}
        out["pair_id"] = [printable(str(name)) for name in batch["pair_id"]]
        for i in good_rows(batch):
            row = {name: batch[name][i] for name in COLUMNS}
            try:
                for name, value in self._load(row).items():
                    out[name][i] = value
            except _Bad as bad:
                out["error"][i] = printable(str(bad))
        for i, error in enumerate(out["error"]):
            if error is not None:
                out["error"][i] = printable(error)
                out["before"][i] = out["after"][i] = out["mask"][i] = None
        return out

    def _load(self, row: Mapping[str, Any]) -> dict[str, Any]:
        pair_id = _text(row["pair_id"], "pair_id")
        texts = [_text(text, "caption").strip() for text in _captions(row["captions"])]
        captions = [text for text in texts if text]
        change_type = None if row["change_type"] is None else _text(row["change_type"], "change_type").strip() or None
        loaded: dict[str, Any] = {
            "pair_id": pair_id,
            "captions": captions,
            CAPTION_ORIGINS: _origins(row[CAPTION_ORIGINS], texts),
            "change_type": change_type,
            "split": _split(row["split"]),
            "source": _text(row["source"] or "", "source"),
            "meta": _meta(row["meta"]),
            "before": b"",
            "after": b"",
            "mask": None,
        }
        if not self.images:
            return loaded
        for role in ("before", "after"):
            image = self._image(row[role], role, self.look)
            loaded |= {role: image.data, f"{role}_size": (image.height, image.width), f"{role}_look": image.look}
        if row["mask"] is not None and row["mask"] != "":
            loaded["mask"] = self._image(row["mask"], "mask").data
        return loaded

    def _image(self, value: Any, role: str, look: Look = None) -> CheckedImage:
        try:
            return check_image(cell_bytes(value, self.reader), self.max_pixels, look)
        except ImageError as exc:
            raise _Bad(f"{exc.code}: {role}, {cell_name(value)}" + (f", {exc.detail}" if exc.detail else "")) from exc


def _split(value: Any) -> str:
    name = str(value).strip().lower()
    if name not in SPLIT_NAMES:
        raise _Bad(f"bad split: {value!r} is not one of {', '.join(SPLITS)}")
    return SPLIT_NAMES[name]


class _Bad(Exception):
    """The reason a row is rejected."""


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise _Bad(f"bad row: {what} is {value!r}, not text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise _Bad(f"not UTF-8: {what}, {printable(value)}") from exc
    return value


def _meta(value: Any) -> str:
    """A row's ``meta`` (JSON text or an object) as it is stored."""
    try:
        meta = parse_json(value, keep_surrogates=True) if isinstance(value, str) and value else value or {}
    except JsonError as exc:
        raise _Bad(f"bad row: meta is {exc}") from exc
    if not isinstance(meta, dict):
        raise _Bad("bad row: meta is JSON but not an object")
    try:
        return meta_text(_without_nan(meta))
    except UnicodeEncodeError as exc:
        raise _Bad(f"not UTF-8: meta, {printable(exc.object)[:80]}") from exc
    except (ValueError, RecursionError) as exc:
        raise _Bad(f"bad row: {exc}") from exc


def _without_nan(value: Any) -> Any:
    """Replaces NaN by null: tables of numbers use it for missing values."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def _origins(value: Any, captions: Sequence[str]) -> list[dict[str, Any] | None] | None:
    """The stored origins of the captions that are not blank; None if all captions are of the data set."""
    try:
        origins = caption_origins(value, "bad row")
    except ValueError as exc:
        raise _Bad(str(exc)) from exc
    if origins and len(origins) != len(captions):
        raise _Bad(f"bad row: {len(origins)} {CAPTION_ORIGINS} of {len(captions)} captions")
    kept = [asdict(origin) if origin else None for origin, text in zip(origins, captions, strict=False) if text]
    return kept if any(kept) else None


def _captions(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise _Bad(f"bad row: captions is {value!r}, not a list of texts")
    return list(value)
