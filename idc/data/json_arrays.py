"""A file that is one JSON array, read element by element: memory is that of one element."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_ARRAY_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?:\{|\]|$)")
_MARK = re.compile(rb'\\.|["\[\]{}]', re.DOTALL)
_BLOCK = 64 * 1024
_BETWEEN = b", \t\r\n"


class Element(NamedTuple):
    """The text of an element: its offset in the file, the number of its first line from 1, its bytes."""

    offset: int
    line: int
    data: bytes


def begins_array(stream: BinaryIO) -> bool:
    """Whether a JSON file is an array of objects; other files have an object per line."""
    return _ARRAY_BEGIN.match(stream.read(_BLOCK)) is not None


def iter_array(stream: BinaryIO) -> Iterator[Element]:
    """The elements of the array in a stream, from its position.

    No byte but blanks and commas is left out: what is between two objects or after the array is an element too, an
    element that does not close extends to the end, and one more (``}``) is no JSON if the array itself does not close.
    """
    buffer, base, line = bytearray(), stream.tell(), 1
    begin = position = depth = 0  # begin: of the bytes that are in no element yet
    in_string = closed = False

    def element(start: int, stop: int) -> Iterator[Element]:
        nonlocal begin, line
        text = bytes(buffer[start:stop])
        before = len(text) - len(text.lstrip(_BETWEEN))
        first = line + buffer.count(b"\n", begin, start + before)
        line += buffer.count(b"\n", begin, stop)
        begin = stop
        if stripped := text.strip(_BETWEEN):
            yield Element(base + start + before, first, stripped)

    while not closed and (block := stream.read(_BLOCK)):
        buffer += block
        for mark in _MARK.finditer(buffer, position):
            position, character = mark.end(), mark[0]
            if character == b'"':
                in_string = not in_string
            elif in_string or character[:1] == b"\\":
                continue
            elif character in b"[{":
                if depth == 0:
                    line += buffer.count(b"\n", begin, position)
                    begin = position
                elif depth == 1:
                    yield from element(begin, mark.start())
                depth += 1
            else:
                depth -= 1
                if depth < 2:
                    yield from element(begin, position - (depth == 0))
                if depth == 0:
                    closed, begin = True, position
                    break
        else:
            # a backslash at the end is read again, with the byte that it escapes
            position = len(buffer) - (buffer.endswith(b"\\") and position < len(buffer))
            cut = max(0, begin - 1)
            del buffer[:cut]
            base, begin, position = base + cut, begin - cut, position - cut
    buffer += stream.read()
    if not closed and not buffer[begin:].strip(_BETWEEN):
        begin = max(0, begin - 1)
    yield from element(begin, len(buffer))
