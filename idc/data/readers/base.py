"""Pairs from outside into a data set folder: what all readers have in common.

A reader is a :class:`PairReader`: a source whose chunks have the columns :data:`COLUMNS`, with images still as names
of files. :class:`LoadPairs` reads and checks them. Rejects have these codes:

``missing partner`` ``missing file`` ``unreadable file`` ``empty file`` ``truncated image`` ``damaged image``
``not an image`` ``too many pixels`` ``too much metadata`` ``too many bytes`` ``unsupported mode``
``outside the source`` ``duplicate pair id`` ``no pair id`` ``not UTF-8`` ``bad row`` ``unreadable row`` ``bad file``
``bad split`` ``no caption`` ``unplaced image``

**What is read.** Whoever wrote a data set chose the names in it. They lead to regular files below the source, after
resolving links (:class:`idc.data.files.Access`, :func:`access`); the tables of one's own (csv, jsonl, parquet) may name
any local file, and other hosts with ``allow_remote``. What lies in a source and is not read is counted and named in the
manifest's ``notes`` (:func:`unread`).

**Annotations alone.** Where the images of a data set are not there (or ``images=false``), its pairs have ``before`` and
``after`` of zero bytes, and ``extra["images"]`` of the manifest is false. What needs pixels refuses such a folder
(:meth:`idc.data.store.Manifest.need_images`); captions made elsewhere can be scored against it.
"""

from __future__ import annotations

import math
import typing
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any, Protocol

from pyarrow import fs

from idc.data import files
from idc.data.config import AccessConfig, Format, ImportConfig, ImportJob
from idc.data.images import FORMAT_NAMES, CheckedImage, ImageError, cell_bytes, cell_name, check_image
from idc.data.pipeline import Batch, Source, StageSpec, good_rows
from idc.data.store import DatasetFolder, fingerprint
from idc.data.textfiles import JsonError, parse_json
from idc.schema import CAPTION_ORIGINS, PAIR_SCHEMA_VERSION, SPLITS, caption_origins, meta_text, pair_arrow_schema

COLUMNS = (
    *("pair_id", "before", "after", "captions", CAPTION_ORIGINS, "change_type", "split", "mask", "source", "meta"),
    "error",
)

_VERSION = 2
"""Of the rows that an import makes; raise it if the same settings would give others."""

SPLIT_NAMES = {
    **{name: name for name in SPLITS},
    "training": "train",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "testing": "test",
}
"""What a split may be called in the input."""


class PairReader(Source, Protocol):
    """A source of pairs from outside.

    Attributes:
        fingerprint: of the input: listings, tables and captions, not of the pixels.
        reader: reads the images that the rows name.
        extra: what the manifest should say about the input: counts and ``notes`` for the user; ``images`` is false if
            there are annotations alone, ``caption_origins`` is true if the input has that column.
    """

    fingerprint: str
    reader: files.Reader
    extra: dict[str, Any]


def open_reader(format: Format, path: str, config: ImportConfig, filesystem: fs.FileSystem | None = None) -> PairReader:
    """The reader for a layout.

    Raises:
        ValueError: the source is not there, or is not of that layout.
    """
    source = _open(format, path, config, filesystem)
    if not (config.images and source.extra.get("images", True)):
        why = "no images here" if config.images else "images=false"
        note = f"{why}: the pairs have annotations alone; captions made elsewhere can be scored, no model can run"
        source.extra |= {"images": False, "notes": [*source.extra["notes"], note]}
    source.extra["notes"] = [printable(note) for note in source.extra["notes"]]
    return source


