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

A table is scanned once for ids and positions and then read chunk by chunk: memory is a few bytes a row. What CSV may
hold between quotes is in :mod:`idc.data.readers.csv_rows`.
"""

from __future__ import annotations

import hashlib
import io
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
from pyarrow import fs

from idc.data import files
from idc.data.images import IMAGE_SUFFIXES, OTHER_IMAGE_SUFFIXES
from idc.data.pipeline import Batch
from idc.data.readers import parquet_rows
from idc.data.readers.base import COLUMNS, SPLIT_NAMES, outside_rows, rows_to_batch, unread, unread_images
from idc.data.readers.csv_rows import CsvRows, Line, read_header
from idc.data.store import fingerprint
from idc.data.textfiles import JsonError, decode, iter_lines, parse_json, split_lines
from idc.schema import CAPTION_ORIGINS

_GIVEN = tuple(name for name in COLUMNS if name != "error")
"""The columns of a row that its record may fill."""
_KNOWN = frozenset(_GIVEN) | {"caption"}
_ONE_VALUE = ("split", "change_type", "mask")
"""What the records of one pair must agree in."""
IMAGES = ("before", "after")
_REQUIRED = ("pair_id", *IMAGES)
_ROLES = {"before": "before", "a": "before", "after": "after", "b": "after", "mask": "mask", "label": "mask"}
_TEXT_FOLDERS = ("captions", "text")
_OURS = ("validation.json", "validation.html")
"""What jobs/validate.py writes next to the pairs."""
_ENDING = re.compile(r"(.+)[_-](before|after|mask|label|a|b)", re.IGNORECASE)


def _record_row(records: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """The row of a pair from its records (several if each holds one caption); the first that fills a column counts."""
    filled: dict[str, Any] = {}
    captions: list[Any] = []
    origins: list[Any] = []
    for record in records:
        captions += captions_of(record)
        given = record.get(CAPTION_ORIGINS)
        origins += given if isinstance(given, list) else [None] * (len(captions) - len(origins))
        for name, value in record.items():
            if value not in (None, ""):
                filled.setdefault(name, value)
    row = {name: filled.get(name) for name in _GIVEN}
    row |= {"captions": captions, "source": row["source"] or where}
    if isinstance(row[CAPTION_ORIGINS], list):  # anything else is rejected by the loading stage
        row[CAPTION_ORIGINS] = origins
    other = {k: v for k, v in filled.items() if k not in _KNOWN and not isinstance(v, bytes)}
    if other:
        meta = row["meta"]
        try:
            meta = parse_json(meta, keep_surrogates=True) if isinstance(meta, str) else meta
        except JsonError:
            return row  # the loading stage rejects it
        row["meta"] = {**other, **meta} if isinstance(meta, dict) else (meta or other)
    return row


def captions_of(record: dict[str, Any]) -> list[Any]:
    """What a record has under ``captions`` and ``caption``."""
    given = record.get("captions")
    captions = list(given) if isinstance(given, list) else [] if given is None else [given]
    return captions if record.get("caption") is None else [*captions, record["caption"]]


def _id_error(value: Any, where: str) -> str | None:
    """Why a value is no id of a pair; ids are texts or numbers."""
    if value in (None, ""):
        return f"no pair id: {where}"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"bad row: pair_id of {where} is a {type(value).__name__}, not text or a number"
    return None


def must_have(names: list[str], where: str, needed: Sequence[str] = _REQUIRED) -> None:
    """Refuse a table without the needed columns, or with two of one name.

    Raises:
        ValueError: naming those that are absent or repeated.
    """
    if repeated := [name for name, count in Counter(names).items() if count > 1 and name]:
        raise ValueError(f"{where} has the column {', '.join(map(repr, repeated))} more than once; rename one of them")
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
        self._rejects = outside_rows(tree, self._root)
        notes = [*(f"{row['pair_id']} is {row['error']}" for row in self._rejects), *listed.notes()]
        hashed = hashlib.sha256()
        for name, size in listed.used:
            hashed.update(f"{name} {size}\n".encode("utf-8", "surrogateescape"))
        self._caption_files = listed.caption_files
        for name in self._caption_files:
            hashed.update(self._caption_bytes(name))
        if not listed.found:
            raise ValueError(
                f"{path} has no pairs: put the images into before/ and after/ under the same names, "
                f"or name them x_before.png and x_after.png{''.join('; ' + note for note in notes)}"
            )
        self._pairs = [(key, roles, listed.texts.pop(key, [])) for key, roles in sorted(listed.found.items())]
        self._rejects += [
            {"pair_id": name, "error": "unplaced image: it is neither a before nor an after"}
            for name in listed.unplaced
        ]
        self._given: dict[str, list[tuple[str, Any]]] | None = None
        unused = sorted(name for names in listed.texts.values() for name in names)
        notes += unread(unused, "captions of no pair")
        strangers = sorted(set(self._captions()) - {n for key, roles, _ in self._pairs for n in _names(key, roles)})
        if strangers:
            notes.append(f"captions.json has {len(strangers)} names that are no pair here, first {strangers[0]!r}")
        self.extra: dict[str, Any] = {"captions_without_pair": len(strangers) + len(unused), "notes": notes}
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
        key, roles, texts = self._pairs[i]
        given = [entry for name in _names(key, roles) for entry in self._captions().get(name, ())]
        value = given[0][1] if given else {}
        record = dict(value) if isinstance(value, dict) else {"captions": value}
        record = {**record, "pair_id": key, **{role: names[0] for role, names in roles.items()}}
        split = SPLIT_NAMES.get(key.partition("/")[0].lower()) if "/" in key else None
        said, record["split"] = record.get("split"), record.get("split") or split
        places = [file for file, _ in given if len(given) > 1 or captions_of(record)] + texts
        error = None
        if texts and len(places) == 1:
            try:
                lines = split_lines(decode(self.reader.read(texts[0]), "surrogateescape"))
                record["captions"] = [line for line in lines if line.strip()]
            except OSError as exc:
                error = f"unreadable file: captions, {texts[0]}, {exc}"
            except files.OutsideSource as exc:
                error = f"outside the source: captions, {texts[0]}, {exc}"
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
        elif len(places) > 1:
            row["error"] = f"bad row: captions in {' and in '.join(places)}; keep one of them"
        elif split is not None and said and _split_name(said) != split:
            row["error"] = f"bad split: {key} is in the folder of {split}, but captions.json says {said!r}"
        return row

    def _captions(self) -> dict[str, list[tuple[str, Any]]]:
        """``captions.json`` of the folder and of its split folders: for each name its entries and their places; read
        by a worker when it first needs it."""
        if self._given is None:
            self._given = {}
            for file in self._caption_files:
                folder, data = file.rpartition("/")[0], self._caption_bytes(file)
                try:
                    content = parse_json(decode(data, "surrogateescape"), keep_surrogates=True)
                except ValueError as exc:
                    raise ValueError(f"{file}: {exc}") from exc
                if not isinstance(content, dict):
                    raise ValueError(f"{file} holds a {type(content).__name__}, not an object of names and captions")
                for key, value in content.items():
                    self._given.setdefault(files.join(folder, key), []).append((f"{file}:{key}", value))
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
        texts: pair -> the text files with its captions.
        used: name and size of all of these.
    """

    def __init__(self, tree: files.Tree, root: str) -> None:
        self.found: dict[str, dict[str, list[str]]] = {}
        self.unplaced: list[str] = []
        self.texts: dict[str, list[str]] = {}
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
                self.texts.setdefault(_role_and_key(place)[1], []).append(name)
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
            *unread_images(self._other_images),
            *unread(self._strangers, "neither images nor captions"),
            *unread(
                self._hidden, "hidden (a name that begins with a dot, or in a folder whose name begins with . or _)"
            ),
        ]


