"""A file that is one JSON array: where its elements are, so that each can be read by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_ARRAY_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?:\{|\]|$)")
_HEAD = 64 * 1024
_BETWEEN = re.compile(r"[, \t\r\n]*")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
"""Finds the end of an element; whether it is a row is seen when it is read."""


class Element(NamedTuple):
    """The text of an element: its offset in the file, the number of its first line from 1, its bytes."""

    offset: int
    line: int
    data: bytes


def begins_array(stream: BinaryIO) -> bool:
    """Whether a JSON file is an array of objects; other files have an object per line."""
    return _ARRAY_BEGIN.match(stream.read(_HEAD)) is not None


def iter_array(stream: BinaryIO) -> Iterator[Element]:
    """The elements of the array in a stream, which is read whole.

    No byte but blanks and commas is left out: what follows an element that is not JSON, or the array, is an element
    too, and if the array does not close, so is the last byte of its last element, which is no row.
    """
    data = stream.read()
    text = data.decode("latin-1")  # a character for each byte; those of UTF-8 texts are no marks of JSON
    position = end = text.index("[") + 1
    line, counted, broken = 1, 0, False
    while (position := _after_blanks(text, position)) < len(text) and text[position] != "]":
        try:
            _, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end, broken = len(text), True
        line, counted = line + text.count("\n", counted, position), position
        yield Element(position, line, data[position:end].rstrip())
        position = end
    rest = _after_blanks(text, position + 1)
    if rest < len(text):
        yield Element(rest, line + text.count("\n", counted, rest), data[rest:].rstrip())
    elif position >= len(text) and not broken:
        yield Element(end - 1, line + text.count("\n", counted, end), data[end - 1 : end])


def _after_blanks(text: str, position: int) -> int:
    match = _BETWEEN.match(text, position)
    return position if match is None else match.end()
