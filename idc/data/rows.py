"""Rows of an input unchanged, for jobs that answer each of them: nothing merged or left out, ids may repeat.

:func:`open_rows` reads the user's own pairs (a folder of images, CSV, JSON lines, Parquet) and a folder of pairs of
this project. Only the columns ``before`` and ``after`` are required. A row that an import would reject is here
a row with its ``error``; repeated ids are kept, and a row without an id is named by its number.

Images are never in memory together: a Parquet input costs a few bytes per row group, a table its text, a folder of
images its file names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from idc.data import files
from idc.data.config import AccessConfig
from idc.data.object_store import first_look
from idc.data.pipeline import Batch, num_rows
from idc.data.readers.base import SPLIT_NAMES, access, printable
from idc.data.readers.folder import FolderReader
from idc.data.readers.layouts import find_layout
from idc.data.readers.parquet import ParquetReader
from idc.data.readers.table import IMAGES, TableReader
from idc.data.store import MANIFEST, AnyPath, complete_manifest, fingerprint, read_schema

RowFormat = Literal["auto", "pairs", "parquet", "csv", "jsonl", "folder"]


_Rows = ParquetReader | FolderReader | TableReader
"""Readers whose chunks, except the last, all have ``chunk_size`` rows."""


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
    first_look(source.exists, str(path))
    if format == "auto":
        format = _recognise(source)
    options: dict[str, Any] = {"chunk_size": chunk_size, "access": access(format, access_config or AccessConfig())}
    rows: _Rows
    if format == "pairs":
        manifest = complete_manifest(source, "pairs")
        manifest.need_images(source)
        options |= {"parts": manifest.parts, "schema": read_schema(source)}
    if format == "pairs" or format == "parquet":
        rows = ParquetReader(source, **options, columns=columns, each_row=True)
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