def _open(format: Format, path: str, config: ImportConfig, filesystem: fs.FileSystem | None) -> PairReader:
    own: dict[str, Any] = {"chunk_size": config.chunk_size, "filesystem": filesystem, "access": access(format, config)}
    if format in ("folder", "csv", "jsonl", "parquet"):
        from idc.data.readers.own import FolderReader, ParquetReader, TableReader

        if format == "folder":
            return FolderReader(path, **own)
        if format == "parquet":
            return ParquetReader(path, **own)
        return TableReader(path, format, **own)
    if format == "clevr_change":
        from idc.data.readers.clevr_change import ClevrChangeReader

        return ClevrChangeReader(path, strict=config.strict, images=config.images, **own)
    if format == "instruct_pix2pix":
        from idc.data.readers.instruct_pix2pix import InstructPix2PixReader

        return InstructPix2PixReader(path, config, filesystem)
    if format == "procap_hdf5":
        from idc.data.readers.procap_hdf5 import ProcapHdf5Reader

        return ProcapHdf5Reader(path, config, filesystem)
    if format == "hugging_face":
        from idc.data.readers.hugging_face import HuggingFaceReader

        return HuggingFaceReader(path, config)
    if format == "webdataset":
        from idc.data.readers.webdataset import WebdatasetReader

        return WebdatasetReader(path, config, filesystem)
    if format == "video":
        from idc.data.readers.video import VideoReader

        return VideoReader(path, config, filesystem)
    from idc.data.readers.annotations import AnnotationReader, ReadPairs

    read: ReadPairs
    if format == "clevr_dc":
        from idc.data.readers.clevr_dc import read
    elif format == "spot_the_diff":
        from idc.data.readers.spot_the_diff import read
    elif format == "image_editing_request":
        from idc.data.readers.image_editing_request import read
    elif format == "birds_to_words":
        from idc.data.readers.birds_to_words import read
    elif format == "levir":
        from idc.data.readers.levir import read
    elif format == "omnidiff":
        from idc.data.readers.omnidiff import read
    elif format == "cdvqa":
        from idc.data.readers.cdvqa import read
    elif format == "qag360k":
        from idc.data.readers.qag360k import read
    return AnnotationReader(format, path, read, config, filesystem)


TABLES = ("csv", "jsonl", "parquet")
"""Layouts whose user wrote the paths in them."""


def access(format: str, config: AccessConfig) -> files.Access:
    """What the names in a source of this layout may reach."""
    table = format in TABLES
    return files.Access(links=config.follow_links, local=table, remote=table and config.allow_remote)


def unread(names: Sequence[str], what: str) -> list[str]:
    """A note that names the files of a source that are not read; empty if there are none.

    >>> unread(["a.md", "b.md", "c.docx"], "neither images nor captions")
    ["not read: 3 files that are neither images nor captions (2 .md, 1 .docx), first 'a.md'"]
    """
    if not names:
        return []
    kinds = Counter(PurePosixPath(name).suffix.lower() or "without suffix" for name in names)
    most = [f"{count} {kind}" for kind, count in kinds.most_common(5)]
    more = ["..."] if len(kinds) > len(most) else []
    files = "1 file that is" if len(names) == 1 else f"{len(names)} files that are"
    return [f"not read: {files} {what} ({', '.join([*most, *more])}), first {printable(names[0])!r}"]


def unread_images(names: Sequence[str]) -> list[str]:
    """As :func:`unread`, of images whose format is not read."""
    return unread(names, f"none of {FORMAT_NAMES}")


def outside_rows(tree: files.Tree, root: str) -> list[dict[str, Any]]:
    """A reject for each folder that is linked into a source from elsewhere and was not followed."""
    error = "outside the source: a link to a folder that lies elsewhere; follow_links=true follows it"
    return [{"pair_id": path[len(root) + 1 :], "error": error} for path in tree.outside]


def open_build(
    job: ImportJob, overwrite: bool = False, filesystem: fs.FileSystem | None = None, *, progress: bool = False
) -> tuple[DatasetFolder, PairReader, list[StageSpec]]:
    """The folder, source and stages of an import, for ``run_local`` or ``cluster.data.run``.

    Where pairs have no split and something is left to do, this reads all images once: see
    :mod:`idc.data.readers.default_splits`.

    Args:
        filesystem: that of ``job.source``, if the source is a path inside one.
        progress: show the progress of that reading.
    """
    from idc.data.readers.default_splits import with_default_splits

    source = open_reader(job.format, job.source, job, filesystem)
    what_counts = job.model_dump(exclude={"source", "out", "max_reject_share", "workers", *_not_ours(job)})
    folder = DatasetFolder.open_for_build(
        job.out,
        kind="pairs",
        schema=pair_arrow_schema(origins=source.extra.get(CAPTION_ORIGINS, False)),
        fingerprint=fingerprint("import", _VERSION, PAIR_SCHEMA_VERSION, what_counts, source.fingerprint),
        config=job.model_dump(mode="json"),
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra=source.extra,
    )
    if folder.pending():
        source = with_default_splits(source, job.format, job, progress=progress)
        folder.manifest.extra.update(source.extra)
    return folder, source, [load_stage(job, source.reader, source.extra.get("images", True), job.workers)]


def _not_ours(job: ImportJob) -> set[str]:
    """Settings that do not change the rows: where an entry point runs, and the sections of other formats."""
    sections = {name for name in typing.get_args(Format) if name in ImportJob.model_fields}
    return (set(type(job).model_fields) - set(ImportJob.model_fields)) | (sections - {job.format})


