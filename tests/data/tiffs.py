"""TIFFs written by hand: any tags, in both byte orders, with 32 and 64 bits; those that a decoder must not open."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

SIDE = 8
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 7: 1, 12: 8, 13: 4, 16: 8}
_LETTERS = {3: "H", 4: "I", 12: "d", 13: "I", 16: "Q"}


class At(NamedTuple):
    """So many values of a tag, wherever they are: from this position on."""

    count: int
    position: int


class Of(NamedTuple):
    """The position of another directory, by its number."""

    number: int


Values = list[int] | list[float] | bytes | At | Of
Tags = dict[int, tuple[int, Values]]
"""Number -> type and values."""
PIXELS = 16
"""Position of the pixels: behind the longest header."""
IMAGE: Tags = {
    256: (4, [SIDE]), 257: (4, [SIDE]), 258: (3, [8]), 259: (3, [1]), 262: (3, [1]), 273: (4, [PIXELS]), 277: (3, [1]),
    278: (4, [SIDE]), 279: (4, [SIDE * SIDE]),
}  # fmt: skip
PLACE: Tags = {
    33550: (12, [0.5, 0.5, 0.0]), 33922: (12, [0.0, 0.0, 0.0, 5e5, 5.3e6, 0.0]),
    34735: (3, [1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32632]),
}  # fmt: skip


def tiff(*directories: Tags, order: str = "<", big: bool = False, then: int | None = None) -> bytes:
    """A file of these directories, in one chain but for those that a tag points to.

    Args:
        then: number of the directory that follows the last one of the chain.
    """
    word, length = ("Q", 8) if big else ("I", 4)
    data = bytearray(PIXELS) + bytes(range(SIDE * SIDE))
    starts, pointers = [], []
    for directory in directories:
        entries = bytearray()
        for number, (kind, values) in sorted(directory.items()):
            value = bytes(length)
            if isinstance(values, At):
                count, value = values.count, struct.pack(order + word, values.position)
            elif isinstance(values, Of):
                count = 1
                pointers.append((len(starts), len(entries) + 4 + length, values.number))
            else:
                numbers = f"{order}{len(values)}{_LETTERS.get(kind, '')}"
                raw = values if isinstance(values, bytes) else struct.pack(numbers, *values)
                count, value = len(raw) // _BYTES[kind], raw.ljust(length, b"\0")
                if len(raw) > length:
                    value = struct.pack(order + word, len(data))
                    data += raw + bytes(len(raw) % 2)
            entries += struct.pack(f"{order}HH{word}", number, kind, count) + value
        starts.append(len(data))
        data += struct.pack(order + ("Q" if big else "H"), len(directory)) + entries + bytes(length)
    head = 8 if big else 2
    chain = [number for number in range(len(starts)) if number not in {target for *_, target in pointers} - {0}]
    for number, following in zip(chain, [*chain[1:], then], strict=True):
        end = starts[number] + head + len(directories[number]) * (4 + 2 * length)
        struct.pack_into(order + word, data, end, 0 if following is None else starts[following])
    for number, at, target in pointers:
        struct.pack_into(order + "I", data, starts[number] + head + at, starts[target])
    version = (43, 8, 0, starts[0]) if big else (42, starts[0])
    magic = (b"II" if order == "<" else b"MM") + struct.pack(order + ("HHHQ" if big else "HI"), *version)
    data[: len(magic)] = magic
    return bytes(data)


def tiled(width: int, height: int) -> Tags:
    """An image of 8x8 pixels in one tile, packed by deflate, whose bytes are not there."""
    strips = (273, 278, 279)
    return {number: tag for number, tag in IMAGE.items() if number not in strips} | {
        259: (3, [8]), 322: (4, [width]), 323: (4, [height]), 324: (4, [PIXELS]), 325: (4, [64]),
    }  # fmt: skip


MASK: Tags = tiled(46_336, 46_320) | {254: (4, [4]), 258: (3, [1]), 262: (3, [4])}
SMALLER: Tags = IMAGE | {254: (4, [1]), 256: (4, [4]), 257: (4, [4])}
_ITEMS = b"".join(b'<Item name="%d">1</Item>' % n for n in range(6000))

FIRST: dict[str, tuple[Callable[[], list[Tags]], str]] = {
    "a tile of 2 GiB": (lambda: [tiled(46_336, 46_320)], "8 x 8 pixels is stored in blocks of 46336 x 46320"),
    "a tile of 256 MiB": (lambda: [tiled(16_384, 16_384)], "blocks of 16384 x 16384"),
    "2,000 tags": (lambda: [{50_000 + n: (3, [1]) for n in range(2000)}], "2,0.. tags, more than 1000"),
    "2,000 fractions": (lambda: [{282: (5, bytes(16_000))}], "tag 282 has 2,000 values"),
    "a million numbers": (lambda: [{320: (3, bytes(2_000_000))}], "tag 320 has 1,000,000 values"),
    "strips without end": (lambda: [{273: (4, bytes(1_000_000)), 278: (4, [1])}], "positions of 250,000 blocks"),
    "the same bytes in all tags": (
        lambda: [{270: (2, bytes(10_000)), 50_000: (7, At(9_000, 80)), 50_001: (7, At(9_000, 80))}], "tags overlap"
    ),
    "metadata of 6,000 items": (lambda: [{42112: (2, _ITEMS)}], "metadata .tag 42112. have more than 5,000 items"),
    "metadata of 2 MiB": (lambda: [{42112: (2, bytes(2**21))}], "tag 42112 has 2,097,152 bytes"),
    "a coordinate system of 100 kB": (lambda: [{34737: (2, bytes(100_000))}], "tag 34737 has 100,000 bytes"),
    "fractions in EXIF": (lambda: [{34665: (4, Of(1))}, {33434: (5, bytes(16_000))}], "tag 33434 has 2,000 values"),
}  # fmt: skip
"""Directories, of which the first is completed by those of an image, and the reason why the file is refused."""
FURTHER: dict[str, tuple[Callable[[], list[Tags]], str]] = {
    "a mask in a tile of 2 Gpixels": (lambda: [{}, MASK], "8 x 8 pixels is stored in blocks of 46336 x 46320"),
    "the same under SubIFDs": (lambda: [{330: (4, Of(1))}, MASK], "blocks of 46336 x 46320"),
    "2,000 overviews": (lambda: [{}, *[SMALLER] * 2000], "more than 1000 directories"),
}  # fmt: skip
"""The same of what is not the first image, which only GDAL reads."""
