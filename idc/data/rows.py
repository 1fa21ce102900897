"""Rows as they are given, for jobs that answer each of them: nothing merged, nothing left out, ids as they come.

:func:`open_rows` reads what :mod:`idc.data.readers.own` reads (images, CSV, JSON lines, Parquet) and a folder of
pairs of this project. Only the columns ``before`` and ``after`` are needed. Where an importer rejects a row, here it
is a row with its ``error``; a repeated id stays where it is, and a row without one is called by its number.

The rows are never in memory together: a Parquet input costs a few bytes a row group, a table two numbers a row, a
folder of images its file names.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from idc.data import files
from idc.data.config import AccessConfig
from idc.data.pipeline import Batch, num_rows
from idc.data.readers import parquet_rows
from idc.data.readers.base import SPLIT_NAMES, access, printable, unread
from idc.data.readers.layouts import find_layout
from idc.data.readers.own import IMAGES, FolderReader, TableReader, must_have, unwrapped
from idc.data.readers.parquet_rows import Record
from idc.data.store import MANIFEST, _complete_manifest, fingerprint

RowFormat = Literal["auto", "pairs", "parquet", "csv", "jsonl", "folder"]

_FOOTER_READERS = 16
"""Footers of Parquet files that are read at the same time."""


class _Rows(Protocol):
    """A reader whose chunks all have ``chunk_size`` rows, but for the last one."""

    fingerprint: str
    reader: files.Reader
    extra: dict[str, Any]

    @property
    def num_rows(self) -> int: ...

    def read(self, chunk_id: int) -> Batch: ...


def open_rows(
    path: str,
    format: RowFormat = "auto",
    *,
    chunk_size: int = 256,
    limit: int | None = None,
    split: str | None = None,
    filesystem: fs.FileSystem | None = None,
    access_config: AccessConfig | None = None,
) -> InputRows:
    """The rows of an input.

    Args:
        format: ``auto`` tells it by the files that are there.
        limit: only the first so many rows.
        split: of those only the rows of this split (and rows that cannot be read); all by default.
        filesystem: ``path`` is a path inside this one instead of a local path or URI.
        access_config: what the names in the input may reach; by default as :class:`AccessConfig` has it.

    Raises:
        ValueError: there is nothing to read, or columns are missing.
    """
    if format == "auto":
        format = _guess(path, filesystem)
    own: dict[str, Any] = {
        "chunk_size": chunk_size, "filesystem": filesystem, "access": access(format, access_config or AccessConfig())
    }  # fmt: skip
    rows: _Rows
    if format == "pairs" or format == "parquet":
        rows = ParquetRows(path, **own, pairs=format == "pairs")
    elif format == "folder":
        rows = FolderReader(path, **own)
    else:
        assert format != "auto"
        rows = TableReader(path, format, **own, each_row=True)
    return InputRows(rows, chunk_size, limit, split)


def _guess(path: str, filesystem: fs.FileSystem | None) -> RowFormat:
    resolved, inner = files.resolve(path, filesystem)
    if files.exists(resolved, f"{inner.rstrip('/')}/{MANIFEST}"):
        return "pairs"
    found = find_layout(path, filesystem).format
    if found not in ("parquet", "csv", "jsonl", "folder"):
        raise ValueError(f"{path} has the layout {found}: import it first (jobs/import_dataset.py format={found})")
    return found  # type: ignore[return-value]


class InputRows:
    """Source: rows with ``row`` (their place in the input, from 0), ``pair_id``, ``before``, ``after``, ``error``.

    ``before`` and ``after`` hold bytes, the name of a file for ``reader``, or nothing. ``notes`` name what is not read.
    """

    def __init__(self, rows: _Rows, chunk_size: int, limit: int | None, split: str | None) -> None:
        self._rows = rows
        self._chunk_size = chunk_size
        self._split = split
        self.num_rows = rows.num_rows if limit is None else min(limit, rows.num_rows)
        self.reader = rows.reader
        self.notes: list[str] = rows.extra["notes"]
        self.fingerprint = fingerprint("rows", rows.fingerprint, chunk_size, self.num_rows, split)

    @property
    def num_chunks(self) -> int:
        return -(-self.num_rows // self._chunk_size)

    def read(self, chunk_id: int) -> Batch:
        batch = self._rows.read(chunk_id)
        first = chunk_id * self._chunk_size
        kept = [i for i in range(min(num_rows(batch), self.num_rows - first)) if self._wanted(batch, i)]
        ids = [batch["pair_id"][i] for i in kept]
        return {
            "row": [first + i for i in kept],
            "pair_id": [str(first + i) if name is None else printable(name) for i, name in zip(kept, ids, strict=True)],
            "before": [batch["before"][i] for i in kept],
            "after": [batch["after"][i] for i in kept],
            "error": [None if (error := batch["error"][i]) is None else printable(error) for i in kept],
        }

    def _wanted(self, batch: Batch, i: int) -> bool:
        if self._split is None or batch["error"][i] is not None:
            return True
        return SPLIT_NAMES.get(str(batch["split"][i]).strip().lower()) == self._split


class _Groups(NamedTuple):
    """The row groups of all files, in order."""

    file: np.ndarray
    group: np.ndarray
    ends: np.ndarray
    """Rows up to the end of each."""


class ParquetRows:
    """A Parquet file, a folder of them (and of folders of them), or, with ``pairs``, the parts of a folder of pairs.

    Images are bytes, paths, or ``{"bytes", "path"}``. Memory is that of a chunk: a row group that is longer than a
    chunk is read on from where the chunk before it ended.

    Raises:
        ValueError: there is no Parquet file or no row, a file is damaged, a needed column is missing, or the folder
            has no images.
    """

    def __init__(
        self,
        path: str,
        *,
        chunk_size: int = 256,
        filesystem: fs.FileSystem | None = None,
        access: files.Access = files.LOCAL,
        pairs: bool = False,
    ) -> None:
        filesystem, inner = files.resolve(path, filesystem)
        inner = inner.rstrip("/")
        self.extra: dict[str, Any] = {"notes": []}
        if pairs:
            manifest = _complete_manifest(path, filesystem)
            if manifest.kind != "pairs":
                raise ValueError(f"{path} holds {manifest.kind}, not pairs")
            manifest.need_images(path)
            self._names = [f"{inner}/{part.file}" for part in manifest.parts]
        elif filesystem.get_file_info(inner).type == fs.FileType.File:
            self._names = [inner]
        else:
            tree = files.scan(filesystem, inner, access.links)
            if tree.outside:
                raise ValueError(
                    f"{tree.outside[0]} is a link to a folder outside of {path}; follow_links=true follows it"
                )
            found = (f.path for f in tree.files)
            own = (name for name in found if not any(p[:1] in "._" for p in name[len(inner) + 1 :].split("/")))
            self._names = []
            others: list[str] = []
            for name in own:
                (self._names if name.endswith(".parquet") else others).append(name)
            self.extra = {"notes": unread([name[len(inner) + 1 :] for name in others], "no Parquet file")}
        if not self._names:
            raise ValueError(f"{path} has no Parquet files")
        folder = inner.rpartition("/")[0] if self._names == [inner] else inner
        self.reader = files.Reader(filesystem, folder, access)
        self._chunk_size = chunk_size
        hashed = hashlib.sha256()
        number: list[int] = []
        group: list[int] = []
        rows: list[int] = []
        with ThreadPoolExecutor(_FOOTER_READERS) as pool:
            for place, (name, footer) in enumerate(zip(self._names, pool.map(self._footer, self._names), strict=True)):
                hashed.update(f"{name.removeprefix(folder)} ".encode("utf-8", "surrogateescape") + footer.raw)
                number += [place] * len(footer.rows)
                group += range(len(footer.rows))
                rows += footer.rows
        self.num_rows = sum(rows)
        if not self.num_rows:
            raise ValueError(f"{path} has no rows")
        self._groups = _Groups(np.array(number, np.int32), np.array(group, np.int32), np.cumsum(rows, dtype=np.int64))
        self._file: tuple[int, pa.NativeFile, pq.ParquetFile] | None = None
        self._open: tuple[int, parquet_rows.GroupRows] | None = None
        self.fingerprint = fingerprint("parquet rows", chunk_size, hashed.hexdigest())

    def _footer(self, name: str) -> _Footer:
        with self.reader.filesystem.open_input_file(name) as stream:
            parquet = parquet_rows.open_file(stream, name)
            must_have(parquet.schema_arrow.names, name, IMAGES)
            metadata = parquet.metadata
            stream.seek(stream.size() - metadata.serialized_size - 8)
            return _Footer(
                [parquet_rows.num_rows(parquet, i) for i in range(metadata.num_row_groups)], stream.read()
            )  # fmt: skip

    def read(self, chunk_id: int) -> Batch:
        start = chunk_id * self._chunk_size
        stop = min(start + self._chunk_size, self.num_rows)
        return _batch(itertools.chain.from_iterable(self._records(start, stop)))

    def _records(self, start: int, stop: int) -> Iterator[list[Record]]:
        """Rows ``start`` to ``stop`` of all, group by group."""
        ends = self._groups.ends
        for place in range(int(np.searchsorted(ends, start, side="right")), len(ends)):
            first = int(ends[place - 1]) if place else 0
            if first >= stop:
                return
            if self._open is None or self._open[0] != place or self._open[1].position > start - first:
                self._open = place, self._group(place)
            yield self._open[1].rows(max(0, start - first), min(int(ends[place]), stop) - first)

    def _group(self, place: int) -> parquet_rows.GroupRows:
        stream, parquet = self._opened(int(self._groups.file[place]))
        columns = [name for name in ("pair_id", *IMAGES, "split") if name in parquet.schema_arrow.names]
        return parquet_rows.GroupRows(
            stream, parquet, int(self._groups.group[place]), columns, size=min(64, self._chunk_size)
        )

    def _opened(self, number: int) -> tuple[pa.NativeFile, pq.ParquetFile]:
        """A file; the last one stays open, because its footer may be long."""
        if self._file is None or self._file[0] != number:
            if self._file is not None:
                self._file[2].close(force=True)
            stream = self.reader.filesystem.open_input_file(self._names[number])
            self._file = number, stream, parquet_rows.open_file(stream, self._names[number])
        return self._file[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_open": None}


class _Footer(NamedTuple):
    rows: list[int]
    """Of each group."""
    raw: bytes
    """It says where every page lies and, in its statistics, what ids there are; so it tells one file from another."""


def _batch(records: Iterable[Record]) -> Batch:
    """Records as columns; those that cannot be read have their error."""
    batch: Batch = {"pair_id": [], "before": [], "after": [], "split": [], "error": []}
    for record in records:
        row: dict[str, Any] = {"error": record} if isinstance(record, str) else record
        name = row.get("pair_id")
        batch["pair_id"].append(None if name in (None, "") else str(name))
        batch["before"].append(unwrapped(row.get("before")))
        batch["after"].append(unwrapped(row.get("after")))
        batch["split"].append(row.get("split"))
        batch["error"].append(row.get("error"))
    return batch
