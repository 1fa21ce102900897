"""Pairs in Parquet files of the user; :mod:`idc.data.readers.own` describes the columns."""

from __future__ import annotations

import hashlib
from typing import Any

from idc.data import files
from idc.data.pipeline import Batch
from idc.data.readers.base import rows_to_batch, unread
from idc.data.readers.own import KNOWN, digest_of, id_error, must_have, record_row
from idc.data.readers.parquet_rows import open_file, read_groups
from idc.data.store import fingerprint
from idc.schema import CAPTION_ORIGINS


class ParquetReader:
    """Pairs in a Parquet file, or a folder of them; images as bytes, as paths, or as ``{"bytes", "path"}``.

    A chunk consists of whole row groups, so that each is read once; memory is that of the file's row groups.

    Attributes:
        all_split: whether every row has a split.

    Raises:
        ValueError: there is no Parquet file, or a required column is missing.
    """

    def __init__(
        self,
        source: files.Location,
        *,
        chunk_size: int = 64,
        access: files.Access = files.LOCAL,
    ) -> None:
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
        seen: set[bytes] = set()
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
                hashed.update(f"/{name} {stream.size()}\n".encode("utf-8", "surrogateescape"))
                groups, first = [], row
                for group in range(parquet.num_row_groups):
                    for record in read_groups(stream, parquet, [group], scanned):
                        value = record["pair_id"] if isinstance(record, dict) else None
                        self.all_split &= isinstance(record, str) or record.get("split") not in (None, "")
                        key = digest_of(str(value))
                        if value is not None and key in seen:
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
        notes = [f"columns kept in meta: {', '.join(sorted(other))}"] if other else []
        self.extra: dict[str, Any] = {"notes": [*notes, *unread(others, "no Parquet file")]}
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
            record = {k: unwrapped(v) if k in ("before", "after", "mask") else v for k, v in record.items()}
            if error := id_error(record["pair_id"], f"row {number}"):
                rows.append({"pair_id": where, "error": error})
                continue
            row = record_row([record], where)
            row["pair_id"] = str(row["pair_id"])
            if number in self._duplicates:
                row["error"] = f"duplicate pair id: row {number} repeats an id"
            rows.append(row)
        return rows_to_batch(rows)


def unwrapped(value: Any) -> Any:
    """The bytes or the path of ``{"bytes": ..., "path": ...}``, which the ``datasets`` library stores for an image."""
    if isinstance(value, dict):
        return value.get("bytes") or value.get("path")
    return value