def load_stage(config: ImportConfig, reader: files.Reader, images: bool, workers: int = 1) -> StageSpec:
    """The stage that reads and checks the images; ``reader`` reads those that rows name, if there are ``images``."""
    kwargs = {
        "reader": reader,
        "max_pixels": config.max_pixels,
        "images": images,
        "require_captions": config.require_captions,
    }
    return StageSpec(LoadPairs, kwargs, concurrency=workers)


class LoadPairs:
    """Stage: names of files become checked bytes, everything else becomes what the pair columns want.

    It adds ``before_size`` and ``after_size``, (height, width); ``None`` where ``images`` is off and no image is read.
    Every pair must have a split (:mod:`idc.data.readers.default_splits`).
    """

    def __init__(
        self,
        reader: files.Reader,
        max_pixels: int,
        images: bool = True,
        require_captions: bool = False,
    ) -> None:
        self.reader = reader
        self.max_pixels = max_pixels
        self.images = images
        self.require_captions = require_captions

    def __call__(self, batch: Batch) -> Batch:
        rows = len(batch["pair_id"])
        batch = {CAPTION_ORIGINS: [None] * rows, **batch}
        out = {name: list(batch[name]) for name in COLUMNS}
        out |= {"before_size": [None] * rows, "after_size": [None] * rows}
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
        if not captions and self.require_captions:
            raise _Bad("no caption: require_captions is on")
        change_type = None if row["change_type"] is None else _text(row["change_type"], "change_type").strip() or None
        loaded = {
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
        before = self._image(row["before"], "before")
        after = self._image(row["after"], "after")
        mask = None if row["mask"] is None or row["mask"] == "" else self._image(row["mask"], "mask")
        return loaded | {
            "before": before.data,
            "after": after.data,
            "mask": mask.data if mask is not None else None,
            "before_size": (before.height, before.width),
            "after_size": (after.height, after.width),
        }

    def _image(self, value: Any, role: str) -> CheckedImage:
        try:
            return check_image(cell_bytes(value, self.reader), self.max_pixels)
        except ImageError as exc:
            raise _Bad(f"{exc.code}: {role}, {cell_name(value)}" + (f", {exc.detail}" if exc.detail else "")) from exc


def _split(value: Any) -> str:
    name = str(value).strip().lower()
    if name not in SPLIT_NAMES:
        raise _Bad(f"bad split: {value!r} is not one of {', '.join(SPLITS)}")
    return SPLIT_NAMES[name]


class _Bad(Exception):
    """The reason for which a row is rejected."""


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise _Bad(f"bad row: {what} is {value!r}, not text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise _Bad(f"not UTF-8: {what}, {printable(value)}") from exc
    return value


def _meta(value: Any) -> str:
    """What a row has as ``meta``, JSON text or an object, as it is stored."""
    try:
        meta = parse_json(value, keep_surrogates=True) if isinstance(value, str) and value else value or {}
    except JsonError as exc:
        raise _Bad(f"bad row: meta is {exc}") from exc
    if not isinstance(meta, dict):
        raise _Bad("bad row: meta is JSON, but not an object")
    try:
        return meta_text(_without_nan(meta))
    except UnicodeEncodeError as exc:
        raise _Bad(f"not UTF-8: meta, {printable(exc.object)[:80]}") from exc
    except (ValueError, RecursionError) as exc:
        raise _Bad(f"bad row: {exc}") from exc


def _without_nan(value: Any) -> Any:
    """NaN as null: tables of numbers have it where there is no value."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def _origins(value: Any, captions: Sequence[str]) -> list[dict[str, Any] | None] | None:
    """The origins of the captions that are not blank, as they are stored; None if all are of the data set."""
    try:
        found = caption_origins(value, "bad row")
    except ValueError as exc:
        raise _Bad(str(exc)) from exc
    if found and len(found) != len(captions):
        raise _Bad(f"bad row: {len(found)} {CAPTION_ORIGINS} of {len(captions)} captions")
    kept = [origin and asdict(origin) for origin, text in zip(found, captions, strict=False) if text]
    return kept if any(kept) else None


def _captions(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise _Bad(f"bad row: captions is {value!r}, not a list of texts")
    return list(value)


def printable(text: str) -> str:
    """Text with the bytes that were not UTF-8 spelled out as ``\\xff``."""
    raw = text.encode("utf-8", "surrogateescape") if _only_escapes(text) else text.encode("utf-8", "replace")
    return raw.decode("utf-8", "backslashreplace")


def _only_escapes(text: str) -> bool:
    return not any("\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" for c in text)


def rows_to_batch(rows: list[dict[str, Any]]) -> Batch:
    """Rows with some of :data:`COLUMNS` as a batch with all of them."""
    return {name: [row.get(name) for row in rows] for name in COLUMNS}
