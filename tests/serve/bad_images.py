"""Image files that a server must refuse: damaged, of other formats, or larger than they may be."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np

from tests.data.tiffs import IMAGE, tiff, tiled
from tests.serve.bodies import picture, saved


def png(width: int, height: int, data: bytes, *extra: tuple[bytes, bytes], bits: int = 8, colour: int = 0) -> bytes:
    """A handmade PNG: ``data`` is the compressed pixel stream, ``extra`` are further chunks before it."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), *extra, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


@cache
def zeros(mib: int) -> bytes:
    """A zlib stream that expands to ``mib`` MiB of zeros."""
    packer, block = zlib.compressobj(9), bytes(2**20)
    return b"".join(packer.compress(block) for _ in range(mib)) + packer.flush()


def small_pixels(width: int = 8, height: int = 8) -> bytes:
    """The pixel stream of a small grey PNG."""
    return zlib.compress(bytes(height * (width + 1)))


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


def jpeg_claiming(width: int, height: int) -> bytes:
    """A small JPEG whose header claims another size."""
    data = saved(np.full((16, 16, 3), 90, np.uint8), "JPEG")
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


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


def tiff_claiming(width: int, height: int) -> bytes:
    """A TIFF of one strip whose header claims a huge size."""
    tags = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 4)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 12) + bytes(4) + struct.pack("<H", len(tags)) + entries + bytes(4)


_AVIF = (
    "c-muNV30{GsVqn=%S>Yc0uY^>nP!-qnF!*)%uOvxWPkw0jFg-rD4U@mGr5ET4e%9YmgIt2j6f`xnUkLk;<$kLj1W;qUIqsCY9L!9"
    "Gczv@u2u@jNo9ia63Yw>o%3_@!FFY278Df#Y0u1p<a{74l384k3bl^|ih=f4WP&w=csz+^hR%)hG9Urr<oukXyyTn;pt-yZYz;sm"
    "@yvo;n2&(YVqs)zW&ygXIX5M-M2LZlTmF0f|NnoNF-h?{7`^0^VBQ#3{=eIvfx+_pDIM=k>ozOcX{=hM?w_G+`e5;mM{5EuRp?hb"
    "w4W}}a%*7Ml9(FO_rbFLz^}@$(?vJ>24rZtYfbVQ)jFzmRO_hLQLUp|hqqSpbpiltvX;s"
)
"""Packed AVIF of 16384 x 16384 grey pixels whose header claims 8 x 8; Pillow encodes it from 5 GB."""


def avif_claiming_8x8() -> bytes:
    """An AVIF of 2 kB that a decoder without limits unpacks to 16384 x 16384 pixels."""
    return zlib.decompress(base64.b85decode(_AVIF))


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
_EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(/etc/passwd) run showpage\n%%EOF\n"

_JPEG = saved(np.full((16, 16, 3), 90, np.uint8), "JPEG")

IMAGES: dict[str, Callable[[], bytes]] = {
    "truncated PNG": lambda: picture()[: len(picture()) // 2],
    "truncated JPEG": lambda: saved(np.full((64, 64, 3), 90, np.uint8), "JPEG")[:300],
    "PNG with a damaged checksum": lambda: picture()[:-20] + b"\0\0\0\0" + picture()[-16:],
    "PNG without pixels": lambda: png(8, 8, b""),
    "PNG with a stream that is no zlib": lambda: png(8, 8, b"not compressed at all"),
    "SVG": lambda: SVG,
    "EPS, a program": lambda: _EPS,
    "HTML": lambda: b"<!doctype html><script>alert(1)</script>",
    "AVIF": lambda: saved(np.full((64, 64, 3), 90, np.uint8), "AVIF"),
    "AVIF that claims 8 x 8 and holds 16384 x 16384": avif_claiming_8x8,
    "ZIP": lambda: b"PK\x03\x04" + bytes(60),
    "pickle": lambda: b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "one pixel": lambda: picture(1, 1),
    "one pixel high": lambda: saved(np.zeros((1, 64, 3), np.uint8), "PNG"),
    "PNG that claims 0 x 0": lambda: png(0, 0, small_pixels()),
    "PNG with a zTXt of 64 MiB": lambda: png(8, 8, small_pixels(), (b"zTXt", b"Comment\0\0" + zeros(64))),
    "PNG with an iTXt of 64 MiB": lambda: png(8, 8, small_pixels(), (b"iTXt", b"x\0\1\0\0\0" + zeros(64))),
    "PNG with an iCCP of 64 MiB": lambda: png(8, 8, small_pixels(), (b"iCCP", b"icc\0\0" + zeros(64))),
    "JPEG of 20,000 scans": lambda: jpeg_of_scans(20_000, 4992),
    "JPEG of 200,000 segments": lambda: _JPEG[:2] + b"\xff\xed\0\2" * 200_000 + _JPEG[2:],
    "PNG of 100,000 chunks": lambda: png(8, 8, small_pixels(), *[(b"abCd", b"")] * 100_000),
    "PPM with a comment of 1 MiB": lambda: b"P6\n#" + b"x" * 2**20 + b"\n8 8\n255\n" + bytes(192),
    "TIFF with a resolution of two million numbers": lambda: tiff(IMAGE | {282: (5, bytes(16 * 10**6))}),
    "GIF that claims 65,535 x 65,535": lambda: (
        b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0"
    ),
}
"""Files that are not images, or that must not be opened."""

TOO_LARGE: dict[str, Callable[[], bytes]] = {
    "20,000 pixels wide": lambda: saved(np.zeros((8, 20_000, 3), np.uint8), "PNG"),
    "20,000 x 20,000 pixels in 50 kB": lambda: png(20_000, 20_000, zeros(48), bits=1),
    "PNG that claims 100,000 x 100,000": lambda: png(100_000, 100_000, small_pixels()),
    "PNG that claims 2^31-1 x 1": lambda: png(2**31 - 1, 1, small_pixels()),
    "JPEG that claims 65,000 x 65,000": lambda: jpeg_claiming(65_000, 65_000),
    "TIFF that claims 100,000 x 100,000": lambda: tiff_claiming(100_000, 100_000),
    "TIFF of 8 x 8 in a tile of 2 GiB": lambda: tiff(tiled(46_336, 46_320)),
    "BMP that claims 100,000 x 100,000": lambda: (
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 60, 0, 0, 54, 40, 100_000, 100_000, 1, 24, 0, 0, 0, 0, 0, 0)
    ),
}
"""Images with too many pixels, in fact or by their headers."""
