"""Image files made by hand: a GeoTIFF that claims a size, a JPEG of many scans."""

from __future__ import annotations

import struct


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
