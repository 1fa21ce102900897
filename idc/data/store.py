"""Data sets at rest: a folder of Parquet parts with a manifest, built chunk by chunk and read as a stream.

    manifest.json   part-00000.parquet ...   rejects-00000.parquet ...

One chunk of work is one part file, and a rejects file if it had bad rows. Both are written under a temporary name and
moved, the part last: a part that is there is whole. So a killed build goes on with the chunks that are missing, and
what is written does not depend on the number or the order of the workers. A folder may lie on any filesystem that
:func:`idc.data.files.resolve` knows.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import hashlib
import itertools
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from idc.data import files
from idc.data.textfiles import JsonError, decode, parse_json
from idc.schema import INSTRUCTION_SCHEMA_VERSION, PAIR_SCHEMA_VERSION, PREFERENCE_SCHEMA_VERSION

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SCHEMA_VERSIONS = {
    "pairs": PAIR_SCHEMA_VERSION,
    "instructions": INSTRUCTION_SCHEMA_VERSION,
    "preferences": PREFERENCE_SCHEMA_VERSION,
    "procedures": 1,
    "triplets": 1,
}
"""Version of the columns of each kind of folder; a folder with a newer one is refused."""

ROW_GROUP = 32
"""Rows in a Parquet row group: what a reader holds in memory at least."""

_IMAGES = {"before", "after", "images"}
_ROWS_FOLDER = "_rows"
_OWN_FILE = re.compile(r"^(part-\d+\.parquet|rejects-\d+\.parquet|\.tmp-.*)$")
_PLAIN_NAME = r"^[^/]+$"
_COUNTS_KEY = b"idc.counts"
_REJECT_SCHEMA = pa.schema([pa.field("row_id", pa.string(), False), pa.field("reason", pa.string(), False)])


class Reject(NamedTuple):
    """A row that is left out. ``reason`` begins with a short stable code: ``"truncated image: before, ..."``."""

    row_id: str
    reason: str

    @property
    def code(self) -> str:
        """The reason up to its first colon."""
        return self.reason.split(":", 1)[0]


class Part(BaseModel):
    """One part file of a complete folder, and the file of its rejects; both lie in the folder itself."""

    model_config = ConfigDict(extra="forbid")
    file: str = Field(pattern=_PLAIN_NAME)
    num_rows: int
    rejects: str | None = Field(default=None, pattern=_PLAIN_NAME)


class Manifest(BaseModel):
    """What ``manifest.json`` says of a folder. The counts are those of a complete folder, else zero."""

    model_config = ConfigDict(extra="forbid")
    kind: str
    schema_version: int
    fingerprint: str
    """Of the configuration and the inputs: equal fingerprints mean equal rows."""
    complete: bool
    num_chunks: int
    num_rows: int = 0
    rows_by_split: dict[str, int] = {}
    num_without_captions: int = 0
    num_rejected: int = 0
    reject_reasons: dict[str, int] = {}
    parts: list[Part] = []
    config: dict[str, Any] = {}
    extra: dict[str, Any] = {}

    @property
    def has_images(self) -> bool:
        """False for pairs that were imported as annotations alone; see :mod:`idc.data.readers.base`."""
        return bool(self.extra.get("images", True))

    def need_images(self, path: object, columns: Iterable[str] | None = None) -> None:
        """Refuse pairs without images to whoever asks for their pixels.

        Args:
            columns: only if the images are among these columns.

        Raises:
            ValueError: the folder at ``path`` has annotations alone.
        """
        if not self.has_images and (columns is None or _IMAGES & set(columns)):
            raise ValueError(
                f"{path} has annotations alone, no images: it can be validated, and captions made elsewhere can be "
                "scored against it (predictions=FILE); for anything else import it again where its images are"
            )


def fingerprint(*things: Any) -> str:
    """A short hash of JSON-able values, the same on every machine and in every process."""
    text = json.dumps(things, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


# ------------------------------------------------------------------------------------------------ building


class DatasetFolder:
    """A folder under construction; picklable, so that workers write their own chunks.

    Made by :meth:`open_for_build`.

    Attributes:
        path: the folder inside ``filesystem``.
        manifest: as it was when the folder was opened.
        complete: nothing is left to do.
    """

    def __init__(self, filesystem: fs.FileSystem, path: str, schema: pa.Schema, manifest: Manifest) -> None:
        self.filesystem = filesystem
        self.path = path
        self.schema = schema
        self.manifest = manifest

    @property
    def complete(self) -> bool:
        return self.manifest.complete

    @property
    def num_chunks(self) -> int:
        return self.manifest.num_chunks

    @classmethod
    def open_for_build(
        cls,
        path: str | os.PathLike[str],
        *,
        kind: str,
        schema: pa.Schema,
        fingerprint: str,
        config: dict[str, Any],
        num_chunks: int,
        overwrite: bool = False,
        extra: dict[str, Any] | None = None,
        filesystem: fs.FileSystem | None = None,
    ) -> DatasetFolder:
        """Begin a build, or go on with one.

        The same fingerprint and complete: ``.complete`` is True and nothing is to be done. The same fingerprint and
        incomplete: :meth:`pending` has the chunks that are missing. Another fingerprint: an error, or with
        ``overwrite`` the old parts are deleted.

        Args:
            config: the configuration that made it, for the reader of the manifest.
            num_chunks: how many chunks of work there are in all.
            extra: what the kind of folder needs beside the rows; JSON-able.
            filesystem: ``path`` is a path inside this one instead of a local path or URI.

        Raises:
            ValueError: the folder holds something else and ``overwrite`` is off.
        """
        filesystem, inner = files.resolve(path, filesystem)
        inner = inner.rstrip("/")
        fresh = Manifest(
            kind=kind,
            schema_version=SCHEMA_VERSIONS.get(kind, 1),
            fingerprint=fingerprint,
            complete=False,
            num_chunks=num_chunks,
            config=config,
            extra=extra or {},
        )
        own = [f for f in files.list_files(filesystem, inner) if _OWN_FILE.match(f.base_name)]
        manifest_path = f"{inner}/{MANIFEST}"
        found = _load_manifest(filesystem, manifest_path) if files.exists(filesystem, manifest_path) else None
        same = found is not None and (found.fingerprint, found.kind, found.num_chunks, found.schema_version) == (
            fresh.fingerprint,
            fresh.kind,
            fresh.num_chunks,
            fresh.schema_version,
        )
        if found is not None and same and not overwrite:
            return cls(filesystem, inner, schema, found)
        if (found is not None or own) and not overwrite:
            what = (
                f"{found.num_rows} {found.kind} of another configuration or other inputs (fingerprint "
                f"{found.fingerprint}, wanted {fresh.fingerprint})"
                if found is not None
                else f"{len(own)} part files without a {MANIFEST}"
            )
            raise ValueError(f"{path} holds {what}; choose another folder, or pass overwrite=true to replace it")
        if found is not None:
            filesystem.delete_file(manifest_path)  # first, so that a kill here cannot leave a wrong complete folder
        for info in own:
            filesystem.delete_file(info.path)
        if files.exists(filesystem, f"{inner}/{_ROWS_FOLDER}"):
            filesystem.delete_dir(f"{inner}/{_ROWS_FOLDER}")
        filesystem.create_dir(inner, recursive=True)
        folder = cls(filesystem, inner, schema, fresh)
        folder._save()
        return folder

    def pending(self) -> list[int]:
        """The chunks that are not written yet, ascending."""
        if self.complete:
            return []
        there = {info.base_name for info in files.list_files(self.filesystem, self.path)}
        return [chunk for chunk in range(self.num_chunks) if _part_name(chunk) not in there]

    def write_chunk(
        self, chunk_id: int, rows: pa.Table | Iterable[Mapping[str, Any]], rejects: Iterable[Reject] = ()
    ) -> None:
        """Write the rows and the rejects of one chunk; doing it twice is harmless.

        Raises:
            ValueError: the rows do not have the folder's columns.
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
        reject_path = f"{self.path}/{_rejects_name(chunk_id)}"
        if bad:
            columns = {"row_id": [r.row_id for r in bad], "reason": [r.reason for r in bad]}
            self._write_table(reject_path, pa.table(columns, schema=_REJECT_SCHEMA))
        elif files.exists(self.filesystem, reject_path):
            self.filesystem.delete_file(reject_path)
        counts = {
            "rows_by_split": _count(table["split"].to_pylist()) if "split" in table.column_names else {},
            "without_captions": _without_captions(table),
            "reject_reasons": _count(reject.code for reject in bad),
        }
        metadata = {_COUNTS_KEY: json.dumps(counts).encode()}
        self._write_table(f"{self.path}/{_part_name(chunk_id)}", table.replace_schema_metadata(metadata))

    def finish(self, extra: Mapping[str, Any] | None = None) -> Manifest:
        """Count the rows of all parts and declare the folder complete; ``extra`` is merged into the manifest's."""
        if self.complete:
            return self.manifest
        missing = self.pending()
        if missing:
            raise ValueError(f"{self.path}: {len(missing)} of {self.num_chunks} chunks are missing, first {missing[0]}")
        self.manifest = self.counted(complete=True, extra=extra)
        self._save()
        for info in files.list_files(self.filesystem, self.path):
            if info.base_name.startswith(".tmp-"):
                self.filesystem.delete_file(info.path)
        return self.manifest

    def counted(self, complete: bool, extra: Mapping[str, Any] | None = None) -> Manifest:
        """The manifest with the counts of the parts that are there now (reads only their footers)."""
        splits: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        parts: list[Part] = []
        rows = without = 0
        missing = set(self.pending())
        for chunk in range(self.num_chunks):
            if chunk in missing:
                continue
            name = _part_name(chunk)
            with self.filesystem.open_input_file(f"{self.path}/{name}") as stream:
                footer = pq.read_metadata(stream)
            counts = json.loads(footer.metadata[_COUNTS_KEY])
            rejects = _rejects_name(chunk) if counts["reject_reasons"] else None
            parts.append(Part(file=name, num_rows=footer.num_rows, rejects=rejects))
            splits.update(counts["rows_by_split"])
            reasons.update(counts["reject_reasons"])
            rows += footer.num_rows
            without += counts["without_captions"]
        return self.manifest.model_copy(
            update={
                "complete": complete,
                "num_rows": rows,
                "rows_by_split": dict(sorted(splits.items())),
                "num_without_captions": without,
                "num_rejected": sum(reasons.values()),
                "reject_reasons": dict(sorted(reasons.items())),
                "parts": parts,
                "extra": {**self.manifest.extra, **(extra or {})},
            }
        )

    def _save(self) -> None:
        text = json.dumps(self.manifest.model_dump(), indent=1, ensure_ascii=False) + "\n"
        files.write_atomic(self.filesystem, f"{self.path}/{MANIFEST}", text.encode())

    def _write_table(self, path: str, table: pa.Table) -> None:
        temporary = files.temporary_name(path)
        text_columns = [f.name for f in table.schema if pa.types.is_string(f.type)]
        with self.filesystem.open_output_stream(temporary) as stream:
            pq.write_table(
                table, stream, row_group_size=ROW_GROUP, compression="zstd", compression_level=1,
                use_dictionary=text_columns, write_statistics=text_columns,
            )  # fmt: skip
        files.move(self.filesystem, temporary, path)


