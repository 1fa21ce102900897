"""The user's own pairs in a table: CSV, JSON lines or a JSON array; Parquet is in :mod:`idc.data.readers.parquet`.

``before`` and ``after`` are required; columns that are not listed here go into ``meta``:

======================  ============================================================================================
``pair_id``             unique; if no row has one, the row's number from 0, unreadable rows included
``before``, ``after``   path relative to the table's folder (out of it with ``allow_outside``), absolute path or URI
                        (of another host with ``allow_remote``); in Parquet also the bytes
``captions``            list of texts; in CSV one text, several separated by ``|``
``caption``             one text; a pair may have several rows with one caption each (CSV, JSON lines)
``change_type``         a word
``split``               train, val or test; where it is empty, val and test get the configured shares
``mask``                like ``before``; non-zero where the scene changed
``source``, ``meta``    text; a JSON object
======================  ============================================================================================

A row is a line, of an array an element; a quoted cell of CSV ends on its line. The file is scanned once for ids and
positions and then read chunk by chunk: memory is a few bytes per row.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Literal

import numpy as np

from idc.data import files
from idc.data.pipeline import Batch
from idc.data.readers.base import COLUMNS, SPLIT_NAMES, rows_to_batch
from idc.data.schema import CAPTION_ORIGINS
from idc.data.store import fingerprint
from idc.data.textfiles import JsonError, decode_text, parse_json

_ROW_COLUMNS = tuple(name for name in COLUMNS if name != "error")
KNOWN = frozenset(_ROW_COLUMNS) | {"caption"}
IMAGES = ("before", "after")
NUMBERED = "no pair_id: the pairs are named by their rows, from 0"
"""Note about a table without any id."""
_ONE_VALUE = ("split", "change_type", "mask")
"""Columns in which the records of one pair must agree."""
_DELIMITERS: tuple[str, ...] = (",", ";", "\t")
_ARRAY_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?:\{|\]|$)")
_MAX_HEADER = 100_000
"""Most characters of a header: Python's parser of CSV takes no longer cell, and messages name its columns."""
_HEAD = 64 * 1024
"""Bytes in which the begin of an array is looked for."""
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""First bytes of .xlsx and .ods, and of .xls."""
_BETWEEN = re.compile(r"[, \t\r\n]*")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
"""Finds the end of an element; whether it is a row is seen when it is read."""


class TableReader:
    """Pairs named by a CSV file, JSON lines or a JSON array of objects; see the module's text.

    Rows that repeat a pair id with the same images add their captions to the pair, wherever they are in the file; with
    other images, or another split, change type or mask, they are rejected as duplicates.

    Args:
        each_row: every row is a pair of its own, in the order of the file; ids may repeat or be missing (None).

    Raises:
        ValueError: the file is missing or empty, or lacks a required column.
    """

    def __init__(
        self,
        table: files.Location,
        format: Literal["csv", "jsonl"],
        *,
        chunk_size: int = 64,
        access: files.Access = files.LOCAL,
        each_row: bool = False,
    ) -> None:
        self._table, self._format, self._chunk_size, self._each_row = table, format, chunk_size, each_row
        self.reader = files.Reader(table.parent, access)
        if not table.is_file():
            raise ValueError(f"{table} is not a file; format={format} takes one table")
        with self._open() as stream:
            head = stream.read(_HEAD)
            if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in head[:4]:
                raise ValueError(f"{table} is UTF-16; save it as UTF-8 (in Excel: CSV UTF-8)")
            if head.startswith(_WORKBOOKS):
                raise ValueError(f"{table} is a workbook, not text; save its sheet as CSV UTF-8")
            stream.seek(0)
            is_array = format == "jsonl" and _ARRAY_BEGIN.match(head) is not None
            elements = _array_elements(stream.read()) if is_array else _lines(stream)
            self._header, self._delimiter = list[str](), ","
            if format == "csv":
                self._header, self._delimiter = self._csv_header(next((raw for _, _, raw in elements), b""))
            self._scan(elements)
        if not self.num_chunks:
            raise ValueError(f"{table} has no rows")
        other = sorted(set(self._header) - KNOWN)
        notes = [f"columns kept in meta: {', '.join(other)}"] if other else []
        self.extra: dict[str, Any] = {"notes": [*notes, *([NUMBERED] if self._numbered else [])]}
        if self._has_origins:
            self.extra[CAPTION_ORIGINS] = True

    @property
    def num_rows(self) -> int:
        """Number of pairs; with ``each_row`` of rows."""
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
                for offset, size, line in self._positions[self._starts[pair] : self._starts[pair + 1]].tolist():
                    stream.seek(offset)
                    records.append((f"{self._table.name}:{line}", self._record(stream.read(size))))
                rows += self._rows(records, pair)
        return rows_to_batch(rows)

    def _rows(self, records: list[tuple[str, Any]], pair: int) -> list[dict[str, Any]]:
        """The row of a pair from its records and their places, and a reject for each contradicting record."""
        where, first = records[0]
        if isinstance(first, str):  # never merged: it has no id
            return [{"pair_id": where, "error": first}]
        if self._numbered:
            first["pair_id"] = pair
        if not self._each_row and (error := id_error(first.get("pair_id"), where)):
            return [{"pair_id": where, "error": error}]
        agreed, contradictions = _agreeing(records)
        row = record_row(agreed, where)
        row["pair_id"] = str(row["pair_id"]) if row["pair_id"] is not None else None
        if pair in self._duplicates:
            row["error"] = f"duplicate pair id: {where} repeats an id with other images"
        return [row, *contradictions]

    def _scan(self, elements: Iterable[tuple[int, int, bytes]]) -> None:
        """Find where each pair's records are."""
        pairs: dict[bytes, tuple[int, bytes]] = {}
        owners, positions = array("q"), array("q")
        self._duplicates: set[int] = set()
        self._has_origins, self._numbered, count = False, not self._each_row, 0
        hashed = hashlib.sha256(repr((self._header, self._delimiter)).encode("utf-8", "surrogateescape"))
        for offset, line, raw in elements:
            hashed.update(raw)
            if (record := self._record(raw)) is None:
                continue
            owner = count
            if isinstance(record, dict):
                self._has_origins |= record.get(CAPTION_ORIGINS) is not None
                if not self._each_row and (name := record.get("pair_id")) not in (None, ""):
                    self._numbered = False
                    images = digest_of([record.get("before"), record.get("after")])
                    owner, owner_images = pairs.setdefault(digest_of(str(name)), (count, images))
                    if owner_images != images:
                        owner = count
                        self._duplicates.add(count)
            count += owner == count
            owners.append(owner)
            positions.extend((offset, len(raw), line))
        owner_of = np.array(owners, np.int64)
        # Stable: the records of a pair stay in the order of the file.
        self._positions = np.array(positions, np.int64).reshape(-1, 3)[np.argsort(owner_of, kind="stable")]
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(owner_of, minlength=count))]).astype(np.int64)
        self.fingerprint = fingerprint(self._format, self._chunk_size, hashed.hexdigest())

    def _open(self) -> io.BufferedReader:
        return io.BufferedReader(self._table.open())

    def _record(self, data: bytes) -> dict[str, Any] | str | None:
        """A row as a record, or the error of one that cannot be read; None if it is blank."""
        text = data.decode("utf-8", "surrogateescape")
        if self._format == "csv":
            return self._csv_record(text.rstrip("\r\n"))
        if not text.strip("\ufeff \t\r\n"):
            return None
        try:
            record = parse_json(text, keep_surrogates=True)
        except JsonError as exc:
            return f"bad row: {exc}"
        return record if isinstance(record, dict) else f"bad row: a {type(record).__name__}, not a JSON object"

    def _csv_record(self, text: str) -> dict[str, Any] | str | None:
        try:
            cells = next(csv.reader([text], delimiter=self._delimiter, strict=True, skipinitialspace=True), [])
        except csv.Error as error:
            return (
                f"bad row: {error}; a quoted cell ends on its line, at a delimiter, and has its own quotes twice; "
                "JSON lines take texts of several lines"
            )
        cells = [cell.strip(" ") for cell in cells]
        if not any(cells):
            return None
        if len(cells) > len(self._header):
            return f"bad row: {len(cells)} cells under {len(self._header)} columns"
        record: dict[str, Any] = {}
        for name, cell in zip(self._header, cells, strict=False):
            if cell and name in record:
                return "bad row: two cells under columns without a name"
            if cell:
                record[name] = cell
        if "captions" in record:
            record["captions"] = record["captions"].split("|")
        return record

    def _csv_header(self, line: bytes) -> tuple[list[str], str]:
        """The names of the columns, and the delimiter that yields most known ones."""
        name = self._table.name
        try:
            text = decode_text(line).rstrip("\r\n")
        except ValueError as exc:
            raise ValueError(f"{name} is {exc}") from exc
        if len(text) > _MAX_HEADER:
            raise ValueError(f"{name} has a first line of {len(text):,} characters, which are no names of columns")
        headers = {mark: next(csv.reader([text], delimiter=mark, skipinitialspace=True), []) for mark in _DELIMITERS}
        headers = {mark: [column.strip() for column in header] for mark, header in headers.items()}
        delimiter = max(headers, key=lambda mark: len(KNOWN.intersection(headers[mark])))
        check_columns(headers[delimiter], name)
        return headers[delimiter], delimiter


