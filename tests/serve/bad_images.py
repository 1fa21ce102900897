"""Image files that a server must refuse: damaged, of other formats, or larger than they may be."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np

from tests.serve.bodies import picture, saved


def png(width: int, height: int, data: bytes, *extra: tuple[bytes, bytes], bits: int = 8, colour: int = 0) -> bytes:
    """A handmade PNG: ``data`` is the compressed pixel stream, ``extra`` are further chunks before it."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), *extra, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


SMALL = zlib.compress(bytes(8 * 9))
"""The pixel stream of a grey PNG of 8 x 8 pixels."""


def geotiff_claiming(width: int, height: int, bands: int = 3, bits: int = 8) -> bytes:
    """A GeoTIFF of a header alone, which claims this size."""
    doubles = struct.pack("<9d", 0.5, 0.5, 0, 0, 0, 0, 500_000, 5_300_000, 0)
    keys = struct.pack("<8H", 1, 1, 0, 1, 3072, 0, 1, 32632)
    tags = [
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, bits), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 8),
        (277, 3, 1, bands), (278, 4, 1, height), (279, 4, 1, 8), (33550, 12, 3, 8), (33922, 12, 6, 32),
        (34735, 3, 8, 80),
    ]  # fmt: skip
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    return struct.pack("<2sHI", b"II", 42, 8 + len(doubles) + len(keys)) + doubles + keys + directory


def jpeg_of_scans(scans: int, side: int) -> bytes:
    """A grey progressive JPEG of ``side`` x ``side`` that repeats the scan of its other coefficients, all zero."""

    def segment(marker: int, body: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body

    def table(kind: int, symbol: int) -> bytes:
        return segment(0xC4, bytes([kind, 1, *[0] * 15, symbol]))  # one symbol, whose code is a single zero

    def scan(first: int, last: int, data: bytes) -> bytes:
        return segment(0xDA, bytes([1, 1, 0, first, last, 0])) + data.replace(b"\xff", b"\xff\0")

    blocks = (side // 8) ** 2
    runs = "".join(f"0{'1' * 14}" for _ in range(-(-blocks // 32767)))  # "the next 32,767 blocks are zero"
    runs += "0" * (-len(runs) % 8)
    empty = scan(1, 63, int(runs, 2).to_bytes(len(runs) // 8, "big"))
    frame = segment(0xC2, struct.pack(">BHHBBBB", 8, side, side, 1, 1, 0x11, 0))
    head = b"\xff\xd8" + segment(0xDB, bytes([0, *[1] * 64])) + frame + table(0x00, 0) + table(0x10, 0xE0)
    return head + scan(0, 0, bytes(-(-blocks // 8))) + empty * scans + b"\xff\xd9"


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'

IMAGES: dict[str, tuple[int, Callable[[], bytes]]] = {
    "a truncated PNG": (400, lambda: picture()[: len(picture()) // 2]),
    "an SVG": (400, lambda: SVG),
    "one pixel high": (400, lambda: saved(np.zeros((1, 64, 3), np.uint8))),
    "a JPEG of 20,000 scans": (400, lambda: jpeg_of_scans(20_000, 4992)),
    "a PNG of 100,000 chunks": (400, lambda: png(8, 8, SMALL, *[(b"abCd", b"")] * 100_000)),
    "20,000 pixels wide": (413, lambda: saved(np.zeros((8, 20_000, 3), np.uint8))),
    "a PNG that claims 100,000 x 100,000 pixels": (413, lambda: png(100_000, 100_000, SMALL)),
    "a PNG that claims 2^31-1 x 1 pixels": (413, lambda: png(2**31 - 1, 1, SMALL)),
}
"""One of each reason for which the server refuses an image, with its status; tests/data/test_images.py has the rest."""