def _part_name(chunk: int) -> str:
    return f"part-{chunk:05d}.parquet"


def _rejects_name(chunk: int) -> str:
    return f"rejects-{chunk:05d}.parquet"


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _without_captions(table: pa.Table) -> int:
    if "captions" not in table.column_names:
        return 0
    lengths = pc.fill_null(pc.list_value_length(table["captions"]), 0)
    return pc.sum(pc.equal(lengths, 0)).as_py() or 0


# ------------------------------------------------------------------------------------------------ reading


def read_manifest(
    path: str | os.PathLike[str], kind: str | None = None, filesystem: fs.FileSystem | None = None
) -> Manifest:
    """The manifest of a folder, complete or not.

    Raises:
        ValueError: there is none, it is damaged, of a newer version, or not of the wanted ``kind``.
    """
    filesystem, inner = files.resolve(path, filesystem)
    manifest_path = f"{inner.rstrip('/')}/{MANIFEST}"
    if not files.exists(filesystem, manifest_path):
        raise ValueError(f"{path} is not a data set folder: it has no {MANIFEST}")
    manifest = _load_manifest(filesystem, manifest_path)
    if kind is not None and manifest.kind != kind:
        raise ValueError(f"{path} holds {manifest.kind}, not {kind}")
    return manifest


