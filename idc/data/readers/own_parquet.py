"""Parquet files of the user as one table, and the pairs in them; :mod:`idc.data.readers.own` describes the columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from idc.data import files
from idc.data.pipeline import Batch
from idc.data.readers.base import rows_to_batch, unread
from idc.data.readers.own import IMAGES, KNOWN, NUMBERED, ImageFolders, digest_of, id_error, must_have, record_row
from idc.data.readers.parquet_rows import GroupRows, Record, open_file
from idc.data.schema import CAPTION_ORIGINS
from idc.data.store import ManifestPart, explain_read_errors, fingerprint
from idc.data.stored_rows import check_part

_ROLES = (*IMAGES, "mask")
_FOOTER_READERS = 16
"""Footers of files read at the same time."""


class _Footer(NamedTuple):
    """What the end of a file says.

    Attributes:
        rows: number of rows of each group.
        paths: the columns with paths of images.
        raw: its bytes. They have the offset of every page and, in the statistics, ids; so they distinguish files.
    """

    rows: list[int]
    columns: list[str]
    paths: list[str]
    raw: bytes


class ParquetTable:
    """A Parquet file, or all in a folder and the folders in it, read in chunks of ``chunk_size`` rows.

    Memory is that of a chunk: a row group longer than a chunk is read in several steps, each from where the chunk
    before it ended.

    Args:
        columns: the columns to read besides ``pair_id`` and ``split``, if they are there; all by default.
        parts: the parts of a folder of this project, whose columns are ``schema``.

    Raises:
        ValueError: there is no Parquet file or no row, a file is damaged, or a required column is missing.
    """

    def __init__(
        self,
        source: files.Location,
        chunk_size: int,
        access: files.Access,
        *,
        columns: Sequence[str] | None = None,
        parts: Sequence[ManifestPart] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        folder, self.notes = source, list[str]()
        if parts is not None:
            self.names = [part.file for part in parts]
        elif source.is_file():
            folder, self.names = source.parent, [source.name]
        else:
            tree = source.scan(access.links)
            if tree.outside:
                raise ValueError(
                    f"{tree.outside[0]} is a link to a folder outside of {source}; follow_links=true follows it"
                )
            names = (source.relative(file.path) for file in tree.files)
            visible = [name for name in names if not any(part[:1] in "._" for part in name.split("/"))]
            self.names = [name for name in visible if name.endswith(".parquet")]
            self.notes = unread([name for name in visible if not name.endswith(".parquet")], "no Parquet file")
        if not self.names:
            raise ValueError(f"{source} has no Parquet files")
        self.reader = files.Reader(folder, access)
        self._chunk_size, self._columns = chunk_size, columns
        by_name = {part.file: part for part in parts or ()}
        with ThreadPoolExecutor(_FOOTER_READERS) as pool:
            footers = pool.map(lambda name: self._footer(name, by_name.get(name), schema), self.names)
            self.footers = list(footers)
        groups = [(number, group) for number, footer in enumerate(self.footers) for group in range(len(footer.rows))]
        self._groups = np.array(groups, np.int32).reshape(-1, 2)
        self._ends = np.cumsum([rows for footer in self.footers for rows in footer.rows], dtype=np.int64)
        self.num_rows = int(self._ends[-1]) if len(self._ends) else 0
        if not self.num_rows:
            raise ValueError(f"{source} has no rows")
        self._file: tuple[int, pa.NativeFile, pq.ParquetFile] | None = None
        self._open: tuple[int, GroupRows] | None = None

    def _footer(self, name: str, part: ManifestPart | None, schema: pa.Schema | None) -> _Footer:
        file = self.reader.folder / name
        with explain_read_errors(file), file.open() as stream:
            parquet = open_file(stream, str(file))
            if part is not None and schema is not None:
                check_part(parquet, file, part, schema)
            columns, metadata = parquet.schema_arrow.names, parquet.metadata
            must_have(columns, str(file))
            # The footer; its length and the magic number are the last 8 bytes of the file.
            stream.seek(stream.size() - metadata.serialized_size - 8)
            rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            return _Footer(rows, columns, _paths(parquet), stream.read())

    def chunk(self, chunk_id: int) -> Iterator[tuple[str, Record]]:
        """The rows of a chunk, each with the name of its file."""
        start = chunk_id * self._chunk_size
        stop = min(start + self._chunk_size, self.num_rows)
        for index in range(int(np.searchsorted(self._ends, start, side="right")), len(self._ends)):
            first = int(self._ends[index - 1]) if index else 0
            if first >= stop:
                return
            number, group = self._groups[index].tolist()
            if self._open is None or self._open[0] != index or self._open[1].position > start - first:
                self._open = index, self._group(number, group, self._columns)
            records = self._open[1].rows(max(0, start - first), min(int(self._ends[index]), stop) - first)
            yield from ((self.names[number], record) for record in records)

    def column_values(self, number: int, columns: Sequence[str]) -> Iterator[Record]:
        """Some columns of all rows of a file."""
        footer = self.footers[number]
        groups = (self._group(number, group, columns).rows(0, rows) for group, rows in enumerate(footer.rows))
        return chain.from_iterable(groups) if columns else iter([{}] * sum(footer.rows))

    def _group(self, number: int, group: int, columns: Sequence[str] | None) -> GroupRows:
        if self._file is None or self._file[0] != number:  # the last file is kept open: its footer may be long
            if self._file is not None:
                self._file[2].close(force=True)  # without it pyarrow leaves open a stream that it was given
            file = self.reader.folder / self.names[number]
            stream = file.open()
            self._file = number, stream, open_file(stream, str(file))
        _, stream, parquet = self._file
        if columns is not None:
            wanted = {"pair_id", "split", *(column for column in columns if "." not in column)}
            nested = [column for column in columns if "." in column]
            columns = [*(name for name in parquet.schema_arrow.names if name in wanted), *nested]
        return GroupRows(stream, parquet, group, columns, size=min(64, self._chunk_size))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "footers": [], "_file": None, "_open": None}


class ParquetReader:
    """Pairs in a Parquet file, or a folder of them; images as bytes, as paths, or as ``{"bytes", "path"}``.

    Attributes:
        all_split: whether every row has a split.

    Raises:
        ValueError: as :class:`ParquetTable`.
    """

    def __init__(self, source: files.Location, *, chunk_size: int = 64, access: files.Access = files.LOCAL) -> None:
        self._table = table = ParquetTable(source, chunk_size, access)
        self._chunk_size, self.reader = chunk_size, table.reader
        self._duplicates: set[int] = set()
        self.all_split = self._numbered = True
        seen: set[bytes] = set()
        folders, hashed, row = ImageFolders(self.reader), hashlib.sha256(), 0
        for number, (name, footer) in enumerate(zip(table.names, table.footers, strict=True)):
            hashed.update(f"/{name} ".encode("utf-8", "surrogateescape") + footer.raw)
            scanned = [column for column in ("pair_id", "split") if column in footer.columns] + footer.paths
            for record in table.column_values(number, scanned):
                value = record.get("pair_id") if isinstance(record, dict) else None
                self._numbered &= value in (None, "")
                if isinstance(record, dict):
                    folders.add({role: unwrapped(record.get(role)) for role in _ROLES})
                self.all_split &= isinstance(record, str) or record.get("split") not in (None, "")
                key = digest_of(str(value))
                if value not in (None, "") and key in seen:
                    self._duplicates.add(row)
                seen.add(key)
                hashed.update(key)
                row += 1
        self.fingerprint = fingerprint("parquet rows", chunk_size, hashed.hexdigest())
        every = {column for footer in table.footers for column in footer.columns}
        notes = [f"columns kept in meta: {', '.join(sorted(every - KNOWN))}"] if every - KNOWN else []
        notes += [NUMBERED] if self._numbered else []
        self.extra: dict[str, Any] = {"notes": [*folders.note(), *notes, *table.notes]}
        if CAPTION_ORIGINS in every:
            self.extra[CAPTION_ORIGINS] = True

    @property
    def num_chunks(self) -> int:
        return -(-self._table.num_rows // self._chunk_size)

    def read(self, chunk_id: int) -> Batch:
        rows = []
        for number, (name, record) in enumerate(self._table.chunk(chunk_id), start=chunk_id * self._chunk_size):
            where = f"{name}:{number}"
            if isinstance(record, str):
                rows.append({"pair_id": where, "error": record})
                continue
            record = {k: unwrapped(v) if k in _ROLES else v for k, v in record.items()}
            if self._numbered:
                record["pair_id"] = number
            if error := id_error(record.get("pair_id"), f"row {number}"):
                rows.append({"pair_id": where, "error": error})
                continue
            row = record_row([record], where)
            row["pair_id"] = str(row["pair_id"])
            if number in self._duplicates:
                row["error"] = f"duplicate pair id: row {number} repeats an id"
            rows.append(row)
        return rows_to_batch(rows)


def _paths(parquet: pq.ParquetFile) -> list[str]:
    """The columns with paths of images: texts, and ``path`` of ``{"bytes", "path"}`` where rows lack the bytes."""
    schema = parquet.schema_arrow
    kinds = {role: schema.field(role).type for role in _ROLES if role in schema.names}
    kinds = {role: kind.value_type if pa.types.is_dictionary(kind) else kind for role, kind in kinds.items()}
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    texts = [role for role, kind in kinds.items() if any(test(kind) for test in is_text)]
    structs = [role for role, kind in kinds.items() if pa.types.is_struct(kind) and "path" in kind.names]
    return texts + [f"{role}.path" for role in structs if not _all_filled(parquet, f"{role}.bytes")]


def _all_filled(parquet: pq.ParquetFile, column: str) -> bool:
    """Whether a column has a value in every row, by the statistics in the footer."""
    groups = [parquet.metadata.row_group(i) for i in range(parquet.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    statistics = [chunk.statistics for chunk in chunks if chunk.path_in_schema == column]
    return bool(statistics) and all(s is not None and s.has_null_count and s.null_count == 0 for s in statistics)


def unwrapped(value: Any) -> Any:
    """The bytes or the path of ``{"bytes": ..., "path": ...}``, which the ``datasets`` library stores for an image."""
    if isinstance(value, dict):
        return data if (data := value.get("bytes")) is not None else value.get("path")
    return value