def _lines(stream: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Offset, number and bytes of the lines; LF, CRLF and CR end a line."""
    offset, number = 0, 1
    for lines in stream:  # up to an LF
        for raw in lines.splitlines(keepends=True):
            yield offset, number, raw
            offset, number = offset + len(raw), number + 1


def _array_elements(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Offset, line and bytes of the elements of a JSON array.

    No byte but blanks and commas is left out: what follows an element that is not JSON, or the array, is an element
    too, and if the array does not close, so is the last byte of its last element, which is no row.
    """
    text = data.decode("latin-1")  # a character for each byte; those of UTF-8 texts are no marks of JSON
    end, broken = text.index("[") + 1, False
    line = 1 + text.count("\n", 0, end)
    while (begin := _after_blanks(text, end)) < len(text) and text[begin] != "]":
        line += text.count("\n", end, begin)
        try:
            _, stop = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError):
            stop, broken = len(text), True
        yield begin, line, data[begin:stop].rstrip()
        line, end = line + text.count("\n", begin, stop), stop
    rest = _after_blanks(text, begin + 1)
    if rest < len(text):
        yield rest, line + text.count("\n", end, rest), data[rest:].rstrip()
    elif begin >= len(text) and not broken:
        yield end - 1, line, data[end - 1 : end]