def _load_manifest(filesystem: fs.FileSystem, path: str) -> Manifest:
    data = files.read_bytes(path, filesystem)
    try:
        content = parse_json(decode(data, "surrogateescape"))
        version, newest = content["schema_version"], SCHEMA_VERSIONS.get(content["kind"], 1)
        if version > newest:
            raise ValueError(f"{path} has schema version {version}, this program knows up to {newest}; update it")
        return Manifest.model_validate(content)
    except (JsonError, KeyError, TypeError, ValidationError) as exc:
        raise ValueError(f"{path} is not a manifest of this project: {exc}") from exc


def _complete_manifest(path: str | os.PathLike[str], filesystem: fs.FileSystem | None) -> Manifest:
    manifest = read_manifest(path, filesystem=filesystem)
    if not manifest.complete:
        raise ValueError(f"{path} is not complete; run the job that builds it again, it goes on where it was")
    return manifest


@contextlib.contextmanager
def undamaged(path: str) -> Iterator[None]:
    """Around the reading of a file of a data set folder.

    Raises:
        ValueError: the file is not there, cannot be read, or has bytes that cannot be decoded.
    """
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; build the folder again with --overwrite") from None
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"{path} is damaged or cannot be read ({error}); copy it again, or build the folder again with --overwrite"
        ) from error


