"""Random access to the rows of a data set folder: one memory-mapped Arrow file, written once."""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from idc.atomic import replacing
from idc.data import files
from idc.data.manifest import AnyPath, complete_manifest, fingerprint
from idc.data.parquet_files import refuse_objects
from idc.data.stored_rows import iter_tables, read_schema
from idc.data.write_errors import writing

ROWS_FOLDER = "_rows"
"""Folder in a data set folder for its Arrow files."""


class MappedRows(Sequence[dict[str, Any]]):
    """Random access to the rows of a complete folder, for training.

    The wanted rows and columns are converted once into an Arrow file on the local disk, which is memory-mapped: a row
    costs tens of microseconds, processes share the pages, and memory does not grow with the data set. The file is
    written to ``_rows`` in the folder; for remote or read-only folders to ``$IDC_CACHE`` (``~/.cache/idc``).

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
        if not os.path.exists(self._file):
            _convert(self._file, source, columns, split)
        self._open()

    def _open(self) -> None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(self._file, "r"))
            refuse_objects(reader.schema, self._file)
            self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{self._file} is damaged ({error}); delete it, it is written again") from error
        self._ends = list(itertools.accumulate(batch.num_rows for batch in self._batches))
        self.columns = reader.schema.names

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
        number = bisect.bisect_right(self._ends, index)
        batch = self._batches[number]
        row = index - (self._ends[number - 1] if number else 0)
        return {name: column[row].as_py() for name, column in zip(self.columns, batch.columns, strict=True)}

    def column(self, name: str) -> list[Any]:
        """One whole column as a list (ids, captions, types: columns that fit into memory)."""
        if name not in self.columns:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(self.columns)}")
        return [value for batch in self._batches for value in batch.column(name).to_pylist()]

    def list_lengths(self, name: str) -> np.ndarray:
        """The length of each row's list in a column of lists; does not read the lists."""
        import pyarrow.compute as pc  # slow to import; most readers do not need it

        lengths = [pc.list_value_length(batch.column(name)) for batch in self._batches]
        return np.concatenate([part.to_numpy(zero_copy_only=False) for part in lengths] or [np.zeros(0, np.int32)])

    def __getstate__(self) -> dict[str, Any]:
        return {"_file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _rows_folder(source: files.Location) -> Path:
    if isinstance(source.filesystem, fs.LocalFileSystem) and os.access(source.path, os.W_OK):
        return Path(source.path) / ROWS_FOLDER
    return Path(os.environ.get("IDC_CACHE", "~/.cache/idc")).expanduser() / "rows"


def _convert(target: str, source: files.Location, columns: Sequence[str] | None, split: str | None) -> None:
    """Write the Arrow file once, however many processes need it at the same time."""
    folder = files.locate(os.path.dirname(target))
    with writing(folder):
        os.makedirs(folder.path, exist_ok=True)
    with writing(folder), open(target + ".lock", "w") as lock:
        with contextlib.suppress(OSError):  # without locks on this file system: done twice at worst, never wrongly
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(target):  # another process wrote it while this one waited
            return
        schema = read_schema(source, columns)
        name = f".{os.path.basename(target)}.{os.getpid()}.partial"
        with (
            replacing(target, name) as partial,
            pa.OSFile(str(partial), "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            for table in iter_tables(source, columns, split, batch_size=64):
                for batch in table.combine_chunks().to_batches():
                    writer.write_batch(batch)
