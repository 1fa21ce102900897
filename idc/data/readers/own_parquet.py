"""Pairs in Parquet files of the user; :mod:`idc.data.readers.own` describes the columns."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from idc.data import files
from idc.data.pipeline import Batch
from idc.data.readers.base import rows_to_batch, unread
from idc.data.readers.own import IMAGES, KNOWN, NUMBERED, ImageFolders, digest_of, id_error, must_have, record_row
from idc.data.readers.parquet_rows import open_file, read_groups
from idc.data.schema import CAPTION_ORIGINS
from idc.data.store import fingerprint

_ROLES = (*IMAGES, "mask")


class ParquetReader:
    """Pairs in a Parquet file, or a folder of them; images as bytes, as paths, or as ``{"bytes", "path"}``.

    A chunk consists of whole row groups, so that each is read once; memory is that of the file's row groups.

    Attributes:
        all_split: whether every row has a split.

    Raises:
        ValueError: there is no Parquet file, or a required column is missing.
    """

    def __init__(self, source: files.Location, *, chunk_size: int = 64, access: files.Access = files.LOCAL) -> None:
        if source.is_file():
            folder, names, others = source.parent, [source.name], []
        else:
            folder, listed = source, [file.base_name for file in source.list_files()]
            names = [name for name in listed if name.endswith(".parquet")]
            others = [name for name in listed if not name.endswith(".parquet")]
        if not names:
            raise ValueError(f"{source} has no Parquet files")
        self.reader = files.Reader(folder, access)
        self._chunks: list[tuple[str, list[int], int]] = []
        self._duplicates: set[int] = set()
        self.all_split, has_origins = True, False
        self._numbered = True
        seen: set[bytes] = set()
        folders = ImageFolders(self.reader)
        hashed = hashlib.sha256()
        row, other = 0, set()
        for name in names:
            file = folder / name
            with file.open() as stream:
                parquet = open_file(stream, str(file))
                columns = parquet.schema_arrow.names
                must_have(columns, str(file))
                other |= set(columns) - KNOWN
                has_origins |= CAPTION_ORIGINS in columns
                scanned = [column for column in ("pair_id", "split") if column in columns]
                scanned += _paths(parquet)
                # The footer; its length and the magic number are the last 8 bytes of the file.
                stream.seek(stream.size() - parquet.metadata.serialized_size - 8)
                hashed.update(f"/{name} ".encode("utf-8", "surrogateescape") + stream.read())
                groups, first = [], row
                for group in range(parquet.num_row_groups):
                    of_group = parquet.metadata.row_group(group).num_rows
                    for record in read_groups(stream, parquet, [group], scanned) if scanned else [{}] * of_group:
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
                    groups.append(group)
                    if row - first >= chunk_size or group == parquet.num_row_groups - 1:
                        self._chunks.append((name, groups, first))
                        groups, first = [], row
        if not row:
            raise ValueError(f"{source} has no rows")
        self.fingerprint = fingerprint("parquet", chunk_size, hashed.hexdigest())
        numbered = [NUMBERED] if self._numbered else []
        notes = [f"columns kept in meta: {', '.join(sorted(other))}"] if other else []
        self.extra: dict[str, Any] = {"notes": [*folders.note(), *notes, *numbered, *unread(others, "no Parquet file")]}
        if has_origins:
            self.extra[CAPTION_ORIGINS] = True

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def read(self, chunk_id: int) -> Batch:
        name, groups, first = self._chunks[chunk_id]
        file = self.reader.folder / name
        with file.open() as stream:
            records = read_groups(stream, open_file(stream, str(file)), groups)
        rows = []
        for number, record in enumerate(records, start=first):
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
