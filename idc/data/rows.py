"""Rows of an input unchanged, for jobs that answer each of them: nothing merged or left out, ids may repeat.

:func:`open_rows` reads what :mod:`idc.data.readers.own` describes (images, CSV, JSON lines, Parquet) and a folder of
pairs of this project. Only the columns ``before`` and ``after`` are required. A row that an import would reject is here
a row with its ``error``; repeated ids are kept, and a row without an id is named by its number.

The rows are never in memory together: a Parquet input costs a few bytes per row group, a table two numbers per row, a
folder of images its file names.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from idc.data import files
from idc.data.config import AccessConfig
from idc.data.pipeline import Batch, num_rows
from idc.data.readers.base import SPLIT_NAMES, access, printable, unread
from idc.data.readers.layouts import find_layout
from idc.data.readers.own import IMAGES, must_have
from idc.data.readers.own_folder import FolderReader
from idc.data.readers.own_parquet import unwrapped
from idc.data.readers.own_table import TableReader
from idc.data.readers.parquet_rows import GroupRows, Record, open_file, rows_of_group
from idc.data.store import MANIFEST, AnyPath, ManifestPart, complete_manifest, fingerprint, read_schema, undamaged
from idc.data.stored_rows import check_part

RowFormat = Literal["auto", "pairs", "parquet", "csv", "jsonl", "folder"]

_FOOTER_READERS = 16
"""Footers of Parquet files read at the same time."""


class _Rows(Protocol):
    """A reader whose chunks, except the last, all have ``chunk_size`` rows."""

    fingerprint: str
    reader: files.Reader
    extra: dict[str, Any]

    @property
    def num_rows(self) -> int: ...

    def read(self, chunk_id: int) -> Batch: ...


def open_rows(
    path: AnyPath,
    format: RowFormat = "auto",
    *,
    chunk_size: int = 256,
    limit: int | None = None,
    split: str | None = None,
    columns: Sequence[str] = IMAGES,
    access_config: AccessConfig | None = None,
) -> InputRows:
    """The rows of an input.

    Args:
        format: ``auto`` recognises it by the files.
        columns: of :data:`idc.data.readers.base.COLUMNS`, what is read of a row with its id and split; a column that
            the input does not have is None.
        limit: only the first ``limit`` rows.
        split: of those only the rows of this split (and unreadable rows); all by default.
        access_config: what the names in the input may reach; by default the defaults of :class:`AccessConfig`.

    Raises:
        ValueError: there is nothing to read, or columns are missing.
    """
    source = files.locate(path)
    if format == "auto":
        format = _recognise(source)
    options: dict[str, Any] = {"chunk_size": chunk_size, "access": access(format, access_config or AccessConfig())}
    rows: _Rows
    if format == "pairs" or format == "parquet":
        rows = ParquetRows(source, **options, columns=columns, pairs=format == "pairs")
    elif format == "folder":
        rows = FolderReader(source, **options)
    else:
        assert format != "auto"
        rows = TableReader(source, format, **options, each_row=True)
    return InputRows(rows, chunk_size, limit, split, columns)


def _recognise(source: files.Location) -> RowFormat:
    if (source / MANIFEST).exists():
        return "pairs"
    format = find_layout(source).format
    if format not in ("parquet", "csv", "jsonl", "folder"):
        raise ValueError(f"{source} has the layout {format}: import it first (jobs/import_dataset.py format={format})")
    return format  # type: ignore[return-value]


class InputRows:
    """Source: rows with ``row`` (position in the input, from 0), ``pair_id``, the columns asked for, ``error``.

    ``before`` and ``after`` are bytes, a file name for ``reader``, or None. ``notes`` name the files that are not read.
    """

    def __init__(
        self, rows: _Rows, chunk_size: int, limit: int | None, split: str | None, columns: Sequence[str] = IMAGES
    ) -> None:
        self._rows, self._columns = rows, columns
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
            **{name: [batch[name][i] for i in kept] for name in self._columns},
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
    """Number of rows up to the end of each."""


class ParquetRows:
    """A Parquet file, a folder of them (and of folders of them), or, with ``pairs``, the parts of a folder of pairs.

    Images are bytes, paths, or ``{"bytes", "path"}``. Memory is that of a chunk: a row group longer than a chunk is
    read in several steps, each from where the chunk before it ended.

    Raises:
        ValueError: there is no Parquet file or no row, a file is damaged, a required column is missing, or the folder
            has no images.
    """

    def __init__(
        self,
        source: files.Location,
        *,
        chunk_size: int = 256,
        access: files.Access = files.LOCAL,
        columns: Sequence[str] = IMAGES,
        pairs: bool = False,
    ) -> None:
        self.extra: dict[str, Any] = {"notes": []}
        self._columns = columns
        self._parts: dict[str, ManifestPart] = {}
        folder = source
        if pairs:
            manifest = complete_manifest(source, "pairs")
            manifest.need_images(source)
            self._parts = {part.file: part for part in manifest.parts}
            self._schema = read_schema(source)
            self._names = list(self._parts)
        elif source.is_file():
            folder, self._names = source.parent, [source.name]
        else:
            tree = source.scan(access.links)
            if tree.outside:
                raise ValueError(
                    f"{tree.outside[0]} is a link to a folder outside of {source}; follow_links=true follows it"
                )
            names = (source.relative(file.path) for file in tree.files)
            visible = [name for name in names if not any(part[:1] in "._" for part in name.split("/"))]
            self._names = [name for name in visible if name.endswith(".parquet")]
            others = [name for name in visible if not name.endswith(".parquet")]
            self.extra = {"notes": unread(others, "no Parquet file")}
        if not self._names:
            raise ValueError(f"{source} has no Parquet files")
        self.reader = files.Reader(folder, access)
        self._chunk_size = chunk_size
        hashed = hashlib.sha256()
        number: list[int] = []
        group: list[int] = []
        rows: list[int] = []
        with ThreadPoolExecutor(_FOOTER_READERS) as pool:
            for index, (name, footer) in enumerate(zip(self._names, pool.map(self._footer, self._names), strict=True)):
                hashed.update(f"/{name} ".encode("utf-8", "surrogateescape") + footer.raw)
                number += [index] * len(footer.rows)
                group += range(len(footer.rows))
                rows += footer.rows
        self.num_rows = sum(rows)
        if not self.num_rows:
            raise ValueError(f"{source} has no rows")
        self._groups = _Groups(np.array(number, np.int32), np.array(group, np.int32), np.cumsum(rows, dtype=np.int64))
        self._file: tuple[int, pa.NativeFile, pq.ParquetFile] | None = None
        self._open: tuple[int, GroupRows] | None = None
        self.fingerprint = fingerprint("parquet rows", chunk_size, hashed.hexdigest())

    def _footer(self, name: str) -> _Footer:
        file = self.reader.folder / name
        with undamaged(file), file.open() as stream:
            parquet = open_file(stream, str(file))
            if part := self._parts.get(name):
                check_part(parquet, file, part, self._schema)
            must_have(parquet.schema_arrow.names, str(file))
            metadata = parquet.metadata
            # The footer; its length and the magic number are the last 8 bytes of the file.
            stream.seek(stream.size() - metadata.serialized_size - 8)
            return _Footer([rows_of_group(parquet, i) for i in range(metadata.num_row_groups)], stream.read())

    def read(self, chunk_id: int) -> Batch:
        start = chunk_id * self._chunk_size
        stop = min(start + self._chunk_size, self.num_rows)
        return _batch(itertools.chain.from_iterable(self._records(start, stop)), self._columns)

    def _records(self, start: int, stop: int) -> Iterator[list[Record]]:
        """Rows ``start`` to ``stop`` of the input, group by group."""
        ends = self._groups.ends
        for index in range(int(np.searchsorted(ends, start, side="right")), len(ends)):
            first = int(ends[index - 1]) if index else 0
            if first >= stop:
                return
            if self._open is None or self._open[0] != index or self._open[1].position > start - first:
                self._open = index, self._group(index)
            yield self._open[1].rows(max(0, start - first), min(int(ends[index]), stop) - first)

    def _group(self, index: int) -> GroupRows:
        stream, parquet = self._opened(int(self._groups.file[index]))
        columns = [name for name in ("pair_id", *self._columns, "split") if name in parquet.schema_arrow.names]
        return GroupRows(stream, parquet, int(self._groups.group[index]), columns, size=min(64, self._chunk_size))

    def _opened(self, number: int) -> tuple[pa.NativeFile, pq.ParquetFile]:
        """A file; the last one is kept open, because its footer may be long."""
        if self._file is None or self._file[0] != number:
            if self._file is not None:
                self._file[2].close(force=True)  # without it pyarrow leaves open a stream that it was given
            file = self.reader.folder / self._names[number]
            stream = file.open()
            self._file = number, stream, open_file(stream, str(file))
        return self._file[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_open": None}


class _Footer(NamedTuple):
    rows: list[int]
    """Number of rows of each group."""
    raw: bytes
    """It has the offset of every page and, in its statistics, ids; so it distinguishes files."""


def _batch(records: Iterable[Record], columns: Sequence[str]) -> Batch:
    """Records as columns; unreadable ones have their error."""
    batch: Batch = {name: [] for name in ("pair_id", *columns, "split", "error")}
    for record in records:
        row: dict[str, Any] = {"error": record} if isinstance(record, str) else record
        name = row.get("pair_id")
        batch["pair_id"].append(None if name in (None, "") else str(name))
        for column in columns:
            batch[column].append(unwrapped(row.get(column)) if column in IMAGES else row.get(column))
        batch["split"].append(row.get("split"))
        batch["error"].append(row.get("error"))
    return batch
