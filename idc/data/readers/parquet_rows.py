"""Rows of Parquet files of others: the rows around a damaged page are still read.

Rows of a page that cannot be decoded are lost, and those after it in the same row group too, because a row group is
read from its beginning; rows before it and all other row groups are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from idc.data.parquet_files import open_parquet

Record = dict[str, Any] | str
"""A row, or its error."""

DAMAGE = (OSError, pa.ArrowException)
"""Errors of pyarrow for bytes that it cannot decode, or cannot fetch."""


def open_file(stream: pa.NativeFile, name: str) -> pq.ParquetFile:
    """A file whose pages are read on demand, and verified if they have checksums.

    Raises:
        ValueError: it is not a Parquet file, its footer is damaged, or a column holds objects of a program.
    """
    try:
        # Buffered, so that only the part of a long row group that is being read is in memory.
        return open_parquet(stream, name, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True)
    except DAMAGE as exc:
        raise ValueError(f"{name} is not a Parquet file, or is damaged ({exc}); copy it again") from exc


class GroupRows:
    """A row group, read from its beginning as far as needed.

    Args:
        size: number of rows decoded together.
    """

    def __init__(
        self, stream: pa.NativeFile, parquet: pq.ParquetFile, group: int, columns: Sequence[str] | None, size: int
    ) -> None:
        self.position = 0
        self._stream, self._parquet, self._group, self._columns = stream, parquet, group, columns
        self._size = size
        self._batches = self._begin()
        self._left: pa.RecordBatch | None = None
        self._damage: str | None = None

    def rows(self, start: int, stop: int) -> list[Record]:
        """Rows ``start`` to ``stop`` of the group; ``start`` is not before ``position``.

        Raises:
            OSError: the bytes cannot be fetched.
        """
        rows: list[Record] = []
        while self.position < stop:
            batch = self._left if self._left is not None else self._next()
            if batch is None:
                assert self._damage is not None
                rows += [self._damage] * (stop - max(start, self.position))
                self.position = stop
                break
            skipped = min(max(0, start - self.position), batch.num_rows)
            taken = min(batch.num_rows, stop - self.position) - skipped
            if taken > 0:
                rows += records(batch.slice(skipped, taken))
            used = skipped + max(0, taken)
            self.position += used
            self._left = batch.slice(used) if used < batch.num_rows else None
        return rows

    def _begin(self) -> Any:
        return self._parquet.iter_batches(
            self._size, row_groups=[self._group], columns=self._columns, use_threads=False
        )

    def _next(self) -> pa.RecordBatch | None:
        """The batch at ``position``; None at a damaged page, up to which the rows are read one by one."""
        if self._damage is not None:
            return None
        try:
            return next(self._batches)
        except (*DAMAGE, StopIteration) as exc:
            damage = f"unreadable row: the Parquet page of it is damaged, {exc or 'it ends early'}"
        self._fetch()
        if self._size > 1:
            self._size = 1
            self._batches = self._begin()
            try:
                for _ in range(self.position):
                    next(self._batches)
                return next(self._batches)
            except (*DAMAGE, StopIteration):
                pass
        self._damage = damage
        return None

    def _fetch(self) -> None:
        """Read the bytes of the group, to distinguish damage from a file system that fails."""
        group = self._parquet.metadata.row_group(self._group)
        for column in (group.column(i) for i in range(group.num_columns)):
            begin = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
            self._stream.seek(begin)
            self._stream.read(column.total_compressed_size)


def records(table: pa.Table | pa.RecordBatch) -> list[Record]:
    """The rows of a table; bytes in its texts that are not UTF-8 are kept as lone surrogates."""
    try:
        return table.to_pylist()
    except UnicodeDecodeError:
        fields = list(table.schema)
        columns = [
            [_text(value, field.type) for value in table.column(i).cast(_as_binary(field.type)).to_pylist()]
            for i, field in enumerate(fields)
        ]
        return [dict(zip(table.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _as_binary(kind: pa.DataType) -> pa.DataType:
    """The type with bytes in place of texts, also inside lists."""
    if pa.types.is_list(kind):
        return pa.list_(_as_binary(kind.value_type))
    return pa.binary() if pa.types.is_string(kind) else kind


def _text(value: Any, kind: pa.DataType) -> Any:
    """A value of such a column converted back to its original type."""
    if value is not None and pa.types.is_list(kind):
        return [_text(item, kind.value_type) for item in value]
    if value is not None and pa.types.is_string(kind):
        return value.decode("utf-8", "surrogateescape")
    return value
