"""JPEG 2000 files whose headers ask for gigabytes are refused before they are decoded; those of encoders are read."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idc.data.images import ImageError, decode_image

PIXELS = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def coding(levels: int = 5, block: int = 64, layers: int = 1, precinct: int | None = None) -> bytes:
    exponent = block.bit_length() - 3
    head = struct.pack(">BBHBBBBBB", precinct is not None, 0, layers, 0, levels, exponent, exponent, 0, 1)
    return segment(0x52, head + (b"" if precinct is None else bytes([precinct.bit_length() * 17 - 17]) * (levels + 1)))


def stream(
    side: int = 7000, tile: int = 7000, components: int = 3, main: bytes = b"", of_tile: bytes = b"", bits: int = 8,
    style: bytes = coding(), before_size: bytes = b"",
) -> bytes:  # fmt: skip
    """A codestream of black pixels, square, with segments in its header and in that of its first tile."""
    size = struct.pack(">H8IH", 0, side, side, 0, 0, tile, tile, 0, 0, components)
    size += bytes([bits - 1, 1, 1]) * components
    steps = segment(0x5C, b"\x40" + b"\x40" * 16)
    part = b"\xff\x90\0\x0a\0\0\0\0\0\0\0\1" + of_tile + b"\xff\x93" + b"\x80" * 20
    return b"\xff\x4f" + before_size + segment(0x51, size) + style + steps + main + part + b"\xff\xd9"


def boxed(codestream: bytes, side: int) -> bytes:
    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(content), kind) + content

    header = struct.pack(">IIHBBBB", side, side, 3, 7, 7, 0, 0)
    boxes = box(b"ihdr", header) + box(b"colr", struct.pack(">BBBI", 1, 0, 0, 16))
    start = box(b"jP  ", b"\r\n\x87\n") + box(b"ftyp", b"jp2 \0\0\0\0jp2 ") + box(b"jp2h", boxes)
    return start + box(b"free", b"\xff\x4f\xff\x51") + box(b"jp2c", codestream)


COPIED = segment(0x74, struct.pack(">HHH", 0, 0x401, 0) + bytes(60_000))
BOMBS = {
    "tiles": stream(255, 1),
    "components": boxed(stream(255, 1, components=40), 255),  # 6 GB
    "size behind another marker": boxed(stream(255, 1, components=40, before_size=b"\xff\x30"), 255),
    "other size than its header": boxed(stream(20_000, 20_000), 10),
    "bits": stream(bits=31),
    "small blocks": stream(style=coding(block=4)),
    "small blocks of a tile": stream(of_tile=coding(block=4)),
    "small blocks of a component": stream(of_tile=segment(0x53, bytes([1, 0, 5, 0, 0, 0, 1]))),
    "small precincts": stream(2000, 2000, style=coding(precinct=2)),
    "layers": stream(2000, 2000, style=coding(layers=60_000, precinct=64)),
    "what is copied to each tile": stream(100, 1, main=COPIED),
    "many boxes": boxed(stream(64, 64), 64).replace(b"\0\0\0\x0cfree", b"\0\0\0\x08free" * 1000 + b"\0\0\0\x0cfree"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_header_that_asks_for_gigabytes_is_refused(kind: str) -> None:
    with pytest.raises(ImageError, match="too many pixels: it"):
        decode_image(BOMBS[kind])


HONEST: list[dict[str, Any]] = [
    {"no_jp2": True}, {"tile_size": (64, 64)}, {"codeblock_size": (4, 4)}, {"num_resolutions": 1},
    {"precinct_size": (64, 64), "codeblock_size": (32, 32)}, {"quality_layers": [40, 20, 10]},
    {"tile_size": (128, 128), "offset": (100, 50), "tile_offset": (50, 20)},
]  # fmt: skip


@pytest.mark.parametrize("options", HONEST)
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_files_of_encoders_are_read(mode: str, options: dict[str, Any]) -> None:
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, "JPEG2000", **options)
    assert decode_image(file.getvalue()).shape == PIXELS.shape
    assert decode_image(boxed(stream(64, 64), 64)).shape == (64, 64, 3)
