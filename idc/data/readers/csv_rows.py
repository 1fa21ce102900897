"""CSV of others, row by row: an unreadable row is reported and does not affect other rows.

A quoted cell may hold delimiters, doubled quotes and line ends. Its closing quote must be followed by a delimiter or a
line end, at most :data:`MAX_LINES` lines after the opening one; otherwise the line of the opening quote is rejected and
the lines after it are read as rows of their own. The same holds where a quoted cell would contain whole rows, as with
inch marks: an opening ``"9 inch`` in one row and a closing ``10"`` in a later one.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_LINES = 64
"""Most lines over which a quoted cell may extend."""
MAX_CELL = 131_072
"""Characters of a cell; the limit of Python's ``csv``."""

DELIMITERS = (",", ";", "\t")
_SEPARATOR = re.compile(r'"?sep=([^"])"?')
_FILE_NAME = re.compile(r'\s*[^\s"][^"]*(?:\.\w{2,5}|://[^"]+)\s*')


class CsvLine(NamedTuple):
    """A line of a file with its line end: its offset, its number from 1, its text."""

    offset: int
    number: int
    text: str


class Cells(NamedTuple):
    """The cells of a row, or its error; ``line`` is its first line."""

    line: CsvLine
    cells: list[str] | str


class CsvRows:
    """Reads the rows of a table.

    Args:
        header: the names of the columns.
        images: the columns whose cells are file names; a line is recognised as a row by them.
    """

    def __init__(self, header: Sequence[str], delimiter: str, images: Sequence[str]) -> None:
        self.delimiter = delimiter
        self._columns = len(header)
        self._images = [header.index(name) for name in images]

    def read(self, lines: Iterator[CsvLine]) -> Iterator[Cells]:
        """The rows of the lines after the header. Spaces around cells are dropped; empty lines and rows of empty cells
        are skipped."""
        buffered_lines = _Lines(lines)
        for line in buffered_lines:
            if '"' in line.text:
                cells = self._quoted(line, buffered_lines)
            else:
                text = line.text.rstrip("\r\n")
                cells = text.split(self.delimiter)
                if len(text) > MAX_CELL and max(map(len, cells)) > MAX_CELL:
                    cells = f"bad row: a cell of more than {MAX_CELL} characters"
            if isinstance(cells, list):
                cells = [cell.strip(" ") for cell in cells]
                if not any(cells):
                    continue
                if len(cells) > self._columns:
                    cells = f"bad row: {len(cells)} cells under {self._columns} columns"
            yield Cells(line, cells)

    def _quoted(self, line: CsvLine, lines: _Lines) -> list[str] | str:
        """The cells of a row with quotes; consumes further lines as far as its cells extend."""
        taken: list[CsvLine] = []
        open_until = ""

        def texts() -> Iterator[str]:
            nonlocal open_until
            yield line.text
            names_files = self._names_files(line)
            for further in lines:
                taken.append(further)
                if names_files and self._names_files(further):
                    open_until = "before the next row begins"
                    return
                yield further.text
                if len(taken) == MAX_LINES - 1:
                    open_until = f"within {MAX_LINES} lines"
                    return
            open_until = "before the file ends"

        try:
            return next(csv.reader(texts(), delimiter=self.delimiter, strict=True, skipinitialspace=True))
        except csv.Error as error:
            lines.put_back(taken)
            if open_until:
                return f"bad row: the quote of a cell is not closed {open_until}"
            if "expected after" in str(error):
                return (
                    "bad row: a quote in a quoted cell is followed by neither a delimiter nor a line end; write a "
                    "quote that belongs to the text twice"
                )
            return f"bad row: {error}"

    def _names_files(self, line: CsvLine) -> bool:
        """Whether a line, by itself, has file names where a row has them."""
        cells = line.text.split(self.delimiter)
        return len(cells) > max(self._images) and all(_FILE_NAME.fullmatch(cells[i]) for i in self._images)


class _Lines(Iterator[CsvLine]):
    """An iterator of lines to which lines can be put back."""

    def __init__(self, lines: Iterator[CsvLine]) -> None:
        self._lines = lines
        self._back: deque[CsvLine] = deque()

    def __next__(self) -> CsvLine:
        return self._back.popleft() if self._back else next(self._lines)

    def put_back(self, lines: Sequence[CsvLine]) -> None:
        self._back.extendleft(reversed(lines))


def named_delimiter(text: str) -> str | None:
    """The delimiter that a first line names as Excel writes it (``sep=;``); None of another line."""
    match = _SEPARATOR.fullmatch(text.rstrip("\r\n"))
    return match[1] if match else None


def read_header(text: str, expected: frozenset[str], delimiters: Sequence[str] = DELIMITERS) -> tuple[list[str], str]:
    """The names of the columns, and the one of the delimiters that yields most known names."""
    line = text.rstrip("\r\n")
    names_by_mark = {
        mark: [name.strip() for name in next(csv.reader([line], delimiter=mark, skipinitialspace=True), [])]
        for mark in delimiters
    }
    delimiter = max(names_by_mark, key=lambda mark: len(set(names_by_mark[mark]) & expected))
    return names_by_mark[delimiter], delimiter
