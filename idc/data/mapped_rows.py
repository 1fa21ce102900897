"""Random access to the rows of a data set folder: one memory-mapped Arrow file, written once."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from idc.data import files
from idc.data.manifest import IMAGE_COLUMNS, AnyPath, complete_manifest, fingerprint
from idc.data.object_store import explain_write_errors
from idc.data.stored_rows import iter_tables, read_schema, refuse_objects
from idc.util.cache import cache_root, make_once

ROWS_FOLDER = "_rows"
"""Folder in a data set folder for its Arrow files."""


_FIRST_ROW = "@row"
"""End of the name of the column with the number of the row that holds this row's value of an image column."""


class MappedRows(Sequence[dict[str, Any]]):
    """Random access to the rows of a complete folder, for training.

    The wanted rows and columns are converted once into an Arrow file on the local disk, which is memory-mapped: a row
    costs tens of microseconds, processes share the pages, and memory does not grow with the data set. The file is
    written to ``_rows`` in the folder; for remote or read-only folders to the cache
    (:func:`idc.util.cache.cache_root`). Equal images of several rows (instructions about one pair, pairs of one scene)
    are written once.

    Args:
        columns: the columns to read; all by default.
        split: only this split; all by default.
        cache_dir: folder for the Arrow file instead.

    Raises:
        ValueError: the folder is missing or incomplete, or a column is not in it.
    """

    def __init__(
        self,
        path: AnyPath,
        columns: Sequence[str] | None = None,
        split: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        source = files.locate(path)
        manifest = complete_manifest(source)
        manifest.need_images(path, columns or ())
        key = fingerprint(manifest.fingerprint, manifest.num_rows, sorted(columns) if columns else None, split)
        folder = Path(cache_dir) if cache_dir is not None else _rows_folder(source)
        self._file = str(folder / f"rows-{key}.arrow")
        with explain_write_errors(files.locate(folder)):
            make_once(Path(self._file), lambda partial: _convert(partial, source, columns, split))
        self._open()

    def _open(self) -> None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(self._file, "r"))
            refuse_objects(reader.schema, self._file)
            self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{self._file} is damaged ({error}); delete it, it is written again") from error
        self._ends = list(itertools.accumulate(batch.num_rows for batch in self._batches))
        positions = {name: position for position, name in enumerate(reader.schema.names)}
        self.columns = [name for name in positions if not name.endswith(_FIRST_ROW)]
        self._holders = {name: positions[name + _FIRST_ROW] for name in self.columns if name + _FIRST_ROW in positions}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        """Row ``index`` as a dict; negative indices count from the end."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = int(index)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        batch, row = self._at(index)
        values = {name: batch.column(position)[row].as_py() for position, name in enumerate(self.columns)}
        for name, position in self._holders.items():
            holder = batch.column(position)[row].as_py()
            if holder != index:
                other, held = self._at(holder)
                values[name] = other.column(self.columns.index(name))[held].as_py()
        return values

    def _at(self, index: int) -> tuple[pa.RecordBatch, int]:
        number = bisect.bisect_right(self._ends, index)
        return self._batches[number], index - (self._ends[number - 1] if number else 0)

    def column(self, name: str) -> list[Any]:
        """One whole column as a list (ids, captions, types: columns that fit into memory)."""
        if name not in self.columns:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(self.columns)}")
        values = [value for batch in self._batches for value in batch.column(name).to_pylist()]
        if (position := self._holders.get(name)) is None:
            return values
        return [values[holder] for batch in self._batches for holder in batch.column(position).to_pylist()]

    def list_lengths(self, name: str) -> np.ndarray:
        """The length of each row's list in a column of lists; does not read the lists."""
        import pyarrow.compute as pc  # slow to import; most readers do not need it

        if not self._batches:
            return np.zeros(0, np.int32)
        column = pa.chunked_array([batch.column(name) for batch in self._batches])
        if (position := self._holders.get(name)) is None:
            return pc.list_value_length(column).to_numpy()
        holders = pa.chunked_array([batch.column(position) for batch in self._batches])
        return pc.list_value_length(column).fill_null(0).to_numpy()[holders.to_numpy()]

    def __getstate__(self) -> dict[str, Any]:
        return {"_file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _rows_folder(source: files.Location) -> Path:
    if isinstance(source.filesystem, fs.LocalFileSystem) and os.access(source.path, os.W_OK):
        return Path(source.path) / ROWS_FOLDER
    return cache_root() / "rows"


def _convert(target: Path, source: files.Location, columns: Sequence[str] | None, split: str | None) -> Path:
    """Write the Arrow file, and return its path."""
    schema = read_schema(source, columns)
    images = [name for name in schema.names if name in IMAGE_COLUMNS]
    first: dict[str, dict[bytes, int]] = {name: {} for name in images}
    """Image column -> digest of a value -> its first row."""
    empty, start = schema.empty_table(), 0
    for image in images:
        empty = _first_values_only(empty, image, first[image], 0)
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, empty.schema) as writer:
        for table in iter_tables(source, columns, split, batch_size=64):
            for image in images:
                table = _first_values_only(table, image, first[image], start)
            start += table.num_rows
            for batch in table.combine_chunks().to_batches():
                writer.write_batch(batch)
    return target


def _first_values_only(table: pa.Table, column: str, first: dict[bytes, int], start: int) -> pa.Table:
    """Leaves a value of an image column in the first row that has it, and empty in the others; a further column, the
    last one, has the number of that first row. ``start`` is the number of the table's first row."""
    values, number = table[column].to_pylist(), table.schema.get_field_index(column)
    holders = [first.setdefault(_digest(value), row) for row, value in enumerate(values, start)]
    stored = [value if holders[i] == start + i else None for i, value in enumerate(values)]
    field = table.schema.field(number).with_nullable(True)
    table = table.set_column(number, field, pa.array(stored, field.type))
    return table.append_column(pa.field(column + _FIRST_ROW, pa.int64(), False), pa.array(holders, pa.int64()))


def _digest(value: bytes | list[bytes]) -> bytes:
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=16).digest()
    return b"".join(map(_digest, value))
