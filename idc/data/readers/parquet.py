"""The user's own pairs in Parquet files; :mod:`idc.data.readers.table` describes the columns.

A damaged page costs its rows and those after it in its row group, which is read from its beginning; the rows decoded
together with the first of them are lost too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from idc.data import files
from idc.data.pipeline import Batch
from idc.data.readers.base import rows_to_batch, unread
from idc.data.readers.table import IMAGES, KNOWN, NUMBERED, check_columns, digest_of, id_error, record_row
from idc.data.schema import CAPTION_ORIGINS, INSTRUCTION
from idc.data.store import ManifestPart, explain_read_errors, fingerprint
from idc.data.stored_rows import check_part, open_parquet

Record = dict[str, Any] | str
"""A row, or its error."""

_DAMAGE = (OSError, pa.ArrowException)
"""Errors of pyarrow for bytes that it cannot decode, or cannot fetch."""
_FOOTER_READERS = 16
"""Footers of files read at the same time."""
_DECODED = 64
"""Most rows decoded together."""


class _Footer(NamedTuple):
    """Rows of each group, columns, and the bytes of a file's end, which distinguish it: offsets of pages, ids."""

    rows: list[int]
    columns: list[str]
    raw: bytes


class ParquetReader:
    """Pairs in a Parquet file, or in all of a folder and the folders in it; images as bytes, as paths, or as
    ``{"bytes", "path"}``. Memory is that of a chunk, however long the row groups are.

    Args:
        each_row: every row is a pair of its own; ids may repeat or be missing (None).
        columns: the columns to read besides ``pair_id`` and ``split``, if they are there; all by default.
        parts: the parts of a folder of this project, whose columns are ``schema``.

    Attributes:
        all_split: whether every row has a split; unknown (False) with ``each_row``.

    Raises:
        ValueError: there is no Parquet file or no row, a file is damaged, or a required column is missing.
    """

    names: ClassVar[Mapping[str, str]] = {}
    """Column of the files -> its name here, for those of a data set with others."""

    def __init__(
        self,
        source: files.Location,
        *,
        chunk_size: int = 64,
        access: files.Access = files.LOCAL,
        each_row: bool = False,
        columns: Sequence[str] | None = None,
        parts: Sequence[ManifestPart] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        self._chunk_size, self._columns, self._each_row = chunk_size, columns, each_row
        folder, self._names, notes = _files_of(source, access, parts)
        self.reader = files.Reader(folder, access)
        by_name = {part.file: part for part in parts or ()}
        with ThreadPoolExecutor(_FOOTER_READERS) as pool:
            footers = list(pool.map(lambda name: self._footer(name, by_name.get(name), schema), self._names))
        groups = [(number, group) for number, footer in enumerate(footers) for group in range(len(footer.rows))]
        self._groups = np.array(groups, np.int32).reshape(-1, 2)
        self._ends = np.cumsum([rows for footer in footers for rows in footer.rows], dtype=np.int64)
        self.num_rows = int(self._ends[-1]) if len(self._ends) else 0
        if not self.num_rows:
            raise ValueError(f"{source} has no rows")
        self._file: tuple[int, pa.NativeFile, pq.ParquetFile] | None = None
        self._open: tuple[int, int, Iterator[Record]] | None = None
        """The row group that is being read, the rows of it that were read, and the others."""
        self._duplicates: set[int] = set()
        self._numbered = self.all_split = not each_row
        hashed = self._scan(footers)
        self.fingerprint = fingerprint("parquet rows", chunk_size, hashed)
        every = {column for footer in footers for column in footer.columns}
        if every - KNOWN and not each_row:
            notes.insert(0, f"columns kept in meta: {', '.join(sorted(every - KNOWN))}")
        self.extra: dict[str, Any] = {"notes": [*notes, *([NUMBERED] if self._numbered else [])]}
        if CAPTION_ORIGINS in every:
            self.extra[CAPTION_ORIGINS] = True

    def _footer(self, name: str, part: ManifestPart | None, schema: pa.Schema | None) -> _Footer:
        file = self.reader.folder / name
        with explain_read_errors(file), file.open() as stream:
            parquet = _open_file(stream, str(file))
            if part is not None and schema is not None:
                check_part(parquet, file, part, schema)
            columns, metadata = [self.names.get(name, name) for name in parquet.schema_arrow.names], parquet.metadata
            check_columns(columns, str(file))
            # The footer; its length and the magic number are the last 8 bytes of the file.
            stream.seek(stream.size() - metadata.serialized_size - 8)
            rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            return _Footer(rows, columns, stream.read())

    def _scan(self, footers: Sequence[_Footer]) -> str:
        """Find repeated ids and rows without a split, unless each row is a pair; returns the hash of the input."""
        seen: set[bytes] = set()
        hashed, row = hashlib.sha256(), 0
        for number, (name, footer) in enumerate(zip(self._names, footers, strict=True)):
            hashed.update(f"/{name} ".encode("utf-8", "surrogateescape") + footer.raw)
            scanned = {"pair_id", "split"}.intersection(footer.columns)
            for group, rows in enumerate(() if self._each_row else footer.rows):
                for record in islice(self._group(number, group, ()), rows) if scanned else [{}] * rows:
                    value = None if isinstance(record, str) else record.get("pair_id")
                    self.all_split &= isinstance(record, str) or record.get("split") not in (None, "")
                    self._numbered &= value in (None, "")
                    key = digest_of(str(value))
                    if value not in (None, "") and key in seen:
                        self._duplicates.add(row)
                    seen.add(key)
                    hashed.update(key)
                    row += 1
        return hashed.hexdigest()

    @property
    def num_chunks(self) -> int:
        return -(-self.num_rows // self._chunk_size)

    def read(self, chunk_id: int) -> Batch:
        rows = []
        for number, (name, record) in enumerate(self._chunk(chunk_id), start=chunk_id * self._chunk_size):
            where = f"{name}:{number}"
            if isinstance(record, str):
                rows.append({"pair_id": None if self._each_row else where, "error": record})
                continue
            record = {k: _unwrapped(v) if k in (*IMAGES, "mask") else v for k, v in record.items()}
            if self._numbered:
                record["pair_id"] = number
            if not self._each_row and (error := id_error(record.get("pair_id"), f"row {number}")):
                rows.append({"pair_id": where, "error": error})
                continue
            row = record_row([record], where)
            row["pair_id"] = str(row["pair_id"]) if row["pair_id"] is not None else None
            if number in self._duplicates:
                row["error"] = f"duplicate pair id: row {number} repeats an id"
            rows.append(row)
        return rows_to_batch(rows)

    def _chunk(self, chunk_id: int) -> Iterator[tuple[str, Record]]:
        start = chunk_id * self._chunk_size
        stop = min(start + self._chunk_size, self.num_rows)
        for index in range(int(np.searchsorted(self._ends, start, side="right")), len(self._ends)):
            first = int(self._ends[index - 1]) if index else 0
            if first >= stop:
                return
            number, group = self._groups[index].tolist()
            begin, end = max(0, start - first), min(int(self._ends[index]), stop) - first
            if self._open is None or self._open[0] != index or self._open[1] > begin:
                self._open = index, 0, self._group(number, group, self._columns)
            _, position, records = self._open
            self._open = None  # until these are read: an error ends the iterator
            yield from ((self._names[number], record) for record in islice(records, begin - position, end - position))
            self._open = index, end, records

    def _group(self, number: int, group: int, columns: Sequence[str] | None) -> Iterator[Record]:
        if self._file is None or self._file[0] != number:  # the last file is kept open: its footer may be long
            if self._file is not None:
                self._file[2].close(force=True)  # without it pyarrow leaves open a stream that it was given
            file = self.reader.folder / self._names[number]
            stream = file.open()
            self._file = number, stream, _open_file(stream, str(file))
        _, stream, parquet = self._file
        if columns is not None:
            wanted = {"pair_id", "split", *columns, *([INSTRUCTION] if "meta" in columns else [])}
            columns = [name for name in parquet.schema_arrow.names if self.names.get(name, name) in wanted]
        records = _group_records(stream, parquet, group, columns, min(_DECODED, self._chunk_size))
        if not self.names:
            return records
        return (
            record
            if isinstance(record, str)
            else self._record({self.names.get(name, name): value for name, value in record.items()})
            for record in records
        )

    def _record(self, record: dict[str, Any]) -> dict[str, Any]:
        """A row under its names here, completed by the rules of the data set."""
        return record

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_open": None}


def _group_records(
    stream: pa.NativeFile, parquet: pq.ParquetFile, group: int, columns: Sequence[str] | None, size: int
) -> Iterator[Record]:
    """The records of a row group, ``size`` rows decoded at a time; from a damaged page on, its error without end.

    Raises:
        OSError: the bytes cannot be fetched.
    """
    damage: object = "it ends early"
    try:
        for batch in parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False):
            yield from _records(batch)
    except _DAMAGE as exc:
        damage = exc
    metadata = parquet.metadata.row_group(group)
    for column in map(metadata.column, range(metadata.num_columns)):  # raises if they cannot be read
        stream.seek(column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset)
        stream.read(column.total_compressed_size)
    while True:
        yield f"unreadable row: the Parquet page of it is damaged, {damage}"


def _files_of(
    source: files.Location, access: files.Access, parts: Sequence[ManifestPart] | None
) -> tuple[files.Location, list[str], list[str]]:
    if parts is not None:
        return source, [part.file for part in parts], []
    if source.is_file():
        return source.parent, [source.name], []
    tree = source.scan(access.links)
    if tree.outside:
        raise ValueError(f"{tree.outside[0]} is a link to a folder outside of {source}; follow_links=true follows it")
    names = (source.relative(file.path) for file in tree.files)
    visible = [name for name in names if not any(part[:1] in "._" for part in name.split("/"))]
    tables = [name for name in visible if name.endswith(".parquet")]
    if not tables:
        raise ValueError(f"{source} has no Parquet files")
    return source, tables, unread([name for name in visible if not name.endswith(".parquet")], "no Parquet file")


def _open_file(stream: pa.NativeFile, name: str) -> pq.ParquetFile:
    """A file whose pages are read on demand, and verified if they have checksums."""
    try:
        # Buffered, so that only the part of a long row group that is being read is in memory.
        return open_parquet(stream, name, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True)
    except _DAMAGE as exc:
        raise ValueError(f"{name} is not a Parquet file, or is damaged ({exc}); copy it again") from exc


def _records(batch: pa.RecordBatch) -> list[Record]:
    """The rows of a batch; of one with a text that is not UTF-8, the error."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError as exc:
        if batch.num_rows == 1:
            return [f"not UTF-8: {exc.object[:80]!r}"]
        return [record for row in range(batch.num_rows) for record in _records(batch.slice(row, 1))]


def _unwrapped(value: Any) -> Any:
    """The bytes or the path of ``{"bytes": ..., "path": ...}``, which the ``datasets`` library stores for an image."""
    if isinstance(value, dict):
        return data if (data := value.get("bytes")) is not None else value.get("path")
    return value