def iter_tables(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    split: str | None = None,
    batch_size: int = 256,
    filesystem: fs.FileSystem | None = None,
) -> Iterator[pa.Table]:
    """The rows of a complete folder as small tables, in order; memory is that of one batch.

    Raises:
        ValueError: the folder is missing or incomplete, a part is damaged, a column is not in it, or ``columns`` names
            the images of a folder that has none.
    """
    manifest = _complete_manifest(path, filesystem)
    manifest.need_images(path, columns or ())
    wanted = read_schema(path, columns, filesystem).names
    filesystem, inner = files.resolve(path, filesystem)
    for part in manifest.parts:
        name = f"{inner.rstrip('/')}/{part.file}"
        with undamaged(name), filesystem.open_input_file(name) as stream:
            parquet = pq.ParquetFile(stream)
            read = wanted if split is None or "split" in wanted else [*wanted, "split"]
            for batch in parquet.iter_batches(batch_size=batch_size, columns=read):
                table = pa.Table.from_batches([batch])
                if split is not None:
                    table = table.filter(pc.equal(table["split"], split))
                if table.num_rows:
                    yield table.select(wanted).replace_schema_metadata(None)


def iter_rows(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    split: str | None = None,
    batch_size: int = 256,
    filesystem: fs.FileSystem | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of a complete folder as dicts, in order, streaming; errors as :func:`iter_tables`."""
    for table in iter_tables(path, columns, split, batch_size, filesystem):
        yield from table.to_pylist()


def read_table(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    split: str | None = None,
    filesystem: fs.FileSystem | None = None,
) -> pa.Table:
    """All rows at once; for small columns (ids, captions) or small folders."""
    tables = list(iter_tables(path, columns, split, filesystem=filesystem))
    return pa.concat_tables(tables) if tables else read_schema(path, columns, filesystem).empty_table()


def read_schema(
    path: str | os.PathLike[str], columns: Sequence[str] | None = None, filesystem: fs.FileSystem | None = None
) -> pa.Schema:
    """The columns of a complete folder, or those of them that are named, without any metadata."""
    manifest = _complete_manifest(path, filesystem)
    if not manifest.parts:
        raise ValueError(f"{path} is empty: it has no parts")
    filesystem, inner = files.resolve(path, filesystem)
    name = f"{inner.rstrip('/')}/{manifest.parts[0].file}"
    with undamaged(name), filesystem.open_input_file(name) as stream:
        schema = pq.read_schema(stream).remove_metadata()
    unknown = sorted(set(columns or ()) - set(schema.names))
    if unknown:
        raise ValueError(f"{path} has no column {', '.join(unknown)}; it has {', '.join(schema.names)}")
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def read_rejects(path: str | os.PathLike[str], filesystem: fs.FileSystem | None = None) -> list[Reject]:
    """All rejected rows of a complete folder, in the order of the input."""
    manifest = _complete_manifest(path, filesystem)
    filesystem, inner = files.resolve(path, filesystem)
    out: list[Reject] = []
    for part in manifest.parts:
        if part.rejects is not None:
            name = f"{inner.rstrip('/')}/{part.rejects}"
            with undamaged(name), filesystem.open_input_file(name) as stream:
                table = pq.read_table(stream)
            out.extend(Reject(row["row_id"], row["reason"]) for row in table.to_pylist())
    return out


class MappedRows(Sequence[dict[str, Any]]):
    """Random access to the rows of a complete folder, for training.

    The wanted rows and columns are converted once into an Arrow file on the local disk, which is memory-mapped: a row
    costs tens of microseconds, several processes share the pages, and memory does not grow with the data set. The
    file lies in ``_rows`` in the folder; for remote or read-only folders in ``$IDC_CACHE`` (``~/.cache/idc``).

    Args:
        columns: which columns; all by default.
        split: only this split; all by default.
        cache_dir: where to put the Arrow file instead.

    Raises:
        ValueError: the folder is missing or incomplete, or a column is not in it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        split: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        filesystem: fs.FileSystem | None = None,
    ) -> None:
        manifest = _complete_manifest(path, filesystem)
        manifest.need_images(path, columns or ())
        key = fingerprint(manifest.fingerprint, manifest.num_rows, sorted(columns) if columns else None, split)
        folder = Path(cache_dir) if cache_dir is not None else _rows_folder(path, filesystem)
        self._file = str(folder / f"rows-{key}.arrow")
        if not os.path.exists(self._file):
            _convert(self._file, path, columns, split, filesystem)
        self._open()

    def _open(self) -> None:
        reader = pa.ipc.open_file(pa.memory_map(self._file, "r"))
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
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
        """How long the list of each row is in a column of lists; does not read the lists."""
        lengths = [pc.list_value_length(batch.column(name)) for batch in self._batches]
        return np.concatenate([part.to_numpy(zero_copy_only=False) for part in lengths] or [np.zeros(0, np.int32)])

    def __getstate__(self) -> dict[str, Any]:
        return {"_file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _rows_folder(path: str | os.PathLike[str], filesystem: fs.FileSystem | None) -> Path:
    filesystem, inner = files.resolve(path, filesystem)
    if isinstance(filesystem, fs.LocalFileSystem) and os.access(inner, os.W_OK):
        return Path(inner) / _ROWS_FOLDER
    return Path(os.environ.get("IDC_CACHE", "~/.cache/idc")).expanduser() / "rows"


def _convert(
    target: str,
    path: str | os.PathLike[str],
    columns: Sequence[str] | None,
    split: str | None,
    filesystem: fs.FileSystem | None,
) -> None:
    """Write the Arrow file once, however many processes ask for it at the same time."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target + ".lock", "w") as lock:
        with contextlib.suppress(OSError):  # a filesystem without locks: the work may be done twice, never wrongly
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(target):
            return
        temporary = files.temporary_name(target)
        schema = read_schema(path, columns, filesystem)
        with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for table in iter_tables(path, columns, split, batch_size=64, filesystem=filesystem):
                for batch in table.combine_chunks().to_batches():
                    writer.write_batch(batch)
        os.replace(temporary, target)