def _split_name(value: Any) -> str:
    """Our name of a split, or what the input calls it."""
    name = str(value).strip().lower()
    return SPLIT_NAMES.get(name, name)


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
    images, or another split, change type or mask, they are rejected as duplicates.

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
        self._cells = CsvRows(self._header, self._delimiter, IMAGES) if format == "csv" else None
        self._scan(begin)
        if not self.num_chunks:
            raise ValueError(f"{path} has no rows")
        other = sorted(set(self._header) - _KNOWN)
        self.extra: dict[str, Any] = {"notes": [f"columns kept in meta: {', '.join(other)}"] if other else []}
        if self._has_origins:
            self.extra[CAPTION_ORIGINS] = True

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
            for pair in range(first, min(first + self._chunk_size, self.num_rows)):
                records = []
                for entry in range(self._starts[pair], self._starts[pair + 1]):
                    stream.seek(int(self._offsets[entry]))
                    _, record = next(self._records(self._lines_of(stream)))
                    records.append((f"{self._name}:{self._lines[entry]}", record))
                rows += self._rows(records, pair)
        return rows_to_batch(rows)

    def _rows(self, records: list[tuple[str, dict[str, Any] | str]], pair: int) -> list[dict[str, Any]]:
        """The row of a pair from its records and their places, and a reject for each that contradicts the others."""
        where, first = records[0]
        if isinstance(first, str):  # never merged: it has no id
            return [{"pair_id": where, "error": first}]
        if not self._each_row and (error := _id_error(first.get("pair_id"), where)):
            return [{"pair_id": where, "error": error}]
        agreed, contradictions = _agreeing(records)
        row = _record_row(agreed, where)
        row["pair_id"] = str(row["pair_id"]) if row["pair_id"] is not None else None
        if pair in self._duplicates:
            row["error"] = f"duplicate pair id: {where} repeats an id with other images"
        return [row, *contradictions]

    def _scan(self, begin: int) -> None:
        """One pass over the file: where each pair's records are."""
        pairs: dict[bytes, tuple[int, bytes]] = {}
        owners, offsets, lines = array("q"), array("q"), array("q")
        self._duplicates: set[int] = set()
        self._has_origins, count = False, 0
        hashed = hashlib.sha256(repr((self._header, self._delimiter)).encode("utf-8", "surrogateescape"))
        with self._open() as stream:
            stream.seek(begin)
            for line, record in self._records(self._lines_of(stream, hashed)):
                owner, name = count, record.get("pair_id") if isinstance(record, dict) else None
                self._has_origins |= isinstance(record, dict) and record.get(CAPTION_ORIGINS) is not None
                if not self._each_row and isinstance(record, dict) and name not in (None, ""):
                    images = _digest([record.get("before"), record.get("after")])
                    owner, known = pairs.setdefault(_digest(str(name)), (count, images))
                    if known != images:
                        owner = count
                        self._duplicates.add(count)
                count += owner == count
                owners.append(owner)
                offsets.append(line.offset)
                lines.append(line.number)
        order = np.argsort(np.array(owners, np.int64), kind="stable")
        self._offsets = np.array(offsets, np.int64)[order]
        self._lines = np.array(lines, np.int64)[order]
        records_of = np.bincount(np.array(owners, np.int64), minlength=count)
        self._starts = np.concatenate([[0], np.cumsum(records_of)]).astype(np.int64)
        self.fingerprint = fingerprint(self._format, self._chunk_size, hashed.hexdigest())

    def _open(self) -> io.BufferedReader:
        return io.BufferedReader(self.reader.filesystem.open_input_file(self._path))

    def _lines_of(self, stream: io.BufferedReader, hashed: Any = None) -> Iterator[Line]:
        """The lines from where the stream is; numbers are those of the file if that is after its header."""
        offset = stream.tell()
        for number, raw in enumerate(iter_lines(stream), start=1 if self._cells is None else 2):
            if hashed is not None:
                hashed.update(raw)
            yield Line(offset, number, raw.decode("utf-8", "surrogateescape"))
            offset += len(raw)

    def _records(self, lines: Iterator[Line]) -> Iterator[tuple[Line, dict[str, Any] | str]]:
        """The records with their first lines; one that cannot be read is its error."""
        if self._cells is not None:
            for line, cells in self._cells.read(lines):
                yield line, cells if isinstance(cells, str) else self._csv_record(cells)
            return
        for line in lines:
            if line.text.strip("\ufeff \t\r\n"):
                yield line, _json_record(line.text)

    def _csv_record(self, cells: list[str]) -> dict[str, Any] | str:
        record: dict[str, Any] = {}
        for name, cell in zip(self._header, cells, strict=False):
            if cell and name in record:
                return "bad row: two cells under columns without a name"
            if cell:
                record[name] = cell
        if "captions" in record:
            record["captions"] = record["captions"].split("|")
        return record

    def _csv_header(self) -> tuple[list[str], str, int]:
        with self._open() as stream:
            raw = next(iter_lines(stream), b"")
        try:
            header, delimiter = read_header(decode(raw), _KNOWN)
        except ValueError as exc:
            raise ValueError(f"{self._name} is {exc}") from exc
        must_have(header, self._name, IMAGES if self._each_row else _REQUIRED)
        return header, delimiter, len(raw)


