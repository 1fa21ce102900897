"""One's own pairs: a folder of images, or a table (CSV, JSON lines, Parquet) that names them.

**Folder.** The two images of a pair have the same name in two folders, or two endings; sub-folders ``train``, ``val``
and ``test`` at the top give the split and begin the pair ids (``train/x``)::

    before/x.png  after/x.png  mask/x.png        x_before.png  x_after.png  x_mask.png        A/x.png  B/x.png
                                                 x_A.png  x_B.png
    x.txt  (or before/x.txt, captions/x.txt)     one caption a line
    captions.json                                {"x": "text" | ["text", ...] | {"captions": ..., "change_type": ...}}

Images of formats that are not read are rejects where no other image has their place. Every other file that is not used
is counted and named in ``extra["notes"]``; a ``mask`` that ``captions.json`` names lies below the folder.

**Table.** Columns, of which the first three must be there; any other column goes into ``meta``:

======================  ============================================================================================
``pair_id``             unique
``before``, ``after``   path relative to the table's folder, absolute path or URI (of another host with
                        ``allow_remote``); in Parquet also the bytes
``captions``            list of texts; in CSV one text, several separated by ``|``
``caption``             one text; a pair may have several rows with one caption each (CSV, JSON lines)
``change_type``         a word
``split``               train, val or test; where it is empty, val and test get the configured shares
``mask``                like ``before``; non-zero where the scene changed
``source``, ``meta``    text; a JSON object
======================  ============================================================================================

A table is scanned once for ids and positions and then read chunk by chunk: memory is a few bytes a row.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from idc.data import files
from idc.data.images import FORMAT_NAMES, IMAGE_SUFFIXES, OTHER_IMAGE_SUFFIXES
from idc.data.importer import COLUMNS, SPLIT_NAMES, outside_rows, rows_to_batch, unread
from idc.data.pipeline import Batch
from idc.data.store import fingerprint
from idc.data.textfiles import decode, split_lines

_KNOWN = frozenset(COLUMNS) - {"error"} | {"caption"}
IMAGES = ("before", "after")
_REQUIRED = ("pair_id", *IMAGES)
_ROLES = {"before": "before", "a": "before", "after": "after", "b": "after", "mask": "mask", "label": "mask"}
_TEXT_FOLDERS = ("captions", "text")
_OURS = ("validation.json", "validation.html")
"""What jobs/validate.py writes next to the pairs."""
_ENDING = re.compile(r"(.+)[_-](before|after|mask|label|a|b)", re.IGNORECASE)


def _record_row(records: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """The row of a pair from its records (several if each holds one caption)."""
    first = records[0]
    captions: list[Any] = []
    for record in records:
        given = record.get("captions")
        captions += given if isinstance(given, list) else [] if given is None else [given]
        if record.get("caption") is not None:
            captions.append(record["caption"])
    row = {name: first.get(name) for name in COLUMNS}
    row |= {"captions": captions, "source": first.get("source") or where}
    other = {k: v for k, v in first.items() if k not in _KNOWN and v not in (None, "") and not isinstance(v, bytes)}
    meta = first.get("meta")
    if other:
        try:
            meta = json.loads(meta) if isinstance(meta, str) and meta else meta
        except json.JSONDecodeError:
            return row  # the loading stage rejects it
        row["meta"] = {**other, **meta} if isinstance(meta, dict) else (meta or other)
    return row


def must_have(names: list[str], where: str, needed: Sequence[str] = _REQUIRED) -> None:
    """Refuse a table without the needed columns.

    Raises:
        ValueError: naming those that are absent.
    """
    absent = [name for name in needed if name not in names]
    if absent:
        raise ValueError(
            f"{where} has no column {', '.join(absent)}; it has {', '.join(map(repr, names)) or 'none'}. "
            f"Needed: {', '.join(needed)}; known: {', '.join(sorted(_KNOWN))}"
        )


# ------------------------------------------------------------------------------------------------ folder


class FolderReader:
    """Pairs in a folder; see the module's text.

    Raises:
        ValueError: no image in the folder is a before or an after, or ``captions.json`` is not JSON.
    """

    def __init__(
        self,
        path: str,
        *,
        chunk_size: int = 64,
        filesystem: fs.FileSystem | None = None,
        access: files.Access = files.BELOW,
    ) -> None:
        filesystem, self._root = files.resolve(path, filesystem)
        self._root = self._root.rstrip("/")
        self.reader = files.Reader(filesystem, self._root, access)
        self._chunk_size = chunk_size
        tree = files.scan(filesystem, self._root, access.links)
        listed = _Listed(tree, self._root)
        hashed = hashlib.sha256()
        for name, size in listed.used:
            hashed.update(f"{name} {size}\n".encode("utf-8", "surrogateescape"))
        self._caption_files = listed.caption_files
        for name in self._caption_files:
            hashed.update(self._caption_bytes(name))
        if not listed.found:
            raise ValueError(
                f"{path} has no pairs: put the images into before/ and after/ under the same names, "
                f"or name them x_before.png and x_after.png{''.join('; ' + note for note in listed.notes())}"
            )
        self._pairs = [(key, roles, listed.texts.get(key)) for key, roles in sorted(listed.found.items())]
        self._rejects = outside_rows(tree, self._root)
        self._rejects += [
            {"pair_id": name, "error": "unplaced image: it is neither a before nor an after"}
            for name in listed.unplaced
        ]
        self._given: dict[str, Any] | None = None
        notes = listed.notes()
        captions, named = self._captions(), set[str]()
        for key, roles, text in self._pairs:
            names = _names(key, roles)
            named.update(names)
            if text is not None and not any(name in captions for name in names):
                listed.unused_texts.discard(text)
        notes += unread(sorted(listed.unused_texts), "captions of no pair, or of one that has others")
        if strangers := sorted(set(captions) - named):
            notes.append(f"captions.json has {len(strangers)} names that are no pair here, first {strangers[0]!r}")
        self.extra: dict[str, Any] = {"captions_without_pair": len(strangers), "notes": notes}
        self.fingerprint = fingerprint("folder", chunk_size, hashed.hexdigest())

    @property
    def num_rows(self) -> int:
        """The pairs, and what was found and belongs to none."""
        return len(self._pairs) + len(self._rejects)

    @property
    def num_chunks(self) -> int:
        return -(-self.num_rows // self._chunk_size)

    def read(self, chunk_id: int) -> Batch:
        first, count = chunk_id * self._chunk_size, len(self._pairs)
        rows = [self._row(i) for i in range(first, min(first + self._chunk_size, count))]
        rows += self._rejects[max(0, first - count) : max(0, first + self._chunk_size - count)]
        return rows_to_batch(rows)

    def _row(self, i: int) -> dict[str, Any]:
        key, roles, text = self._pairs[i]
        record: dict[str, Any] = {}
        error = None
        for name in _names(key, roles):
            if name in self._captions():
                given = self._captions()[name]
                record = dict(given) if isinstance(given, dict) else {"captions": given}
                break
        else:
            if text is not None:
                try:
                    lines = split_lines(decode(self.reader.read(text), "surrogateescape"))
                    record = {"captions": [line for line in lines if line.strip()]}
                except OSError as exc:
                    error = f"unreadable file: captions, {text}, {exc}"
                except files.OutsideSource as exc:
                    error = f"outside the source: captions, {text}, {exc}"
        first = next(iter(key.split("/", 1)))
        split = SPLIT_NAMES.get(first.lower()) if "/" in key else None
        record = {"split": split, **record, "pair_id": key}
        record |= {role: names[0] for role, names in roles.items()}
        row = _record_row([record], PurePosixPath(self._root).name + "/" + key)
        double = [names for names in roles.values() if len(names) > 1]
        absent = [role for role in ("before", "after") if role not in roles]
        if double:
            row["error"] = f"duplicate pair id: {', '.join(double[0])}"
        elif absent:
            there = ", ".join(names[0] for names in roles.values())
            row["error"] = f"missing partner: there is no {' and no '.join(absent)} image for {there}"
        elif error is not None:
            row["error"] = error
        return row

    def _captions(self) -> dict[str, Any]:
        """``captions.json`` of the folder and of its split folders; read by a worker when it first needs it."""
        if self._given is None:
            self._given = {}
            for name in self._caption_files:
                folder = name.rpartition("/")[0]
                try:
                    content = json.loads(self._caption_bytes(name).decode("utf-8", "surrogateescape"))
                except json.JSONDecodeError as exc:
                    raise ValueError(f"{name} is not JSON: {exc}") from exc
                if not isinstance(content, dict):
                    raise ValueError(f"{name} holds a {type(content).__name__}, not an object of names and captions")
                self._given |= {files.join(folder, key): value for key, value in content.items()}
        return self._given

    def _caption_bytes(self, name: str) -> bytes:
        try:
            return self.reader.read(name)
        except (OSError, files.OutsideSource) as exc:
            raise ValueError(f"{name} cannot be read: {exc}") from exc

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_given": None}


class _Listed:
    """The files of a folder by what they are.

    Attributes:
        found: pair -> role -> the names of its images.
        unplaced: images that are neither a before nor an after.
        texts: pair -> its captions in a text file; ``unused_texts`` begins with all text files.
        used: name and size of all of these.
    """

    def __init__(self, tree: files.Tree, root: str) -> None:
        self.found: dict[str, dict[str, list[str]]] = {}
        self.unplaced: list[str] = []
        self.texts: dict[str, str] = {}
        self.unused_texts: set[str] = set()
        self.caption_files: list[str] = []
        self.used: list[tuple[str, int]] = []
        self._hidden: list[str] = []
        self._other_images: list[str] = []
        self._strangers: list[str] = []
        other_images: list[tuple[str, int]] = []
        for path, size in sorted([*tree.files, *((path, 0) for path in tree.special)]):
            name = path[len(root) + 1 :]
            place = PurePosixPath(name)
            suffix = place.suffix.lower()
            if any(part.startswith((".", "_")) for part in place.parts[:-1]) or place.name.startswith("."):
                self._hidden.append(name)
            elif place.name == "captions.json":
                self.caption_files.append(name)
                self.used.append((name, size))
            elif suffix in IMAGE_SUFFIXES:
                self._place(name, size)
            elif suffix in OTHER_IMAGE_SUFFIXES:
                other_images.append((name, size))
            elif suffix == ".txt":
                self.texts.setdefault(_role_and_key(place)[1], name)
                self.unused_texts.add(name)
                self.used.append((name, size))
            elif name not in _OURS:
                self._strangers.append(name)
        for name, size in other_images:
            role, key = _role_and_key(PurePosixPath(name))
            if role is None or role in self.found.get(key, {}):
                self._other_images.append(name)
            else:  # the loading stage rejects it, and with it the pair
                self._place(name, size)

    def _place(self, name: str, size: int) -> None:
        role, key = _role_and_key(PurePosixPath(name))
        if role is None:
            self.unplaced.append(name)
        else:
            self.found.setdefault(key, {}).setdefault(role, []).append(name)
        self.used.append((name, size))

    def notes(self) -> list[str]:
        """What is not read, but for captions."""
        return [
            *unread(self._other_images, f"no {FORMAT_NAMES.replace(' and ', ' or ')}"),
            *unread(self._strangers, "neither images nor captions"),
            *unread(
                self._hidden, "hidden (a name that begins with a dot, or in a folder whose name begins with . or _)"
            ),
        ]


def _role_and_key(place: PurePosixPath) -> tuple[str | None, str]:
    """The role of a file and the name its pair has: ``train/before/x.png`` is before of ``train/x``."""
    folders = list(place.parts[:-1])
    for i, folder in enumerate(folders):
        role = _ROLES.get(folder.lower())
        if role is not None or folder.lower() in _TEXT_FOLDERS:
            return role, "/".join([*folders[:i], *folders[i + 1 :], place.stem])
    match = _ENDING.fullmatch(place.stem)
    if match is not None:
        return _ROLES[match.group(2).lower()], "/".join([*folders, match.group(1)])
    return None, "/".join([*folders, place.stem])


def _names(key: str, roles: dict[str, list[str]]) -> list[str]:
    """What ``captions.json`` may call a pair: its id, or the file name of its before or after image."""
    folder = key.rpartition("/")[0]
    images = [name for role in ("before", "after") for name in roles.get(role, [])]
    return list(dict.fromkeys([key, *images, *(files.join(folder, name.rpartition("/")[2]) for name in images)]))


# ------------------------------------------------------------------------------------------------ CSV, JSON lines


class TableReader:
    """Pairs named by a CSV or JSON-lines file; see the module's text.

    Rows that repeat a pair id with the same images add their captions to the pair, wherever they stand; with other
    images they are rejected as duplicates.

    Args:
        each_row: every row is a pair of its own, in the order of the file; ids may repeat, or be missing (None).

    Raises:
        ValueError: the file is missing or empty, or lacks a needed column.
    """

    def __init__(
        self,
        path: str,
        format: Literal["csv", "jsonl"],
        *,
        chunk_size: int = 64,
        filesystem: fs.FileSystem | None = None,
        access: files.Access = files.LOCAL,
        each_row: bool = False,
    ) -> None:
        filesystem, self._path = files.resolve(path, filesystem)
        folder, _, self._name = self._path.rpartition("/")
        self._each_row = each_row
        self.reader = files.Reader(filesystem, folder, access)
        self._format = format
        self._chunk_size = chunk_size
        if filesystem.get_file_info(self._path).type != fs.FileType.File:
            raise ValueError(f"{path} is not a file; format={format} takes one table")
        self._header, self._delimiter, begin = self._csv_header() if format == "csv" else ([], ",", 0)
        self._scan(begin)
        if not self.num_chunks:
            raise ValueError(f"{path} has no rows")
        other = sorted(set(self._header) - _KNOWN)
        self.extra: dict[str, Any] = {"notes": [f"columns kept in meta: {', '.join(other)}"] if other else []}

    @property
    def num_rows(self) -> int:
        """The pairs; with ``each_row`` the rows."""
        return len(self._starts) - 1

    @property
    def num_chunks(self) -> int:
        return -(-self.num_rows // self._chunk_size)

    def read(self, chunk_id: int) -> Batch:
        first = chunk_id * self._chunk_size
        rows = []
        with self._open() as stream:
            for pair in range(first, min(first + self._chunk_size, len(self._starts) - 1)):
                entries = range(self._starts[pair], self._starts[pair + 1])
                records = []
                for entry in entries:
                    stream.seek(int(self._offsets[entry]))
                    records.append(next(self._records(stream))[2])
                line = int(self._lines[self._starts[pair]])
                rows.append(self._row(records, pair, line))
        return rows_to_batch(rows)

    def _row(self, records: list[dict[str, Any] | str], pair: int, line: int) -> dict[str, Any]:
        where = f"{self._name}:{line}"
        good = [r for r in records if isinstance(r, dict)]
        if len(good) < len(records):
            return {"pair_id": where, "error": next(r for r in records if isinstance(r, str))}
        if good[0].get("pair_id") in (None, "") and not self._each_row:
            return {"pair_id": where, "error": f"no pair id: {where}"}
        row = _record_row(good, where)
        row["pair_id"] = str(row["pair_id"]) if row["pair_id"] is not None else None
        if pair in self._duplicates:
            row["error"] = f"duplicate pair id: {where} repeats an id with other images"
        return row

    def _scan(self, begin: int) -> None:
        """One pass over the file: where each pair's records are."""
        pairs: dict[bytes, tuple[int, bytes]] = {}
        offsets: list[list[int]] = []
        lines = array("q")
        alone = array("q")
        duplicates: set[int] = set()
        hashed = hashlib.sha256(repr((self._header, self._delimiter)).encode("utf-8", "surrogateescape"))
        with self._open() as stream:
            stream.seek(begin)
            for offset, line, record in self._records(stream, hashed):
                if self._each_row:
                    alone.append(offset)
                    lines.append(line + (self._format == "csv"))
                    continue
                name = record.get("pair_id") if isinstance(record, dict) else None
                if isinstance(record, dict) and name not in (None, ""):
                    key, images = _digest(str(name)), _digest([record.get("before"), record.get("after")])
                    known = pairs.setdefault(key, (len(offsets), images))
                    if known[0] < len(offsets):
                        if known[1] == images:
                            offsets[known[0]].append(offset)
                            continue
                        duplicates.add(len(offsets))
                offsets.append([offset])
                lines.append(line + (self._format == "csv"))
        counts = [len(entry) for entry in offsets] if not self._each_row else np.ones(len(alone), np.int64)
        self._offsets = np.array(alone if self._each_row else [o for entry in offsets for o in entry], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        self._lines = np.repeat(np.array(lines, dtype=np.int64), counts)
        self._duplicates = duplicates
        self.fingerprint = fingerprint(self._format, self._chunk_size, hashed.hexdigest())

    def _open(self) -> io.BufferedReader:
        return io.BufferedReader(self.reader.filesystem.open_input_file(self._path))

    def _records(self, stream: io.BufferedReader, hashed: Any = None) -> Iterator[tuple[int, int, Any]]:
        """``(offset, line, record)`` from where the stream stands; a record that cannot be read is its error."""
        offset, line = stream.tell(), 0

        def texts() -> Iterator[str]:
            nonlocal offset, line
            while raw := stream.readline():
                if hashed is not None:
                    hashed.update(raw)
                offset += len(raw)
                line += 1
                yield raw.decode("utf-8", "surrogateescape")

        lines = texts()
        rows: Iterator[Any] = csv.reader(lines, delimiter=self._delimiter) if self._format == "csv" else lines
        while True:
            begin, number = offset, line + 1
            try:
                row = next(rows)
                record = self._csv_record(row) if isinstance(row, list) else _json_record(row)
            except StopIteration:
                return
            except csv.Error as exc:
                record = f"bad row: {exc}"
            if record is not None:
                yield begin, number, record

    def _csv_record(self, cells: list[str]) -> dict[str, Any] | str | None:
        if not cells:
            return None
        if len(cells) > len(self._header):
            return f"bad row: {len(cells)} cells under {len(self._header)} columns"
        record: dict[str, Any] = {k: v for k, v in zip(self._header, cells, strict=False) if v != ""}
        if "captions" in record:
            record["captions"] = record["captions"].split("|")
        return record

    def _csv_header(self) -> tuple[list[str], str, int]:
        with self._open() as stream:
            raw = stream.readline()
        text = raw.decode("utf-8-sig", "replace").rstrip("\r\n")
        split = {d: [name.strip() for name in next(csv.reader([text], delimiter=d), [])] for d in (",", ";", "\t")}
        delimiter = max(split, key=lambda d: len(set(split[d]) & _KNOWN))
        must_have(split[delimiter], self._name, IMAGES if self._each_row else _REQUIRED)
        return split[delimiter], delimiter, len(raw)


def _json_record(text: str) -> dict[str, Any] | str | None:
    if not text.strip("\ufeff \t\r\n"):
        return None
    try:
        record = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as exc:
        return f"bad row: not JSON, {exc}"
    except RecursionError:
        return "bad row: JSON nested too deep"
    return record if isinstance(record, dict) else f"bad row: a {type(record).__name__}, not a JSON object"


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogateescape"), digest_size=12).digest()


# ------------------------------------------------------------------------------------------------ Parquet


class ParquetReader:
    """Pairs in a Parquet file, or a folder of them; images as bytes, as paths, or as ``{"bytes", "path"}``.

    A chunk is made of whole row groups, so that each is read once; memory is that of the file's row groups.

    Raises:
        ValueError: there is no Parquet file, or a needed column is missing.
    """

    def __init__(
        self,
        path: str,
        *,
        chunk_size: int = 64,
        filesystem: fs.FileSystem | None = None,
        access: files.Access = files.LOCAL,
    ) -> None:
        filesystem, inner = files.resolve(path, filesystem)
        inner = inner.rstrip("/")
        if filesystem.get_file_info(inner).type == fs.FileType.File:
            names, folder, others = [inner], inner.rpartition("/")[0], []
        else:
            listed = [f.path for f in files.list_files(filesystem, inner)]
            names = [name for name in listed if name.endswith(".parquet")]
            others = [name[len(inner) + 1 :] for name in listed if not name.endswith(".parquet")]
            folder = inner
        if not names:
            raise ValueError(f"{path} has no Parquet files")
        self.reader = files.Reader(filesystem, folder, access)
        self._chunks: list[tuple[str, list[int], int]] = []
        self._duplicates: set[int] = set()
        seen: set[bytes] = set()
        hashed = hashlib.sha256()
        row, other = 0, set()
        for name in names:
            with filesystem.open_input_file(name) as stream:
                try:
                    parquet = pq.ParquetFile(stream)
                except pa.ArrowInvalid as exc:
                    raise ValueError(f"{name} is not a Parquet file: {exc}") from exc
                columns = parquet.schema_arrow.names
                must_have(columns, name)
                other |= set(columns) - _KNOWN
                hashed.update(f"{name.removeprefix(folder)} {stream.size()}\n".encode())
                groups, first = [], row
                for group in range(parquet.num_row_groups):
                    for value in parquet.read_row_group(group, columns=["pair_id"])["pair_id"].to_pylist():
                        key = _digest(str(value))
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
            raise ValueError(f"{path} has no rows")
        self.fingerprint = fingerprint("parquet", chunk_size, hashed.hexdigest())
        notes = [f"columns kept in meta: {', '.join(sorted(other))}"] if other else []
        self.extra: dict[str, Any] = {"notes": [*notes, *unread(others, "no Parquet file")]}

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def read(self, chunk_id: int) -> Batch:
        name, groups, first = self._chunks[chunk_id]
        with self.reader.filesystem.open_input_file(name) as stream:
            table = pq.ParquetFile(stream).read_row_groups(groups)
        rows = []
        for number, record in enumerate(table.to_pylist(), start=first):
            where = f"{PurePosixPath(name).name}:{number}"
            record = {k: unwrapped(v) if k in ("before", "after", "mask") else v for k, v in record.items()}
            if record["pair_id"] in (None, ""):
                rows.append({"pair_id": where, "error": f"no pair id: row {number}"})
                continue
            row = _record_row([record], where)
            row["pair_id"] = str(row["pair_id"])
            if number in self._duplicates:
                row["error"] = f"duplicate pair id: row {number} repeats an id"
            rows.append(row)
        return rows_to_batch(rows)


def unwrapped(value: Any) -> Any:
    """``{"bytes": ..., "path": ...}``, as the Hugging Face ``datasets`` library writes images, as one of the two."""
    if isinstance(value, dict):
        return value.get("bytes") or value.get("path")
    return value
