"""Data sets at rest: a folder of Parquet parts with a manifest, built chunk by chunk and read as a stream.

    manifest.json   part-00000.parquet ...   rejects-00000.parquet ...

One chunk of work is one part file, and a rejects file if it has bad rows. Both are written under a temporary name and
renamed, the part last, so an existing part is complete. A killed build therefore continues with the missing chunks, and
the files do not depend on the number or the order of the workers. A folder may lie on any file system that
:func:`idc.data.files.locate` knows.

:class:`DatasetFolder` builds. The other names come from :mod:`idc.data.manifest`, :mod:`idc.data.stored_rows` (reading
in order) and :mod:`idc.data.mapped_rows` (random access); import them from here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from idc.data import files
from idc.data.manifest import (
    MANIFEST,
    SCHEMA_VERSIONS,
    AnyPath,
    Manifest,
    ManifestPart,
    Reject,
    complete_manifest,
    explain_read_errors,
    fingerprint,
    input_name,
    input_path,
    read_manifest,
)
from idc.data.mapped_rows import ROWS_FOLDER, MappedRows
from idc.data.object_store import PATIENCE_S, explain_write_errors, first_look, with_retries
from idc.data.remote_copies import check_writable, remove_folder
from idc.data.stored_rows import iter_rows, iter_tables, read_rejects, read_schema, read_table

__all__ = [
    "MANIFEST",
    "SCHEMA_VERSIONS",
    "AnyPath",
    "DatasetFolder",
    "Manifest",
    "ManifestPart",
    "MappedRows",
    "Reject",
    "complete_manifest",
    "explain_read_errors",
    "fingerprint",
    "iter_rows",
    "iter_tables",
    "read_manifest",
    "read_rejects",
    "read_schema",
    "read_table",
]

ROW_GROUP = 32
"""Rows in a Parquet row group: the least that a reader holds in memory."""

_OWN_FILE = re.compile(r"^(part-\d+\.parquet|rejects-\d+\.parquet|\.tmp-.*)$")
_COUNTS_KEY = b"idc.counts"
_REJECT_SCHEMA = pa.schema([pa.field("row_id", pa.string(), False), pa.field("reason", pa.string(), False)])

Overwrite = bool | Literal["others"]
"""Whether what a folder holds is replaced: never, always, or if it is of another configuration or other inputs."""


class DatasetFolder:
    """A folder under construction; picklable, so that workers write their own chunks.

    Made by :meth:`open_for_build`.

    Attributes:
        location: where the folder is.
        manifest: as it was when the folder was opened.
        complete: nothing is left to do.
    """

    def __init__(self, location: files.Location, schema: pa.Schema, manifest: Manifest) -> None:
        self.location = location
        self.schema = schema
        self.manifest = manifest
        self._files: set[str] = set()
        """Those of the files here that this process has seen: to ask for each would be a request."""

    @property
    def complete(self) -> bool:
        return self.manifest.complete

    @property
    def num_chunks(self) -> int:
        return self.manifest.num_chunks

    @classmethod
    def open_for_build(
        cls,
        path: AnyPath,
        *,
        kind: str,
        schema: pa.Schema,
        fingerprint: str,
        config: dict[str, Any],
        num_chunks: int,
        overwrite: Overwrite = False,
        extra: dict[str, Any] | None = None,
        inputs: Mapping[str, str] | None = None,
    ) -> DatasetFolder:
        """Begin or continue a build.

        Same fingerprint and complete: ``.complete`` is True and nothing is left to do. Same fingerprint and incomplete:
        :meth:`pending` returns the missing chunks. Another fingerprint: an error, or with ``overwrite`` the old parts
        are deleted. ``overwrite=True`` deletes them in any case.

        Args:
            config: the configuration of the build, stored in the manifest.
            num_chunks: the number of chunks of work.
            extra: JSON-able values that this kind of folder needs in its manifest.
            inputs: paths and URIs that its readers will need, see :class:`Manifest`; they are recorded anew if they
                have moved.

        Raises:
            ValueError: the folder holds something else and ``overwrite`` is off, or it cannot be written.
        """
        location = files.locate(path)
        fresh = Manifest(
            kind=kind,
            schema_version=SCHEMA_VERSIONS.get(kind, 1),
            fingerprint=fingerprint,
            complete=False,
            num_chunks=num_chunks,
            config=config,
            extra=extra or {},
            inputs={name: input_path(location, input_name(location, value)) for name, value in (inputs or {}).items()},
        )
        old_files = [f for f in first_look(location.list_files, str(path)) if _OWN_FILE.match(f.base_name)]
        manifest = read_manifest(location) if (location / MANIFEST).exists() else None
        same = manifest is not None and (
            manifest.fingerprint,
            manifest.kind,
            manifest.num_chunks,
            manifest.schema_version,
        ) == (fresh.fingerprint, fresh.kind, fresh.num_chunks, fresh.schema_version)
        if manifest is not None and same and overwrite is not True:
            folder = cls(location, schema, manifest)
            if manifest.inputs != fresh.inputs:
                manifest.inputs = fresh.inputs
                with explain_write_errors(location):
                    folder._save()
            return folder
        if (manifest is not None or old_files) and not overwrite:
            what = (
                f"{manifest.num_rows} {manifest.kind} of another configuration or other inputs (fingerprint "
                f"{manifest.fingerprint}, wanted {fresh.fingerprint})"
                if manifest is not None
                else f"{len(old_files)} part files without a {MANIFEST}"
            )
            raise ValueError(f"{path} holds {what}; choose another folder, or pass --overwrite to replace it")
        if isinstance(path, str):
            check_writable(path, "out")
        with explain_write_errors(location):
            if manifest is not None:
                (location / MANIFEST).delete()  # first, so that a kill here cannot leave a wrong complete folder
            for info in old_files:
                (location / info.base_name).delete()
            remove_folder(location / ROWS_FOLDER, PATIENCE_S)
            with_retries(lambda: location.filesystem.create_dir(location.path, recursive=True), str(path))
            folder = cls(location, schema, fresh)
            folder._save()
        return folder

    def pending(self) -> list[int]:
        """The chunks that have not been written yet, ascending."""
        if self.complete:
            return []
        self._files = {info.base_name for info in self.location.list_files()}
        return [chunk for chunk in range(self.num_chunks) if _part_name(chunk) not in self._files]

    def write_chunk(
        self, chunk_id: int, rows: pa.Table | Iterable[Mapping[str, Any]], rejects: Iterable[Reject] = ()
    ) -> None:
        """Write the rows and the rejects of one chunk; writing it twice is harmless.

        Raises:
            ValueError: the rows do not have the folder's columns, or the folder cannot be written. What is written
                stays, and the same job continues.
        """
        assert 0 <= chunk_id < self.num_chunks, f"chunk {chunk_id} of {self.num_chunks}"
        try:
            if isinstance(rows, pa.Table):
                table = rows.select(self.schema.names).cast(self.schema)
            else:
                table = pa.Table.from_pylist([dict(row) for row in rows], schema=self.schema)
        except (pa.ArrowException, KeyError, OverflowError) as exc:
            raise ValueError(f"chunk {chunk_id} does not fit the {self.manifest.kind} columns: {exc}") from exc
        for field in self.schema:
            if not field.nullable and table[field.name].null_count:
                raise ValueError(f"chunk {chunk_id}: column {field.name!r} has empty cells but may not")
        bad = [Reject(*reject) for reject in rejects]
        counts = {
            "rows_by_split": _count(table["split"].to_pylist()) if "split" in table.column_names else {},
            "without_captions": _without_captions(table),
            "reject_reasons": _count(reject.code for reject in bad),
        }
        metadata = {_COUNTS_KEY: json.dumps(counts).encode()}
        reject_file = self.location / _rejects_name(chunk_id)
        with explain_write_errors(self.location):
            if bad:
                columns = {"row_id": [r.row_id for r in bad], "reason": [r.reason for r in bad]}
                self._files.add(reject_file.name)
                self._write_table(reject_file, pa.table(columns, schema=_REJECT_SCHEMA))
            elif reject_file.name in self._files:
                reject_file.delete()
            # The part last: a chunk whose part exists counts as written.
            self._write_table(self.location / _part_name(chunk_id), table.replace_schema_metadata(metadata))

    def finish(self, extra: Mapping[str, Any] | None = None, counts: Manifest | None = None) -> Manifest:
        """Mark the folder complete; ``extra`` is merged into the manifest's, ``counts`` are those of all parts if the
        caller has them (:meth:`counted`)."""
        if self.complete:
            return self.manifest
        missing = self.pending()
        if missing:
            raise ValueError(
                f"{self.location}: {len(missing)} of {self.num_chunks} chunks are missing, first {missing[0]}"
            )
        self.manifest = counts or self.counted()
        self.manifest = self.manifest.model_copy(
            update={"complete": True, "extra": {**self.manifest.extra, **(extra or {})}}
        )
        with explain_write_errors(self.location):
            self._save()
            for info in self.location.list_files():
                if info.base_name.startswith(".tmp-"):
                    (self.location / info.base_name).delete()
        return self.manifest

    def counted(self) -> Manifest:
        """The manifest with the counts of the parts written so far (reads only their footers)."""
        splits: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        parts: list[ManifestPart] = []
        rows = without = 0
        missing = set(self.pending())
        for chunk in range(self.num_chunks):
            if chunk in missing:
                continue
            name = _part_name(chunk)
            with explain_read_errors(self.location / name), (self.location / name).open() as stream:
                footer = pq.read_metadata(stream)
            if _COUNTS_KEY not in (footer.metadata or {}):
                raise ValueError(
                    f"{self.location / name} is not a part that this job wrote; delete the file and run the job again"
                )
            counts = json.loads(footer.metadata[_COUNTS_KEY])
            rejects = _rejects_name(chunk) if counts["reject_reasons"] else None
            parts.append(ManifestPart(file=name, num_rows=footer.num_rows, rejects=rejects))
            splits.update(counts["rows_by_split"])
            reasons.update(counts["reject_reasons"])
            rows += footer.num_rows
            without += counts["without_captions"]
        return self.manifest.model_copy(
            update={
                "num_rows": rows,
                "rows_by_split": dict(sorted(splits.items())),
                "num_without_captions": without,
                "num_rejected": sum(reasons.values()),
                "reject_reasons": dict(sorted(reasons.items())),
                "parts": parts,
            }
        )

    def _save(self) -> None:
        inputs = {name: input_name(self.location, value) for name, value in self.manifest.inputs.items()}
        content = {**self.manifest.model_dump(), "inputs": inputs}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (self.location / MANIFEST).write(text.encode())

    def _write_table(self, file: files.Location, table: pa.Table) -> None:
        text_columns = [f.name for f in table.schema if pa.types.is_string(f.type)]
        with file.replacing() as stream:
            pq.write_table(
                table, stream, row_group_size=ROW_GROUP, compression="zstd", compression_level=1,
                use_dictionary=text_columns, write_statistics=text_columns,
            )  # fmt: skip


def _part_name(chunk: int) -> str:
    return f"part-{chunk:05d}.parquet"


def _rejects_name(chunk: int) -> str:
    return f"rejects-{chunk:05d}.parquet"


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _without_captions(table: pa.Table) -> int:
    if "captions" not in table.column_names:
        return 0
    import pyarrow.compute as pc  # slow to import, and every job imports this module

    lengths = pc.fill_null(pc.list_value_length(table["captions"]), 0)
    return pc.sum(pc.equal(lengths, 0)).as_py() or 0