def _agreeing(records: list[tuple[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records of a pair that agree with those before them, and the others as rejected rows."""
    agreed: list[dict[str, Any]] = []
    rejects: list[dict[str, Any]] = []
    first: dict[str, tuple[Any, str]] = {}
    for where, record in records:
        given = {name: _split_name(value) if name == "split" else value
                 for name in _ONE_VALUE if (value := record.get(name)) not in (None, "")}  # fmt: skip
        other = next((name for name, value in given.items() if name in first and first[name][0] != value), None)
        if other is None:
            first |= {name: (value, where) for name, value in given.items() if name not in first}
            agreed.append(record)
            continue
        known, place = first[other]
        here = f"{record['pair_id']} has {other} {given[other]!r} in {where}"
        rejects.append({"pair_id": where, "error": f"duplicate pair id: {here}, but {known!r} in {place}"})
    return agreed, rejects


def _json_record(text: str) -> dict[str, Any] | str:
    try:
        record = parse_json(text, keep_surrogates=True)
    except JsonError as exc:
        return f"bad row: {exc}"
    return record if isinstance(record, dict) else f"bad row: a {type(record).__name__}, not a JSON object"


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogateescape"), digest_size=12).digest()


# ------------------------------------------------------------------------------------------------ Parquet


class ParquetReader:
    """Pairs in a Parquet file, or a folder of them; images as bytes, as paths, or as ``{"bytes", "path"}``.

    A chunk is made of whole row groups, so that each is read once; memory is that of the file's row groups.

    Attributes:
        all_split: whether every row has a split.

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
        self.all_split, has_origins = True, False
        seen: set[bytes] = set()
        hashed = hashlib.sha256()
        row, other = 0, set()
        for name in names:
            with filesystem.open_input_file(name) as stream:
                parquet = parquet_rows.open_file(stream, name)
                columns = parquet.schema_arrow.names
                must_have(columns, name)
                other |= set(columns) - _KNOWN
                has_origins |= CAPTION_ORIGINS in columns
                scanned = [column for column in ("pair_id", "split") if column in columns]
                hashed.update(f"{name.removeprefix(folder)} {stream.size()}\n".encode("utf-8", "surrogateescape"))
                groups, first = [], row
                for group in range(parquet.num_row_groups):
                    for record in parquet_rows.read_groups(stream, parquet, [group], scanned):
                        value = record["pair_id"] if isinstance(record, dict) else None
                        self.all_split &= isinstance(record, str) or record.get("split") not in (None, "")
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
        if has_origins:
            self.extra[CAPTION_ORIGINS] = True

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def read(self, chunk_id: int) -> Batch:
        name, groups, first = self._chunks[chunk_id]
        with self.reader.filesystem.open_input_file(name) as stream:
            records = parquet_rows.read_groups(stream, parquet_rows.open_file(stream, name), groups)
        rows = []
        for number, record in enumerate(records, start=first):
            where = f"{PurePosixPath(name).name}:{number}"
            if isinstance(record, str):
                rows.append({"pair_id": where, "error": record})
                continue
            record = {k: unwrapped(v) if k in ("before", "after", "mask") else v for k, v in record.items()}
            if error := _id_error(record["pair_id"], f"row {number}"):
                rows.append({"pair_id": where, "error": error})
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
