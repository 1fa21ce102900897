"""Pairs named by a CSV file, JSON lines or a JSON array; :mod:`idc.data.readers.own` describes the columns."""

from __future__ import annotations

import codecs
import hashlib
import io
from array import array
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from idc.data import files
from idc.data.json_arrays import begins_array, iter_array
from idc.data.pipeline import Batch
from idc.data.readers.base import rows_to_batch
from idc.data.readers.csv_rows import DELIMITERS, CsvLine, CsvRows, named_delimiter, read_header
from idc.data.readers.own import (
    IMAGES,
    KNOWN,
    NUMBERED,
    ImageFolders,
    digest_of,
    id_error,
    must_have,
    record_row,
    split_name,
)
from idc.data.schema import CAPTION_ORIGINS
from idc.data.store import fingerprint
from idc.data.textfiles import JsonError, decode_text, iter_lines, parse_json

_ONE_VALUE = ("split", "change_type", "mask")
"""Columns in which the records of one pair must agree."""


class TableReader:
    """Pairs named by a CSV file, JSON lines or a JSON array of objects; see the text of :mod:`idc.data.readers.own`.

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
        self._table, self._name = table, table.name
        self._each_row = each_row
        self.reader = files.Reader(table.parent, access)
        self._format = format
        self._chunk_size = chunk_size
        if not table.is_file():
            raise ValueError(f"{table} is not a file; format={format} takes one table")
        with self._open() as stream:
            if (head := stream.read(4)).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in head:
                raise ValueError(f"{table} is UTF-16; save it as UTF-8 (in Excel: CSV UTF-8)")
        self._first_line = 1
        self._header, self._delimiter, begin = self._csv_header() if format == "csv" else ([], ",", 0)
        self._cells = CsvRows(self._header, self._delimiter, IMAGES) if format == "csv" else None
        with self._open() as stream:
            self._array = format == "jsonl" and begins_array(stream)
        folders = ImageFolders(self.reader)
        self._scan(begin, folders)
        if not self.num_chunks:
            raise ValueError(f"{table} has no rows")
        other = sorted(set(self._header) - KNOWN)
        notes = [f"columns kept in meta: {', '.join(other)}"] if other else []
        notes += [NUMBERED] if self._numbered else []
        self.extra: dict[str, Any] = {"notes": [*folders.note(), *notes]}
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
                for entry in range(self._starts[pair], self._starts[pair + 1]):
                    stream.seek(int(self._offsets[entry]))
                    _, record = next(self._records(self._lines_from(stream, entry)))
                    records.append((f"{self._name}:{self._lines[entry]}", record))
                rows += self._rows(records, pair)
        return rows_to_batch(rows)

    def _rows(self, records: list[tuple[str, dict[str, Any] | str]], pair: int) -> list[dict[str, Any]]:
        """The row of a pair from its records and their positions, and a reject for each contradicting record."""
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

    def _scan(self, begin: int, folders: ImageFolders) -> None:
        """One pass over the file to find where each pair's records are."""
        pairs: dict[bytes, tuple[int, bytes]] = {}
        owners, offsets, lines, sizes = array("q"), array("q"), array("q"), array("q")
        self._duplicates: set[int] = set()
        self._has_origins, count = False, 0
        self._numbered = not self._each_row
        hashed = hashlib.sha256(repr((self._header, self._delimiter)).encode("utf-8", "surrogateescape"))
        with self._open() as stream:
            stream.seek(begin)
            for line, record in self._records(self._lines_of(stream, hashed)):
                owner, name = count, record.get("pair_id") if isinstance(record, dict) else None
                if isinstance(record, dict):
                    folders.add(record)
                self._has_origins |= isinstance(record, dict) and record.get(CAPTION_ORIGINS) is not None
                if not self._each_row and isinstance(record, dict) and name not in (None, ""):
                    self._numbered = False
                    images = digest_of([record.get("before"), record.get("after")])
                    owner, owner_images = pairs.setdefault(digest_of(str(name)), (count, images))
                    if owner_images != images:
                        owner = count
                        self._duplicates.add(count)
                count += owner == count
                owners.append(owner)
                offsets.append(line.offset)
                lines.append(line.number)
                if self._array:
                    sizes.append(len(line.text.encode("utf-8", "surrogateescape")))
        # Stable: the records of a pair stay in the order of the file.
        order = np.argsort(np.array(owners, np.int64), kind="stable")
        self._offsets = np.array(offsets, np.int64)[order]
        self._lines = np.array(lines, np.int64)[order]
        self._sizes = np.array(sizes, np.int64)[order] if self._array else None
        records_of = np.bincount(np.array(owners, np.int64), minlength=count)
        self._starts = np.concatenate([[0], np.cumsum(records_of)]).astype(np.int64)
        self.fingerprint = fingerprint(self._format, self._chunk_size, hashed.hexdigest())

    def _open(self) -> io.BufferedReader:
        return io.BufferedReader(self._table.open())

    def _lines_of(self, stream: io.BufferedReader, hashed: Any = None) -> Iterator[CsvLine]:
        """The lines from the stream's position; numbers are the file's if the position is after its header."""
        if self._array:
            for element in iter_array(stream):
                if hashed is not None:
                    hashed.update(element.data)
                yield CsvLine(element.offset, element.line, element.data.decode("utf-8", "surrogateescape"))
            return
        offset = stream.tell()
        for number, raw in enumerate(iter_lines(stream), start=self._first_line):
            if hashed is not None:
                hashed.update(raw)
            yield CsvLine(offset, number, raw.decode("utf-8", "surrogateescape"))
            offset += len(raw)

    def _lines_from(self, stream: io.BufferedReader, entry: int) -> Iterator[CsvLine]:
        """The lines from the stream's position, which is that of an entry; of an array the entry alone."""
        if self._sizes is None:
            return self._lines_of(stream)
        text = stream.read(int(self._sizes[entry])).decode("utf-8", "surrogateescape")
        return iter([CsvLine(int(self._offsets[entry]), int(self._lines[entry]), text)])

    def _records(self, lines: Iterator[CsvLine]) -> Iterator[tuple[CsvLine, dict[str, Any] | str]]:
        """The records with their first lines; the error in place of one that cannot be read."""
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
        """The names of the columns, the delimiter, and where the line after them begins."""
        with self._open() as stream:
            lines = iter_lines(stream)
            raw = next(lines, b"")
            try:
                named = named_delimiter(decode_text(raw))
                begin, self._first_line = (len(raw), 3) if named else (0, 2)
                raw = next(lines, b"") if named else raw
                header, delimiter = read_header(decode_text(raw), KNOWN, (named,) if named else DELIMITERS)
            except ValueError as exc:
                raise ValueError(f"{self._name} is {exc}") from exc
        must_have(header, self._name)
        return header, delimiter, begin + len(raw)


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


def _json_record(text: str) -> dict[str, Any] | str:
    try:
        record = parse_json(text, keep_surrogates=True)
    except JsonError as exc:
        return f"bad row: {exc}"
    return record if isinstance(record, dict) else f"bad row: a {type(record).__name__}, not a JSON object"