def _after_blanks(text: str, position: int) -> int:
    match = _BETWEEN.match(text, position)
    return position if match is None else match.end()


def _agreeing(records: list[tuple[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records of a pair that agree with the earlier ones, and the others as rejected rows."""
    agreed: list[dict[str, Any]] = []
    rejects: list[dict[str, Any]] = []
    first: dict[str, tuple[Any, str]] = {}
    for where, record in records:
        values = {name: split_name(value) if name == "split" else value
                 for name in _ONE_VALUE if (value := record.get(name)) not in (None, "")}  # fmt: skip
        other = next((name for name, value in values.items() if name in first and first[name][0] != value), None)
        if other is None:
            first |= {name: (value, where) for name, value in values.items() if name not in first}
            agreed.append(record)
            continue
        first_value, first_where = first[other]
        here = f"{record['pair_id']} has {other} {values[other]!r} in {where}"
        rejects.append({"pair_id": where, "error": f"duplicate pair id: {here}, but {first_value!r} in {first_where}"})
    return agreed, rejects


# ---------------------------------------------------------------------------------- shared with folders and Parquet


def record_row(records: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """The row of a pair from its records (several if each holds one caption); a column gets its first value."""
    filled: dict[str, Any] = {}
    captions: list[Any] = []
    origins: list[Any] = []
    for record in records:
        captions += record_captions(record)
        record_origins = record.get(CAPTION_ORIGINS)
        origins += record_origins if isinstance(record_origins, list) else [None] * (len(captions) - len(origins))
        for name, value in record.items():
            if value not in (None, ""):
                filled.setdefault(name, value)
    row = {name: filled.get(name) for name in _ROW_COLUMNS}
    row |= {"captions": captions, "source": row["source"] or where}
    if isinstance(row[CAPTION_ORIGINS], list):  # anything else is rejected by the loading stage
        row[CAPTION_ORIGINS] = origins
    if other := {k: v for k, v in filled.items() if k not in KNOWN and not isinstance(v, bytes)}:
        meta = row["meta"]
        try:
            meta = parse_json(meta, keep_surrogates=True) if isinstance(meta, str) else meta
        except JsonError:
            return row  # the loading stage rejects it
        row["meta"] = {**other, **meta} if isinstance(meta, dict) else (meta or other)
    return row


def record_captions(record: dict[str, Any]) -> list[Any]:
    """The captions that a record has under ``captions`` and ``caption``."""
    value = record.get("captions")
    captions = list(value) if isinstance(value, list) else [] if value is None else [value]
    return captions if record.get("caption") is None else [*captions, record["caption"]]


def id_error(value: Any, where: str) -> str | None:
    """The reason why a value cannot be a pair id (text or a number), or None."""
    if value in (None, ""):
        return f"no pair id: {where}"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"bad row: pair_id of {where} is a {type(value).__name__}, not text or a number"
    return None


def check_columns(names: list[str], where: str) -> None:
    """Refuse a table without the required columns, or with two of one name.

    Raises:
        ValueError: names the absent or repeated columns.
    """
    if repeated := [name for name, count in Counter(names).items() if count > 1 and name]:
        raise ValueError(f"{where} has the column {', '.join(map(repr, repeated))} more than once; rename one of them")
    if absent := [name for name in IMAGES if name not in names]:
        above = "" if KNOWN.intersection(names) else ". Remove lines above the columns' names (a title, Excel's sep=;)"
        raise ValueError(
            f"{where} has no column {', '.join(absent)}; it has {', '.join(map(repr, names)) or 'none'}. "
            f"Required: {', '.join(IMAGES)}; known: {', '.join(sorted(KNOWN))}{above}"
        )


def split_name(value: Any) -> str:
    """Our name of a split, or the input's name if it is none of ours."""
    name = str(value).strip().lower()
    return SPLIT_NAMES.get(name, name)


def digest_of(value: Any) -> bytes:
    """A short key for a value, to find repeated ones."""
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogateescape"), digest_size=12).digest()
